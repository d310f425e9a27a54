//! A VM whose memory returns to the host at once: each function instance lives in a partition of hot-plugged
//! memory of its own, so that unplugging it moves no page (HotMem).
//!
//! [`Vm::boot`] starts a hypervisor and waits for the agent in the guest. Then, for each instance:
//! [`Vm::plug`] a partition, [`Vm::spawn`] the instance in it, [`Vm::stop`] it or wait for its end, and
//! [`Vm::unplug`] the partition, or spawn the next instance there. Every call blocks until it is done, has
//! failed, or has timed out; calls from several threads run concurrently. A partition is always in one
//! [`State`]. When the guest, its agent or a request fails halfway, a recovery thread finishes the operation.
//!
//! Layers, from the bottom up; each imports only from those before it (`tests/modules` checks that):
//!
//! | layer | modules |
//! | --- | --- |
//! | [`base`] | settings, errors, the host's memory, guest images and the cache they lie in |
//! | [`model`] | the state of each partition, the operations on it, and the trait that a hypervisor implements for them |
//! | [`hypervisor`] | QEMU, Firecracker: process, configuration, protocol; the connection to the agent |
//! | [`service`] | [`Vm`], the supervisor process that owns one, its control socket |

pub mod base {
    //! Settings, errors, and what lies on the host: its memory, built guest images.
    pub mod cache;
    pub mod error;
    pub mod host_memory;
    pub mod image;
    pub mod scripts;
    pub mod settings;
}

pub mod model {
    //! The state of each partition, and the operations that change it. What runs the VM is behind one trait.
    pub mod device;
    pub(crate) mod hypervisor;
    pub(crate) mod instances;
    pub mod partition;
    pub mod partitions;
    pub(crate) mod plug;
    #[cfg(test)]
    mod randomized_model_test;
    pub(crate) mod record;
    pub(crate) mod recovery;
    pub mod report;
    #[cfg(test)]
    mod simulated_vm;
}

pub mod hypervisor {
    //! QEMU and Firecracker, the accelerator, the connection to the agent in the guest.
    pub mod accelerator;
    pub(crate) mod agent_client;
    pub(crate) mod firecracker;
    pub(crate) mod guest_kernel;
    pub(crate) mod process;
    pub(crate) mod qemu;
}

pub mod service {
    //! A VM as callers see it: the library's [`vm::Vm`], the process that owns it, and its control socket.
    pub mod control;
    pub mod functions;
    pub mod supervisor;
    pub mod vm;
}

pub use base::error::Error;
pub use base::image;
pub use base::scripts;
pub use base::settings::{self, Settings};
pub use model::partition::State;
pub use model::partitions::MemorySource;
pub use model::report;
pub use service::vm::Vm;
pub use service::{control, supervisor};
pub use vm_protocol as protocol;
