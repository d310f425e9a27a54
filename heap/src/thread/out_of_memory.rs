//! The last resort before malloc returns null, when the operating system gives no more memory.
//!
//! A program that has freed half of its objects still has memory in free cells. So the thread takes any free
//! cell of the size, of any lifetime class, then of larger sizes, then of vacant heaps. After that it
//! releases its caches, which may free a whole span or page. Packing by lifetime no longer matters here.

use crate::pages::global;
use crate::span::cells::{Room, Span};
use crate::thread::bin::Bin;
use crate::thread::local::Heap;
use crate::thread::{refill, registry};
use crate::units::lifetime_class::CLASSES;
use crate::units::size_class::COUNT as SIZE_CLASSES;

/// Finds a cell that is at least as large as those of `bin`; `None` if there is none.
#[cold]
pub fn any_cell(heap: &'static Heap, bin: &Bin) -> Option<usize> {
    let wanted = bin.size_class.get() as usize;
    let sizes = wanted..SIZE_CLASSES;
    sizes
        .clone()
        .find_map(|size_class| cell_of_size(heap, size_class))
        .or_else(|| {
            sizes.clone().find_map(|size_class| adopted_cell(heap, bin.class.get() as usize, size_class))
        })
        .or_else(|| {
            release_all(heap);
            sizes.clone().find_map(|size_class| cell_of_size(heap, size_class))
        })
        .or_else(|| open_and_take(bin, refill::divide_new(heap, bin)?))
}

/// Releases the thread's caches and all empty pages.
#[cold]
pub fn release_all(heap: &'static Heap) {
    refill::flush(heap, true);
    global::trim();
}

/// A cell of this size, of any class that the thread has used.
fn cell_of_size(heap: &'static Heap, size_class: usize) -> Option<usize> {
    (0..CLASSES).find_map(|class| cell_of(heap.bin_if_used(class, size_class)?))
}

/// A cell of the bin, from its open span or any queued one.
fn cell_of(bin: &Bin) -> Option<usize> {
    if bin.before_sample.get() == 0 {
        bin.before_sample.set(1); // a pending sample must not hold a cell back
    }
    bin.allocate().or_else(|| next_of_open(bin)).or_else(|| {
        bin.close();
        let last = bin.queue.last()?;
        loop {
            let span = bin.queue.pop()?;
            if span.word_with(Room::Any).is_some() {
                return open_and_take(bin, span);
            }
            bin.queue.push(span);
            if core::ptr::eq(span, last) {
                return None;
            }
        }
    })
}

/// A cell of a vacant heap.
fn adopted_cell(heap: &'static Heap, class: usize, size_class: usize) -> Option<usize> {
    let bin = heap.bin(class, size_class);
    let span = registry::adopt(heap, bin, Room::Any)?;
    open_and_take(bin, span)
}

fn next_of_open(bin: &Bin) -> Option<usize> {
    bin.advance(Room::Any).then(|| bin.allocate()).flatten()
}

/// Opens a span that is in no queue, and takes a cell of it.
fn open_and_take(bin: &Bin, span: &'static Span) -> Option<usize> {
    bin.close();
    refill::open(bin, span);
    next_of_open(bin)
}
