//! Calls of what stands in, while they last. One that has found its range not to be advised makes its system call a moment later, and
//! a thread may be held up in between for as long as a whole advice takes. So a range is noted, then the calls are waited
//! for that began before, and then it is shared; those that begin later know.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Which of the two counts those count in that begin now.
static SIDE: AtomicUsize = AtomicUsize::new(0);
static INSIDE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// A call, as long as this lives.
pub struct Visit(usize);

/// Begins a call.
pub fn enter() -> Visit {
    loop {
        let side = SIDE.load(Ordering::SeqCst);
        INSIDE[side].fetch_add(1, Ordering::SeqCst);
        if SIDE.load(Ordering::SeqCst) == side {
            return Visit(side);
        }
        INSIDE[side].fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        INSIDE[self.0].fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for the calls that began before. One thread at a time; those that begin meanwhile hold nobody up.
pub fn wait_for_earlier() {
    let side = SIDE.load(Ordering::SeqCst);
    SIDE.store(1 - side, Ordering::SeqCst);
    while INSIDE[side].load(Ordering::SeqCst) != 0 {
        // SAFETY: takes nothing.
        unsafe { libc::sched_yield() };
    }
}

/// In a forked child: the threads whose calls they were have not come along.
pub fn forget_all() {
    INSIDE.iter().for_each(|inside| inside.store(0, Ordering::SeqCst));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn who_began_before_is_waited_for_and_nobody_else() {
        let (mut visits, is_over) = (vec![enter()], AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_for_earlier();
                is_over.store(true, Ordering::SeqCst);
            });
            let side = visits[0].0;
            while SIDE.load(Ordering::SeqCst) == side {
                std::thread::yield_now();
            }
            visits.push(enter());
            assert!(!is_over.load(Ordering::SeqCst), "the first call is not over");
            visits.remove(0);
            while !is_over.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
    }
}
