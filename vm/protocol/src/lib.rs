//! What the host and the guest agent say to each other over a virtio-serial port (HotMem §4.1, Figure 4).
//!
//! A frame is a length and one JSON object ([`frame`]). The host sends [`Request`]s; the agent answers each one
//! with a [`Reply`] that carries its `id`, in any order, and reports what happens by itself as [`Event`]s.
//!
//! Partitions are numbered from 0. In the modes that have partitions, node 0 of the guest is its boot memory, node
//! [`SHARED_NODE`] the shared partition, and partition `i` is node [`node_of`]`(i)`.

pub mod frame;
pub mod message;

pub use frame::{Decoder, FrameError, MAX_FRAME_BYTES, encode};
pub use message::*;

/// Rises with every change that an older peer would misunderstand.
pub const VERSION: u32 = 1;

/// The virtio-serial port: `/dev/virtio-ports/org.mayfly.agent` in the guest.
pub const PORT: &str = "org.mayfly.agent";

/// The NUMA node of the partition that holds what instances share (HotMem §4, "shared HotMem partition").
pub const SHARED_NODE: u32 = 1;

/// The most partitions a VM can have: each one is a virtio-mem device and a NUMA node of its own.
pub const MAX_PARTITIONS: u32 = 127;

/// The NUMA node of a partition.
pub const fn node_of(partition: u32) -> u32 {
    SHARED_NODE + 1 + partition
}
