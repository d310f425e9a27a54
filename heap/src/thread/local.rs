//! A thread's heap: allocation from its open spans, and what happens to a span as its cells are freed.
//!
//! **Allocating** finds a *bin*, lifetime class × size class: by the size alone where all calls of that size agree
//! ([`crate::thread::by_size`]), else in the thread's prediction table (LLAMA §7: return address, stack height, size). The bin has
//! one open span, and of it one word of 64 cells at hand: the lowest pending cell is the object's place. **Freeing** finds the span's metadata by the address and clears the cell's
//! live bit. Neither writes to the object or needs an atomic instruction; all else is in the cold half, [`crate::thread::refill`].

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::lifetime::sites::{Site, SiteCache};
use crate::lifetime::source::{self, Source};
use crate::pages::region;
use crate::span::remote::{RemoteList, Tenancy};
use crate::system::events::Counts;
use crate::system::thread_local;
use crate::system::thread_stack::ThreadStack;
use crate::thread::bin::Bin;
use crate::thread::by_size::BySize;
use crate::thread::large::LargeCache;
use crate::thread::lines::OpenSpans;
use crate::thread::prediction_table::{KnownCall, PredictionTable};
use crate::thread::remote_free_buffer::RemoteFreeBuffer;
use crate::thread::span_cache::SpanCache;
use crate::units::call::Call;
use crate::units::geometry::MAX_SMALL_BYTES;
use crate::units::lifetime_class::CLASSES;
use crate::units::size_class::COUNT as SIZE_CLASSES;

/// Bytes that a thread keeps to predict with, if it uses all of its tables.
pub const TABLES_BYTES: usize = size_of::<PredictionTable>() + size_of::<SiteCache>();

/// Where a heap's tables lie in it, for a fast path in assembly.
pub mod layout {
    use super::Heap;
    use core::mem::offset_of;

    /// Which bin the objects of a size go to.
    pub const BY_SIZE: usize = offset_of!(Heap, by_size);
    /// Which bin the objects of a call go to.
    pub const PREDICTIONS: usize = offset_of!(Heap, prediction_table);
}

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
    /// Where tables that hold places in the heap lead with 0: it has nothing, ever.
    nothing: Bin,
    /// Which bin the objects of a size go to, whoever asks.
    pub by_size: BySize,
    /// Its number; 0 for the heap of threads that have none.
    pub id: Cell<u32>,
    /// The thread's stack, from whose base heights are measured.
    pub stack: Cell<ThreadStack>,
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
    pub maintained_ms: Cell<u64>,
    /// As above.
    pub collected_ms: Cell<u64>,
    /// When its bins were last compared, ms, see [`crate::thread::compact`].
    pub compared_ms: Cell<u64>,
    /// When the prediction table was last emptied, ms.
    pub forgot_ms: Cell<u64>,
    /// Looks for spans of heaps whose threads have ended, and how many in a row found none, see
    /// [`crate::thread::registry::adopt`].
    pub looks_for_vacant: Cell<u32>,
    /// As above.
    pub vacant_misses: Cell<u8>,
    /// The thread is in a section that fork must not cut, see [`crate::thread::fork_guard`].
    pub busy: AtomicU32,
    /// Spans in which other threads freed objects.
    pub remote: RemoteList,
    /// Whether a thread lives here.
    pub tenancy: Tenancy,
    /// The next heap without a thread.
    pub next_vacant: Cell<Option<&'static Heap>>,
    /// Empty spans in hand, by lifetime class.
    pub span_caches: [SpanCache; CLASSES],
    /// Sites of calls that were looked up of late.
    pub site_cache: SiteCache,
    /// Frees of other threads' objects that are not posted yet.
    pub remote_free_buffer: RemoteFreeBuffer,
    /// Large objects in hand.
    pub large: LargeCache,
    /// Bytes of large objects before the next one is sampled; 0: not drawn yet.
    pub large_before_sample: Cell<u64>,
    /// What the thread counts, see [`crate::system::events`].
    pub counts: Counts,
    /// Spans divided by lines, by lifetime class.
    pub lines: [OpenSpans; CLASSES],
    /// Which bin the objects of a call go to.
    pub prediction_table: PredictionTable,
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
            looks_for_vacant: Cell::new(0),
            vacant_misses: Cell::new(0),
            busy: AtomicU32::new(0),
            remote: RemoteList::new(),
            tenancy: Tenancy::new(),
            next_vacant: Cell::new(None),
            span_caches: [const { SpanCache::new() }; CLASSES],
            site_cache: SiteCache::new(),
            remote_free_buffer: RemoteFreeBuffer::new(),
            large: LargeCache::new(),
            large_before_sample: Cell::new(0),
            counts: Counts::new(),
            lines: [const { OpenSpans::new() }; CLASSES],
            prediction_table: PredictionTable::new(),
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

    /// Where a bin of this heap lies in it.
    fn offset(&self, bin: &Bin) -> u32 {
        (core::ptr::from_ref(bin).addr() - core::ptr::from_ref(self).addr()) as u32
    }

    /// The bin that lies there.
    #[inline(always)]
    fn bin_at(&self, offset: u32) -> &Bin {
        // SAFETY: offsets in tables are those of bins, by `offset`, or 0, where `nothing` lies.
        unsafe { &*core::ptr::from_ref(self).byte_add(offset as usize).cast::<Bin>() }
    }

    /// The fast path of allocation: by size alone where its calls agree, else by what was predicted for `call` before. `heap/malloc`
    /// has it once more in assembly, for the entries that programs call most.
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

    /// The bin that was predicted for this call before.
    pub fn predicted_bin(&self, call: &Call) -> Option<&Bin> {
        self.bin_for(call, self.prediction_table.get(call)?)
    }

    /// The bin that lies there, if it is one for this call.
    #[inline]
    pub fn bin_for(&self, call: &Call, offset: u32) -> Option<&Bin> {
        let bin = self.bin_at(offset);
        (call.size <= bin.cell_bytes()).then_some(bin)
    }

    /// What the thread's tables know the call by: the call itself, or with the word of the stack that belongs to it.
    pub fn lookup_key(&self, call: &Call) -> Call {
        self.prediction_table.lookup(call).map_or(*call, |known| self.key_for_stack_word(call, &known))
    }

    /// As above, for a call of which this is known.
    #[inline]
    pub fn key_for_stack_word(&self, call: &Call, known: &KnownCall) -> Call {
        // If it may not be read, what was found is another call's.
        if known.word == 0 || call.size > MAX_SMALL_BYTES || !self.stack.get().may_read(call, known.word) {
            return *call;
        }
        // SAFETY: it may be read.
        call.with_word(unsafe { call.word_above(known.word) })
    }

    /// Calls like this one go to this bin, for as long as it is of the class that the site predicts. The site may be one below
    /// another, told from it by that one's word, which may be read.
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

    /// A call that goes to this bin as known found no cell at hand. With a model each context has an opinion of its own.
    #[inline]
    pub fn known_call(&self, call: &Call, bin: &Bin) {
        if self.by_size.bin(call).is_some_and(|agreed| core::ptr::eq(agreed, bin)) {
            return;
        }
        if matches!(source::in_use(), Source::Online | Source::Fixed(_)) {
            self.by_size.known_call(call, bin.class.get().into(), bin);
        }
    }

    /// Forgets predictions that sites have changed since.
    pub fn forget_changed(&self) {
        self.prediction_table.forget_changed(|granules, class| self.by_size.count(granules, class));
        self.by_size.recount();
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
    let left = live & !(1 << (cell % 64));
    if left == live {
        return Freed::No; // or watched
    }
    word.store(left, Relaxed);
    if span.is_in_use_with(left) { Freed::Yes } else { Freed::MayBeEmpty }
}
