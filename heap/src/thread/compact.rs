//! Compaction: merges half-empty spans of bins that are not used any more into bins that are.
//!
//! While lifetimes are learned, call sites change their class and leave half-empty spans in bins that no call
//! goes to. So the bins of each size are compared now and then. A bin that was not used for a while gives its
//! half-empty spans to the most used bin, and their pages are promoted where necessary (LLAMA §6.4). As with
//! lines (§6.6), shorter-lived objects fill the holes between those that stay. A bin keeps its open span:
//! objects that are rarely allocated tend to live long, and must not be spread.

use core::sync::atomic::Ordering::Relaxed;

use crate::pages::page_life;
use crate::span::cells::Span;
use crate::system::events::{self, Event};
use crate::thread::bin::Bin;
use crate::thread::local::Heap;
use crate::thread::refill;
use crate::units::lifetime_class::CLASSES;
use crate::units::size_class::COUNT as SIZE_CLASSES;

/// Comparisons without a use before a bin gives up its half-empty spans.
const ENOUGH_IDLE_COMPARISONS: u8 = 4;
/// With fewer half-empty spans in its queue, a bin does not look for fuller ones.
const LEAST_SPARSE: usize = 4;
/// The most spans of a queue that are moved, and that are examined for how full they are.
const MOST_MOVED: usize = 64;
const MOST_EXAMINED: usize = 32;

/// Compares all bins and resets their use counts.
pub fn compare(heap: &'static Heap) {
    refill::settle_noted(heap); // an empty span must not move away from the note of its cell
    for size_class in 0..SIZE_CLASSES {
        let of_size: [Option<&Bin>; CLASSES] =
            core::array::from_fn(|class| heap.bin_if_used(class, size_class));
        let bins = || of_size.iter().flatten();
        let Some(most) =
            bins().max_by_key(|bin| bin.words_taken.get()).filter(|bin| bin.words_taken.get() > 0)
        else {
            continue; // no bin of this size was used, so none needs their spans
        };
        for bin in bins() {
            if bin.words_taken.replace(0) > 0 {
                bin.idle_comparisons.set(0);
                bin.is_sparse.set(is_sparse(bin));
                continue;
            }
            bin.idle_comparisons.set(bin.idle_comparisons.get().saturating_add(1));
            if bin.idle_comparisons.get() >= ENOUGH_IDLE_COMPARISONS && refill::classes_are_guesses() {
                move_half_empty_spans(bin, most);
            }
        }
    }
}

/// Moves half-empty spans of `bin` to `to`: their objects are not of the class that they were allocated for.
fn move_half_empty_spans(bin: &Bin, to: &Bin) {
    let class = to.class.get().into();
    for _ in 0..bin.queue.iter().take(MOST_MOVED).count() {
        let Some(span) = bin.queue.pop() else { return };
        let may_go = || page_life::lengthen(span.address(), class) || refill::may_be_opened_for(span, class);
        if is_half_empty(span) && may_go() {
            span.set_class(class);
            to.queue.push_first(span);
            events::count(Event::SpanMoved);
        } else {
            bin.queue.push(span);
        }
    }
}

/// Whether more than a few of the bin's spans, and at least a quarter, are half empty.
fn is_sparse(bin: &Bin) -> bool {
    let (half_empty, all) = bin
        .queue
        .iter()
        .take(MOST_EXAMINED)
        .fold((0, 0), |(half_empty, all), span| (half_empty + usize::from(is_half_empty(span)), all + 1));
    half_empty >= LEAST_SPARSE && half_empty * 4 >= all
}

fn is_half_empty(span: &Span) -> bool {
    span.live_cells() * 2 <= usize::from(span.cells.load(Relaxed))
}
