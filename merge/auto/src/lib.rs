//! `libmayfly_merge_auto.so`: merging for unmodified programs (UPM §VII, "automatically detecting memory").
//!
//! ```text
//! MAYFLY_MERGE_AUTO=4M LD_PRELOAD=libmayfly_merge_auto.so program
//! ```
//!
//! Large allocations, of 4 MiB or more here, get pages of their own, so that equal contents lie on equal
//! pages. A thread scans them twice, a while apart, and advises the parts that did not change in between:
//! weights, tables, indexes. Parts written after that are left alone for good. Without the variable the
//! library does nothing.
//!
//! | module | what it is |
//! |---|---|
//! | [`malloc`] | the C library's allocation functions, which pass small sizes on |
//! | [`blocks`] | the table of large allocations, and how the scanner holds a block |
//! | [`freed`] | blocks that were freed, kept for the next allocations of that size |
//! | [`scanner`] | finds unchanged parts and advises them |
//! | [`scanner_thread`] | its thread, which ends before the program restricts itself ([`restrictions`]) |
//! | [`unsupported_runtimes`] | runtimes that allocate past malloc: one line of warning |
//! | [`library`] | libmayfly_merge.so, which merges, and keeps the semantics of shared memory |
//!
//! A block cannot vanish while it is scanned or merged: `free` waits for that block, some milliseconds at
//! most.

mod block;
mod blocks;
mod event;
mod freed;
mod library;
mod malloc;
mod next_symbol;
mod own_sandbox;
mod restrictions;
mod scanner;
mod scanner_thread;
mod settings;
mod unsupported_runtimes;

/// Runs when the library is loaded.
extern "C" fn loaded() {
    restrictions::find_next();
    settings::read();
    // Handlers registered first run last before a fork: the scanner pauses, then libmayfly_merge.so waits for
    // its calls, which may allocate, then the table is locked.
    blocks::survive_forks();
    if settings::is_on() {
        own_sandbox::note();
        unsupported_runtimes::warn();
        library::load();
        mappings::page_map::open_early();
    }
    scanner_thread::survive_forks();
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;
