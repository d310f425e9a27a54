//! The slow half of a thread's heap: refills bins with cells, and settles spans whose cells were freed.
//!
//! An empty bin takes, in this order: another word of its open span; cells that other threads freed; a queued
//! span with room; a span of a vacant heap; a cached empty span; a block span from the global allocator.
//!
//! Of spans with few cells a bin opens the first in which other threads freed enough. It does not collect
//! from the spans after it before it needs them: most would become empty, and it would give them up and
//! acquire others in their place.

use core::sync::atomic::Ordering::Relaxed;

use crate::lifetime::source::{self, LifetimeSource};
use crate::pages::{global, memory_pressure, page_life, region};
use crate::span::cells::{Role, Room, Span};
use crate::span::remote::{self, Link, RemoteList, RemoteSpan, Tenancy};
use crate::system::events::{self, Event};
use crate::system::lock::Guard;
use crate::system::observers;
use crate::system::text::misuse;
use crate::system::thread_local;
use crate::thread::bin::{Bin, MAX_PATIENCE};
use crate::thread::local::Heap;
use crate::thread::span_cache::SpanCache;
use crate::thread::{lines, registry};
use crate::units::geometry::{SPAN_BYTES, SPANS_PER_HUGE_PAGE, block_index};
use crate::units::lifetime_class::CLASSES;
use crate::units::size_class::{self, COUNT as SIZE_CLASSES};

/// The result of a refill; with `new_span` the caller charges a span to the call site.
pub struct Refill {
    /// The cell; `None` when memory ran out.
    pub cell: Option<usize>,
    /// The global allocator gave a span for it.
    pub new_span: bool,
}

/// Allocates a cell for a bin whose cached word has none.
pub fn refill(heap: &'static Heap, bin: &Bin) -> Refill {
    let mut new_span = false;
    let room = room();
    loop {
        if bin.advance(room) {
            return Refill { cell: bin.allocate(), new_span };
        }
        let queued = close_and_find(heap, bin, room).map(|(span, ..)| span);
        if queued.is_none()
            && let Some(cell) = borrow(heap, bin)
        {
            return Refill { cell: Some(cell), new_span };
        }
        let span = queued
            .or_else(|| next_of_another_class(heap, bin, room))
            .or_else(|| registry::adopt(heap, bin, room))
            .or_else(|| {
                new_span = true;
                divide_new(heap, bin)
            });
        let Some(span) = span else {
            return Refill { cell: None, new_span: false };
        };
        open(bin, span);
    }
}

/// Allocates a cell of the next queued span with room; `None` if none has room.
#[inline]
pub fn from_queue(heap: &'static Heap, bin: &Bin) -> Option<usize> {
    let (span, word, free) = close_and_find(heap, bin, room())?;
    open(bin, span);
    bin.take(span, word, free).then(|| bin.allocate()).flatten()
}

/// Closes the bin's open span, and takes one with room out of its queue, with its first word that has room
/// and that word's free cells. Before a search the thread collects what others freed.
#[inline]
fn close_and_find(heap: &'static Heap, bin: &Bin, room: Room) -> Option<(&'static Span, usize, u64)> {
    bin.close();
    let freed = if heap.remote.is_empty() { None } else { collect_for(heap, bin, room) };
    freed.or_else(|| bin.next_queued_word(room))
}

/// Collects what other threads freed; for a bin whose spans have few cells until one of those has room.
#[inline(never)]
fn collect_for(heap: &'static Heap, bin: &Bin, room: Room) -> Option<(&'static Span, usize, u64)> {
    if !bin.has_few_cells() || room == Room::Any {
        remote::collect(heap, false);
        return None;
    }
    let is_of_bin = |span: &Span| {
        span.size_class.load(Relaxed) == bin.size_class.get()
            && span.class.load(Relaxed) == bin.class.get()
            && span.role() == Role::Queued
    };
    let with_room = |span: &'static Span| {
        let (word, free) = span.word_with(room).filter(|_| is_of_bin(span))?;
        Some((span, word, free))
    };
    let found = remote::collect_until(heap, false, with_room)?;
    bin.queue.remove(found.0);
    Some(found)
}

fn room() -> Room {
    if memory_pressure::is_high() { Room::Any } else { Room::Worthwhile }
}

/// Makes a span that is in no queue the bin's open span.
pub fn open(bin: &Bin, span: &'static Span) {
    span.set_role(Role::Open);
    bin.open.set(Some(span));
}

/// The bytes that a bin without a span may borrow between two flushes: half a span.
const MOST_BORROWED: u32 = SPAN_BYTES as u32 / 2;

/// Allocates a cell of a longer class' open span, for a bin that needs little. A thread that uses each size
/// in many classes, and little of each, would otherwise hold a span for each; its objects may as well lie
/// among longer-lived ones, which outlive free cells anyway. Only with a model, which uses many classes; a
/// fixed class or an oracle's is respected.
fn borrow(heap: &'static Heap, bin: &Bin) -> Option<usize> {
    let (class, size_class) = (bin.class.get() as usize, bin.size_class.get() as usize);
    let borrowed = &heap.span_caches[class].borrowed[size_class];
    let after = borrowed.get() + bin.cell_bytes() as u32;
    let by_model = matches!(source::in_use(), LifetimeSource::Model { .. });
    if !by_model || after > MOST_BORROWED || observers::observes_samples() || !page_life::fills() {
        return None;
    }
    let longer = heap.bins()[size_class..].iter().step_by(SIZE_CLASSES).skip(class + 1);
    let lender = longer.rev().find(|lender| lender.open.get().is_some())?;
    let cell = lender
        .allocate()
        .or_else(|| lender.advance(Room::Worthwhile).then(|| lender.allocate()).flatten())?;
    borrowed.set(after);
    Some(cell)
}

/// Takes a span with room from a bin of the same size and another class, whose page outlives this bin's
/// objects. After a promotion the span's objects live longer than their class predicted, and no call may go
/// to that class any more. As with lines (LLAMA §6.6), such a span may be opened for another class that is
/// not longer than its page's; under memory pressure any span may.
fn next_of_another_class(heap: &'static Heap, bin: &Bin, room: Room) -> Option<&'static Span> {
    let class = bin.class.get() as usize;
    let may_be_opened = |span: &&'static Span| room == Room::Any || may_be_opened_for(span, class);
    (0..CLASSES).filter(|&other| other != class).find_map(|other| {
        let others = heap.bin_if_used(other, bin.size_class.get() as usize)?;
        others.queue.first().filter(may_be_opened)?;
        let span = others.next_queued(room)?;
        if !may_be_opened(&span) {
            others.queue.push(span); // it may not be the one that was first
            return None;
        }
        span.set_class(class);
        events::count(Event::SpanReopened);
        Some(span)
    })
}

/// Whether a span may be opened for `class`. While lifetimes are learned, any class that its page outlives
/// may use it, so that a new site's cells stay available to the next site. A class that is no guess (a fixed
/// one, an oracle's, or that of a model alone) is respected: there the page must have been promoted first.
pub fn may_be_opened_for(span: &Span, class: usize) -> bool {
    let address = span.address();
    let page = region::huge_page(address);
    let promoted = page.class() > span.class.load(Relaxed) as usize;
    (classes_are_guesses() || promoted)
        && (class < page.class() || class == page.class() && page.residual.get(block_index(address)))
}

/// Whether classes are guesses: lifetimes are learned while the program runs, and the paper's policy was not
/// chosen.
pub fn classes_are_guesses() -> bool {
    matches!(source::in_use(), LifetimeSource::Online | LifetimeSource::Model { online: true })
        && page_life::fills()
}

/// Divides a new span for the bin; it is in no list yet. `None` if memory ran out.
pub fn divide_new(heap: &'static Heap, bin: &Bin) -> Option<&'static Span> {
    let class = bin.class.get() as usize;
    let cache = &heap.span_caches[class];
    let spare = cache.take().or_else(|| {
        settle_kept(heap);
        cache.take()
    });
    let span = match spare {
        Some(span) => span,
        None => global::acquire_spans(class, cache.batch(), |span| cache.keep(span))?,
    };
    span.divide(bin.size_class.get() as usize, class);
    remote::assign_owner(heap, span);
    Some(span)
}

impl RemoteSpan for Span {
    type Home = Heap;
    fn link(&self) -> &Link {
        &self.link
    }
    fn any_marked(&self) -> bool {
        self.remote().any()
    }
    fn home(&self) -> Option<&'static Heap> {
        registry::heap(self.owner())
    }
    fn set_home(&self, home: Option<&'static Heap>) {
        match home {
            Some(heap) => self.own(heap.id.get()),
            None => self.disown(),
        }
    }
    fn is_idle(&self) -> bool {
        self.role() == Role::Queued && self.is_empty()
    }
}

impl remote::Home for Heap {
    type Span = Span;
    type Guard = Guard<'static>;
    fn list(&self) -> &RemoteList {
        &self.remote
    }
    fn tenancy(&self) -> &Tenancy {
        &self.tenancy
    }
    fn owns(&self, span: &Span) -> bool {
        span.owner() == self.id.get()
    }
    fn collect_marked(&'static self, span: &'static Span) {
        let result = span.clear_remote_frees(|| events::count(Event::RemoteCollected));
        if let Err(cell) = result {
            let cell_bytes = span.cell_bytes.load(Relaxed) as usize;
            misuse("double free, seen late", span.address() + cell * cell_bytes, cell_bytes, 0);
        }
    }
    fn place(&'static self, span: &'static Span) {
        if keeps(self, span) {
            bin_of(self, span).patience.set(MAX_PATIENCE);
        } else {
            settle(self, span);
        }
    }
    fn lock(&self) -> Guard<'static> {
        registry::lock().lock()
    }
}

/// All threads together keep as many, in equal parts: those of a huge page.
const KEPT_BY_ALL: usize = SPANS_PER_HUGE_PAGE;

/// Whether the thread keeps one of its spans that other threads emptied: of few cells it would give up and
/// take one for every few objects that they free.
fn keeps(heap: &'static Heap, span: &'static Span) -> bool {
    if span.noting_bin().is_none() || thread_local::tag() != heap.id.get() || !span.is_idle() {
        return false;
    }
    let has_room = || heap.kept_spans.count() < KEPT_BY_ALL / registry::in_use().max(1);
    if !span.is_kept() && has_room() && heap.kept_spans.note(span.address()) {
        span.set_kept(true);
    }
    span.is_kept()
}

/// Gives up the spans that are kept and empty.
fn settle_kept(heap: &'static Heap) {
    while let Some(address) = heap.kept_spans.take() {
        let span = region::span(address);
        if span.owner() != heap.id.get() {
            continue;
        }
        span.set_kept(false);
        if span.is_idle() {
            settle(heap, span);
        }
    }
}

/// Gives up spans that have become empty and stay in their bins because they are kept, or their cells noted.
pub fn settle_noted(heap: &'static Heap) {
    settle_kept(heap);
    noted_empty(heap).for_each(|span| settle(heap, span));
}

/// The empty queued spans that are kept, or of which cells are noted.
pub fn noted_empty(heap: &'static Heap) -> impl Iterator<Item = &'static Span> {
    let few = size_class::FIRST_OF_FEW..SIZE_CLASSES;
    let bins =
        (0..CLASSES).flat_map(move |class| few.clone().filter_map(move |size| heap.bin_if_used(class, size)));
    let noted = bins.flat_map(|bin| bin.freed.spans()).chain(heap.kept_spans.spans());
    noted.filter(|span| span.owner() == heap.id.get() && span.is_idle())
}

/// Settles an own span whose cells were freed: an empty one leaves its bin.
pub fn settle(heap: &'static Heap, span: &'static Span) {
    let bin = bin_of(heap, span);
    bin.patience.set(MAX_PATIENCE);
    if remote::settle(span) {
        bin.queue.remove(span);
        release(heap, span);
    }
}

fn bin_of<'a>(heap: &'a Heap, span: &Span) -> &'a Bin {
    heap.bin(span.class.load(Relaxed) as usize, span.size_class.load(Relaxed) as usize)
}

/// Caches an empty span that was disowned, or releases it if the cache is full.
fn release(heap: &'static Heap, span: &'static Span) {
    let cache = &heap.span_caches[span.class.load(Relaxed) as usize];
    if heap.tenancy.taken() && cache.has_room() {
        cache.keep(span);
    } else {
        global::release_span(span.address());
    }
}

/// Releases the cached empty spans.
pub fn empty_span_caches(heap: &Heap) {
    heap.span_caches.iter().for_each(SpanCache::empty);
}

/// Releases cached and open empty spans, and collects what other threads freed; with `all`, closes every open
/// span.
pub fn flush(heap: &'static Heap, all: bool) {
    heap.large.flush(heap.id.get());
    heap.remote_free_buffer.flush(false);
    remote::collect(heap, false);
    if all {
        lines::close_all(&heap.lines);
    }
    let borrowed = heap.span_caches.iter().flat_map(|cache| &cache.borrowed);
    for (bin, borrowed) in heap.bins().iter().zip(borrowed) {
        if let Some(span) = bin.open.get() {
            if !all && span.live_cells() > 0 {
                continue;
            }
            bin.close();
            settle(heap, span);
        }
        if borrowed.get() != 0 {
            borrowed.set(0);
        }
    }
    settle_noted(heap);
    empty_span_caches(heap);
}
