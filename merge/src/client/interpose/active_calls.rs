//! Calls of the interposed functions that are in progress. A call that has found its range not to be advised
//! makes its system call a moment later; the scheduler may delay it in between for as long as a whole advice
//! takes. So `advise` adds the range to the table, waits for the calls that began before, and only then
//! shares it; later calls find the range in the table. A forked child has no such calls.

use std::sync::atomic::Ordering;

use crate::client::this_process::{active_words, epoch_word};

/// A call in progress, as long as this lives.
pub struct ActiveCall(usize);

/// Begins a call.
pub fn begin() -> ActiveCall {
    loop {
        let epoch = epoch_word().load(Ordering::SeqCst);
        active_words()[epoch].fetch_add(1, Ordering::SeqCst);
        if epoch_word().load(Ordering::SeqCst) == epoch {
            return ActiveCall(epoch);
        }
        drop(ActiveCall(epoch));
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        // A child that a signal handler forked within a call ends a call that was not counted there.
        let less = |calls: usize| calls.checked_sub(1);
        let _ = active_words()[self.0].fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

/// Waits for the calls that began before. One thread at a time; calls that begin meanwhile do not delay it.
pub fn wait_for_earlier() {
    let epoch = epoch_word().load(Ordering::SeqCst);
    epoch_word().store(1 - epoch, Ordering::SeqCst);
    while active_words()[epoch].load(Ordering::SeqCst) != 0 {
        // SAFETY: takes no arguments.
        unsafe { libc::sched_yield() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn waits_for_earlier_calls_and_no_others() {
        let (mut calls, is_over) = (vec![begin()], AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_for_earlier();
                is_over.store(true, Ordering::SeqCst);
            });
            let epoch = calls[0].0;
            while epoch_word().load(Ordering::SeqCst) == epoch {
                std::thread::yield_now();
            }
            calls.push(begin());
            assert!(!is_over.load(Ordering::SeqCst), "the first call is not over");
            calls.remove(0);
            while !is_over.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
    }
}
