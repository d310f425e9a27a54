//! The protocol between the host and the guest agent, over a virtio-serial port or vsock (HotMem §4.1,
//! Figure 4).
//!
//! A frame is a length and one JSON object ([`frame`]). The host sends [`Request`]s; the agent answers each
//! one with a [`Reply`] that carries its `id`, in any order, and sends [`Event`]s that no request caused.
//!
//! Partitions are numbered from 0; [`Layout::node_of`] returns the NUMA node of each.

pub mod bytes;
pub mod frame;
pub mod layout;
pub mod message;
pub mod relay;
pub mod snapshot;
pub mod spawn;
pub mod stats;
pub mod window;

pub use frame::{Decoder, FrameError, MAX_FRAME_BYTES, encode};
pub use layout::{Layout, Mode, PartitionNumber};
pub use message::*;
pub use snapshot::{TakeSnapshot, Taken};
pub use spawn::{Beginning, Confinement, Limits, Network, Spawn};
pub use stats::{Merged, NodeStats, Stats};

/// Incremented with every change that an older peer would misunderstand.
pub const VERSION: u32 = 10;

/// The virtio-serial port: `/dev/virtio-ports/org.mayfly.agent` in the guest.
pub const PORT: &str = "org.mayfly.agent";

/// The vsock port of the host to which the agent connects where there is no virtio-serial port.
pub const VSOCK_PORT: u32 = 5201;

/// The most partitions a VM can have, the shared one included: each is a virtio-mem device and a NUMA node of
/// its own, and QEMU has 128 nodes.
pub const MAX_PARTITIONS: u32 = 127;
