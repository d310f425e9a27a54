//! The pool's input and output: limits, identifiers, actions.

use std::time::Duration;

/// Time since the worker began.
pub type Time = Duration;

/// Identifiers that the worker counts up; none is used twice while it runs.
macro_rules! ids {
    ($($(#[$about:meta])* $name:ident;)*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

ids! {
    /// A function, or a version or tenant that has instances of its own, until it is deleted.
    FunctionId;
    /// An instance.
    InstanceId;
    /// A request, from its arrival to its answer. Its caller and its function know it by another id.
    RequestId;
}

/// What the worker may use.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// Instances that run at once.
    pub concurrency: u32,
    /// Instances that start at once (burst concurrency); more wait in the queue.
    pub starting: u32,
    /// The sum of `MemorySize` over all instances.
    pub memory_mib: u64,
    /// Requests of one function that wait at once.
    pub queue: usize,
    /// How long a request waits for an instance before it is refused.
    pub queue_wait: Duration,
    /// How long an instance stays without work.
    pub keep_alive: Duration,
    /// Calls of one function that run at once without hindering each other.
    pub processors: usize,
}

/// What the caller must do.
#[allow(missing_docs, reason = "the variants say what their fields are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start an instance; call `ready` or `ended` later.
    Start { instance: InstanceId, function: FunctionId },
    /// Give the request to the instance, which waits for one.
    Dispatch { instance: InstanceId, request: RequestId },
    /// Answer the request: it was not run.
    Refuse { request: RequestId, refusal: Refusal },
    /// Answer the request: this instance was to serve it, and ended while it started.
    FailedStart { instance: InstanceId, request: RequestId },
    /// Answer the request: this instance ended while it ran it.
    Lost { instance: InstanceId, request: RequestId },
    /// End the instance; call `ended` when it has.
    Stop { instance: InstanceId },
}

/// Why a request is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The function has all the concurrency that is reserved for it.
    Reserved,
    /// As many instances run as may.
    Concurrency,
    /// The memory for instances is used up.
    Memory,
    /// There is room, but instances did not start in time.
    Starting,
    /// There is room, but more requests wait already than may.
    Queue,
    /// The function was deleted.
    Removed,
}
