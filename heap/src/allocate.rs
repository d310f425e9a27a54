//! Allocation whole: the fast path of [`crate::heap`], and behind it everything else.
//!
//! The functions here and in [`crate::free`] and [`crate::extent`] are what malloc, new and free are made of; `heap/malloc`
//! gives them their C names.

use crate::fork;
use crate::geometry::*;
use crate::heap::{Bin, Call, Heap};
use crate::lifetime::FOREVER;
use crate::predict::{self, Prediction};
use crate::refill;
use crate::sites::{self, Site};
use crate::size_class::{self, GRANULE_BYTES};
use crate::{global, large, lines, maintenance, os, profile, region, thread, trace, trim};

/// An object of `call.size` bytes, or null, with errno set, when memory ran out.
#[inline(always)]
pub fn allocate(call: Call) -> *mut u8 {
    match thread::current().allocate_fast(&call) {
        Some(cell) => cell as *mut u8,
        // Three plain arguments, and nothing to do afterwards: the fast path needs no stack frame.
        None => allocate_slow(call.size, call.caller, call.stack),
    }
}

#[cold]
#[inline(never)]
fn allocate_slow(size: usize, caller: usize, stack: usize) -> *mut u8 {
    let address = find_place(Call { size, caller, stack });
    if address == 0 {
        os::set_errno(libc::ENOMEM);
    }
    address as *mut u8
}

fn find_place(call: Call) -> usize {
    let heap = thread::current();
    // The usual reason: 64 cells were used up, and the open span has more.
    if let Some(bin) = heap.predicted_bin(&call)
        && let Some(cell) = next_word(heap, bin)
    {
        predict::was_hit(heap, &call, bin.in_hand() + 1);
        return cell;
    }
    if call.size > MAX_SMALL_BYTES
        && !profile::sampling()
        && let Some(address) = large::allocate_fast(heap, &call)
    {
        return address;
    }
    let Some(visit) = thread::visit(&call) else { return 0 };
    let heap = visit.heap;
    let _pass = fork::pass(heap);
    maintenance::tick(heap);
    let prediction = predict::classify(heap, &call);
    allocated(heap, &call, &prediction, MIN_ALIGNMENT)
}

/// A cell of the next word of the bin's open span.
fn next_word(heap: &'static Heap, bin: &Bin) -> Option<usize> {
    let cell = bin.advance().then(|| bin.allocate()).flatten()?;
    let visits = heap.visits.get().wrapping_add(1);
    heap.visits.set(visits);
    if visits.is_multiple_of(WORDS_BETWEEN_LOOKS) {
        look(heap);
    }
    Some(cell)
}

/// A program may never need more than this path: of so many words, one is a reason to see what is due.
const WORDS_BETWEEN_LOOKS: u32 = 64;

#[cold]
#[inline(never)]
fn look(heap: &'static Heap) {
    let _pass = fork::pass(heap);
    maintenance::look(heap);
}

/// An object whose address is a multiple of `alignment`, a power of two.
pub fn allocate_aligned(call: Call, alignment: usize) -> *mut u8 {
    if alignment <= MIN_ALIGNMENT {
        return allocate(call);
    }
    allocate_as(call, alignment, None)
}

/// An object of a lifetime class that the caller knows.
pub fn allocate_with_class(call: Call, class: usize) -> *mut u8 {
    let heap = thread::current();
    if heap.id.get() != 0 && call.size <= MAX_SMALL_BYTES && !trace::on() {
        let _pass = fork::pass(heap); // the bin may be a new one
        let bin = heap.bin(class.min(FOREVER), size_class::of_granules(call.size.div_ceil(GRANULE_BYTES)));
        if let Some(cell) = bin.allocate().or_else(|| next_word(heap, bin)) {
            return cell as *mut u8;
        }
    }
    allocate_as(call, MIN_ALIGNMENT, Some(class.min(FOREVER)))
}

#[inline(never)]
fn allocate_as(call: Call, alignment: usize, class: Option<usize>) -> *mut u8 {
    let address = find_place_as(call, alignment, class);
    if address == 0 {
        os::set_errno(libc::ENOMEM);
    }
    address as *mut u8
}

fn find_place_as(call: Call, alignment: usize, class: Option<usize>) -> usize {
    let Some(visit) = thread::visit(&call) else { return 0 };
    let heap = visit.heap;
    let _pass = fork::pass(heap);
    maintenance::tick(heap);
    let prediction = match class {
        Some(class) => Prediction { class, cacheable: false, site: None },
        None => Prediction { cacheable: false, ..predict::classify(heap, &call) },
    };
    allocated(heap, &call, &prediction, alignment)
}

/// An allocation that is not on the fast path: finds its place, and tells who wants to know.
fn allocated(heap: &'static Heap, call: &Call, prediction: &Prediction, alignment: usize) -> usize {
    let placed = place(heap, call, prediction, alignment);
    if placed.address == 0 {
        return 0;
    }
    if trace::on() {
        trace::allocated(heap, call, placed.address);
    }
    heap.sequence.set(heap.sequence.get().wrapping_add(1));
    if placed.sampled {
        let watched = placed.is_direct() || watch_until_freed(heap, call, placed.address);
        profile::allocated(heap, call, alignment, placed.address, watched);
    }
    if let Some(site) = prediction.site {
        site.charge(placed.charged_bytes);
        watch(heap, site, call, &placed);
    }
    placed.address
}

struct Placed {
    address: usize,
    charged_bytes: usize,
    /// It was chosen for the profile.
    sampled: bool,
}

impl Placed {
    /// It has a mapping of its own.
    fn is_direct(&self) -> bool {
        !region::holds(self.address)
    }
}

/// Finds the object's place.
fn place(heap: &'static Heap, call: &Call, prediction: &Prediction, alignment: usize) -> Placed {
    let class = prediction.class;
    let size = call.size;
    if lines::chosen() && size <= MAX_SMALL_BYTES && alignment < BLOCK_BYTES / 2 {
        return Placed {
            address: lines::allocate(heap, class, size, alignment).unwrap_or(0),
            charged_bytes: size,
            sampled: false,
        };
    }
    let size_class = if alignment <= MIN_ALIGNMENT {
        (size <= MAX_SMALL_BYTES).then(|| size_class::of_granules(size.div_ceil(GRANULE_BYTES)))
    } else {
        size_class::of_aligned(size, alignment)
    };
    match size_class {
        Some(size_class) => {
            let bin = heap.bin(class, size_class);
            if prediction.cacheable && !trace::on() {
                heap.predictions.remember(call, bin, prediction.site);
            }
            place_small(heap, bin)
        }
        None => Placed {
            address: large::allocate(heap, class, size, alignment).unwrap_or(0),
            charged_bytes: size,
            sampled: profile::large_is_due(heap, size),
        },
    }
}

fn place_small(heap: &'static Heap, bin: &'static Bin) -> Placed {
    if let Some(address) = bin.allocate() {
        return Placed { address, charged_bytes: 0, sampled: false };
    }
    let sampled = bin.before_sample.get() == 0 && profile::sampling();
    if sampled {
        let next = profile::cells_before_sample(bin.cell_bytes());
        bin.before_sample.set(next.saturating_add(1)); // this one is taken in hand too
    }
    let refill = refill::refill(heap, bin);
    let charged_bytes = if refill.new_span { SPAN_BYTES } else { 0 };
    Placed { address: refill.cell.unwrap_or(0), charged_bytes, sampled }
}

/// Watches some of the objects of a site until they are freed.
fn watch(heap: &Heap, site: &'static Site, call: &Call, placed: &Placed) {
    if !site.wants_sample(heap.visits.get()) || lines::chosen() || trace::on() {
        return;
    }
    if placed.is_direct() {
        return; // objects with a mapping of their own pack with nobody
    }
    // A span has room for two: the profile's samples are rarer and go first.
    if placed.sampled || profile::sampling() && region::span(placed.address).any_watched() {
        return;
    }
    if watch_until_freed(heap, call, placed.address) && !sites::watch(site, placed.address) {
        unwatch(call, placed.address);
    }
}

/// Sends the free of an object of the thread's own down the slow path; whether there was room for one more.
fn watch_until_freed(heap: &Heap, call: &Call, address: usize) -> bool {
    let span = region::span(address);
    if span.owner() == heap.id.get() {
        return span.cell_at(address).is_some_and(|cell| span.watch(cell));
    }
    if call.size > MAX_SMALL_BYTES {
        large::set_sampled(address, true);
    }
    call.size > MAX_SMALL_BYTES
}

fn unwatch(call: &Call, address: usize) {
    if call.size > MAX_SMALL_BYTES {
        large::set_sampled(address, false);
    } else if let Some(cell) = region::span(address).cell_at(address) {
        region::span(address).unwatch(cell);
    }
}

/// Returns all the memory that can be; whether there was any.
pub fn trim() -> bool {
    let heap = thread::current();
    let _pass = fork::pass(heap);
    if heap.id.get() != 0 {
        refill::flush(heap, true);
    }
    let any = global::trim();
    (os::on_base_pages() && trim::free_blocks()) || any
}
