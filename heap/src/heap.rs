//! A thread's heap: allocation from its open spans, and what happens to a span as its cells are freed.
//!
//! **Allocating** looks the call up in the thread's prediction table (LLAMA §7: return address, stack height, size), which
//! gives a *bin*: lifetime class × size class. The bin has one open span, and of it one word of 64 live bits at
//! hand: the lowest clear bit is the object's place. **Freeing** clears the bit. Neither writes to the object, needs an
//! atomic instruction, or a branch that is taken seldom; all else is in the cold half, [`crate::refill`].

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::geometry::{MAX_SMALL_BYTES, SPAN_BYTES};
use crate::large::LargeCache;
use crate::lifetime::CLASSES;
use crate::region;
use crate::remote::{RemoteList, Tenancy};
use crate::size_class::{self, COUNT as SIZE_CLASSES, GRANULE_BYTES};
use crate::span::{Place, Span, SpanList};
use crate::stats::EVENTS;

/// Entries of the prediction table.
pub const PREDICTIONS: usize = 1024;

/// In a prediction: where the bin lies in the heap, in bytes.
const BIN_OFFSET: u64 = 0xFFFF;
/// In a prediction: the size in granules, plus one. It is kept whole, so that no collision can yield cells too small,
/// and is never 0, so that an empty entry matches no call.
const GRANULES_SHIFT: u32 = 16;
/// In a prediction: the hash of the call, above the size.
const HASH: u64 = !0 << 26;

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

/// The cells of one size class and lifetime class.
///
/// The next cell is chosen ahead: an allocation hands out `next`, marks it, and looks for the one after it in the word at
/// hand, while the program goes on with the address it got. All zeros is a valid bin, not yet prepared, so that a
/// new heap touches only the memory of the bins that its thread uses.
#[repr(C, align(64))]
pub struct Bin {
    /// A free cell of the open span, or 0.
    next: Cell<usize>,
    /// Its bit in `word`.
    bit: Cell<u64>,
    /// 64 live bits of the open span; valid if `next` is not 0.
    word: Cell<*const AtomicU64>,
    /// Those of them that stand for a cell.
    mask: Cell<u64>,
    /// Where the word's first cell lies.
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

impl Bin {
    const fn new() -> Self {
        Self {
            next: Cell::new(0),
            bit: Cell::new(0),
            word: Cell::new(core::ptr::null()),
            mask: Cell::new(0),
            base: Cell::new(0),
            cell_bytes: Cell::new(0),
            size_class: Cell::new(0),
            class: Cell::new(0),
            open: Cell::new(None),
            partial: SpanList::new(),
        }
    }

    /// The next cell; `None` if it was not chosen.
    #[inline(always)]
    pub fn allocate(&self) -> Option<usize> {
        let cell = self.next.get();
        if cell == 0 {
            return None;
        }
        // SAFETY: there is a next cell, so the word is the one it lies in; live bits are never unmapped.
        let word = unsafe { &*self.word.get() };
        let live = word.load(Relaxed) | self.bit.get();
        word.store(live, Relaxed);
        self.choose(live);
        Some(cell)
    }

    /// Chooses the next cell in the word at hand, whose bits are `live`.
    #[inline(always)]
    fn choose(&self, live: u64) {
        let free = !live & self.mask.get();
        if free == 0 {
            self.next.set(0);
            return;
        }
        let i = free.trailing_zeros();
        self.bit.set(1 << i);
        self.next.set(self.base.get() + i as usize * self.cell_bytes.get() as usize);
    }

    /// Chooses a next cell anywhere in the open span; whether there is one.
    pub fn advance(&self) -> bool {
        let Some(span) = self.open.get() else { return false };
        for i in 0..span.words() {
            let word = span.live_word(i);
            let (live, mask) = (word.load(Relaxed), span.mask(i));
            if !live & mask != 0 {
                self.word.set(word);
                self.mask.set(mask);
                self.base.set(span_address(span) + i * 64 * self.cell_bytes.get() as usize);
                self.choose(live);
                return true;
            }
        }
        false
    }

    /// Has no open span any more.
    pub fn close(&self) -> Option<&'static Span> {
        self.next.set(0);
        self.open.take()
    }
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
    /// Empty spans in hand, by lifetime class, and how many they are.
    pub empty: [(SpanList, Cell<u32>); CLASSES],
    /// Large objects in hand.
    pub large: LargeCache,
    /// What the thread counts, see [`crate::stats`].
    pub counts: [AtomicU64; EVENTS],
    /// Spans divided by lines, by lifetime class.
    pub lines: [crate::lines::OpenSpans; CLASSES],
    predictions: [Cell<u64>; PREDICTIONS],
    bins: [Bin; SIZE_CLASSES * CLASSES],
}

// SAFETY: a heap is used by the one thread that lives in it, except `remote`, `tenancy` and `busy`, which are made
// for sharing; a vacant heap is used under the registry's lock.
unsafe impl Sync for Heap {}

const _: () = assert!(size_of::<Heap>() <= BIN_OFFSET as usize);

impl Default for Heap {
    fn default() -> Self {
        Self::new()
    }
}

impl Heap {
    /// A heap that owns nothing and predicts nothing: every call takes the slow path.
    pub const fn new() -> Self {
        Self {
            tag: Cell::new(NO_TAG),
            id: Cell::new(0),
            stack_base: Cell::new(0),
            epoch: Cell::new(0),
            thread: Cell::new(0),
            sequence: Cell::new(0),
            visits: Cell::new(0),
            flushed_ms: Cell::new(0),
            forgot_ms: Cell::new(0),
            busy: AtomicU32::new(0),
            remote: RemoteList::new(),
            tenancy: Tenancy::new(),
            next_vacant: Cell::new(None),
            empty: [const { (SpanList::new(), Cell::new(0)) }; CLASSES],
            large: LargeCache::new(),
            counts: [const { AtomicU64::new(0) }; EVENTS],
            lines: [const { crate::lines::OpenSpans::new() }; CLASSES],
            predictions: [const { Cell::new(0) }; PREDICTIONS],
            bins: [const { Bin::new() }; SIZE_CLASSES * CLASSES],
        }
    }

    /// The bin of a lifetime class and a size class, ready for [`Bin::allocate`].
    pub fn bin(&self, class: usize, size_class: usize) -> &Bin {
        let bin = &self.bins[class * SIZE_CLASSES + size_class];
        if bin.cell_bytes.get() == 0 {
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
    fn key(call: &Call) -> (u64, usize) {
        let size = ((call.size + 2 * GRANULE_BYTES - 1) / GRANULE_BYTES) as u64;
        let call_site = (call.caller as u64).wrapping_add((call.stack as u64) << 16);
        let hash = call_site.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash & HASH | size << GRANULES_SHIFT, ((hash >> 54) ^ size) as usize % PREDICTIONS)
    }

    /// The fast path of allocation.
    #[inline(always)]
    pub fn allocate_fast(&self, call: &Call) -> Option<usize> {
        self.predicted_bin(call)?.allocate()
    }

    /// The bin that was predicted for this call before.
    #[inline(always)]
    pub fn predicted_bin(&self, call: &Call) -> Option<&Bin> {
        if call.size > MAX_SMALL_BYTES {
            return None;
        }
        let (key, place) = Self::key(call);
        let entry = self.predictions[place].get();
        if entry ^ key > BIN_OFFSET {
            return None;
        }
        // SAFETY: `remember` stores only offsets of this heap's bins, and no key matches an empty entry.
        Some(unsafe { &*core::ptr::from_ref(self).byte_add((entry & BIN_OFFSET) as usize).cast::<Bin>() })
    }

    /// Remembers the bin for calls like this one.
    pub fn remember(&self, call: &Call, bin: &Bin) {
        let (key, place) = Self::key(call);
        let offset = core::ptr::from_ref(bin) as u64 - core::ptr::from_ref(self) as u64;
        self.predictions[place].set(key | offset);
    }

    /// Forgets all predictions.
    pub fn forget_predictions(&self) {
        self.predictions.iter().for_each(|entry| entry.set(0));
    }

    /// The fast path of freeing: the object is a cell of an own span that needs nothing else.
    #[inline(always)]
    pub fn free_fast(&self, address: usize) -> Freed {
        let Some(span) = region::span_if_plain(address) else { return Freed::No };
        if span.tag.load(Relaxed) != self.tag.get() {
            return Freed::No;
        }
        let offset = address & (SPAN_BYTES - 1);
        let cell = ((offset as u64 * span.reciprocal.load(Relaxed) as u64) >> 32) as usize;
        let word = span.live_word(cell / 64);
        let live = word.load(Relaxed);
        let left = live & !(1 << (cell % 64));
        let begins = cell * span.cell_bytes.load(Relaxed) as usize == offset;
        if !begins || left == live || span.is_sampled(cell) {
            return Freed::No;
        }
        word.store(left, Relaxed);
        if left == 0 && span.place() != Place::Open { Freed::MayBeEmpty } else { Freed::Yes }
    }
}
