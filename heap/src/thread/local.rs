//! A thread's heap: allocation from its open spans, and what happens to a span as its cells are freed.
//!
//! **Allocating** looks the call up in the thread's prediction table (LLAMA §7: return address, stack height, size), which
//! gives a *bin*: lifetime class × size class. The bin has one open span, and of it one word of 64 cells at hand: the
//! lowest pending cell is the object's place. **Freeing** finds the span's metadata by the address and clears the cell's
//! live bit. Neither writes to the object or needs an atomic instruction; all else is in the cold half, [`crate::thread::refill`].

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::lifetime::sites::KnownSites;
use crate::pages::region;
use crate::span::cells::Place;
use crate::span::remote::{RemoteList, Tenancy};
use crate::system::events::Counts;
use crate::system::thread_local;
use crate::thread::bin::Bin;
use crate::thread::hand::Hand;
use crate::thread::large::LargeCache;
use crate::thread::lines::OpenSpans;
use crate::thread::outbox::Outbox;
use crate::thread::predictions::Predictions;
use crate::units::call::Call;
use crate::units::geometry::MAX_SMALL_BYTES;
use crate::units::lifetime_class::CLASSES;
use crate::units::size_class::COUNT as SIZE_CLASSES;

/// Bytes that a thread keeps to predict with, if it uses all of its tables.
pub const TABLES_BYTES: usize = size_of::<Predictions>() + size_of::<KnownSites>();

/// What the fast path of freeing did.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// All there was to do.
    Yes,
    /// The object is freed; its span may be empty and must be settled.
    MayBeEmpty,
    /// Nothing: the slow path must look.
    No,
}

/// A thread's heap. It outlives the thread: another one moves in, with all its spans. All zeros is a valid heap.
#[repr(C, align(4096))]
pub struct Heap {
    /// Its number; 0 for the heap of threads that have none.
    pub id: Cell<u32>,
    /// The stack pointer at the thread's first call, from which heights are measured.
    pub stack_base: Cell<usize>,
    /// The version of the learned lifetimes that the prediction table was filled from.
    pub epoch: Cell<u32>,
    /// The thread's number, in order of first use, and how many allocations it has made where they are counted.
    pub thread: Cell<u32>,
    /// As above.
    pub sequence: Cell<u32>,
    /// Slow-path visits, to choose which to sample.
    pub visits: Cell<u32>,
    /// Slow frees. Not counted as visits: where allocating and freeing take turns, allocations' visits would all be odd.
    pub slow_frees: Cell<u32>,
    /// When the empty spans in hand were last given back, ms.
    pub flushed_ms: Cell<u64>,
    /// When the thread last looked what is due, and when the keeper last looked for it, ms.
    pub looked_ms: Cell<u64>,
    /// As above.
    pub kept_ms: Cell<u64>,
    /// When the prediction table was last emptied, ms.
    pub forgot_ms: Cell<u64>,
    /// Looks for spans of heaps whose threads have ended, and how many in a row found none, see
    /// [`crate::thread::registry::adopt`].
    pub looks_for_vacant: Cell<u32>,
    /// As above.
    pub vacant_misses: Cell<u8>,
    /// The thread is in a section that fork must not cut, see [`crate::thread::gate`].
    pub busy: AtomicU32,
    /// Spans in which other threads freed objects.
    pub remote: RemoteList,
    /// Whether a thread lives here.
    pub tenancy: Tenancy,
    /// The next heap without a thread.
    pub next_vacant: Cell<Option<&'static Heap>>,
    /// Empty spans in hand, by lifetime class.
    pub hands: [Hand; CLASSES],
    /// Sites of calls that were looked up of late.
    pub known_sites: KnownSites,
    /// Frees of other threads' objects that are not posted yet.
    pub outbox: Outbox,
    /// Large objects in hand.
    pub large: LargeCache,
    /// Bytes of large objects before the next one is sampled; 0: not drawn yet.
    pub large_before_sample: Cell<u64>,
    /// What the thread counts, see [`crate::system::events`].
    pub counts: Counts,
    /// Spans divided by lines, by lifetime class.
    pub lines: [OpenSpans; CLASSES],
    /// Which bin the objects of a call go to.
    pub predictions: Predictions,
    bins: [Bin; SIZE_CLASSES * CLASSES],
}

// SAFETY: a heap is used by the one thread that lives in it, except `remote`, `tenancy` and `busy`, which are made
// for sharing; a vacant heap is used under the registry's lock.
unsafe impl Sync for Heap {}

impl Default for Heap {
    fn default() -> Self {
        Self::new()
    }
}

impl Heap {
    /// A heap that owns nothing and predicts nothing: every call takes the slow path.
    pub const fn new() -> Self {
        Self {
            id: Cell::new(0),
            stack_base: Cell::new(0),
            epoch: Cell::new(0),
            thread: Cell::new(0),
            sequence: Cell::new(0),
            visits: Cell::new(0),
            slow_frees: Cell::new(0),
            flushed_ms: Cell::new(0),
            looked_ms: Cell::new(0),
            kept_ms: Cell::new(0),
            forgot_ms: Cell::new(0),
            looks_for_vacant: Cell::new(0),
            vacant_misses: Cell::new(0),
            busy: AtomicU32::new(0),
            remote: RemoteList::new(),
            tenancy: Tenancy::new(),
            next_vacant: Cell::new(None),
            hands: [const { Hand::new() }; CLASSES],
            known_sites: KnownSites::new(),
            outbox: Outbox::new(),
            large: LargeCache::new(),
            large_before_sample: Cell::new(0),
            counts: Counts::new(),
            lines: [const { OpenSpans::new() }; CLASSES],
            predictions: Predictions::new(),
            bins: [const { Bin::new() }; SIZE_CLASSES * CLASSES],
        }
    }

    /// The bin of a lifetime class and a size class, ready for [`Bin::allocate`].
    pub fn bin(&self, class: usize, size_class: usize) -> &Bin {
        let bin = &self.bins[class * SIZE_CLASSES + size_class];
        if !bin.is_prepared() {
            bin.prepare(class, size_class);
        }
        bin
    }

    /// As [`Heap::bin`], if the thread ever used it.
    pub fn bin_if_used(&self, class: usize, size_class: usize) -> Option<&Bin> {
        Some(&self.bins[class * SIZE_CLASSES + size_class]).filter(|bin| bin.is_prepared())
    }

    /// How high the stack was at a call.
    #[inline]
    pub fn height(&self, call: &Call) -> usize {
        self.stack_base.get().wrapping_sub(call.stack)
    }

    /// The thread's number, if it has a heap.
    pub fn number(&self) -> Option<u32> {
        (self.id.get() != 0).then(|| self.thread.get())
    }

    /// All bins.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// The fast path of allocation.
    #[inline(always)]
    pub fn allocate_fast(&self, call: &Call) -> Option<usize> {
        self.predicted_bin(call)?.allocate()
    }

    /// The bin that was predicted for this call before.
    #[inline(always)]
    pub fn predicted_bin(&self, call: &Call) -> Option<&'static Bin> {
        if call.size > MAX_SMALL_BYTES {
            return None;
        }
        self.predictions.get(call)
    }
}

/// The fast path of freeing: the object is a cell of one of the calling thread's spans, and needs nothing else.
#[inline(always)]
pub fn free_fast(address: usize) -> Freed {
    let Some(span) = region::span_if_plain(address) else { return Freed::No };
    if span.tag.load(Relaxed) != thread_local::tag() {
        return Freed::No;
    }
    let Some(cell) = span.cell_at(address) else { return Freed::No };
    let word = span.live_word(cell / 64);
    let live = word.load(Relaxed);
    let bit = 1 << (cell % 64);
    if live & bit == 0 {
        return Freed::No; // or watched
    }
    let left = live ^ bit;
    word.store(left, Relaxed);
    if left == 0 && span.place() != Place::Open { Freed::MayBeEmpty } else { Freed::Yes }
}
