//! The cold half of a thread's heap: where its bins get cells from, and what becomes of spans as cells are freed.
//!
//! An empty bin takes, in this order: another word of its open span, what other threads freed, a partly free span of
//! its own, one of a heap whose thread has ended, an empty span in hand, a block span from the global allocator.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::geometry::SPAN_BYTES;
use crate::global;
use crate::heap::{Bin, Heap, span_address};
use crate::lifetime::CLASSES;
use crate::registry;
use crate::span::{CLOSED, Place, Span};
use crate::stats::{self, Event};
use crate::text::misuse;

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
    loop {
        if bin.advance() {
            return Refill { cell: bin.allocate(), new_span };
        }
        close(heap, bin);
        collect_remote(heap, false);
        let span = bin.partial.pop().or_else(|| registry::adopt(heap, bin)).or_else(|| {
            new_span = true;
            divide_new(heap, bin)
        });
        let Some(span) = span else { return Refill { cell: None, new_span: false } };
        span.set_place(Place::Open);
        bin.open.set(Some(span));
    }
}

/// The open span has no free cell: it leaves the bin until one is freed.
fn close(heap: &'static Heap, bin: &Bin) {
    if let Some(span) = bin.close() {
        span.set_place(Place::Closed);
        span.change_tag(CLOSED, 0);
        debug_assert_eq!(span.owner(), heap.id.get());
    }
}

fn divide_new(heap: &'static Heap, bin: &Bin) -> Option<&'static Span> {
    let class = bin.class.get() as usize;
    let (in_hand, count) = &heap.empty[class];
    let span = match in_hand.pop() {
        Some(span) => {
            count.set(count.get() - 1);
            span
        }
        None => global::acquire_span(class)?,
    };
    span.divide(heap.id.get(), bin.size_class.get() as usize, class);
    span.link.take_up();
    Some(span)
}

/// Takes over what other threads freed in this heap's spans. Its thread calls this, or whoever holds the registry's
/// lock (`locked`) while the heap is vacant.
pub fn collect_remote(heap: &'static Heap, locked: bool) {
    if heap.remote.is_empty() {
        return;
    }
    let mut address = heap.remote.take();
    while address != 0 {
        // SAFETY: only spans, whose metadata is never unmapped, are pushed.
        let span = unsafe { &*(address as *const Span) };
        address = span.link.next();
        if span.owner() == heap.id.get() {
            span.link.release();
            collect(heap, span);
        } else {
            pass_on(span, locked);
        }
    }
}

/// The span changed hands while it was in a list: its link stays claimed.
fn pass_on(span: &'static Span, locked: bool) {
    match registry::heap(span.owner()) {
        Some(owner) => registry::deliver(owner, span, locked),
        None => {
            span.link.release();
            list(span, locked);
        }
    }
}

/// Puts a span in which a cell was marked into its owner's list, unless it is in one.
pub fn list(span: &'static Span, locked: bool) {
    while span.link.claim() {
        // Not before the claim: until then the owner may give the span up, and another take it.
        if let Some(owner) = registry::heap(span.owner()) {
            return registry::deliver(owner, span, locked);
        }
        span.link.release();
        if !span.remote().any() {
            return; // the mark was seen, and the span given up
        }
    }
}

fn collect(heap: &'static Heap, span: &'static Span) {
    let result = span.collect(|word, bits| {
        span.forget_samples(word, bits);
        stats::count(Event::RemoteCollected);
    });
    if let Err(cell) = result {
        let cell_bytes = span.cell_bytes.load(Relaxed) as usize;
        misuse("double free, seen late", span_address(span) + cell * cell_bytes, cell_bytes, 0);
    }
    settle(heap, span);
}

/// After cells of an own span were freed: moves it to where it belongs now.
pub fn settle(heap: &'static Heap, span: &'static Span) {
    match span.place() {
        Place::Closed if span.is_empty() => release(heap, span),
        Place::Closed if !span.is_full() => {
            span.change_tag(0, CLOSED);
            span.set_place(Place::Partial);
            bin_of(heap, span).partial.push(span);
        }
        Place::Partial if span.is_empty() => {
            bin_of(heap, span).partial.remove(span);
            release(heap, span);
        }
        _ => {}
    }
}

fn bin_of<'a>(heap: &'a Heap, span: &Span) -> &'a Bin {
    heap.bin(span.class.load(Relaxed) as usize, span.size_class.load(Relaxed) as usize)
}

/// An empty span that is in no list of its owner: kept in hand if there is room, else given back.
fn release(heap: &'static Heap, span: &'static Span) {
    if !span.link.give_up() {
        // It is in a list of remote frees: settled again when that list is taken.
        span.change_tag(0, CLOSED);
        span.set_place(Place::Partial);
        bin_of(heap, span).partial.push(span);
        return;
    }
    span.set_place(Place::None);
    span.tag.store(0, SeqCst);
    let (in_hand, count) = &heap.empty[span.class.load(Relaxed) as usize];
    if count.get() < MAX_IN_HAND {
        count.set(count.get() + 1);
        in_hand.push(span);
    } else {
        global::release_span(span_address(span));
    }
}

/// Empty spans that a thread keeps of each class.
const MAX_IN_HAND: u32 = 4;

/// Gives back the empty spans in hand; `all`: also those that bins hold open or in their lists.
pub fn flush(heap: &'static Heap, all: bool) {
    heap.large.flush(heap);
    if all {
        collect_remote(heap, false);
        for bin in heap.bins() {
            if let Some(span) = bin.close() {
                span.set_place(Place::Closed);
                span.change_tag(CLOSED, 0);
                settle(heap, span);
            }
        }
        crate::lines::close_all(heap);
    }
    for class in 0..CLASSES {
        let (in_hand, count) = &heap.empty[class];
        count.set(0);
        while let Some(span) = in_hand.pop() {
            global::release_span(span_address(span));
        }
    }
}

/// The object's cell in its span; `None` if no cell begins at this address.
pub fn cell_of(span: &Span, address: usize) -> Option<usize> {
    let offset = address & (SPAN_BYTES - 1);
    let cell = ((offset as u64 * span.reciprocal.load(Relaxed) as u64) >> 32) as usize;
    let begins =
        cell * span.cell_bytes.load(Relaxed) as usize == offset && cell < span.cells.load(Relaxed) as usize;
    begins.then_some(cell)
}
