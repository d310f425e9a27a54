//! A thread's heap: allocation from its open spans, and what happens to a span as its cells are freed.
//!
//! **Allocating** looks the call up in the thread's prediction table (LLAMA §7: return address, stack height, size), which
//! gives a *bin*: lifetime class × size class. The bin has one open span, and of it one word of 64 live bits at
//! hand: the lowest clear bit is the object's place. **Freeing** clears the bit. Neither writes to the object, needs an
//! atomic instruction, or a branch that is taken seldom; all else is in the cold half, [`crate::refill`].

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::geometry::{MAX_SMALL_BYTES, SPAN_BYTES};
use crate::lifetime::CLASSES;
use crate::region;
use crate::remote::{RemoteList, Tenancy};
use crate::size_class::{self, COUNT as SIZE_CLASSES, GRANULE_BYTES};
use crate::span::{Place, Span, SpanList};

/// Entries of the prediction table.
pub const PREDICTIONS: usize = 1024;

/// In a prediction: where the bin lies in the heap, in bytes.
const BIN_OFFSET: u64 = 0xFFFF;
/// In a prediction: the size in granules. It is kept whole, so that no collision can yield cells too small.
const GRANULES_SHIFT: u32 = 16;
/// In a prediction: the hash of the call, above the size.
const HASH: u64 = !0 << 26;
/// Set in every key: an empty entry matches none.
const USED: u64 = 1 << 63;

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

/// Never matches a span's tag.
pub const NO_TAG: u32 = u32::MAX;

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

/// The cells of one size class and lifetime class. `word`, `mask` and `base` are the part of the open span that is
/// being allocated from; a bin without one has an empty mask. All zeros is a valid bin, not yet prepared, so that a
/// new heap touches only the memory of the bins that its thread uses.
#[repr(C, align(64))]
pub struct Bin {
    word: Cell<*const AtomicU64>,
    mask: Cell<u64>,
    base: Cell<usize>,
    cell_bytes: Cell<u32>,
    /// Index into [`size_class::CELL_BYTES`].
    pub size_class: Cell<u8>,
    /// Lifetime class.
    pub class: Cell<u8>,
    /// The span that is being allocated from.
    pub open: Cell<Option<&'static Span>>,
    /// Spans with free cells.
    pub partial: SpanList,
}

static NO_WORD: AtomicU64 = AtomicU64::new(0);

impl Bin {
    const EMPTY: Self = Self {
        word: Cell::new(core::ptr::null()),
        mask: Cell::new(0),
        base: Cell::new(0),
        cell_bytes: Cell::new(0),
        size_class: Cell::new(0),
        class: Cell::new(0),
        open: Cell::new(None),
        partial: SpanList::new(),
    };

    /// A cell of the word at hand; 0 if it has none.
    #[inline(always)]
    pub fn allocate(&self) -> usize {
        // SAFETY: `Heap::bin` makes the word valid before it hands a bin out, and live words are never unmapped.
        let word = unsafe { &*self.word.get() };
        let live = word.load(Relaxed);
        let free = !live & self.mask.get();
        if free == 0 {
            return 0;
        }
        word.store(live | (free & free.wrapping_neg()), Relaxed);
        self.base.get() + free.trailing_zeros() as usize * self.cell_bytes.get() as usize
    }

    /// Takes a word with a free cell of the open span in hand; whether there is one.
    pub fn advance(&self) -> bool {
        let Some(span) = self.open.get() else { return false };
        for i in 0..span.words() {
            let word = span.live_word(i);
            let mask = span.mask(i);
            if !word.load(Relaxed) & mask != 0 {
                self.word.set(word);
                self.mask.set(mask);
                self.base.set(span_address(span) + i * 64 * self.cell_bytes.get() as usize);
                return true;
            }
        }
        false
    }

    /// Has no open span any more.
    pub fn close(&self) -> Option<&'static Span> {
        self.word.set(&NO_WORD);
        self.mask.set(0);
        self.open.take()
    }
}

/// Where the objects of a span begin.
#[inline]
pub fn span_address(span: &Span) -> usize {
    let metadata = core::ptr::from_ref(span) as usize;
    let base = crate::geometry::region_base(metadata);
    base + (metadata - base - crate::geometry::SPAN_METADATA_OFFSET) / crate::geometry::SPAN_METADATA_BYTES * SPAN_BYTES
}

/// A thread's heap. It outlives the thread: another one moves in, with all its spans. All zeros is a valid heap.
#[repr(C, align(4096))]
pub struct Heap {
    /// What a span's tag is when a free by this heap's thread needs no more than clearing a bit.
    pub tag: Cell<u32>,
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
    /// When the empty spans in hand were last given back, ms.
    pub flushed_ms: Cell<u32>,
    /// The thread is in a section that fork must not cut, see [`crate::fork`].
    pub busy: AtomicU32,
    /// Spans in which other threads freed objects.
    pub remote: RemoteList,
    /// Whether a thread lives here.
    pub tenancy: Tenancy,
    /// The next heap without a thread.
    pub next_vacant: Cell<Option<&'static Heap>>,
    /// Empty spans in hand, by lifetime class.
    pub empty: [Cell<Option<&'static Span>>; CLASSES],
    /// Spans divided by lines, by lifetime class.
    pub lines: [crate::lines::OpenSpans; CLASSES],
    predictions: [Cell<u64>; PREDICTIONS],
    bins: [Bin; SIZE_CLASSES * CLASSES],
}

// SAFETY: a heap is used by the one thread that lives in it, except `remote`, `tenancy` and `busy`, which are made
// for sharing; a vacant heap is used under the registry's lock.
unsafe impl Sync for Heap {}

const _: () = assert!(size_of::<Heap>() <= BIN_OFFSET as usize);

impl Heap {
    /// A heap that owns nothing and predicts nothing: every call takes the slow path.
    pub const EMPTY: Self = Self {
        tag: Cell::new(NO_TAG),
        id: Cell::new(0),
        stack_base: Cell::new(0),
        epoch: Cell::new(0),
        thread: Cell::new(0),
        sequence: Cell::new(0),
        visits: Cell::new(0),
        flushed_ms: Cell::new(0),
        busy: AtomicU32::new(0),
        remote: RemoteList::new(),
        tenancy: Tenancy::new(),
        next_vacant: Cell::new(None),
        empty: [const { Cell::new(None) }; CLASSES],
        lines: [const { crate::lines::OpenSpans::new() }; CLASSES],
        predictions: [const { Cell::new(0) }; PREDICTIONS],
        bins: [const { Bin::EMPTY }; SIZE_CLASSES * CLASSES],
    };

    /// The bin of a lifetime class and a size class, ready for [`Bin::allocate`].
    pub fn bin(&self, class: usize, size_class: usize) -> &Bin {
        let bin = &self.bins[class * SIZE_CLASSES + size_class];
        if bin.cell_bytes.get() == 0 {
            bin.close();
            bin.size_class.set(size_class as u8);
            bin.class.set(class as u8);
            bin.cell_bytes.set(size_class::CELL_BYTES[size_class] as u32);
        }
        bin
    }

    /// All bins.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// Key of a call, and its place in the table (LLAMA §7).
    #[inline(always)]
    fn key(call: &Call, granules: usize) -> (u64, usize) {
        let call_site = (call.caller as u64).wrapping_add((call.stack as u64) << 16);
        let hash = call_site.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let key = hash & HASH | (granules as u64) << GRANULES_SHIFT | USED;
        (key, (hash >> 54) as usize ^ granules)
    }

    /// The fast path of allocation: a cell, or 0.
    #[inline(always)]
    pub fn allocate_fast(&self, call: &Call) -> usize {
        match self.predicted_bin(call) {
            Some(bin) => bin.allocate(),
            None => 0,
        }
    }

    /// The bin that was predicted for this call before.
    #[inline(always)]
    pub fn predicted_bin(&self, call: &Call) -> Option<&Bin> {
        if call.size > MAX_SMALL_BYTES {
            return None;
        }
        let granules = call.size.div_ceil(GRANULE_BYTES);
        let (key, place) = Self::key(call, granules);
        let entry = self.predictions[place % PREDICTIONS].get();
        if entry ^ key > BIN_OFFSET {
            return None;
        }
        // SAFETY: `remember` stores only offsets of this heap's bins, and USED keeps empty entries from matching.
        Some(unsafe { &*core::ptr::from_ref(self).byte_add((entry & BIN_OFFSET) as usize).cast::<Bin>() })
    }

    /// Remembers the bin for calls like this one.
    pub fn remember(&self, call: &Call, bin: &Bin) {
        let granules = call.size.div_ceil(GRANULE_BYTES);
        let (key, place) = Self::key(call, granules);
        let offset = core::ptr::from_ref(bin) as u64 - core::ptr::from_ref(self) as u64;
        self.predictions[place % PREDICTIONS].set(key | offset);
    }

    /// Forgets all predictions.
    pub fn forget_predictions(&self) {
        self.predictions.iter().for_each(|entry| entry.set(0));
    }

    /// The fast path of freeing: the object is a cell of an own span that needs nothing else.
    #[inline(always)]
    pub fn free_fast(&self, address: usize) -> Freed {
        if !region::is_plain(address) {
            return Freed::No;
        }
        let span = region::span(address);
        if span.tag.load(Relaxed) != self.tag.get() {
            return Freed::No;
        }
        let offset = address & (SPAN_BYTES - 1);
        let cell = (offset as u64 * span.reciprocal.load(Relaxed) as u64 >> 32) as usize;
        let word = span.live_word(cell / 64);
        let live = word.load(Relaxed);
        let left = live & !(1 << (cell % 64));
        let begins = cell * span.cell_bytes.load(Relaxed) as usize == offset;
        if !begins || left == live {
            return Freed::No;
        }
        word.store(left, Relaxed);
        if left == 0 && span.place() != Place::Open { Freed::MayBeEmpty } else { Freed::Yes }
    }
}
