//! Errors, each one line: what is wrong, where, and what to do about it.

use std::time::Duration;

use vm_protocol::{ErrorKind, PartitionNumber, Refusal};

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting of the VM is wrong.
    #[error("{0}")]
    Setting(String),
    /// Something the VM needs is not on this host.
    #[error("{0}")]
    Missing(String),
    /// The host's memory does not suffice.
    #[error("not enough memory on this host: {what} needs {} MiB, {} MiB are available", need_bytes >> 20, available_bytes >> 20)]
    HostMemory {
        /// What the memory is for.
        what: String,
        /// How much it needs.
        need_bytes: u64,
        /// How much is available.
        available_bytes: u64,
    },
    /// The host's pool of huge pages does not suffice.
    #[error(
        "the pool of huge pages is too small: {what} needs {} MiB, {} MiB are free: enlarge it with: \
         sysctl vm.nr_hugepages={pages}",
        need_bytes >> 20, free_bytes >> 20
    )]
    HugePages {
        /// What the memory is for.
        what: String,
        /// How much it needs.
        need_bytes: u64,
        /// How much of the pool is free.
        free_bytes: u64,
        /// How many pages the pool would need.
        pages: u64,
    },
    /// The VM's memory limit is reached.
    #[error("the VM may have {} MiB and has {} MiB: unplug a partition first", limit_bytes >> 20, has_bytes >> 20)]
    Limit {
        /// The limit.
        limit_bytes: u64,
        /// How much is plugged.
        has_bytes: u64,
    },
    /// No agent answers in the guest.
    #[error("the guest is down: {0}")]
    GuestDown(String),
    /// QEMU has ended.
    #[error("the VM has ended: {0}")]
    Ended(String),
    /// The number is too high.
    #[error("no partition {partition}: the VM was made with partitions 0 to {}", count - 1)]
    NoSuchPartition {
        /// The number.
        partition: PartitionNumber,
        /// How many there are.
        count: u32,
    },
    /// The partition must be plugged first.
    #[error("partition {0} is absent: plug it first")]
    Absent(PartitionNumber),
    /// The partition is plugged already.
    #[error("partition {0} is already plugged")]
    Plugged(PartitionNumber),
    /// An instance uses it.
    #[error("partition {partition} is in use by instance {instance}: stop it first")]
    Used {
        /// The partition.
        partition: PartitionNumber,
        /// The instance that uses it.
        instance: String,
    },
    /// No instance uses the partition, and yet it is not empty.
    #[error("partition {partition} is held, no instance can have it until that is free: {why}")]
    Held {
        /// The partition.
        partition: PartitionNumber,
        /// Which pages are in use, and by which process.
        why: String,
    },
    /// The partition is in transition.
    #[error("partition {partition} is {doing}: try again when that is over")]
    Moving {
        /// The partition.
        partition: PartitionNumber,
        /// "being plugged", "being unplugged", "being emptied".
        doing: &'static str,
    },
    /// No plugged partition is free.
    #[error("no partition is ready: plug one, or stop an instance")]
    NoneReady,
    /// Nothing left to plug.
    #[error("all {0} partitions are plugged: the concurrency factor was set when the VM was made")]
    AllPlugged(u32),
    /// No instance of that name runs.
    #[error("no instance {0} runs in the VM")]
    NoSuchInstance(String),
    /// An instance of that name runs.
    #[error("an instance {0} runs already")]
    InstanceExists(String),
    /// The agent refused.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The agent died during a request.
    #[error("the guest's agent died while it was to {0}; its instances have ended")]
    AgentLost(String),
    /// It took too long.
    #[error("{what} took longer than {} s{consequence}", after.as_secs())]
    TimedOut {
        /// The operation.
        what: String,
        /// After which time the caller gave up.
        after: Duration,
        /// The state that this leaves, from a semicolon on.
        consequence: &'static str,
    },
    /// QEMU or the operating system failed.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// The error for an agent's refusal of a request about a partition.
    pub(crate) fn refused(partition: PartitionNumber, refusal: Refusal) -> Error {
        match refusal.kind {
            ErrorKind::Held => Error::Held { partition, why: refusal.message },
            _ => Error::Refused(refusal),
        }
    }

    /// Whether the agent refused with this kind.
    pub fn is_refusal(&self, kind: ErrorKind) -> bool {
        matches!(self, Error::Refused(refusal) if refusal.kind == kind)
    }
}
