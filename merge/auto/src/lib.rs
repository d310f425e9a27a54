//! `libmayfly_merge_auto.so`: merging for programs that do not ask for it (UPM §VII, "automatically detecting memory").
//!
//! ```text
//! MAYFLY_MERGE_AUTO=4M LD_PRELOAD=libmayfly_merge_auto.so program
//! ```
//!
//! Large allocations, of 4 MiB or more here, get pages of their own, so that equal contents lie on equal pages. A thread
//! looks at them twice, a while apart, and advises what did not change in between: weights, tables, indexes. What is
//! written after that is left alone for good. Without the variable the library does nothing.
//!
//! | module | what it is |
//! |---|---|
//! | [`malloc`] | the C library's allocation functions, which pass small sizes on |
//! | [`blocks`] | the table of large allocations, and how a block is held while the thread looks at it |
//! | [`scanner`] | the thread: what changed between two looks, what is advised |
//! | [`unsupported_runtimes`] | runtimes that malloc knows nothing of: one line says so |
//! | [`library`] | libmayfly_merge.so, which does the merging, and keeps the meaning of what is shared |
//!
//! A block cannot vanish while it is looked at or merged: `free` waits for that block, some milliseconds at most.

mod blocks;
mod library;
mod malloc;
mod next_symbol;
mod scanner;
mod settings;
mod unsupported_runtimes;

/// Runs when the library is loaded.
extern "C" fn loaded() {
    settings::read();
    // What is registered first runs last before a fork: the looks pause, then libmayfly_merge.so waits for its calls, which
    // may allocate, then the table is locked.
    blocks::survive_forks();
    if settings::is_on() {
        unsupported_runtimes::say();
        library::load();
    }
    scanner::survive_forks();
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;
