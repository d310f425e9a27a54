//! Calls of the interposed functions that are in progress. A call that has found its range not to be advised
//! makes its system call a moment later; the scheduler may delay it in between for as long as a whole advice
//! takes. So `advise` adds the range to the table, waits for the calls that began before, and only then
//! shares it; later calls find the range in the table.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Selects the counter for calls that begin now.
static EPOCH: AtomicUsize = AtomicUsize::new(0);
static ACTIVE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// A call in progress, as long as this lives.
pub struct ActiveCall(usize);

/// Begins a call.
pub fn begin() -> ActiveCall {
    loop {
        let epoch = EPOCH.load(Ordering::SeqCst);
        ACTIVE[epoch].fetch_add(1, Ordering::SeqCst);
        if EPOCH.load(Ordering::SeqCst) == epoch {
            return ActiveCall(epoch);
        }
        ACTIVE[epoch].fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        ACTIVE[self.0].fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for the calls that began before. One thread at a time; calls that begin meanwhile do not delay it.
pub fn wait_for_earlier() {
    let epoch = EPOCH.load(Ordering::SeqCst);
    EPOCH.store(1 - epoch, Ordering::SeqCst);
    while ACTIVE[epoch].load(Ordering::SeqCst) != 0 {
        // SAFETY: takes no arguments.
        unsafe { libc::sched_yield() };
    }
}

/// In a forked child: the threads that made the calls do not exist there.
pub fn reset_in_child() {
    ACTIVE.iter().for_each(|inside| inside.store(0, Ordering::SeqCst));
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
            while EPOCH.load(Ordering::SeqCst) == epoch {
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
