//! A block span's metadata (LLAMA §6.1, §6.6), and the cells of one size that it is divided into.
//!
//! A span has one owner, a thread's heap. One bit a cell says whether it is live. The owner allocates and frees with
//! plain loads and stores; others mark cells in a second bit vector, and the owner takes those marks over when it
//! next looks ([`crate::remote`]). So the counts that the paper updates atomically at each allocation and free
//! (§8, its fast path's bottleneck in §9.5) are owner-local here. Since the bits lie apart from the objects, a
//! wild write cannot corrupt them, and a second free of the same cell is always seen.

use core::cell::Cell;
use core::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::geometry::SPAN_METADATA_BYTES;
use crate::remote::{Link, RemoteBits};
use crate::size_class;

/// Words of live bits: enough for the 1024 cells of 16 B.
pub const WORDS: usize = 16;

/// In [`Span::tag`]: the span is closed, every cell was live when its owner last allocated from it.
pub const CLOSED: u32 = 1 << 30;
/// In [`Span::tag`]: the owner's id.
pub const OWNER: u32 = 0xFFFF;

/// Where the owner keeps the span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Place {
    /// Not a heap's.
    None = 0,
    /// Being allocated from.
    Open = 1,
    /// Closed; in no list, found again by the address of an object that is freed.
    Closed = 2,
    /// Partly free: in its bin's list.
    Partial = 3,
    /// Divided by lines, see [`crate::lines`].
    Lines = 4,
}

/// On cache lines of their own: others read the header while the owner writes here.
#[repr(C, align(64))]
struct LiveBits([AtomicU64; WORDS]);

/// The metadata, 320 B: a cache line of header, two lines that the owner writes, two that others write.
#[repr(C, align(64))]
pub struct Span {
    /// The owner's id and flags; equal to the owner's own tag exactly if a free by the owner needs no more
    /// than clearing a bit. 0: no owner.
    pub tag: AtomicU32,
    /// Multiplier that divides an offset by the cell size.
    pub reciprocal: AtomicU32,
    /// Bytes of a cell.
    pub cell_bytes: AtomicU16,
    /// Cells.
    pub cells: AtomicU16,
    /// Size class of the cells.
    pub size_class: AtomicU8,
    /// Lifetime class of the objects.
    pub class: AtomicU8,
    place: AtomicU8,
    /// Where large objects lie: the heap that has the freed one in hand that begins in the span's first or second block; 0
    /// for none.
    pub in_hand: [AtomicU16; crate::geometry::SPAN_BLOCKS],
    /// Two cells whose lifetime is being measured, each plus one, 16 bits each; 0 for none.
    sampled: AtomicU32,
    /// Neighbours in the bin's list.
    pub next: AtomicU64,
    /// As above.
    pub previous: AtomicU64,
    /// Membership in an owner's list of spans with remote frees.
    pub link: Link,
    live: LiveBits,
    remote: RemoteBits,
}

const _: () = assert!(size_of::<Span>() == SPAN_METADATA_BYTES);
const _: () = assert!(core::mem::offset_of!(Span, live) == 64);

impl Span {
    /// Prepares a span that no heap owns for cells of `size_class`.
    pub fn divide(&self, owner: u32, size_class: usize, class: usize) {
        self.reciprocal.store(size_class::reciprocal(size_class), Relaxed);
        self.cell_bytes.store(size_class::CELL_BYTES[size_class], Relaxed);
        self.cells.store(size_class::cells(size_class) as u16, Relaxed);
        self.size_class.store(size_class as u8, Relaxed);
        self.class.store(class as u8, Relaxed);
        self.sampled.store(0, Relaxed);
        self.live.0.iter().for_each(|word| word.store(0, Relaxed));
        self.tag.store(owner, Release);
    }

    /// The owner's id; 0 for none.
    #[inline]
    pub fn owner(&self) -> u32 {
        self.tag.load(Acquire) & OWNER
    }

    /// Where the owner keeps the span.
    #[inline]
    pub fn place(&self) -> Place {
        match self.place.load(Relaxed) {
            1 => Place::Open,
            2 => Place::Closed,
            3 => Place::Partial,
            4 => Place::Lines,
            _ => Place::None,
        }
    }

    /// Says where the owner keeps the span.
    pub fn set_place(&self, place: Place) {
        self.place.store(place as u8, Relaxed);
    }

    /// Sets and clears flags of the tag; the owner only.
    pub fn change_tag(&self, set: u32, clear: u32) {
        self.tag.store(self.tag.load(Relaxed) & !clear | set, Release);
    }

    /// Words of live bits in use.
    #[inline]
    pub fn words(&self) -> usize {
        (self.cells.load(Relaxed) as usize).div_ceil(64)
    }

    /// The live bits of word `i`.
    #[inline(always)]
    pub fn live_word(&self, i: usize) -> &AtomicU64 {
        &self.live.0[i % WORDS] // always less: the remainder tells the compiler so
    }

    /// Bits of word `i` that stand for a cell.
    #[inline]
    pub fn mask(&self, i: usize) -> u64 {
        let cells = self.cells.load(Relaxed) as usize - i * 64;
        if cells >= 64 { u64::MAX } else { (1 << cells) - 1 }
    }

    /// Whether no cell is live, as far as the owner knows.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.live.0[..self.words()].iter().all(|word| word.load(Relaxed) == 0)
    }

    /// Whether every cell is live, as far as the owner knows.
    pub fn is_full(&self) -> bool {
        (0..self.words()).all(|i| self.live.0[i].load(Relaxed) == self.mask(i))
    }

    /// Live cells, as far as the owner knows.
    pub fn live_cells(&self) -> usize {
        self.live.0[..self.words()].iter().map(|word| word.load(Relaxed).count_ones() as usize).sum()
    }

    /// The remote side.
    pub fn remote(&self) -> &RemoteBits {
        &self.remote
    }

    /// Takes over the cells that others freed, and calls `freed` with each word's index and bits.
    /// `Err` names a cell that was freed twice.
    pub fn collect(&self, mut freed: impl FnMut(usize, u64)) -> Result<(), usize> {
        for i in 0..self.words() {
            let bits = self.remote.take(i);
            if bits == 0 {
                continue;
            }
            let live = self.live.0[i].load(Relaxed);
            let twice = bits & !live;
            if twice != 0 {
                return Err(i * 64 + twice.trailing_zeros() as usize);
            }
            self.live.0[i].store(live & !bits, Relaxed);
            freed(i, bits);
        }
        Ok(())
    }

    /// Remembers that this cell's lifetime is measured; whether there was room. The owner only, as all that change this.
    pub fn sample(&self, cell: usize) -> bool {
        let sampled = self.sampled.load(Relaxed);
        let shift = if sampled & 0xFFFF == 0 { 0 } else { 16 };
        if sampled >> shift & 0xFFFF != 0 {
            return false;
        }
        self.sampled.store(sampled | (cell as u32 + 1) << shift, Relaxed);
        true
    }

    /// Whether this cell's lifetime is measured.
    #[inline(always)]
    pub fn is_sampled(&self, cell: usize) -> bool {
        let sampled = self.sampled.load(Relaxed);
        sampled != 0 && (sampled & 0xFFFF == cell as u32 + 1 || sampled >> 16 == cell as u32 + 1)
    }

    /// Forgets those measured cells of word `word` whose bits are set.
    pub fn forget_samples(&self, word: usize, bits: u64) {
        if self.sampled.load(Relaxed) != 0 {
            (0..64).filter(|i| bits >> i & 1 == 1).for_each(|i| self.forget_sample(word * 64 + i));
        }
    }

    /// Forgets that this cell's lifetime is measured.
    pub fn forget_sample(&self, cell: usize) {
        let sampled = self.sampled.load(Relaxed);
        if sampled & 0xFFFF == cell as u32 + 1 {
            self.sampled.store(sampled & !0xFFFF, Relaxed);
        } else if sampled >> 16 == cell as u32 + 1 {
            self.sampled.store(sampled & 0xFFFF, Relaxed);
        }
    }
}

/// A queue of spans, linked through their metadata; the owner's alone. All zeros is an empty one.
///
/// First in, first out: a span that has just got its first free cell waits, and has more of them when its turn comes.
#[derive(Default)]
pub struct SpanList {
    first: Cell<u64>,
    last: Cell<u64>,
}

fn at(address: u64) -> Option<&'static Span> {
    // SAFETY: only addresses of spans, which are never unmapped, are put into lists.
    (address != 0).then(|| unsafe { &*(address as *const Span) })
}

fn address_of(span: &Span) -> u64 {
    core::ptr::from_ref(span) as u64
}

impl SpanList {
    /// The empty list.
    pub const fn new() -> Self {
        Self { first: Cell::new(0), last: Cell::new(0) }
    }

    /// Adds a span that is in no list, at the end.
    pub fn push(&self, span: &'static Span) {
        let last = self.last.replace(address_of(span));
        span.previous.store(last, Relaxed);
        span.next.store(0, Relaxed);
        match at(last) {
            Some(last) => last.next.store(address_of(span), Relaxed),
            None => self.first.set(address_of(span)),
        }
    }

    /// Removes a span that is in this list.
    pub fn remove(&self, span: &'static Span) {
        let (next, previous) = (span.next.load(Relaxed), span.previous.load(Relaxed));
        match at(previous) {
            Some(before) => before.next.store(next, Relaxed),
            None => self.first.set(next),
        }
        match at(next) {
            Some(after) => after.previous.store(previous, Relaxed),
            None => self.last.set(previous),
        }
    }

    /// Removes and returns the first span.
    #[inline]
    pub fn pop(&self) -> Option<&'static Span> {
        let first = at(self.first.get())?;
        self.remove(first);
        Some(first)
    }
}
