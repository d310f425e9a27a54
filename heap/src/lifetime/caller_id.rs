//! Identifies a caller by build-id of its module and offset there: the same in each run of one build,
//! wherever the module is loaded.

use core::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use xxhash_rust::xxh3::xxh3_64;

use crate::lifetime::unwind;
use crate::system::lock::Lock;

static ON: AtomicBool = AtomicBool::new(false);

/// Enables caller ids, for a table across runs; before the first allocation.
pub fn keep() {
    ON.store(true, Release);
}

/// Modules with known build-ids, by where they are mapped.
const MODULES: usize = 64;
struct Module {
    /// Where it is mapped; 0 for none. Written last.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Hash of its build-id; 0 without one.
    id: AtomicU64,
}
static SEEN: [Module; MODULES] =
    [const { Module { start: AtomicUsize::new(0), end: AtomicUsize::new(0), id: AtomicU64::new(0) } };
        MODULES];
static ADDING: Lock = Lock::new();

/// The id of a return address: build-id and offset; `None` without a build-id, or if no table is kept.
pub fn in_each_run(caller: usize) -> Option<u64> {
    if !ON.load(Relaxed) {
        return None;
    }
    let found = unwind::module(caller)?;
    let entry = &SEEN[(found.start >> 12).wrapping_mul(0x9E37_79B1) >> 8 & (MODULES - 1)];
    let id = if entry.start.load(Acquire) == found.start && entry.end.load(Relaxed) == found.end {
        entry.id.load(Relaxed)
    } else {
        let id = unwind::build_id(&found).map_or(0, xxh3_64);
        let _guard = ADDING.lock();
        if entry.start.load(Relaxed) == 0 {
            entry.end.store(found.end, Relaxed);
            entry.id.store(id, Relaxed);
            entry.start.store(found.start, Release);
        }
        id
    };
    (id != 0)
        .then(|| id ^ (caller.wrapping_sub(found.load_address) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}
