//! Locks without poisoning: a panic ends the program in a release build, so only tests ever see a poisoned
//! lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
