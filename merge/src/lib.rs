//! Page merging the moment a program says so (UPM), without the kernel's help.
//!
//! | module | what it is |
//! |---|---|
//! | [`page`], [`index`], [`segment`] | pages and their hashes; the index that a store shares with its clients; sealed memory that holds pages |
//! | [`protocol`], [`channel`] | what is said over the store's socket, and how it is sent |
//! | [`client`] | `advise` and `unadvise`: look up, compare, remap |
//! | [`daemon`] | the page store: one for each trust domain |
//!
//! docs/merge.md describes how they work together.

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux")))]
compile_error!("merging knows Linux on x86-64 and aarch64 only");

pub mod channel;
pub mod client;
pub mod daemon;
mod error;
pub mod fault;
pub mod index;
mod mapping;
pub mod page;
pub mod protocol;
pub mod segment;
pub mod socket_path;

pub use client::{
    Flags, Path, Statistics, Ticket, advise, advise_begin, advise_wait, path, statistics, unadvise,
};
pub use error::Error;
