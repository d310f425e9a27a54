//! Locks are taken whatever became of who had them: a panic ends the program, or is a test's.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
