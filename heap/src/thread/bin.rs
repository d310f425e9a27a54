//! A bin: a thread's spans with cells of one lifetime class and size class, and the cells cached from one of
//! them.

use core::cell::Cell;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    compiler_fence,
};

use crate::pages::{decay, region};
use crate::span::cells::{BIN_BYTES, Role, Room, Span};
use crate::span::queue::SpanList;
use crate::system::events::{self, Event};
use crate::system::text::misuse;
use crate::thread::freed_cells::FreedCells;
use crate::thread::sample;
use crate::units::size_class;

/// The most spans of a bin that a refill examines.
pub const MAX_PATIENCE: u8 = 8;
/// If most of them are sparse, a refill compares this many more.
const COMPARED: u8 = 3;
/// The most spans of a bin that a refill examines under memory pressure.
const MAX_PATIENCE_IN_SCARCITY: u8 = 128;
/// A small heap caches one page of never-used cells at a time, and reuses freed cells first: so it touches
/// few pages.
const CACHED_BYTES_OF_SMALL_HEAP: usize = 4096;
/// Smaller cells are always cached 64 at a time.
const LEAST_BYTES_TO_SPARE: usize = 512;
/// Noted cells that a bin allocates between two visits of the slow path: about as many as a word of smaller
/// cells has. With twice as many the visits measure too few lifetimes to correct a wrong model in time.
const CELLS_BETWEEN_VISITS: u32 = 32;

/// The cells of one size class and lifetime class.
///
/// Allocation works through up to 64 cells at a time: the free cells of one word of the open span's live
/// bits. Caching a word marks its free cells as *pending* here; allocating one clears its pending bit and
/// sets its live bit. To its span a pending cell is free, so a second free of it is detected at once. A bin
/// of all zeros is not prepared and empty: a new heap touches only the memory of the bins that its thread
/// uses.
#[repr(C, align(64))]
pub struct Bin {
    /// The pending cells.
    pending: Cell<u64>,
    /// The live bits of the cached word; set while cells are pending.
    word: Cell<Option<&'static AtomicU64>>,
    /// The address of the cached word's first cell.
    base: Cell<usize>,
    cell_bytes: Cell<usize>,
    /// With `class` and the zeros, the kind of a span whose noted cells may be allocated, see
    /// [`crate::span::cells::layout::KIND`].
    kind: Cell<u16>,
    /// Lifetime class.
    pub class: Cell<u8>,
    _zeros: [u8; 5],
    /// The span that the bin allocates from.
    pub open: Cell<Option<&'static Span>>,
    /// The other spans of the bin, full or not; see [`crate::thread::refill`].
    pub queue: SpanList,
    /// How many of them a refill examines.
    pub patience: Cell<u8>,
    /// Index into [`size_class::CELL_BYTES`].
    pub size_class: Cell<u8>,
    /// Comparisons in a row in which the bin had cached no word.
    pub idle_comparisons: Cell<u8>,
    /// Many of its queued spans were half empty at the last comparison.
    pub is_sparse: Cell<bool>,
    /// Words cached since bins were last compared, see [`crate::thread::compact`].
    pub words_taken: Cell<u32>,
    /// Cells to cache before the next object is sampled, see [`crate::thread::sample`].
    pub before_sample: Cell<u32>,
    /// Noted cells that may be allocated before the next visit of the slow path; they count as taken.
    unvisited: Cell<u32>,
    /// The cells freed last, if spans have few.
    pub freed: FreedCells,
}

const _: () = assert!(size_of::<Bin>() == BIN_BYTES);

/// Field offsets, for the fast path in assembly.
pub mod layout {
    use super::Bin;
    use core::mem::offset_of;

    /// The pending cells.
    pub const PENDING: usize = offset_of!(Bin, pending);
    /// The live bits of the cached word.
    pub const WORD: usize = offset_of!(Bin, word);
    /// The first cell of the cached word.
    pub const BASE: usize = offset_of!(Bin, base);
    /// Bytes of a cell.
    pub const CELL_BYTES: usize = offset_of!(Bin, cell_bytes);
    /// As [`crate::span::cells::layout::KIND`] of a span whose noted cells may be allocated.
    pub const KIND: usize = offset_of!(Bin, kind);
    const _: () = assert!(offset_of!(Bin, class) == KIND + 2 && offset_of!(Bin, _zeros) == KIND + 3);
    /// Noted cells that may be allocated.
    pub const UNVISITED: usize = offset_of!(Bin, unvisited);
    /// The cells freed last.
    pub const FREED: usize = offset_of!(Bin, freed);
}

/// Ends the process if other threads have freed one of these cells, which are free already.
#[inline]
fn freed_twice_if(span: &Span, word: usize, free: u64) {
    let twice = span.remote().marked(word) & free;
    if twice != 0 {
        let cell_bytes = usize::from(span.cell_bytes.load(Relaxed));
        let cell = word * 64 + twice.trailing_zeros() as usize;
        misuse("double free, seen late", span.address() + cell * cell_bytes, cell_bytes, 0);
    }
}

impl Default for Bin {
    fn default() -> Self {
        Self::new()
    }
}

impl Bin {
    /// Not prepared.
    pub const fn new() -> Self {
        Self {
            pending: Cell::new(0),
            word: Cell::new(None),
            base: Cell::new(0),
            cell_bytes: Cell::new(0),
            kind: Cell::new(0),
            class: Cell::new(0),
            _zeros: [0; 5],
            open: Cell::new(None),
            queue: SpanList::new(),
            patience: Cell::new(0),
            size_class: Cell::new(0),
            idle_comparisons: Cell::new(0),
            is_sparse: Cell::new(false),
            words_taken: Cell::new(0),
            before_sample: Cell::new(0),
            unvisited: Cell::new(0),
            freed: FreedCells::new(),
        }
    }

    /// Bytes of a cell.
    pub fn cell_bytes(&self) -> usize {
        self.cell_bytes.get()
    }

    /// Whether it is prepared.
    pub fn is_prepared(&self) -> bool {
        self.cell_bytes.get() != 0
    }

    /// Makes it the bin of these classes.
    pub fn prepare(&self, class: usize, size_class: usize) {
        self.size_class.set(size_class as u8);
        self.class.set(class as u8);
        self.kind.set(size_class::CELL_BYTES[size_class]);
        self.cell_bytes.set(size_class::CELL_BYTES[size_class].into());
        self.before_sample.set(sample::cells_before_sample(self.cell_bytes.get()));
    }

    /// Allocates a cell of the cached word; `None` if it has no more.
    #[inline(always)]
    pub fn allocate(&self) -> Option<usize> {
        let pending = self.pending.get();
        if pending == 0 {
            return None;
        }
        let left = pending & (pending - 1);
        self.pending.set(left);
        // SAFETY: `advance` has set the word of the cells that are pending.
        let word = unsafe { self.word.get().unwrap_unchecked() };
        word.store(word.load(Relaxed) | (pending ^ left), Relaxed);
        let offset = pending.trailing_zeros().wrapping_mul(self.cell_bytes.get() as u32); // below 16 KiB
        Some(self.base.get() + offset as usize)
    }

    /// Whether its spans have few cells: then it has notes.
    pub fn has_few_cells(&self) -> bool {
        usize::from(self.size_class.get()) >= size_class::FIRST_OF_FEW
    }

    /// Allocates a noted cell; none are pending, and the fork guard is held: else another thread may give the
    /// span or its memory back. `heap/malloc` repeats it in assembly.
    pub fn allocate_freed(&self, owner: u32) -> Option<usize> {
        if self.unvisited.get() == 0 {
            return None;
        }
        while let Some(address) = self.freed.take() {
            let span = region::span(address);
            let is_own = span.owner() == owner
                && span.size_class.load(Relaxed) == self.size_class.get()
                && span.class.load(Relaxed) == self.class.get();
            let cell = span.cell_at(address).filter(|&cell| is_own && !span.is_live(cell));
            if let Some(cell) = cell {
                freed_twice_if(span, 0, 1 << cell);
                span.allocate(cell);
                self.unvisited.set(self.unvisited.get() - 1);
                return Some(address);
            }
        }
        None
    }

    /// At a visit of the slow path: some noted cells may be allocated before the next one. Not while objects
    /// are sampled, and in bins without notes.
    pub fn allow_freed(&self) {
        let is_sampled = self.before_sample.get() != sample::NEVER || sample::sampling();
        if !self.has_few_cells() || is_sampled {
            return;
        }
        let used = CELLS_BETWEEN_VISITS - self.unvisited.replace(CELLS_BETWEEN_VISITS);
        self.count_taken(used.into());
        self.words_taken.set(self.words_taken.get().saturating_add(1));
    }

    /// Counts cells that are cached, or may be allocated before the next visit; fewer if negative.
    fn count_taken(&self, cells: i64) {
        events::add(Event::CellsTaken, cells as u64);
        events::add(Event::CellBytesTaken, (cells * self.cell_bytes() as i64) as u64);
    }

    /// Cells that count as taken and are not allocated.
    pub fn unused_cells(&self) -> u32 {
        self.cached_cells() + self.unvisited.get()
    }

    /// The number of cached cells.
    pub fn cached_cells(&self) -> u32 {
        self.pending.get().count_ones()
    }

    /// Cached cells whose live bit is set: always none.
    pub fn cached_and_live(&self) -> u64 {
        self.word.get().map_or(0, |word| self.pending.get() & word.load(Relaxed))
    }

    /// Caches a word of the open span that has free cells; `false` if there is none. Also `false` if an
    /// object is to be sampled: the slow path does that.
    pub fn advance(&self, room: Room) -> bool {
        let Some(span) = self.open.get() else { return false };
        span.word_with(room).is_some_and(|(word, free)| self.take(span, word, free))
    }

    /// Caches the free cells of a word of `span`, the open span; `false` if an object is to be sampled.
    #[inline(always)]
    pub fn take(&self, span: &'static Span, word: usize, free: u64) -> bool {
        freed_twice_if(span, word, free);
        let cells = self.to_be_taken(span, word, free);
        if cells == 0 {
            return false;
        }
        // Another thread may fork between any two of these stores, and a thread of the child reuses this
        // heap. While the cached word and its address do not match, the bin has no pending cells.
        self.pending.set(0);
        compiler_fence(SeqCst);
        self.count_taken(cells.count_ones().into());
        self.words_taken.set(self.words_taken.get().saturating_add(1));
        self.word.set(Some(span.live_word(word)));
        self.base.set(span.address() + word * 64 * self.cell_bytes.get());
        compiler_fence(SeqCst);
        self.pending.set(cells);
        true
    }

    /// Which of a word's free cells to cache: usually all.
    #[inline]
    fn to_be_taken(&self, span: &Span, word: usize, mut free: u64) -> u64 {
        if self.cell_bytes() >= LEAST_BYTES_TO_SPARE && decay::heap_is_small() && !span.is_whole() {
            free = self.spared(span, word, free);
        }
        let before_sample = self.before_sample.get();
        if before_sample == sample::NEVER && !sample::sampling() {
            return free;
        }
        self.before_next_sample(free)
    }

    /// Which of a word's free cells to cache in a small heap. Those below a live cell were used before, so
    /// their memory is resident; of the others only a few.
    #[inline(never)]
    fn spared(&self, span: &Span, word: usize, free: u64) -> u64 {
        let used = u64::BITS - (span.mask(word) & !free).leading_zeros();
        let most = used + (CACHED_BYTES_OF_SMALL_HEAP >> self.cell_bytes().ilog2()).max(1) as u32;
        let cells = free & (u64::MAX >> u64::BITS.saturating_sub(most));
        if cells == free && word + 1 == span.words() {
            span.set_whole(true);
        }
        cells
    }

    /// Reduces free cells to those before the next object to be sampled.
    #[cold]
    fn before_next_sample(&self, mut free: u64) -> u64 {
        if (self.before_sample.get() == sample::NEVER) == sample::sampling() {
            self.before_sample.set(sample::cells_before_sample(self.cell_bytes()).max(1)); // sampling has started or stopped
        }
        let before_sample = self.before_sample.get();
        if before_sample == sample::NEVER {
            return free;
        }
        while free.count_ones() > before_sample {
            free &= !(1 << free.ilog2());
        }
        self.before_sample.set(before_sample - free.count_ones());
        free
    }

    /// Detaches the open span.
    fn detach_open(&self) -> Option<&'static Span> {
        let span = self.open.take()?;
        let not_used = self.pending.replace(0).count_ones();
        if not_used == 0 {
            return Some(span);
        }
        if self.before_sample.get() != sample::NEVER {
            self.before_sample.set(self.before_sample.get() + not_used);
        }
        self.count_taken(-i64::from(not_used));
        Some(span)
    }

    /// Moves the open span to the end of the queue.
    pub fn close(&self) {
        if let Some(span) = self.detach_open() {
            span.set_role(Role::Queued);
            self.queue.push(span);
        }
    }

    /// Returns the span, or the fullest of the next few with room; the others stay queued and may become
    /// empty.
    #[cold]
    fn fuller_than(&self, first: (&'static Span, usize, u64), room: Room) -> (&'static Span, usize, u64) {
        let (mut fullest, mut most) = (first, first.0.live_cells());
        for _ in 0..COMPARED {
            let Some(span) = self.queue.pop() else { break };
            let live = span.live_cells();
            match span.word_with(room) {
                Some((word, free)) if live > most => {
                    self.queue.push(fullest.0);
                    (fullest, most) = ((span, word, free), live);
                }
                _ => self.queue.push(span),
            }
        }
        fullest
    }

    /// The next queued span with room. Frees do not notify the queue, so it is searched, but only as far as
    /// recent searches have paid off: in a heap that only grows it examines one span.
    pub fn next_queued(&self, room: Room) -> Option<&'static Span> {
        self.next_queued_word(room).map(|(span, ..)| span)
    }

    /// As [`Bin::next_queued`], with the span's first word that has room, and that word's free cells.
    #[inline]
    pub fn next_queued_word(&self, room: Room) -> Option<(&'static Span, usize, u64)> {
        let patience = if room == Room::Any { MAX_PATIENCE_IN_SCARCITY } else { self.patience.get().max(1) };
        let mut waits = Some(self.queue.first()?);
        for _ in 0..patience {
            let Some(span) = waits else { break };
            if let Some((word, free)) = span.word_with(room) {
                self.queue.begin_with(span);
                self.queue.remove(span);
                self.patience.set(patience.saturating_mul(2).min(MAX_PATIENCE));
                let found = (span, word, free);
                return Some(if self.is_sparse.get() { self.fuller_than(found, room) } else { found });
            }
            waits = SpanList::after(span);
        }
        if let Some(next) = waits {
            self.queue.begin_with(next);
        }
        self.patience.set(self.patience.get() / 2);
        None
    }
}
