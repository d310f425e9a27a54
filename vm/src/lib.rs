//! A VM whose memory comes back at once: each function instance lives in a partition of hot-plugged memory of its own,
//! so that unplugging it moves no page (HotMem).
//!
//! [`Vm::boot`] starts QEMU and waits for the agent in the guest. Then, for each instance: [`Vm::plug`] a partition,
//! [`Vm::spawn`] the instance in it, [`Vm::stop`] it or let it end, and [`Vm::unplug`] the partition, or spawn the next
//! one there. Every call blocks until it is done, has failed, or has taken too long; calls from many threads run side by
//! side. A partition is always in one [`State`], and a keeper thread goes on with what was left half done when the
//! guest, its agent or a request failed.

pub mod accelerator;
pub mod cache;
pub mod control;
mod device;
mod error;
mod guest;
pub mod host_memory;
mod hypervisor;
pub mod image;
mod keeper;
pub mod partition;
mod partitions;
mod plug;
mod qemu;
mod record;
pub mod report;
pub mod settings;
mod spawn;
pub mod supervisor;
mod vm;

pub use error::Error;
pub use partition::State;
pub use partitions::MemorySource;
pub use settings::Settings;
pub use vm::Vm;
pub use vm_protocol as protocol;

#[cfg(test)]
mod at_random;
#[cfg(test)]
mod model;
