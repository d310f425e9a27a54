//! Steps of the protocol at which a test may kill or stop the process:
//! `MAYFLY_MERGE_FAULT=STEP[:COUNT][=stop]`, the COUNT-th time it passes STEP. Compiled in with the feature
//! `fault-points` only.

/// Every step, in the order in which a process passes them.
pub const STEPS: [&str; 19] = [
    "client.connected",
    "client.hello",
    "client.hashed",
    "client.written",
    "client.sealed",
    "client.offered",
    "client.taken",
    "client.attached",
    "client.mapped",
    "client.frozen",
    "client.remapped",
    "client.done",
    "store.accepted",
    "store.received",
    "store.hashed",
    "store.indexed",
    "store.answered",
    "store.grown",
    "store.dropping",
];

/// Passes a step. Writes no memory unless a test has set a fault: the caller's memory may be frozen.
#[inline(always)]
pub fn point(step: &'static str) {
    #[cfg(feature = "fault-points")]
    armed::pass(step);
    #[cfg(not(feature = "fault-points"))]
    let _ = step;
}

#[cfg(feature = "fault-points")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

    struct Fault {
        step: String,
        left: AtomicI64,
        signal: i32,
    }

    static FAULT: OnceLock<Option<Fault>> = OnceLock::new();

    fn read() -> Option<Fault> {
        let text = std::env::var("MAYFLY_MERGE_FAULT").ok()?;
        let (text, signal) = match text.strip_suffix("=stop") {
            Some(text) => (text, libc::SIGSTOP),
            None => (&text[..], libc::SIGKILL),
        };
        let (step, count) = text.split_once(':').unwrap_or((text, "1"));
        assert!(super::STEPS.contains(&step), "MAYFLY_MERGE_FAULT: no step is called {step}");
        let count = count.parse().expect("MAYFLY_MERGE_FAULT: STEP:COUNT");
        Some(Fault { step: step.into(), left: AtomicI64::new(count), signal })
    }

    pub fn pass(step: &'static str) {
        debug_assert!(super::STEPS.contains(&step));
        if let Some(fault) = FAULT.get_or_init(read)
            && fault.step == step
            && fault.left.fetch_sub(1, Relaxed) == 1
        {
            // SAFETY: a signal to this process itself; SIGKILL ends it, SIGSTOP stops it until the test
            // continues it.
            unsafe { libc::kill(libc::getpid(), fault.signal) };
        }
    }
}
