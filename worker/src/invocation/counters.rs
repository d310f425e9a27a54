//! Counters and histograms since the worker began, for the page and the metrics.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::base::error::ApiError;
use crate::invocation::reasons::Reasons;
use crate::invocation::request::Outcome;
use worker_system::lock::lock;

/// Upper bounds of the buckets in which durations are counted, in seconds.
pub const BUCKETS_S: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Counters; each only grows.
#[derive(Debug, Default)]
pub struct Count {
    /// Answered by the function.
    pub succeeded: AtomicU64,
    /// The function failed, timed out or ended.
    pub failed: AtomicU64,
    /// Refused with 429.
    pub throttled: AtomicU64,
    /// Not run for another reason.
    pub refused: AtomicU64,
    /// The reason of the last request that was throttled or refused.
    pub last_refusal: Mutex<Option<String>>,
    /// Why requests failed or were not run.
    pub reasons: Mutex<Reasons>,
    /// Times that an instance has done idle work.
    pub idle_work: AtomicU64,
    /// Times that an instance without work was frozen.
    pub freezes: AtomicU64,
    /// From arrival to answer, of those that ran.
    pub latency: Histogram,
    /// From an instance's start until it asked for work.
    pub cold_start: Histogram,
    /// The same, of those that were restored from a snapshot.
    pub restore: Histogram,
}

/// Durations in buckets.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS_S.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    fn add(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = BUCKETS_S.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS_S.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }

    /// For each bucket, the number of durations up to its bound; the last counts all.
    pub fn cumulative(&self) -> Vec<u64> {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let sums = counts.scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        sums.collect()
    }

    /// The sum of all.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed))
    }
}

impl Count {
    pub(crate) fn answered(&self, outcome: &Result<Outcome, ApiError>, latency: Duration) {
        let counter = match outcome {
            Ok(outcome) if outcome.failed => &self.failed,
            Ok(_) => &self.succeeded,
            Err(error) if error.kind.is_throttle() => &self.throttled,
            Err(_) => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if !outcome.as_ref().is_ok_and(|outcome| !outcome.failed) {
            lock(&self.reasons).count(outcome);
        }
        match outcome {
            Ok(_) => self.latency.add(latency),
            Err(error) => {
                let mut last = lock(&self.last_refusal);
                *last = Some(error.message.clone());
            }
        }
    }

    pub(crate) fn started(&self, init: Duration, restored: bool) {
        self.cold_start.add(init);
        if restored {
            self.restore.add(init);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_values_up_to_their_bound() {
        let histogram = Histogram::default();
        for ms in [1, 2, 3, 20_000] {
            histogram.add(Duration::from_millis(ms));
        }
        assert_eq!(histogram.cumulative(), [1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4]);
        assert_eq!(histogram.sum(), Duration::from_millis(20_006));
    }
}
