//! Mayfly's heap: objects packed by when they will die, on huge pages only (LLAMA, ASPLOS 2020).
//!
//! A malloc organised by *lifetime class* instead of size. Every huge page (2 MiB) has a class, from "dies within 10 ms"
//! to ∞, and is first filled with objects of that class; what becomes free on it is used for shorter-lived objects, which
//! will be gone before the rest. Deadlines notice wrong predictions and move the page to a longer or shorter class.
//! So pages empty as wholes and go back to the operating system, where other allocators keep them for one survivor.
//!
//! Layers, from the bottom up; each imports from those before it only (`tests/modules` sees to it), and no modules import one
//! another in a circle:
//!
//! | layer | modules | what |
//! | --- | --- | --- |
//! | [`units`] | [`units::geometry`], [`units::window`], [`units::bits`] | sizes of things, where they lie, bit vectors |
//! | | [`units::size_class`], [`units::lifetime_class`], [`units::call`] | classes; a call of malloc |
//! | [`system`] | [`system::os`], [`system::lock`], [`system::clock`] | what is asked of the operating system |
//! | | [`system::text`], [`system::paths`] | messages, names of files |
//! | | [`system::thread_local`], [`system::thread_stack`], [`system::events`] | what each thread has at hand, and counts |
//! | | [`system::observers`] | where who only looks on is told what happens |
//! | [`span`] | [`span::cells`], [`span::remote`], [`span::large_object`] | a span's cells; frees of them by other threads; what is known of a large object |
//! | [`pages`] | [`pages::region`], [`pages::huge_page`], [`pages::available`], [`pages::pool`], [`pages::retained`] | address space, a page's metadata, pages with room, free pages |
//! | | [`pages::page_life`], [`pages::open_page`], [`pages::global`] | deadlines and recycling, pages being filled; the global allocator |
//! | | [`pages::large_blocks`], [`pages::direct`] | large objects, those with a mapping of their own |
//! | | [`pages::decay`], [`pages::sparse`], [`pages::memory_pressure`] | free blocks and parts of them that go back, and when every one counts |
//! | [`lifetime`] | [`lifetime::source`], [`lifetime::sites`], [`lifetime::model`], [`lifetime::oracle`] | where lifetimes come from |
//! | | [`lifetime::unwind`], [`lifetime::caller_id`], [`lifetime::table_entry`], [`lifetime::table_file`], [`lifetime::model_validation`] | who calls; what is kept across runs; whether a model is believed |
//! | [`thread`] | [`thread::local`], [`thread::bin`], [`thread::by_size`], [`thread::prediction_table`] | a thread's heap: fast paths, which bin a call's objects go to |
//! | | [`thread::refill`], [`thread::predict`], [`thread::span_cache`], [`thread::remote_free_buffer`], [`thread::large`], [`thread::sample`] | its cold half, and what it has in hand |
//! | | [`thread::compact`] | half-empty spans of classes that no call goes to |
//! | | [`thread::out_of_memory`] | what is tried before malloc says no |
//! | | [`thread::lines`] | the paper's layout by lines |
//! | | [`thread::current`], [`thread::registry`], [`thread::fork_guard`], [`thread::fork`] | its coming and going |
//! | [`observe`] | [`observe::stats`], [`observe::report`] | what can be seen |
//! | | [`observe::trace`], [`observe::profile`], [`observe::profile_file`], [`observe::control`] | recording; lifetimes by calling context, for training; attaching to a program that runs |
//! | | [`observe::check`] | whether the metadata agree, for tests |
//! | [`entry`] | [`entry::allocate`], [`entry::free`], [`entry::extent`], [`entry::maintenance`] | all of it together |
//! | | [`entry::maintenance_thread`] | a thread for what is due while others sleep |
//! | | [`entry::start`], [`entry::config`] | the first call, what can be set |
//!
//! Nothing here allocates. Metadata is only ever mapped, never unmapped, so references to it are `'static`; fields are
//! atomics, of which those with one writer are used with plain loads and stores.

#![no_std]
#![cfg(not(loom))] // the loom tests include the files that they check

#[cfg(test)]
extern crate std;

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux")))]
compile_error!(
    "the heap knows Linux on x86-64 and aarch64 only: thread-local storage and return addresses are in assembly"
);

pub mod units {
    //! Sizes, lifetime and size classes, bit vectors, and the address window.
    pub mod bits;
    pub mod call;
    pub mod geometry;
    pub mod lifetime_class;
    pub mod size_class;
    pub mod window;
}

pub mod system {
    //! System calls, locks, per-thread words, counters, and text that is built without allocating.
    pub mod clock;
    pub mod events;
    pub mod lock;
    pub mod observers;
    pub mod os;
    pub mod paths;
    pub mod text;
    pub mod thread_local;
    pub mod thread_stack;
}

pub mod span {
    //! A block span's metadata, and frees of its cells by other threads.
    pub mod cells;
    pub mod large_object;
    pub mod queue;
    pub mod remote;
}

pub mod pages {
    //! Address space, huge pages and their blocks: the paper's global allocator.
    pub mod available;
    pub mod decay;
    pub mod direct;
    pub mod global;
    pub mod huge_page;
    pub mod large_blocks;
    pub mod memory_pressure;
    pub mod open_page;
    pub mod page_life;
    pub mod pool;
    pub mod region;
    pub mod retained;
    pub mod sparse;
}

pub mod lifetime {
    //! Sources of lifetime predictions, and the table that keeps them across runs.
    pub mod caller_id;
    pub mod cost;
    pub mod model;
    pub mod model_validation;
    pub mod oracle;
    pub mod sites;
    pub mod source;
    pub mod table_entry;
    pub mod table_file;
    pub mod unwind;
}

pub mod thread {
    //! A thread's heap: its bins, its caches, and how it is created, forked and left vacant.
    pub mod bin;
    pub mod by_size;
    pub mod compact;
    pub mod current;
    pub mod fork;
    pub mod fork_guard;
    pub mod large;
    pub mod lines;
    pub mod local;
    pub mod out_of_memory;
    pub mod predict;
    pub mod prediction_table;
    pub mod refill;
    pub mod registry;
    pub mod remote_free_buffer;
    pub mod sample;
    pub mod span_cache;
}

pub mod observe {
    //! Statistics, profiles and traces: they observe and change nothing.
    pub mod check;
    pub mod control;
    pub mod profile;
    pub mod profile_file;
    pub mod report;
    pub mod stats;
    pub mod trace;
}

pub mod entry {
    //! The entry points behind malloc, new and free, and background maintenance.
    pub mod allocate;
    pub mod config;
    pub mod extent;
    pub mod free;
    pub mod maintenance;
    pub mod maintenance_thread;
    pub mod start;
}
