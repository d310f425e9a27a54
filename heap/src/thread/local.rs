//! A thread's heap: its bins, tables and caches, and the fast paths of allocating and freeing.
//!
//! **Allocating** finds a *bin*, lifetime class × size class: by the size alone if all calls of that size
//! agree ([`crate::thread::by_size`]), else in the thread's prediction table (LLAMA §7: return address, stack
//! height, size). The bin has one open span and caches one word of 64 of its cells; the object gets the
//! lowest pending cell. **Freeing** finds the span's metadata by the address and clears the cell's live bit.
//! Neither writes to the object or needs an atomic instruction; everything else is in
//! [`crate::thread::refill`].

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::lifetime::sites::{Site, SiteCache};
use crate::lifetime::source::{self, LifetimeSource};
use crate::pages::region;
use crate::span::cells::bin_number;
use crate::span::remote::{RemoteList, Tenancy};
use crate::system::events::{Counts, Event};
use crate::system::thread_local;
use crate::system::thread_stack::ThreadStack;
use crate::thread::bin::Bin;
use crate::thread::by_size::BySize;
use crate::thread::byte_counts::ByteCounts;
use crate::thread::freed_cells::{FreedCells, MOST_KEPT};
use crate::thread::large::LargeCache;
use crate::thread::lines::OpenSpans;
use crate::thread::prediction_table::{KnownCall, PredictionTable};
use crate::thread::remote_free_buffer::RemoteFreeBuffer;
use crate::thread::span_cache::SpanCache;
use crate::units::call::Call;
use crate::units::geometry::MAX_SMALL_BYTES;
use crate::units::lifetime_class::CLASSES;
use crate::units::size_class::COUNT as SIZE_CLASSES;

/// The bytes of a thread's prediction tables, if it uses all of them.
pub const TABLES_BYTES: usize = size_of::<PredictionTable>() + size_of::<SiteCache>();

/// Offsets of a heap's tables, for the fast path in assembly.
pub mod layout {
    use super::Heap;
    use core::mem::offset_of;

    /// The bin for each size.
    pub const BY_SIZE: usize = offset_of!(Heap, by_size);
    /// The bin for each call.
    pub const PREDICTIONS: usize = offset_of!(Heap, prediction_table);
    /// The first bin.
    pub const BINS: usize = offset_of!(Heap, bins);
}

/// Result of the fast path of freeing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// The free is complete.
    Yes,
    /// The object is freed; its span may be empty and must be settled, or its bin notes the cell.
    Unsettled,
    /// The slow path must free the object.
    No,
}

/// A thread's heap. It outlives the thread: the next new thread reuses it with all its spans. All zeros is a
/// valid heap.
#[repr(C, align(4096))]
pub struct Heap {
    /// Always empty: tables hold offsets of bins, and offset 0 means none.
    nothing: Bin,
    /// The bin for each size whose calls agree.
    pub by_size: BySize,
    /// Its number; 0 for the heap of threads that have none.
    pub id: Cell<u32>,
    /// The thread's stack, from whose base heights are measured.
    pub stack: Cell<ThreadStack>,
    /// The version of the learned lifetimes that the prediction table reflects.
    pub epoch: Cell<u32>,
    /// The thread's number, in order of first use, and the number of its allocations while they are counted.
    pub thread: Cell<u32>,
    /// As above.
    pub sequence: Cell<u32>,
    /// Slow-path visits, by which samples are chosen.
    pub visits: Cell<u32>,
    /// Slow frees. They are not counted as visits: if allocations and frees alternated, the visits of
    /// allocations would all be odd.
    pub slow_frees: Cell<u32>,
    /// When the thread last released its cached empty spans, ms.
    pub flushed_ms: Cell<u64>,
    /// When the thread last ran maintenance, and when the maintenance thread last collected from it, ms.
    pub maintained_ms: Cell<u64>,
    /// As above.
    pub collected_ms: Cell<u64>,
    /// When its bins were last compared, ms, see [`crate::thread::compact`].
    pub compared_ms: Cell<u64>,
    /// When the prediction table was last emptied, ms.
    pub forgot_ms: Cell<u64>,
    /// Searches for spans in vacant heaps, and how many in a row found none, see
    /// [`crate::thread::registry::adopt`].
    pub vacant_searches: Cell<u32>,
    /// As above.
    pub vacant_misses: Cell<u8>,
    /// The number of sections that the thread is in and a fork must not interrupt, see
    /// [`crate::thread::fork_guard`].
    pub busy: AtomicU32,
    /// Spans in which other threads freed objects.
    pub remote: RemoteList,
    /// Whether a thread owns this heap.
    pub tenancy: Tenancy,
    /// The next vacant heap.
    pub next_vacant: Cell<Option<&'static Heap>>,
    /// Cached empty spans, by lifetime class.
    pub span_caches: [SpanCache; CLASSES],
    /// Sites of recent calls.
    pub site_cache: SiteCache,
    /// Frees of other threads' objects that are not flushed yet.
    pub remote_free_buffer: RemoteFreeBuffer,
    /// Empty spans that stay in their bins until the next flush, see [`crate::thread::refill`].
    pub kept_spans: FreedCells<MOST_KEPT>,
    /// Cached large objects.
    pub large: LargeCache,
    /// Bytes of large objects before the next one is sampled; 0: not drawn yet.
    pub large_before_sample: Cell<u64>,
    /// The thread's counters, see [`crate::system::events`].
    pub counts: Counts,
    /// Bytes that the thread allocated and freed, for programs that ask.
    pub bytes: ByteCounts,
    /// Spans divided by lines, by lifetime class.
    pub lines: [OpenSpans; CLASSES],
    /// The bin for each call.
    pub prediction_table: PredictionTable,
    bins: [Bin; SIZE_CLASSES * CLASSES],
}

// SAFETY: only the heap's thread uses it, except `remote`, `tenancy` and `busy`, which are made for sharing;
// a vacant heap is used under the registry's lock. The maintenance thread uses the lists of a sleeping
// thread's slow paths while it holds the fork guard exclusively, which keeps that thread out of them.
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
            nothing: Bin::new(),
            by_size: BySize::new(),
            id: Cell::new(0),
            stack: Cell::new(ThreadStack::NONE),
            epoch: Cell::new(0),
            thread: Cell::new(0),
            sequence: Cell::new(0),
            visits: Cell::new(0),
            slow_frees: Cell::new(0),
            flushed_ms: Cell::new(0),
            maintained_ms: Cell::new(0),
            collected_ms: Cell::new(0),
            compared_ms: Cell::new(0),
            forgot_ms: Cell::new(0),
            vacant_searches: Cell::new(0),
            vacant_misses: Cell::new(0),
            busy: AtomicU32::new(0),
            remote: RemoteList::new(),
            tenancy: Tenancy::new(),
            next_vacant: Cell::new(None),
            span_caches: [const { SpanCache::new() }; CLASSES],
            site_cache: SiteCache::new(),
            remote_free_buffer: RemoteFreeBuffer::new(),
            kept_spans: FreedCells::new(),
            large: LargeCache::new(),
            large_before_sample: Cell::new(0),
            counts: Counts::new(),
            bytes: ByteCounts::new(),
            lines: [const { OpenSpans::new() }; CLASSES],
            prediction_table: PredictionTable::new(),
            bins: [const { Bin::new() }; SIZE_CLASSES * CLASSES],
        }
    }

    /// The bin of a lifetime class and a size class, ready for [`Bin::allocate`].
    pub fn bin(&self, class: usize, size_class: usize) -> &Bin {
        let bin = &self.bins[bin_number(class, size_class)];
        if !bin.is_prepared() {
            bin.prepare(class, size_class);
        }
        bin
    }

    /// A bin that is prepared, by its number.
    pub fn bin_numbered(&self, number: usize) -> &Bin {
        &self.bins[number]
    }

    /// As [`Heap::bin`], if the thread has used it.
    pub fn bin_if_used(&self, class: usize, size_class: usize) -> Option<&Bin> {
        Some(&self.bins[bin_number(class, size_class)]).filter(|bin| bin.is_prepared())
    }

    /// The stack height at a call.
    #[inline]
    pub fn height(&self, call: &Call) -> usize {
        self.stack.get().height(call)
    }

    /// The thread's number, if it has a heap.
    pub fn number(&self) -> Option<u32> {
        (self.id.get() != 0).then(|| self.thread.get())
    }

    /// All bins.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// Bytes that this heap's threads have allocated: those of all cells that its bins took, less the pending
    /// ones, and of large objects.
    pub fn allocated_bytes(&self) -> u64 {
        let of = |event: Event| self.counts.of(event as usize);
        let unused = |bin: &Bin| u64::from(bin.unused_cells()) * bin.cell_bytes() as u64;
        let all_unused: u64 = self.bins().iter().map(unused).sum();
        of(Event::CellBytesTaken).wrapping_add(of(Event::LargeBytes)).wrapping_sub(all_unused)
    }

    /// The offset of one of this heap's bins.
    fn offset(&self, bin: &Bin) -> u32 {
        (core::ptr::from_ref(bin).addr() - core::ptr::from_ref(self).addr()) as u32
    }

    /// The bin at an offset.
    #[inline(always)]
    fn bin_at(&self, offset: u32) -> &Bin {
        // SAFETY: tables hold offsets of bins, from `offset`, or 0, the offset of `nothing`.
        unsafe { &*core::ptr::from_ref(self).byte_add(offset as usize).cast::<Bin>() }
    }

    /// The fast path of allocation: by size alone if its calls agree, else by the bin predicted for `call`.
    /// `heap/malloc` repeats it in assembly for the entries that programs call most.
    #[inline(always)]
    pub fn allocate_fast(&self, call: &Call) -> Option<usize> {
        let bin = match self.by_size.bin(call) {
            // SAFETY: the table holds bins of this heap.
            Some(bin) => unsafe { &*bin },
            None => self.bin_at(self.prediction_table.get(call)?),
        };
        if call.size > bin.cell_bytes() {
            return None; // the place, or the key, of another call
        }
        bin.allocate()
    }

    /// The bin that the table predicts for this call.
    pub fn predicted_bin(&self, call: &Call) -> Option<&Bin> {
        self.bin_for(call, self.prediction_table.get(call)?)
    }

    /// The bin at an offset, if its cells are large enough for this call.
    #[inline]
    pub fn bin_for(&self, call: &Call, offset: u32) -> Option<&Bin> {
        let bin = self.bin_at(offset);
        (call.size <= bin.cell_bytes()).then_some(bin)
    }

    /// The key of a call in the thread's tables: the call itself, or combined with the word of the stack that
    /// its entry names.
    pub fn lookup_key(&self, call: &Call) -> Call {
        self.prediction_table.lookup(call).map_or(*call, |known| self.key_for_stack_word(call, &known))
    }

    /// As above, for a call whose table entry is known.
    #[inline]
    pub fn key_for_stack_word(&self, call: &Call, known: &KnownCall) -> Call {
        // If the word cannot be read, the entry belongs to another call.
        if known.word == 0 || call.size > MAX_SMALL_BYTES || !self.stack.get().may_read(call, known.word) {
            return *call;
        }
        // SAFETY: it may be read.
        call.with_word(unsafe { call.word_above(known.word) })
    }

    /// Maps calls like this one to this bin, as long as the site predicts the bin's class. If `word` is not
    /// 0, the site lies below another one and differs from it by this word of the stack, which can be read.
    pub fn remember(&self, call: &Call, bin: &Bin, site: Option<&'static Site>, word: u8) {
        let class = usize::from(bin.class.get());
        let offset = self.offset(bin);
        if word != 0
            && let Some(first) = site.and_then(Site::parent)
        {
            self.prediction_table.remember_word(call, word, first);
            self.by_size.no_bin(call);
        } else if self.prediction_table.get(call) == Some(offset) {
            self.known_call(call, bin);
        } else {
            self.by_size.new_call(call, class);
        }
        self.prediction_table.remember(&self.lookup_key(call), offset, class, site);
    }

    /// Records that a known call of this bin found no cached cell. Not with a model, which may predict a
    /// different class for each context.
    #[inline]
    pub fn known_call(&self, call: &Call, bin: &Bin) {
        if self.by_size.bin(call).is_some_and(|agreed| core::ptr::eq(agreed, bin)) {
            return;
        }
        if matches!(source::in_use(), LifetimeSource::Online | LifetimeSource::Fixed(_)) {
            self.by_size.known_call(call, bin.class.get().into(), bin);
        }
    }

    /// Forgets predictions whose sites have changed.
    pub fn forget_changed(&self) {
        self.prediction_table.forget_changed(|granules, class| self.by_size.count(granules, class));
        self.by_size.recount();
    }
}

/// The fast path of freeing: the object is a cell of one of the calling thread's spans, and there is nothing
/// else to do.
#[inline(always)]
pub fn free_fast(address: usize) -> Freed {
    let Some(span) = region::span_if_plain(address) else { return Freed::No };
    if span.tag.load(Relaxed) != thread_local::tag() {
        return Freed::No;
    }
    let Some(cell) = span.cell_at(address) else { return Freed::No };
    let word = span.live_word(cell / 64);
    let live = word.load(Relaxed);
    let left = live & !(1 << (cell % 64));
    if left == live {
        return Freed::No; // or watched
    }
    word.store(left, Relaxed);
    if span.is_settled_with(left) { Freed::Yes } else { Freed::Unsettled }
}
