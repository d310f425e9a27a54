//! What was fixed when a VM was made: its mode, its partitions and their sizes.

use serde::{Deserialize, Serialize};

/// How a VM's memory is made elastic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A NUMA node per partition, on any kernel; the agent binds instances to their node.
    Nodes,
    /// A NUMA node per partition, on Mayfly's kernel, which keeps everybody else out of it (HotMem §4).
    Hotmem,
    /// One virtio-mem device for all (the paper's *vanilla*). A partition is only a number.
    Plain,
    /// All memory from boot (the paper's *statically over-provisioned* VM). A partition is only a number.
    Static,
}

/// What was fixed when the VM was made (HotMem §4.1, "VM creation").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// How its memory is made elastic.
    pub mode: Mode,
    /// What an instance may use, for each partition. As many as these are the most instances at one time: the
    /// concurrency factor N.
    pub partition_bytes: Vec<u64>,
    /// What instances share: file-backed pages. 0: they share boot memory.
    pub shared_bytes: u64,
}

impl Layout {
    /// How many partitions there are.
    pub fn partitions(&self) -> u32 {
        self.partition_bytes.len() as u32
    }

    /// The size of a partition; one that there is not has none.
    pub fn bytes_of(&self, partition: u32) -> u64 {
        self.partition_bytes.get(partition as usize).copied().unwrap_or(0)
    }

    /// All that can be plugged.
    pub fn all_bytes(&self) -> u64 {
        self.partition_bytes.iter().fold(self.shared_bytes, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The NUMA node of the shared partition (HotMem §4, "shared HotMem partition"): 1, or boot memory's, which is 0.
    pub fn shared_node(&self) -> u32 {
        u32::from(self.shared_bytes > 0)
    }

    /// The NUMA node of a partition, in the modes `nodes` and `hotmem`.
    pub fn node_of(&self, partition: u32) -> u32 {
        self.shared_node() + 1 + partition
    }
}
