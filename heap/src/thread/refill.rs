//! The cold half of a thread's heap: where its bins get cells from, and what becomes of spans as cells are freed.
//!
//! An empty bin takes, in this order: another word of its open span, what other threads freed, a span of its
//! queue with room, one of a heap whose thread has ended, an empty span in hand, a block span from the global allocator.

use core::sync::atomic::Ordering::Relaxed;

use crate::lifetime::source::{self, Source};
use crate::pages::{global, memory_pressure, page_life, region};
use crate::span::cells::{Role, Room, Span};
use crate::span::remote::{self, Link, RemoteList, Tenancy};
use crate::system::events::{self, Event};
use crate::system::lock::Guard;
use crate::system::observers;
use crate::system::text::misuse;
use crate::thread::bin::{Bin, MAX_PATIENCE};
use crate::thread::local::Heap;
use crate::thread::span_cache::SpanCache;
use crate::thread::{lines, registry};
use crate::units::geometry::{SPAN_BYTES, block_index};
use crate::units::lifetime_class::CLASSES;
use crate::units::size_class::COUNT as SIZE_CLASSES;

/// What a refill did, for who charges spans to call sites.
pub struct Refill {
    /// The cell; `None` when memory ran out.
    pub cell: Option<usize>,
    /// A span was taken from the global allocator for it.
    pub new_span: bool,
}

/// A cell for a bin whose word at hand has none.
pub fn refill(heap: &'static Heap, bin: &Bin) -> Refill {
    let mut new_span = false;
    let room = room();
    loop {
        if bin.advance(room) {
            return Refill { cell: bin.allocate(), new_span };
        }
        bin.close();
        remote::collect(heap, false);
        let queued = bin.next_queued(room);
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

/// A cell of the next span in the bin's queue with room; `None` if none has.
#[inline]
pub fn from_queue(heap: &'static Heap, bin: &Bin) -> Option<usize> {
    let room = room();
    bin.close();
    remote::collect(heap, false);
    let (span, word, free) = bin.next_queued_word(room)?;
    open(bin, span);
    bin.take(span, word, free).then(|| bin.allocate()).flatten()
}

fn room() -> Room {
    if memory_pressure::is_high() { Room::Any } else { Room::Worthwhile }
}

/// A span that is in no queue becomes the bin's open one.
pub fn open(bin: &Bin, span: &'static Span) {
    span.set_role(Role::Open);
    bin.open.set(Some(span));
}

/// What a bin without a span may borrow between two flushes: half a span.
const MOST_BORROWED: u32 = SPAN_BYTES as u32 / 2;

/// A cell of the open span of a longer class, for a bin that needs little. A thread that uses each size in many classes, and
/// little of each, would hold a span for each; its objects may as well lie among those that live longer, which free cells
/// outlive anyway. Only with a model, which uses many classes: whoever says an object's lifetime itself means it.
fn borrow(heap: &'static Heap, bin: &Bin) -> Option<usize> {
    let (class, size_class) = (bin.class.get() as usize, bin.size_class.get() as usize);
    let borrowed = &heap.span_caches[class].borrowed[size_class];
    let after = borrowed.get() + bin.cell_bytes() as u32;
    let by_model = matches!(source::in_use(), Source::Model { .. });
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

/// A span with room from a bin of the same cells and another class, whose page outlives the bin's objects: where it was
/// promoted, its objects live longer than their class said, and no call may come for that class any more. As with lines (LLAMA
/// §6.6), such a span may be opened for another class that is not longer than its page's. Where memory is scarce, any span may.
fn next_of_another_class(heap: &'static Heap, bin: &Bin, room: Room) -> Option<&'static Span> {
    let class = bin.class.get() as usize;
    let may_be_opened = |span: &&'static Span| room == Room::Any || may_be_opened_for(span, class);
    (0..CLASSES).filter(|&other| other != class).find_map(|other| {
        let others = heap.bin_if_used(other, bin.size_class.get() as usize)?;
        others.queue.first().filter(may_be_opened)?;
        let span = others.next_queued(room)?;
        if !may_be_opened(&span) {
            others.queue.push(span); // not the one that was first
            return None;
        }
        span.class.store(class as u8, Relaxed);
        events::count(Event::SpanReopened);
        Some(span)
    })
}

/// Where lifetimes are learned while the program runs, whatever its page outlives may use a span: a new site's cells must not be
/// closed to the next. Whoever says an object's lifetime itself means it: there the page's promotion must have shown otherwise.
pub fn may_be_opened_for(span: &Span, class: usize) -> bool {
    let address = span.address();
    let page = region::huge_page(address);
    let promoted = page.class() > span.class.load(Relaxed) as usize;
    (classes_are_guesses() || promoted)
        && (class < page.class() || class == page.class() && page.residual.get(block_index(address)))
}

/// Lifetimes are learned while the program runs, and the paper's way was not chosen.
pub fn classes_are_guesses() -> bool {
    matches!(source::in_use(), Source::Online | Source::Model { online: true }) && page_life::fills()
}

/// A span of its own for the bin, which is in no list yet; `None` when memory ran out.
pub fn divide_new(heap: &'static Heap, bin: &Bin) -> Option<&'static Span> {
    let class = bin.class.get() as usize;
    let cache = &heap.span_caches[class];
    let span = match cache.take() {
        Some(span) => span,
        None => global::acquire_spans(class, cache.batch(), |span| cache.keep(span))?,
    };
    span.divide(bin.size_class.get() as usize, class);
    remote::assign_owner(heap, span);
    Some(span)
}

impl remote::RemoteSpan for Span {
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
        collect_marked(self, span);
    }
    fn lock(&self) -> Guard<'static> {
        registry::lock().lock()
    }
}

fn collect_marked(heap: &'static Heap, span: &'static Span) {
    let result = span.clear_remote_frees(|| events::count(Event::RemoteCollected));
    if let Err(cell) = result {
        let cell_bytes = span.cell_bytes.load(Relaxed) as usize;
        misuse("double free, seen late", span.address() + cell * cell_bytes, cell_bytes, 0);
    }
    settle(heap, span);
}

/// After cells of an own span were freed: an empty one leaves its bin.
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

/// An empty span that was given up: kept in hand if there is room, else given back.
fn release(heap: &'static Heap, span: &'static Span) {
    let cache = &heap.span_caches[span.class.load(Relaxed) as usize];
    if heap.tenancy.taken() && cache.has_room() {
        cache.keep(span);
    } else {
        global::release_span(span.address());
    }
}

/// Gives back the empty spans that are in cache.
pub fn empty_span_caches(heap: &Heap) {
    heap.span_caches.iter().for_each(SpanCache::empty);
}

/// Gives back the empty spans that are in hand or open, and, with `all`, closes every open span.
pub fn flush(heap: &'static Heap, all: bool) {
    heap.large.flush(heap.id.get());
    heap.remote_free_buffer.flush(false);
    if all {
        remote::collect(heap, false);
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
    empty_span_caches(heap);
}
