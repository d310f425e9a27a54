//! A lifetime model in a running program (LLAMA §5): its file, which Python wrote, and its inference.
//!
//! The file is used where it is mapped: [`mod@file`] checks every number in it once, so that [`lstm`] never
//! meets a wrong one, does not allocate, and runs in any number of threads at once. There are no names:
//! training has split each function of each program into tokens already and multiplied them with the input
//! half of the gates (§10's partial evaluation). A return address leads to numbers that are only added.
//! docs/lifetime.md describes the layout.
//!
//! [`attach`] is here because both the heap and the command import this crate.

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
