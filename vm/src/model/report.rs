//! What the calls of [`crate::Vm`] return: times in nanoseconds, sizes in bytes, for programs and tables alike.

use serde::{Deserialize, Serialize};
use vm_protocol::{Layout, Stats};

use crate::model::partition::State;

/// A partition was plugged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plugged {
    /// Which one.
    pub partition: u32,
    /// From the request to QEMU until the guest's driver had taken all of it.
    pub device_ns: u64,
    /// Until the agent saw it online: from then on an instance can have it.
    pub total_ns: u64,
}

/// A partition was unplugged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplugged {
    /// Which one.
    pub partition: u32,
    /// Before QEMU is asked: the agent's check that it is empty, and in mode `nodes` taking it offline.
    pub prepare_ns: u64,
    /// From the request to QEMU until the guest's driver had given all of it back and QEMU had discarded it: the paper's
    /// unplug latency (HotMem §5.4). In mode `nodes` from the start of the check, because the agent does some of it.
    pub device_ns: u64,
    /// Until the agent saw none of it online, from the start of the check.
    pub total_ns: u64,
    /// QEMU's resident memory before.
    pub host_before_bytes: u64,
    /// And after.
    pub host_after_bytes: u64,
}

/// An instance was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawned {
    /// Its name.
    pub instance: String,
    /// Where its memory comes from.
    pub partition: Option<u32>,
    /// And where more of it does.
    pub more: Vec<u32>,
    /// Its first process in the guest.
    pub pid: u32,
    /// The extensions that were started beside its program.
    #[serde(default)]
    pub extensions: Vec<String>,
    /// How long it took.
    pub total_ns: u64,
}

/// A VM at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// QEMU's process.
    pub qemu_pid: u32,
    /// "kvm" or "tcg,thread=multi".
    pub accelerator: String,
    /// What was fixed when it was made.
    pub layout: Layout,
    /// Whether the agent answers; if not, why.
    pub guest: GuestStatus,
    /// From QEMU's start to the agent's first answer.
    pub boot_ns: u64,
    /// QEMU's resident memory.
    pub host_resident_bytes: u64,
    /// Partition by partition.
    pub partitions: Vec<State>,
    /// Instances outside all partitions.
    pub outside: Vec<String>,
}

/// Whether the agent answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum GuestStatus {
    /// It does.
    Up {
        /// `uname -r`.
        kernel: String,
    },
    /// It does not (yet, or any more).
    Down {
        /// Why, if known.
        why: String,
    },
    /// QEMU has ended.
    Ended {
        /// Why.
        why: String,
    },
}

/// Memory on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// QEMU's resident memory.
    pub host_resident_bytes: u64,
    /// As the guest sees it.
    pub guest: Stats,
}
