//! Whether the machine's processors are saturated.

use std::time::{Duration, Instant};

/// The processors are saturated if they were idle for less than this share of the time.
const IDLE_SHARE: f64 = 0.1;

/// The processors at the last look.
pub(super) struct Processors {
    number: usize,
    at: Instant,
    /// How long all together had been idle; unknown where it cannot be read.
    idle: Option<Duration>,
}

impl Processors {
    pub fn new(number: usize) -> Processors {
        Processors { number, at: Instant::now(), idle: idle() }
    }

    /// Whether they were busy for nearly all of the time since the last look.
    pub fn are_saturated(&mut self) -> bool {
        let (at, idle) = (Instant::now(), idle());
        let before = std::mem::replace(self, Processors { number: self.number, at, idle });
        let (Some(from), Some(to)) = (before.idle, idle) else { return false };
        let whole = (at - before.at).as_secs_f64() * self.number as f64;
        to.saturating_sub(from).as_secs_f64() < whole * IDLE_SHARE
    }
}

fn idle() -> Option<Duration> {
    let read = std::fs::read_to_string("/proc/uptime").ok()?;
    read.split_whitespace().nth(1)?.parse().ok().map(Duration::from_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_saturated_that_are_idle_for_less_than_a_tenth_of_the_time() {
        let mut processors = Processors::new(1);
        let at = Instant::now() - Duration::from_secs(100);
        processors.at = at;
        assert!(processors.are_saturated(), "idle for a moment in 100 s");
        processors.at = at;
        processors.idle = idle().map(|idle| idle.saturating_sub(Duration::from_secs(90)));
        assert!(!processors.are_saturated(), "idle for 90 of 100 s");
        processors.idle = None;
        assert!(!processors.are_saturated(), "not known");
    }
}
