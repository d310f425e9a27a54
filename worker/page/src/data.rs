//! What a worker publishes about itself: its layers, samples of memory and latency over time, events,
//! instances. The same shapes are published as JSON (`/history`, `/events`, `/instances`) and read back by
//! `mayfly report`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `/history`: samples at equal distances, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// Between two samples, in milliseconds.
    pub interval_ms: u64,
    /// Since the worker began, at the moment of this answer.
    pub now_ms: u64,
    /// Which layers are enabled.
    pub layers: Layers,
    /// The last hour's.
    pub samples: Vec<Sample>,
}

/// Which of Mayfly's layers the worker uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Layers {
    /// `process` or `vm`.
    pub sandbox: String,
    /// Instances run on libmayfly_heap.so.
    pub heap: bool,
    /// Instances may share pages.
    pub merge: bool,
    /// Instances may be restored from snapshots.
    pub snapshot: bool,
    /// Empty sandboxes are kept ready.
    pub ready: bool,
    /// How a VM's memory grows and shrinks: `hotmem`, `nodes`, `plain`, `static`, or `none` without a VM.
    pub partitions: String,
}

/// The worker at one moment. Amounts are bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Since the worker began.
    pub at_ms: u64,
    /// The machine.
    pub host: Host,
    /// The page store.
    pub store: Store,
    /// Empty sandboxes.
    pub ready: Ready,
    /// The virtual machine, if instances run in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<Vm>,
    /// Latencies of the requests that were answered since the last sample.
    pub latency: Latency,
    /// Requests that wait for an instance.
    pub queued: u64,
    /// How requests have ended since the worker began.
    pub outcomes: Outcomes,
    /// By name.
    pub functions: BTreeMap<String, FunctionSample>,
}

/// How requests have ended since the worker began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcomes {
    /// Answered by the function.
    pub succeeded: u64,
    /// The function failed, timed out or ended.
    pub failed: u64,
    /// Not run for lack of room (429).
    pub throttled: u64,
    /// Not run for another reason.
    pub refused: u64,
}

/// The machine's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// `MemAvailable`.
    pub available_bytes: u64,
}

/// Memory of all page stores together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Store {
    /// The bytes that they occupy, each page once.
    pub bytes: u64,
    /// Their number: one for each function.
    pub stores: u64,
}

/// Empty sandboxes, which the next starts take.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ready {
    /// Their number.
    pub sandboxes: u64,
    /// Their memory, as their cgroups count it.
    pub bytes: u64,
}

/// A virtual machine and its partitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Vm {
    /// The host memory that it occupies.
    pub resident_bytes: u64,
    /// How many it can have.
    pub partitions: u64,
    /// How many are plugged.
    pub plugged: u64,
    /// How many of those have an instance.
    pub used: u64,
    /// Their size together.
    pub plugged_bytes: u64,
    /// Pages that the guest's kernel has merged, once: they lie in the shared partition.
    pub merged_bytes: u64,
    /// The same pages, counted once for each instance that maps them.
    pub mapped_merged_bytes: u64,
}

/// Latencies, from a request's arrival to its answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// How many were answered.
    pub requests: u64,
    /// Half took at most this long.
    pub p50_ms: f64,
    /// 99 of 100 took at most this long.
    pub p99_ms: f64,
}

/// The instances of one function together. Amounts are bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FunctionSample {
    /// Instances that are starting.
    pub starting: u64,
    /// Instances that wait for a request.
    pub idle: u64,
    /// Instances that run one.
    pub busy: u64,
    /// Instances that are stopping.
    pub stopping: u64,
    /// Memory by the cgroups' counters.
    pub cgroup_bytes: u64,
    /// Proportional set size: shared pages are divided among those that map them.
    pub pss_bytes: u64,
    /// Of that, anonymous memory that no other process maps.
    pub private_bytes: u64,
    /// Of that, the part of the page store.
    pub shared_bytes: u64,
    /// Pages of the store that are mapped, before dividing.
    pub mapped_shared_bytes: u64,
    /// Live objects in Mayfly's heap, when the instance last rested.
    pub heap_live_bytes: u64,
    /// The blocks that they are in, which the heap cannot return. The difference is fragmentation.
    pub heap_held_bytes: u64,
}

/// `/events`: the worker's events, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Events {
    /// The number for `after` in a request for later events.
    pub next: u64,
    /// The last ten thousand.
    pub events: Vec<Event>,
}

/// An event of the worker. Its kind decides which fields it has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// Its number.
    pub seq: u64,
    /// Since the worker began.
    pub at_ms: u64,
    /// `start`, `ready` or `restored`, `rest`, `merge`, `stop`, `gone`, `ended`, `page_out`, `refuse`,
    /// `fail`, `plug`, `unplug`, `vm`, `store`.
    pub kind: String,
    /// The function of the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The tenant of the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The number of the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<u64>,
    /// The partition of the VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u64>,
    /// How long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms: Option<f64>,
    /// What was done in that time, in order, each with its milliseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<(String, f64)>,
    /// Of that, until the device had released the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_ms: Option<f64>,
    /// The amount of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Of that, merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merged_bytes: Option<u64>,
    /// What an idle instance returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trimmed_bytes: Option<u64>,
    /// Why a request was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Details in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `/instances`: the instances of this moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Instances {
    /// By number.
    pub instances: Vec<Instance>,
}

/// An instance. Amounts are bytes, as in [`FunctionSample`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Instance {
    /// Its number.
    pub id: u64,
    /// The name of its function.
    pub function: String,
    /// The tenant that it serves, where the function has tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// `starting`, `idle`, `busy` or `stopping`.
    pub phase: String,
    /// Since it was started.
    pub age_ms: u64,
    /// The function's memory, in MiB.
    pub memory_mib: u64,
    /// Memory by its cgroup's counter.
    pub cgroup_bytes: u64,
    /// The most that its cgroup has counted.
    pub peak_bytes: u64,
    /// Proportional set size.
    pub pss_bytes: u64,
    /// Anonymous memory that no other process maps.
    pub private_bytes: u64,
    /// Its part of the page store.
    pub shared_bytes: u64,
    /// Pages of the store that it maps.
    pub mapped_shared_bytes: u64,
    /// Live objects in Mayfly's heap, when the instance last rested.
    pub heap_live_bytes: u64,
    /// The blocks that they are in, which the heap cannot return. The difference is fragmentation.
    pub heap_held_bytes: u64,
    /// Its partition of the VM.
    pub partition: Option<u64>,
    /// How long it took to start.
    pub init_ms: Option<f64>,
}
