//! What is true of this process's threads, and not of a child's: which locks they hold, which calls they are
//! in, whose the connection is. A child finds it zero, however it was forked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};

use mappings::per_process::PerProcess;

static WORDS: PerProcess<5> = PerProcess::new();
const OWNER: usize = 0;
const LOCK: usize = 1;
const EPOCH: usize = 2;

/// The state that this process has from its parent has not been examined yet.
const NEW: usize = 0;
const EXAMINED: usize = 1;
const OWN: usize = 2;
const ORPHAN: usize = 3;

/// When the library is loaded: the state is this process's.
pub fn begin() {
    WORDS.map();
    WORDS.words()[OWNER].store(OWN, Ordering::Release);
}

/// In a child, by the C library's handlers: its state is whole, and has not been adapted yet.
pub fn begin_in_child() {
    WORDS.words()[OWNER].store(NEW, Ordering::Release);
}

/// Whether this process may use the state. A child that was forked by clone, which runs no handlers, may not
/// if a thread of its parent's was changing it: that thread, and so the end of the change, is not here. One
/// thread of a new child calls `adapt` before any thread gets an answer.
pub fn has_state<T>(state: &Mutex<T>, adapt: impl Fn(&mut T)) -> bool {
    let owner = &WORDS.words()[OWNER];
    loop {
        match owner.load(Ordering::Acquire) {
            OWN => return true,
            ORPHAN => return false,
            NEW if owner.compare_exchange(NEW, EXAMINED, Ordering::Acquire, Ordering::Relaxed).is_ok() => {
                let found = match state.try_lock() {
                    Ok(state) => Some(state),
                    Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
                    Err(TryLockError::WouldBlock) => None,
                };
                let is_ours = found.is_some();
                if let Some(mut state) = found {
                    adapt(&mut state);
                }
                owner.store(if is_ours { OWN } else { ORPHAN }, Ordering::Release);
            }
            _ => std::thread::yield_now(),
        }
    }
}

/// Whether a thread has the lock of the interposed functions.
pub fn lock_word() -> &'static AtomicUsize {
    &WORDS.words()[LOCK]
}

/// Selects the counter for calls of the interposed functions that begin now.
pub fn epoch_word() -> &'static AtomicUsize {
    &WORDS.words()[EPOCH]
}

/// The calls in progress.
pub fn active_words() -> &'static [AtomicUsize] {
    &WORDS.words()[EPOCH + 1..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_lacks_a_state_that_another_thread_was_changing() {
        // The process's own words: no other unit test may depend on them.
        let (state, adapted) = (Mutex::new(0), AtomicUsize::new(0));
        let asked = || {
            has_state(&state, |n| {
                *n += 1;
                adapted.fetch_add(1, Ordering::Relaxed);
            })
        };
        let before = WORDS.words()[OWNER].load(Ordering::Relaxed);
        begin_in_child();
        assert!(asked() && asked() && adapted.load(Ordering::Relaxed) == 1);
        begin_in_child();
        let held = state.lock().unwrap();
        assert!(!asked());
        drop(held);
        assert!(!asked() && adapted.load(Ordering::Relaxed) == 1);
        WORDS.words()[OWNER].store(before, Ordering::Relaxed);
    }
}
