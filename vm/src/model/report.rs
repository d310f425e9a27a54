//! Results of the calls of [`crate::Vm`]: times in nanoseconds, sizes in bytes.

use serde::{Deserialize, Serialize};
use vm_protocol::{ExitReason, Layout, PartitionNumber, Stats};

use crate::model::partition::State;

/// A partition was plugged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plugged {
    /// Which one.
    pub partition: PartitionNumber,
    /// From the request to QEMU until the guest's driver had taken all of it.
    pub device_ns: u64,
    /// Until the agent saw it online; then an instance can be started in it.
    pub total_ns: u64,
}

/// A partition was unplugged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplugged {
    /// Which one.
    pub partition: PartitionNumber,
    /// Before the request to QEMU: the agent checks that it is empty and, in mode `nodes`, takes it offline.
    pub prepare_ns: u64,
    /// From the request to QEMU until the guest's driver had released all of it and QEMU had discarded it:
    /// the paper's unplug latency (HotMem §5.4). In mode `nodes` from the start of the check, because the
    /// agent takes memory offline.
    pub device_ns: u64,
    /// Until the agent saw none of it online, from the start of the check.
    pub total_ns: u64,
    /// QEMU's resident memory before.
    pub host_before_bytes: u64,
    /// QEMU's resident memory after.
    pub host_after_bytes: u64,
}

/// An instance was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawned {
    /// Its name.
    pub instance: String,
    /// The partition that its memory comes from.
    pub partition: Option<PartitionNumber>,
    /// Further partitions that its memory comes from.
    pub more: Vec<PartitionNumber>,
    /// Its first process in the guest.
    pub pid: u32,
    /// The extensions that were started beside its program.
    #[serde(default)]
    pub extensions: Vec<String>,
    /// From the request to the agent's answer.
    pub total_ns: u64,
}

/// An end of a function's process, or of all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// Its program or an extension has ended in this way; others may still run.
    Process(ExitReason),
    /// All have ended. This is the reason of the first end.
    All(ExitReason),
}

/// A VM at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// The hypervisor's process.
    pub qemu_pid: u32,
    /// "kvm" or "tcg,thread=multi".
    pub accelerator: String,
    /// Mode, partitions and sizes, fixed at boot.
    pub layout: Layout,
    /// Whether the agent answers, or why not.
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
    /// It answers.
    Up {
        /// `uname -r`.
        kernel: String,
    },
    /// It does not answer yet, or not any more.
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

/// Memory of QEMU's process and in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// QEMU's resident memory.
    pub host_resident_bytes: u64,
    /// The guest's own statistics.
    pub guest: Stats,
}
