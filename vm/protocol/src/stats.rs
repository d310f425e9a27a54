//! Memory in the guest, as the agent reports it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::layout::PartitionNumber;

/// Memory in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// One for each node: boot memory, shared, partitions that are not absent.
    pub nodes: Vec<NodeStats>,
    /// `/proc/vmstat`, all of it.
    pub vmstat: BTreeMap<String, u64>,
    /// `/proc/meminfo`, in bytes.
    pub meminfo_bytes: BTreeMap<String, u64>,
    /// The counters of `/sys/kernel/mm/hotmem`, on a kernel that has them.
    #[serde(default)]
    pub hotmem: BTreeMap<String, u64>,
    /// Pages that the kernel's UPM has merged, if the kernel has it.
    #[serde(default)]
    pub merged: Merged,
}

/// Pages that the kernel keeps once for all processes that advised them (UPM). With HotMem they lie in the
/// shared partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Merged {
    /// Memory that they occupy.
    pub bytes: u64,
    /// Memory that they replace: each page counted once for each of its advised mappings.
    pub advised_bytes: u64,
}

/// Memory of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Its number in the guest.
    pub node: u32,
    /// Its partition, if the node is one.
    pub partition: Option<PartitionNumber>,
    /// Online memory.
    pub total_bytes: u64,
    /// Free memory.
    pub free_bytes: u64,
    /// Anonymous memory of processes.
    pub anonymous_bytes: u64,
    /// Page cache and tmpfs.
    pub file_bytes: u64,
}
