//! What can go wrong, one line each: what is wrong, where, and what to do.

use std::time::Duration;

use vm_protocol::{ErrorKind, Refusal};

/// Why something was not done.
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
        /// For what.
        what: String,
        /// What it needs.
        need_bytes: u64,
        /// What there is.
        available_bytes: u64,
    },
    /// All that the VM may have is plugged.
    #[error("the VM may have {} MiB and has {} MiB: unplug a partition first", limit_bytes >> 20, has_bytes >> 20)]
    Limit {
        /// What it may have.
        limit_bytes: u64,
        /// What it has.
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
        partition: u32,
        /// How many there are.
        count: u32,
    },
    /// It must be plugged for that.
    #[error("partition {0} is absent: plug it first")]
    Absent(u32),
    /// It is already.
    #[error("partition {0} is already plugged")]
    Plugged(u32),
    /// An instance uses it.
    #[error("partition {partition} is in use by instance {instance}: stop it first")]
    Used {
        /// The partition.
        partition: u32,
        /// Who uses it.
        instance: String,
    },
    /// Nobody uses it, and yet it is not empty.
    #[error("partition {partition} is held, nobody can have it until that is gone: {why}")]
    Held {
        /// The partition.
        partition: u32,
        /// What is in use, and by whom.
        why: String,
    },
    /// Something is being done to it.
    #[error("partition {partition} is {doing}: try again when that is over")]
    Moving {
        /// The partition.
        partition: u32,
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
    /// The agent said no.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The agent died while it was asked.
    #[error("the guest's agent died while it was to {0}; its instances are gone")]
    AgentLost(String),
    /// It took too long.
    #[error("{what} took longer than {} s{consequence}", after.as_secs())]
    TimedOut {
        /// What.
        what: String,
        /// How long it was waited for.
        after: Duration,
        /// What was made of that, from a semicolon on.
        consequence: &'static str,
    },
    /// QEMU or the operating system said no.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// What an agent's refusal about a partition says.
    pub(crate) fn refused(partition: u32, refusal: Refusal) -> Error {
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
