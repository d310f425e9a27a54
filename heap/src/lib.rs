//! Mayfly's heap: packs objects by their expected lifetime, on huge pages only (LLAMA, ASPLOS 2020).
//!
//! This malloc is organised by *lifetime class* instead of size. Every huge page (2 MiB) has a class, from
//! "dies within 10 ms" to ∞, and is first filled with objects of that class. Blocks that become free on it
//! are reused for shorter-lived objects, which will die before the rest. Deadlines detect wrong predictions
//! and move the page to a longer or shorter class. So pages become empty as a whole and return to the
//! operating system, where other allocators keep them for one survivor.
//!
//! Layers, from the bottom up. Each imports only from those before it, which `tests/modules` checks, and no
//! modules import one another in a circle.
//!
//! | layer | modules | contents |
//! | --- | --- | --- |
//! | [`units`] | [`units::geometry`], [`units::window`], [`units::bits`] | sizes, addresses, bit vectors |
//! | | [`units::size_class`], [`units::lifetime_class`], [`units::call`] | classes; a call of malloc |
//! | [`system`] | [`system::os`], [`system::files`], [`system::raw`] | system calls, without the C library |
//! | | [`system::lock`], [`system::clock`], [`system::vdso`] | a lock, the heap's clock |
//! | | [`system::text`], [`system::paths`], [`system::process`] | messages, paths, the process |
//! | | [`system::own_data`], [`system::glibc_heap`] | the library's own variables; glibc's objects |
//! | | [`system::thread_local`], [`system::thread_stack`] | per-thread words; a thread's stack |
//! | | [`system::events`], [`system::observers`] | counters; callbacks for traces and profiles |
//! | [`span`] | [`span::cells`], [`span::queue`] | a span's metadata and cells; lists of spans |
//! | | [`span::remote`], [`span::large_object`] | frees by other threads; a large object's metadata |
//! | | [`span::watched`], [`span::flags`] | cells whose lifetime is being measured; two flags |
//! | [`pages`] | [`pages::region`], [`pages::huge_page`] | address space; a huge page's metadata |
//! | | [`pages::available`], [`pages::pool`], [`pages::retained`] | sets of partly free pages; retained free pages |
//! | | [`pages::page_life`], [`pages::open_page`], [`pages::global`] | deadlines; open pages; the global allocator |
//! | | [`pages::large_blocks`], [`pages::direct`] | large objects; those with their own mapping |
//! | | [`pages::shorter_pages`] | their free blocks for longer classes, in place of new pages |
//! | | [`pages::decay`], [`pages::sparse`] | returning free blocks, and free parts of spans |
//! | | [`pages::memory_pressure`] | a memory cgroup that is nearly full |
//! | [`lifetime`] | [`lifetime::source`], [`lifetime::sites`] | sources of lifetimes; call sites, learned online |
//! | | [`lifetime::model`], [`lifetime::oracle`] | the trained model; recorded lifetimes |
//! | | [`lifetime::unwind`], [`lifetime::caller_id`] | calling contexts; callers across runs |
//! | | [`lifetime::table_file`], [`lifetime::table_entry`] | the table of sites that is kept across runs |
//! | | [`lifetime::model_validation`], [`lifetime::cost`] | whether the model is trusted; costs of wrong classes |
//! | [`thread`] | [`thread::local`], [`thread::bin`] | a thread's heap with its fast paths; a bin |
//! | | [`thread::freed_cells`] | cells freed last, for bins whose spans have few |
//! | | [`thread::by_size`], [`thread::prediction_table`], [`thread::predict`] | finding the bin of a call |
//! | | [`thread::refill`], [`thread::large`], [`thread::sample`] | slow paths; large objects; samples |
//! | | [`thread::span_cache`], [`thread::remote_free_buffer`] | cached empty spans; buffered remote frees |
//! | | [`thread::byte_counts`] | bytes that a thread allocated and freed |
//! | | [`thread::compact`] | merging half-empty spans of unused bins |
//! | | [`thread::out_of_memory`] | the last resort before malloc fails |
//! | | [`thread::lines`] | the paper's span layout by lines |
//! | | [`thread::current`], [`thread::registry`] | the calling thread's heap; all heaps, and vacant ones |
//! | | [`thread::fork_guard`], [`thread::fork`] | sections that a fork must not interrupt; fork handlers |
//! | [`observe`] | [`observe::stats`], [`observe::report`] | statistics |
//! | | [`observe::trace`] | recording every call |
//! | | [`observe::profile`], [`observe::profile_file`], [`observe::profile_changes`] | lifetimes by calling context, for training |
//! | | [`observe::control`] | attaching a profiler to a running program |
//! | | [`observe::check`] | invariants of the metadata, for tests |
//! | [`entry`] | [`entry::allocate`], [`entry::free`], [`entry::extent`], [`entry::trim`] | malloc, free, realloc and malloc_trim as a whole |
//! | | [`entry::watch`] | objects watched until they are freed |
//! | | [`entry::maintenance`], [`entry::maintenance_thread`] | periodic work, and its thread |
//! | | [`entry::start`], [`entry::config`] | initialization; the configuration |
//!
//! Nothing here allocates. Metadata is mapped and never unmapped, so references to it are `'static`. Fields
//! are atomics; those with one writer are accessed with plain loads and stores.

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
    pub mod claim;
    pub mod clock;
    pub mod events;
    pub mod files;
    pub mod filtered;
    pub mod forked;
    pub mod glibc_heap;
    pub mod lock;
    pub mod observers;
    pub mod os;
    pub mod own_data;
    pub mod paths;
    pub mod process;
    pub mod quiet;
    pub mod raw;
    pub mod text;
    pub mod thread_local;
    pub mod thread_stack;
    pub mod vdso;
}

pub mod span {
    //! A block span's metadata, and frees of its cells by other threads.
    pub mod cells;
    pub mod flags;
    pub mod large_object;
    pub mod queue;
    pub mod remote;
    pub mod watched;
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
    pub mod shorter_pages;
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
    pub mod byte_counts;
    pub mod compact;
    pub mod current;
    pub mod fork;
    pub mod fork_guard;
    pub mod freed_cells;
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
    pub mod profile_changes;
    pub mod profile_file;
    pub mod profile_memory;
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
    pub mod trim;
    pub mod watch;
}
