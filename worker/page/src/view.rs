//! The input of the page at `/`.

use crate::data::{Event, Instance, Layers, Sample};

/// The input of a page.
pub struct View<'a> {
    /// How long the worker has run.
    pub uptime_ms: u64,
    /// The minutes that charts show.
    pub minutes: u64,
    /// Which layers are enabled.
    pub layers: &'a Layers,
    /// Oldest first.
    pub samples: &'a [Sample],
    /// Oldest first.
    pub events: &'a [Event],
    /// The instances of this moment.
    pub instances: &'a [Instance],
    /// All functions, with or without instances.
    pub functions: &'a [Function],
    /// Since the worker began.
    pub counts: Counts,
}

/// A function as it is declared.
pub struct Function {
    /// Its name.
    pub name: String,
    /// Such as `python3.11`.
    pub runtime: String,
    /// An instance's memory, in MiB.
    pub memory_mib: u64,
    /// Reserved concurrency.
    pub reserved: Option<u64>,
    /// Requests that wait for an instance.
    pub queued: u64,
    /// Of its requests since the worker began.
    pub counts: Requests,
}

/// The outcomes of a function's requests.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// Answered, well or not.
    pub answered: u64,
    /// Of those, the function failed.
    pub failed: u64,
    /// Not run.
    pub refused: u64,
    /// The reason of the last refusal.
    pub last_refusal: Option<String>,
    /// Why they failed or were not run.
    pub reasons: Vec<Reason>,
    /// Of those that were answered.
    pub latency: Percentiles,
}

/// Why requests fail, as it was the last time.
#[derive(Clone, Debug, Default)]
pub struct Reason {
    /// In words.
    pub text: String,
    /// How often.
    pub count: u64,
    /// Since the last time.
    pub ago_ms: u64,
}

/// Counts since the worker began.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Answered by the function.
    pub succeeded: u64,
    /// The function failed.
    pub failed: u64,
    /// Refused with 429.
    pub throttled: u64,
    /// Refused for another reason.
    pub refused: u64,
    /// Instances that were started.
    pub cold_starts: u64,
    /// Those of them that were restored from a snapshot.
    pub restores: u64,
    /// Of answered requests.
    pub latency: Percentiles,
    /// Of instances' starts.
    pub cold_start: Percentiles,
    /// Of those from a snapshot.
    pub restore: Percentiles,
}

/// Percentiles of times; none where nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    /// Half.
    pub p50_ms: Option<f64>,
    /// 90 of 100.
    pub p90_ms: Option<f64>,
    /// 99 of 100.
    pub p99_ms: Option<f64>,
    /// 999 of 1000.
    pub p999_ms: Option<f64>,
}
