//! The heap's counters. Each thread counts its own events, on slow paths only.

use core::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::system::thread_local;

/// The events that are counted (the paper counts these to show that its paths are exercised, §9.5).
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Event {
    /// A block span left the global allocator.
    SpanAcquired,
    /// Blocks of a longer-lived page were recycled.
    BlocksRecycled,
    /// Free blocks of an active page were used for its own class.
    BlocksRefilled,
    /// A deadline passed.
    DeadlineExpired,
    /// A page was promoted to the next longer class.
    Promoted,
    /// A page was demoted to the next shorter class.
    Demoted,
    /// A huge page was returned to the operating system.
    PageReturned,
    /// The owner collected a word of remote frees.
    RemoteCollected,
    /// A partly free span was opened again for line recycling.
    SpanReopened,
    /// A second, overflow span was taken.
    OverflowSpan,
    /// A large object was allocated.
    LargeAllocated,
    /// A lifetime was measured to its end.
    LifetimeMeasured,
    /// A call was looked up because the prediction table did not know it.
    PredictionMissed,
    /// A prediction changed.
    PredictionChanged,
    /// Cells that bins cached, less those that they gave back unused: the number of small objects allocated.
    CellsTaken,
    /// A large object was allocated from the cache, for a call with a known site.
    LargeFromCache,
    /// The model ran again for a call that it had predicted before (LLAMA §7).
    PredictionChecked,
    /// It predicted another class than before.
    PredictionDisagreed,
    /// The other class was longer, and is now the prediction.
    PredictionLengthened,
    /// The model was run.
    ModelRun,
    /// Nanoseconds of these runs, unwinding included.
    ModelNs,
    /// Their processor time in nanoseconds.
    ModelCpuNs,
    /// A site of an earlier run was called, without a run of the model.
    SiteRecalled,
    /// A free block of a page with live ones was returned to the operating system.
    BlocksDiscarded,
    /// The model is no longer trusted.
    ModelDoubted,
    /// A word of the stack separates a site's callers from now on.
    WordLearned,
    /// A thread searched vacant heaps for a span.
    VacantSearched,
    /// A half-empty span moved to a class that uses it more.
    SpanMoved,
    /// Bytes of the cells that bins cached, less those of cells that they gave back unused.
    CellBytesTaken,
    /// Bytes of the large objects allocated.
    LargeBytes,
}

/// The number of event kinds.
pub const EVENTS: usize = NAMES_OF_EVENTS.len();

/// Their names, in statistics.
pub const NAMES_OF_EVENTS: [&str; 30] = [
    "spans_acquired",
    "blocks_recycled",
    "blocks_refilled",
    "deadlines_expired",
    "pages_promoted",
    "pages_demoted",
    "pages_returned",
    "remote_words_collected",
    "spans_reopened",
    "overflow_spans",
    "large_objects_allocated",
    "lifetimes_measured",
    "predictions_missed",
    "predictions_changed",
    "cells_taken",
    "large_objects_in_hand",
    "predictions.checks",
    "predictions.disagreements",
    "predictions.updates",
    "predictions.model_runs",
    "predictions.model_ns",
    "predictions.model_cpu_ns",
    "predictions.recalled",
    "blocks_discarded",
    "predictions.disbelieved",
    "words_learned",
    "vacant_searched",
    "spans_handed_on",
    "cell_bytes_taken",
    "large_bytes_allocated",
];

static PAGES: AtomicIsize = AtomicIsize::new(0);
static PEAK_PAGES: AtomicUsize = AtomicUsize::new(0);

/// One thread's counters, in its heap. All zeros has counted nothing.
pub struct Counts([AtomicU64; EVENTS]);

/// Counters of threads without a heap: they share them, and may lose a count.
static OF_THE_HEAPLESS: Counts = Counts::new();

impl Default for Counts {
    fn default() -> Self {
        Self::new()
    }
}

impl Counts {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; EVENTS])
    }

    /// How often the event happened.
    pub fn of(&self, event: usize) -> u64 {
        self.0[event].load(Relaxed)
    }
}

/// Makes the calling thread count there; without a heap in the shared counters.
pub fn count_in(counts: Option<&'static Counts>) {
    let counts = counts.unwrap_or(&OF_THE_HEAPLESS);
    thread_local::set_counts(
        core::ptr::from_ref(counts).addr().wrapping_sub((&raw const OF_THE_HEAPLESS).addr()),
    );
}

/// Counters of threads without a heap.
pub fn of_the_heapless() -> &'static Counts {
    &OF_THE_HEAPLESS
}

/// Counts an event in the calling thread's heap, where no other thread writes.
#[inline]
pub fn count(event: Event) {
    add(event, 1);
}

/// Counts several events, or takes some back.
#[inline]
pub fn add(event: Event, number: u64) {
    let address = (&raw const OF_THE_HEAPLESS).addr().wrapping_add(thread_local::counts());
    // SAFETY: the word is 0, or `count_in` set it, for counts that are never unmapped.
    let count = unsafe { &(*(address as *const Counts)).0[event as usize] };
    count.store(count.load(Relaxed).wrapping_add(number), Relaxed);
}

/// The most huge pages that were in use at once.
pub fn peak_pages() -> usize {
    PEAK_PAGES.load(Relaxed)
}

/// Huge pages in use.
#[inline]
pub fn pages() -> usize {
    PAGES.load(Relaxed).max(0) as usize
}

/// Changes the number of huge pages in use.
pub fn pages_in_use(change: isize) {
    let now = PAGES.fetch_add(change, Relaxed) + change;
    PEAK_PAGES.fetch_max(now.max(0) as usize, Relaxed);
}
