//! Mayfly's heap: objects packed by when they will die, on huge pages only (LLAMA, ASPLOS 2020).
//!
//! A malloc organised by *lifetime class* instead of size. Every huge page (2 MiB) has a class, from "dies within 10 ms"
//! to ∞, and is first filled with objects of that class; what becomes free on it is used for shorter-lived objects, which
//! will be gone before the rest. Deadlines notice wrong predictions and move the page to a longer or shorter class.
//! So pages empty as wholes and go back to the operating system, where other allocators keep them for one survivor.
//!
//! From the bottom up, one idea a file:
//!
//! | file | what |
//! | --- | --- |
//! | [`geometry`], [`lifetime`], [`size_class`], [`bits`], [`clock`] | sizes, classes, bit vectors, time |
//! | [`os`], [`lock`], [`text`] | what is asked of the operating system; a lock; messages |
//! | [`region`], [`huge_page`], [`available`], [`pool`], [`retained`] | address space, a page's metadata, pages with room, free pages |
//! | [`global`], [`large`], [`direct`] | the global allocator: blocks and deadlines; large objects; those with a mapping of their own |
//! | [`span`], [`remote`], [`outbox`], [`lines`] | a span's metadata, frees by other threads, the paper's layout by lines |
//! | [`heap`], [`predictions`], [`refill`] | a thread's heap: fast paths, its prediction table, cold half |
//! | [`registry`], [`thread`], [`fork`] | its coming and going |
//! | [`predict`], [`sites`], [`model`], [`table`], [`unwind`] | where lifetimes come from; what is kept of that across runs |
//! | [`profile`], [`profile_file`], [`control`] | lifetimes by calling context, for training; attaching to a program that runs |
//! | [`allocate`], [`free`], [`extent`], [`maintenance`], [`trim`] | all of it together |
//! | [`stats`], [`placed`], [`trace`], [`report`], [`config`] | what can be seen and set |
//! | [`check`] | whether the metadata agree, for tests |
//!
//! Nothing here allocates. Metadata is only ever mapped, never unmapped, so references to it are `'static`; fields are
//! atomics, of which those with one writer are used with plain loads and stores.

#![no_std]
#![cfg(not(loom))] // there the tests include the files that they check

#[cfg(test)]
extern crate std;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "the heap knows Linux on x86-64 only: thread-local storage and return addresses are in assembly"
);

pub mod allocate;
pub mod available;
pub mod bits;
pub mod check;
pub mod clock;
pub mod config;
pub mod control;
pub mod direct;
pub mod extent;
pub mod fork;
pub mod free;
pub mod geometry;
pub mod global;
pub mod heap;
pub mod huge_page;
pub mod large;
pub mod large_blocks;
pub mod lifetime;
pub mod lines;
pub mod lock;
pub mod maintenance;
pub mod model;
pub mod open_page;
pub mod os;
pub mod outbox;
pub mod placed;
pub mod pool;
pub mod predict;
pub mod predictions;
pub mod profile;
pub mod profile_file;
pub mod refill;
pub mod region;
pub mod registry;
pub mod remote;
pub mod report;
pub mod retained;
pub mod sites;
pub mod size_class;
pub mod span;
pub mod stats;
pub mod table;
pub mod text;
pub mod thread;
pub mod trace;
pub mod trim;
pub mod unwind;
