//! What process 1 of an instance does inside its sandbox, by the same code for the worker's sandboxes on the host and for
//! instances in a VM.
//!
//! | module | what it is |
//! |---|---|
//! | [`syscalls`] | the system calls that an instance may make |
//! | [`network`] | the loopback device of a network of its own |
//! | [`extensions`] | the programs beside the runtime |

pub mod extensions;
pub mod network;
pub mod syscalls;
