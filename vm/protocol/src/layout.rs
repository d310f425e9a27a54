//! A VM's layout, fixed at boot: its mode, its partitions and their sizes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a VM's memory is made elastic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A NUMA node per partition, on any kernel; the agent binds instances to their node.
    Nodes,
    /// A NUMA node per partition, on Mayfly's kernel, which keeps all other processes out of it (HotMem §4).
    Hotmem,
    /// The same in one virtio-mem device, whose memory Mayfly's kernel cuts into a range per partition: the
    /// paper's form, for hypervisors with one such device.
    Ranges,
    /// One virtio-mem device for all (the paper's *vanilla*). A partition is only a number.
    Plain,
    /// All memory from boot (the paper's *statically over-provisioned* VM). A partition is only a number.
    Static,
}

impl Mode {
    /// Its name, as in `--mode`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Nodes => "nodes",
            Mode::Hotmem => "hotmem",
            Mode::Ranges => "ranges",
            Mode::Plain => "plain",
            Mode::Static => "static",
        }
    }

    /// Whether each partition is a NUMA node.
    pub fn has_nodes(self) -> bool {
        matches!(self, Mode::Nodes | Mode::Hotmem | Mode::Ranges)
    }

    /// Whether partitions are those of Mayfly's kernel.
    pub fn is_kernels(self) -> bool {
        matches!(self, Mode::Hotmem | Mode::Ranges)
    }
}

/// A partition's number, from 0. It is not the number of its NUMA node ([`Layout::node_of`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartitionNumber(pub u32);

impl PartitionNumber {
    /// Its place in a list of all partitions.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PartitionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A VM's layout, fixed at boot (HotMem §4.1, "VM creation").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// How its memory is made elastic.
    pub mode: Mode,
    /// The size of each partition. Their number is the concurrency factor N: the most instances that may run
    /// at one time.
    pub partition_bytes: Vec<u64>,
    /// The size of the shared partition, for file-backed pages. 0: these lie in boot memory.
    pub shared_bytes: u64,
}

impl Layout {
    /// How many partitions there are.
    pub fn partitions(&self) -> u32 {
        self.partition_bytes.len() as u32
    }

    /// The numbers of all partitions.
    pub fn numbers(&self) -> impl Iterator<Item = PartitionNumber> + use<> {
        (0..self.partitions()).map(PartitionNumber)
    }

    /// The size of a partition; 0 if there is no such partition.
    pub fn bytes_of(&self, partition: PartitionNumber) -> u64 {
        self.partition_bytes.get(partition.index()).copied().unwrap_or(0)
    }

    /// All memory that can be plugged.
    pub fn all_bytes(&self) -> u64 {
        self.partition_bytes.iter().fold(self.shared_bytes, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The NUMA node of the shared partition (HotMem §4, "shared HotMem partition"): 1, or boot memory's,
    /// which is 0.
    pub fn shared_node(&self) -> u32 {
        u32::from(self.shared_bytes > 0)
    }

    /// The NUMA node of a partition, in a mode that [has nodes](Mode::has_nodes).
    pub fn node_of(&self, partition: PartitionNumber) -> u32 {
        self.shared_node() + 1 + partition.0
    }
}
