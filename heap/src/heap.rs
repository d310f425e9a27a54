//! A thread's heap: allocation from its open spans, and what happens to a span as its cells are freed.
//!
//! **Allocating** looks the call up in the thread's prediction table (LLAMA §7: return address, stack height, size), which
//! gives a *bin*: lifetime class × size class. The bin has one open span, and of it one word of 64 cells at hand: the
//! lowest pending cell is the object's place. **Freeing** finds the span's metadata by the address and clears the cell's
//! live bit. Neither writes to the object or needs an atomic instruction; all else is in the cold half, [`crate::refill`].

use core::cell::Cell;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
    compiler_fence,
};

use crate::geometry::{MAX_SMALL_BYTES, SPAN_BYTES};
use crate::large::LargeCache;
use crate::lifetime::CLASSES;
use crate::outbox::Outbox;
use crate::predictions::Predictions;
use crate::profile;
use crate::refill::Hand;
use crate::region;
use crate::remote::{RemoteList, Tenancy};
use crate::sites::KnownSites;
use crate::size_class::{self, COUNT as SIZE_CLASSES};
use crate::span::{Place, Span, SpanList};
use crate::stats::{self, EVENTS, Event};
use crate::text::misuse;
use crate::thread;

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

/// A call of malloc, as the heap sees it.
#[derive(Clone, Copy)]
pub struct Call {
    /// Bytes asked for.
    pub size: usize,
    /// The return address.
    pub caller: usize,
    /// The stack pointer of the caller.
    pub stack: usize,
}

/// The cells of one size class and lifetime class.
///
/// Allocation works through up to 64 cells at a time, the free ones of one word of the open span's live bits. Taking
/// the word in hand marks them live and notes them as *pending*; handing one out clears its pending bit and touches
/// nothing that a free touches. All zeros is a bin that is not yet prepared, so that a new heap touches only the
/// memory of the bins that its thread uses.
#[repr(C, align(64))]
pub struct Bin {
    /// The pending cells: in the open span's metadata, or [`NONE_PENDING`].
    pending: Cell<Option<&'static AtomicU64>>,
    /// The live bits of the word at hand.
    word: Cell<Option<&'static AtomicU64>>,
    /// Where the first cell of the word at hand lies.
    base: Cell<usize>,
    cell_bytes: Cell<u32>,
    /// Index into [`size_class::CELL_BYTES`].
    pub size_class: Cell<u8>,
    /// Lifetime class.
    pub class: Cell<u8>,
    /// Cells to take in hand before the next object is sampled, see [`crate::profile`].
    pub before_sample: Cell<u32>,
    /// The span that is being allocated from.
    pub open: Cell<Option<&'static Span>>,
    /// The other spans of the bin, full or not; see [`crate::refill`].
    pub queue: SpanList,
    /// How many of them a refill looks at.
    pub patience: Cell<u8>,
}

/// What bins without an open span point to; never written.
static NONE_PENDING: AtomicU64 = AtomicU64::new(0);

impl Bin {
    const fn new() -> Self {
        Self {
            pending: Cell::new(None),
            word: Cell::new(None),
            base: Cell::new(0),
            cell_bytes: Cell::new(0),
            size_class: Cell::new(0),
            class: Cell::new(0),
            before_sample: Cell::new(0),
            open: Cell::new(None),
            queue: SpanList::new(),
            patience: Cell::new(0),
        }
    }

    /// Bytes of a cell.
    pub fn cell_bytes(&self) -> usize {
        self.cell_bytes.get() as usize
    }

    fn prepare(&self, class: usize, size_class: usize) {
        self.size_class.set(size_class as u8);
        self.class.set(class as u8);
        self.cell_bytes.set(size_class::CELL_BYTES[size_class] as u32);
        self.before_sample.set(profile::cells_before_sample(self.cell_bytes.get() as usize));
        self.pending.set(Some(&NONE_PENDING));
        self.word.set(Some(&NONE_PENDING));
    }

    /// A cell of the word at hand; `None` if it has no more.
    #[inline(always)]
    pub fn allocate(&self) -> Option<usize> {
        // SAFETY: `Heap::bin` prepares a bin before it hands it out.
        let (at_hand, word) =
            unsafe { (self.pending.get().unwrap_unchecked(), self.word.get().unwrap_unchecked()) };
        let pending = at_hand.load(Relaxed);
        if pending == 0 {
            return None;
        }
        at_hand.store(pending & (pending - 1), Relaxed);
        let cell = pending.trailing_zeros();
        let address = self.base.get() + cell as usize * self.cell_bytes.get() as usize;
        if word.load(Relaxed) >> cell & 1 == 0 {
            freed_while_pending(address, self.cell_bytes.get() as usize);
        }
        Some(address)
    }

    /// Cells in hand.
    pub fn in_hand(&self) -> u32 {
        self.pending.get().map_or(0, |pending| pending.load(Relaxed).count_ones())
    }

    /// Takes a word of the open span in hand that has free cells; whether there is one. Never when an object is to be
    /// sampled: the slow path sees to that.
    pub fn advance(&self) -> bool {
        let Some(span) = self.open.get() else { return false };
        let mut before_sample = self.before_sample.get();
        if (before_sample == profile::NEVER) == profile::sampling() {
            before_sample = profile::cells_before_sample(self.cell_bytes()).max(1); // sampling has begun, or ended
            self.before_sample.set(before_sample);
        }
        // Another thread may fork between any two of these stores, and a thread of the child moves into this heap. While the
        // span's cells and the bin's address of them do not belong together, the bin has none.
        self.pending.set(Some(&NONE_PENDING));
        compiler_fence(SeqCst);
        let Some(word) = span.take_word(before_sample) else { return false };
        let taken = span.pending().load(Relaxed).count_ones();
        if before_sample != profile::NEVER {
            self.before_sample.set(before_sample - taken);
        }
        stats::add(Event::CellsTaken, taken.into());
        self.word.set(Some(span.live_word(word)));
        self.base.set(span_address(span) + word * 64 * self.cell_bytes.get() as usize);
        compiler_fence(SeqCst);
        self.pending.set(Some(span.pending()));
        true
    }

    /// Has no open span any more.
    pub fn close(&self) -> Option<&'static Span> {
        let span = self.open.take()?;
        let not_used = span.pending().load(Relaxed).count_ones();
        if self.before_sample.get() != profile::NEVER {
            self.before_sample.set(self.before_sample.get() + not_used);
        }
        stats::add(Event::CellsTaken, u64::from(not_used).wrapping_neg());
        span.return_word();
        self.pending.set(Some(&NONE_PENDING));
        Some(span)
    }
}

/// A cell was freed again after it had been freed and before it was handed out again. The fast path of freeing does not look
/// for that: it is seen here, before the cell gets two owners.
#[cold]
fn freed_while_pending(address: usize, cell_bytes: usize) -> ! {
    misuse("double free, seen late", address, cell_bytes, 0)
}

/// Where the objects of a span begin.
#[inline]
pub fn span_address(span: &Span) -> usize {
    let metadata = core::ptr::from_ref(span) as usize;
    let base = crate::geometry::region_base(metadata);
    base + (metadata - base - crate::geometry::SPAN_METADATA_OFFSET) / crate::geometry::SPAN_METADATA_BYTES
        * SPAN_BYTES
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
    pub flushed_ms: Cell<u32>,
    /// When the prediction table was last emptied, ms.
    pub forgot_ms: Cell<u32>,
    /// The thread is in a section that fork must not cut, see [`crate::fork`].
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
    /// What the thread counts, see [`crate::stats`].
    pub counts: [AtomicU64; EVENTS],
    /// Spans divided by lines, by lifetime class.
    pub lines: [crate::lines::OpenSpans; CLASSES],
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
            forgot_ms: Cell::new(0),
            busy: AtomicU32::new(0),
            remote: RemoteList::new(),
            tenancy: Tenancy::new(),
            next_vacant: Cell::new(None),
            hands: [const { Hand::new() }; CLASSES],
            known_sites: KnownSites::new(),
            outbox: Outbox::new(),
            large: LargeCache::new(),
            large_before_sample: Cell::new(0),
            counts: [const { AtomicU64::new(0) }; EVENTS],
            lines: [const { crate::lines::OpenSpans::new() }; CLASSES],
            predictions: Predictions::new(),
            bins: [const { Bin::new() }; SIZE_CLASSES * CLASSES],
        }
    }

    /// The bin of a lifetime class and a size class, ready for [`Bin::allocate`].
    pub fn bin(&self, class: usize, size_class: usize) -> &Bin {
        let bin = &self.bins[class * SIZE_CLASSES + size_class];
        if bin.cell_bytes.get() == 0 {
            bin.prepare(class, size_class);
        }
        bin
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
    if span.tag.load(Relaxed) != thread::current_tag() {
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
