//! Code of process 1 of an instance, shared by the worker's sandboxes on the host and instances in a VM.
//!
//! | module | content |
//! |---|---|
//! | [`syscalls`] | the system calls that an instance may make |
//! | [`network`] | loopback and TUN devices of a network namespace |
//! | [`extensions`] | Lambda extensions: programs beside the runtime |
//! | [`termination`] | the end of the runtime and of extensions, one after the other |

pub mod extensions;
pub mod network;
pub mod syscalls;
pub mod termination;
