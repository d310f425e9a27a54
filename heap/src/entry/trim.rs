//! Returning memory when the program asks for it.

use crate::pages::{decay, global};
use crate::thread::{current, fork_guard, refill};

/// Releases the calling thread's caches.
pub fn flush() {
    let heap = current::heap();
    let _guard = fork_guard::enter(heap);
    if heap.id.get() != 0 {
        refill::flush(heap, true);
    }
}

/// Returns all memory that can be returned; whether there was any.
pub fn trim() -> bool {
    flush();
    let _guard = fork_guard::enter(current::heap());
    let any = global::trim();
    decay::trim() || any
}
