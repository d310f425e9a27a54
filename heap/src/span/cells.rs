//! A block span's metadata (LLAMA §6.1, §6.6), and the cells of one size that it is divided into.
//!
//! A span has one owner, a thread's heap, and one live bit for each cell. The owner allocates and frees with
//! plain loads and stores. Other threads mark cells in a second bit vector, and the owner collects those
//! marks later ([`crate::span::remote`]). So the counts that the paper updates atomically at each allocation
//! and free (§8, the bottleneck of its fast path in §9.5) are owner-local here. The bits lie apart from the
//! objects, so a wild write cannot corrupt them. A thread that frees its cell twice is always detected, at
//! once or before the cell is allocated again.

use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, SeqCst},
};

use crate::span::large_object::LargeObject;
use crate::span::remote::{Link, RemoteBits};
use crate::units::geometry::{SPAN_BLOCKS, SPAN_BYTES, SPAN_METADATA_BYTES};
use crate::units::lifetime_class::CLASSES;
use crate::units::size_class;
use crate::units::window::WINDOW;

/// Words of live bits: enough for the 1024 cells of 16 B.
pub const WORDS: usize = 16;

/// The largest id of an owner.
pub const MAX_OWNER: u32 = 0xFFFF;

/// The span's role for its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Role {
    /// No heap owns it.
    None = 0,
    /// The bin allocates from it.
    Open = 1,
    /// In its bin's queue.
    Queued = 2,
    /// Divided by lines, see [`crate::thread::lines`].
    Lines = 3,
}

/// A span's bin notes its freed cells; the bits below are the bin's offset among its heap's bins. More than
/// any live bits of a span with few cells.
pub const NOTED: u32 = !0x1_FFFF;
const _: () = assert!(CLASSES * size_class::COUNT * BIN_BYTES <= 0x1_FFFF);
const _: () = assert!(1 << size_class::FEW <= NOTED);

/// Bytes of a [`crate::thread::bin::Bin`].
pub const BIN_BYTES: usize = 192;

/// The number of the bin of a lifetime class and a size class.
#[inline(always)]
pub const fn bin_number(class: usize, size_class: usize) -> usize {
    class * size_class::COUNT + size_class
}

/// All of the span's memory was in use since the global allocator handed it out.
pub(super) const WHOLE: u8 = 0x80;
/// It is among its owner's kept spans, see [`Span::is_kept`].
pub(super) const KEPT: u8 = 0x40;

/// How much of a word must be free for a bin to cache it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// An eighth: fewer cells are not worth the visit and are left until there are more.
    Worthwhile,
    /// A cell: there is no other memory.
    Any,
}

/// On their own cache lines: other threads read the header while the owner writes here.
#[repr(C, align(64))]
pub(super) struct LiveBits(pub(super) [AtomicU64; WORDS]);

/// The metadata, 320 B: a cache line of header, two lines that the owner writes, two that other threads
/// write.
#[repr(C, align(64))]
pub struct Span {
    /// The owner's id; 0 for none.
    pub tag: AtomicU32,
    /// Multiplier that divides an offset by the cell size; 0 without an owner, so that no cell is found.
    pub reciprocal: AtomicU32,
    /// The large object that begins in the span's first block. In a span of cells it is 0, and so is the
    /// second one's, so that the field before each can be read as a word of 64 bits.
    first_large: LargeObject,
    /// The owner has more to do after a free that leaves live cells in its word which are, as a number, below
    /// this one: 0 while the bin allocates from the span, else 1, as only an empty one matters. [`NOTED`] and
    /// the bin's offset if the span has few cells, which the bin notes.
    settles_below: AtomicU32,
    /// The large object that begins in the second block.
    second_large: LargeObject,
    /// Cells.
    pub cells: AtomicU16,
    /// Size class of the cells.
    pub size_class: AtomicU8,
    /// The role, [`WHOLE`] and [`KEPT`].
    pub(super) role: AtomicU8,
    /// Bytes of a cell. From here on a word of 64 bits tells whether a noted cell may be allocated.
    pub cell_bytes: AtomicU16,
    /// Lifetime class of the objects.
    pub class: AtomicU8,
    /// It was queued at the last check, and has stayed in the queue since, see [`crate::pages::sparse`].
    waits: AtomicBool,
    /// Two cells whose lifetime is being measured, each plus one, 16 bits each; 0 for none. Spans divided by
    /// lines count their objects here.
    pub(crate) watched: AtomicU32,
    /// Neighbours in a list: the bin's queue, a span cache, recyclable spans.
    pub next: AtomicU64,
    /// As above.
    pub previous: AtomicU64,
    /// Membership in an owner's list of spans with remote frees.
    pub link: Link,
    pub(super) live: LiveBits,
    remote: RemoteBits,
}

/// Field offsets, for the fast path in assembly.
pub mod layout {
    use super::{Link, Span};
    use core::mem::offset_of;

    /// The owner.
    pub const TAG: usize = offset_of!(Span, tag);
    /// The multiplier that divides by the size of a cell.
    pub const RECIPROCAL: usize = offset_of!(Span, reciprocal);
    /// Below which live cells of a word the owner has more to do: a word of 64 bits, with the 0 behind it.
    pub const SETTLES_BELOW: usize = offset_of!(Span, settles_below);
    /// The live bits.
    pub const LIVE: usize = offset_of!(Span, live);
    /// A word of 64 bits: bytes of a cell, 16 bits; lifetime class; whether it waits; watched cells.
    pub const KIND: usize = offset_of!(Span, cell_bytes);
    const _: () = assert!(KIND.is_multiple_of(8));
    const _: () = assert!(offset_of!(Span, class) == KIND + 2 && offset_of!(Span, waits) == KIND + 3);
    const _: () = assert!(offset_of!(Span, watched) == KIND + 4);
    /// Not 0 while it is in a list of spans in which other threads freed cells.
    pub const LISTED: usize = offset_of!(Span, link) + Link::LISTED;
}

const _: () = assert!(size_of::<Span>() == SPAN_METADATA_BYTES);
const _: () = assert!(core::mem::offset_of!(Span, live) == 64);
const _: () =
    assert!(core::mem::offset_of!(Span, first_large) == core::mem::offset_of!(Span, reciprocal) + 4);
const _: () = assert!(core::mem::offset_of!(Span, second_large) == layout::SETTLES_BELOW + 4);

impl Span {
    /// Prepares a span that no heap owns for cells of `size_class`.
    pub fn divide(&self, size_class: usize, class: usize) {
        self.reciprocal.store(size_class::reciprocal(size_class), Relaxed);
        self.cell_bytes.store(size_class::CELL_BYTES[size_class], Relaxed);
        self.cells.store(size_class::cells(size_class) as u16, Relaxed);
        self.size_class.store(size_class as u8, Relaxed);
        self.class.store(class as u8, Relaxed);
        self.watched.store(0, Relaxed);
        self.live.0.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Makes a heap its owner, which has divided it or adopted it from another.
    pub fn own(&self, owner: u32) {
        self.tag.store(owner, SeqCst);
    }

    /// Removes the owner.
    pub fn disown(&self) {
        self.set_role(Role::None);
        self.reciprocal.store(0, Relaxed);
        self.tag.store(0, SeqCst);
    }

    /// Where the span's objects begin.
    #[inline]
    pub fn address(&self) -> usize {
        WINDOW.span_of(core::ptr::from_ref(self) as usize)
    }

    /// The owner's id; 0 for none.
    #[inline]
    pub fn owner(&self) -> u32 {
        self.tag.load(Acquire)
    }

    /// The span's role for its owner.
    #[inline]
    pub fn role(&self) -> Role {
        match self.role.load(Relaxed) & !(WHOLE | KEPT) {
            1 => Role::Open,
            2 => Role::Queued,
            3 => Role::Lines,
            _ => Role::None,
        }
    }

    /// Sets the span's role.
    pub fn set_role(&self, role: Role) {
        let kept = if role == Role::None { 0 } else { KEPT };
        self.role.store(role as u8 | self.role.load(Relaxed) & (WHOLE | kept), Relaxed);
        self.waits.store(false, Relaxed);
        let below = match role {
            Role::Open | Role::Queued if self.has_few_cells() => self.noted_by(),
            Role::Open => 0,
            _ => 1,
        };
        self.settles_below.store(below, Relaxed);
    }

    /// Sets the lifetime class of its objects: its bin is another one now.
    pub fn set_class(&self, class: usize) {
        self.class.store(class as u8, Relaxed);
        if self.settles_below.load(Relaxed) >= NOTED {
            self.settles_below.store(self.noted_by(), Relaxed);
        }
    }

    fn noted_by(&self) -> u32 {
        let bin = bin_number(self.class.load(Relaxed).into(), self.size_class.load(Relaxed).into());
        NOTED | (bin * BIN_BYTES) as u32
    }

    #[inline(always)]
    fn has_few_cells(&self) -> bool {
        usize::from(self.cells.load(Relaxed)) <= size_class::FEW
    }

    /// The number of the bin that notes its freed cells; none if it has many.
    #[inline(always)]
    pub fn noting_bin(&self) -> Option<usize> {
        let below = self.settles_below.load(Relaxed);
        (below >= NOTED).then_some((below & !NOTED) as usize / BIN_BYTES)
    }

    /// The metadata of the large object that begins in one of the span's blocks.
    #[inline(always)]
    pub fn large(&self, block: usize) -> &LargeObject {
        if block.is_multiple_of(SPAN_BLOCKS) { &self.first_large } else { &self.second_large }
    }

    /// Whether it was queued at the last check, and has stayed in the queue since.
    pub fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    /// Notes at a check that it is queued.
    pub fn note_waiting(&self) {
        self.waits.store(true, Relaxed);
    }

    /// Words of live bits in use.
    #[inline]
    pub fn words(&self) -> usize {
        (self.cells.load(Relaxed) as usize).div_ceil(64)
    }

    /// The live bits of word `i`.
    #[inline(always)]
    pub fn live_word(&self, i: usize) -> &AtomicU64 {
        &self.live.0[i]
    }

    /// The bits of word `i` that represent a cell.
    #[inline]
    pub fn mask(&self, i: usize) -> u64 {
        let cells = self.cells.load(Relaxed) as usize - i * 64;
        if cells >= 64 { u64::MAX } else { (1 << cells) - 1 }
    }

    /// The first word with that much room, and its free cells.
    #[inline(always)]
    pub fn word_with(&self, room: Room) -> Option<(usize, u64)> {
        let mut cells = self.cells.load(Relaxed) as usize;
        let mut i = 0;
        while cells != 0 {
            let here = cells.min(64);
            let free = !self.live_cells_of(i) & (u64::MAX >> (64 - here));
            let least = if room == Room::Worthwhile { (here / 8).max(1) } else { 1 };
            if free.count_ones() as usize >= least {
                return Some((i, free));
            }
            cells -= here;
            i += 1;
        }
        None
    }

    /// Whether the owner has nothing more to do after freeing a cell; `left` are the other live cells of its
    /// word. An open span stays open when it is empty.
    #[inline(always)]
    pub fn is_settled_with(&self, left: u64) -> bool {
        left >= u64::from(self.settles_below.load(Relaxed))
    }

    /// Live cells of word `i`, watched ones included.
    #[inline]
    pub fn live_cells_of(&self, i: usize) -> u64 {
        self.live.0[i].load(Relaxed) | self.watched_cells_of(i)
    }

    /// Watched cells of word `i`.
    #[inline]
    pub fn watched_cells_of(&self, i: usize) -> u64 {
        let watched = self.watched.load(Relaxed);
        let bit =
            |cell: u32| if cell != 0 && (cell - 1) as usize / 64 == i { 1 << ((cell - 1) % 64) } else { 0 };
        if watched == 0 { 0 } else { bit(watched & 0xFFFF) | bit(watched >> 16) }
    }

    /// Whether no cell is live, as far as the owner knows.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.watched.load(Relaxed) == 0
            && self.live.0[..self.words()].iter().all(|word| word.load(Relaxed) == 0)
    }

    /// Allocates a free cell of the first word. Only the owner calls this.
    #[inline]
    pub fn allocate(&self, cell: usize) {
        let word = &self.live.0[0];
        word.store(word.load(Relaxed) | 1 << cell, Relaxed);
        if self.waits.load(Relaxed) {
            self.waits.store(false, Relaxed);
        }
    }

    /// Whether this cell is live, as far as the owner knows.
    pub fn is_live(&self, cell: usize) -> bool {
        self.live_cells_of(cell / 64) >> (cell % 64) & 1 == 1
    }

    /// Live cells, as far as the owner knows.
    pub fn live_cells(&self) -> usize {
        (0..self.words()).map(|i| self.live_cells_of(i).count_ones() as usize).sum()
    }

    /// Live cells, except those that other threads have freed and the owner has not collected.
    pub fn cells_in_use(&self) -> usize {
        let in_use = |i| self.live_cells_of(i) & !self.remote.marked(i);
        (0..self.words()).map(|i| in_use(i).count_ones() as usize).sum()
    }

    /// The marks of other threads.
    pub fn remote(&self) -> &RemoteBits {
        &self.remote
    }

    /// Clears the cells that other threads freed, and calls `freed` for each word of them. `Err` names a cell
    /// that was freed twice.
    ///
    /// # Errors
    /// A cell that was freed twice, by its index.
    pub fn clear_remote_frees(&self, mut freed: impl FnMut()) -> Result<(), usize> {
        for i in 0..self.words() {
            let bits = self.remote.take(i);
            if bits == 0 {
                continue;
            }
            let twice = bits & !self.live_cells_of(i);
            if twice != 0 {
                return Err(i * 64 + twice.trailing_zeros() as usize);
            }
            let live = self.live.0[i].load(Relaxed);
            self.live.0[i].store(live & !bits, Relaxed);
            if bits & self.watched_cells_of(i) != 0 {
                (0..64)
                    .filter(|cell| bits >> cell & 1 == 1)
                    .for_each(|cell| self.forget_watch(i * 64 + cell));
            }
            freed();
        }
        Ok(())
    }

    /// The cell that begins at `address`, an address within the span; `None` if none does.
    #[inline(always)]
    pub fn cell_at(&self, address: usize) -> Option<usize> {
        let reciprocal = self.reciprocal.load(Relaxed);
        let product = (address & (SPAN_BYTES - 1)) as u64 * reciprocal as u64;
        // The quotient is above the binary point. Below it, less than one step is left exactly for a multiple
        // of the cell size.
        if product as u32 >= reciprocal {
            return None;
        }
        let cell = (product >> 32) as usize;
        // SAFETY: offsets are below 2^14, and the reciprocal of the smallest cell, 16 B, is 2^28.
        unsafe { core::hint::assert_unchecked(cell < WORDS * 64) };
        Some(cell)
    }
}
