//! The last resort: what is tried before malloc says that there is no memory, when the operating system gives no more.
//!
//! A program that has freed half of its objects has memory, wherever the free cells are. So every free cell of the size, of
//! every lifetime class, is worth having now, then those of larger sizes, then those of heaps whose threads have ended; and
//! then whatever the thread has in hand goes back, since it may make a whole span or page. Packing by lifetime can wait.

use crate::pages::global;
use crate::span::cells::{Room, Span};
use crate::thread::bin::Bin;
use crate::thread::local::Heap;
use crate::thread::{refill, registry};
use crate::units::lifetime_class::CLASSES;
use crate::units::size_class::COUNT as SIZE_CLASSES;

/// A cell that is at least as large as those of `bin`; `None` when the thread has none and can get none.
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

/// Gives back what the thread has in hand, and every page that holds nothing.
#[cold]
pub fn release_all(heap: &'static Heap) {
    refill::flush(heap, true);
    global::trim();
}

/// A cell of this size, of any class that the thread has used.
fn cell_of_size(heap: &'static Heap, size_class: usize) -> Option<usize> {
    (0..CLASSES).find_map(|class| cell_of(heap.bin_if_used(class, size_class)?))
}

/// A cell of the bin, from the span at hand or any of its queue.
fn cell_of(bin: &Bin) -> Option<usize> {
    if bin.before_sample.get() == 0 {
        bin.before_sample.set(1); // a sample that is due does not keep a cell back
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

/// A cell of a heap whose thread has ended.
fn adopted_cell(heap: &'static Heap, class: usize, size_class: usize) -> Option<usize> {
    let bin = heap.bin(class, size_class);
    let span = registry::adopt(heap, bin, Room::Any)?;
    open_and_take(bin, span)
}

fn next_of_open(bin: &Bin) -> Option<usize> {
    bin.advance(Room::Any).then(|| bin.allocate()).flatten()
}

/// A cell of a span that is in no queue, which becomes the bin's open one.
fn open_and_take(bin: &Bin, span: &'static Span) -> Option<usize> {
    bin.close();
    refill::open(bin, span);
    next_of_open(bin)
}
