//! A lifetime model as a running program needs it (LLAMA §5): its file, which Python wrote, and its inference.
//!
//! The file is used where it is mapped: [`mod@file`] checks every number in it once, so that [`lstm`] can run without meeting a
//! wrong one, without allocating, and in any number of threads at once. Names do not occur: training has split each function
//! of each program into tokens already and multiplied them with the input half of the gates (§10's partial evaluation), so a
//! return address leads to numbers that are only added. docs/lifetime.md has the layout.
//!
//! [`attach`] is here because both the heap and the command know this crate.

#![no_std]

#[cfg(test)]
extern crate std;

mod activation;
pub mod attach;
pub mod file;
mod kernel;
pub mod lstm;
pub mod table;

pub use file::Model;
pub use kernel::Kernel;
