//! Allocation: the fast path of [`crate::thread::local`], and all slow paths behind it.
//!
//! malloc, new and free are built from the functions here, in [`crate::entry::free`] and in
//! [`crate::entry::extent`]; `heap/malloc` exports them under their C names.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::entry::extent;
use crate::entry::maintenance;
use crate::entry::start;
use crate::entry::watch::{Placed, watch, watch_until_freed};
use crate::lifetime::sites::{self, Site};
use crate::pages::{direct, region};
use crate::span::cells::Room;
use crate::system::events::{self, Event};
use crate::system::observers::{self, Allocation};
use crate::system::os;
use crate::system::text::warn;
use crate::thread::bin::Bin;
use crate::thread::local::Heap;
use crate::thread::predict::{self, Prediction};
use crate::thread::{current, fork_guard, large, lines, out_of_memory, refill, registry, sample};
use crate::units::call::{Call, ReturnSlot};
use crate::units::geometry::*;
use crate::units::lifetime_class::FOREVER;
use crate::units::size_class::{self, GRANULE_BYTES};

/// Allocates `size` bytes; null, with errno set, if memory ran out.
pub fn allocate_from(size: usize, from: ReturnSlot) -> *mut u8 {
    allocate(from.call_for(size))
}

/// As [`allocate_from`], for a call that found nothing on the fast path.
#[cold]
pub fn allocate_slow(size: usize, from: ReturnSlot) -> *mut u8 {
    let call = from.call_for(size);
    if lines::chosen()
        && let Some(address) = by_lines(current::heap(), &call)
    {
        return address as *mut u8;
    }
    match from_caches(current::heap(), &call) {
        Some(object) => object as *mut u8,
        None => place_or_errno(&call),
    }
}

/// Takes a cell of the next word of a bin to which all calls of a size go; `None`: [`allocate_slow`] must go
/// on. For some words it does so to notice new calls, and to measure lifetimes of known ones.
pub fn allocate_next(heap: &'static Heap, bin: &Bin) -> Option<usize> {
    if let Some(cell) = freed_cell(heap, bin) {
        return Some(cell);
    }
    if bin.words_taken.get().is_multiple_of(WORDS_BETWEEN_LOOKUPS) {
        return None;
    }
    freed_at_visit(heap, bin).or_else(|| next_word(heap, bin)).or_else(|| next_span(heap, None, bin))
}

/// As [`allocate_from`], for a call that the caller describes.
pub fn allocate(call: Call) -> *mut u8 {
    let heap = current::heap();
    let by_lines = || by_lines(heap, &call);
    let by_cells = || heap.allocate_fast(&call).or_else(|| from_caches(heap, &call));
    match if lines::chosen() { by_lines() } else { by_cells() } {
        Some(cell) => cell as *mut u8,
        None => place_or_errno(&call),
    }
}

#[inline(never)]
fn place_or_errno(call: &Call) -> *mut u8 {
    let address = find_place(call);
    if address == 0 {
        os::set_errno(libc::ENOMEM);
    }
    address as *mut u8
}

fn find_place(call: &Call) -> usize {
    let Some(visit) = start::visit(call) else { return place_without_heap(call, MIN_ALIGNMENT) };
    let heap = visit.heap;
    let _guard = fork_guard::enter(heap);
    maintenance::tick(heap);
    let prediction = predict::classify(heap, call);
    allocated(heap, call, &prediction, MIN_ALIGNMENT)
}

/// Tries the thread's caches for a call that found nothing on the fast path.
#[inline(always)]
fn from_caches(heap: &'static Heap, call: &Call) -> Option<usize> {
    if call.size > lines::max_small_bytes() { cached_large(heap, call) } else { by_prediction(heap, call) }
}

/// Finds a cell for a call that the prediction table knows. The fast path missed because its 64 cells were
/// used up (the open span or the next one has more), or because a word of the stack is part of the call's
/// key.
fn by_prediction(heap: &'static Heap, call: &Call) -> Option<usize> {
    let mut known = heap.prediction_table.lookup(call)?;
    if known.word != 0 {
        known = heap.prediction_table.lookup(&heap.key_for_stack_word(call, &known))?;
    }
    let bin = heap.bin_for(call, known.bin)?;
    if let Some(cell) = bin.allocate().or_else(|| freed_cell(heap, bin)) {
        return Some(cell);
    }
    let wants_sample = known.site().is_some_and(|site| site.wants_sample(heap.visits.get().wrapping_add(1)));
    let freed = if wants_sample { None } else { freed_at_visit(heap, bin) };
    let cell = freed.or_else(|| next_word(heap, bin)).or_else(|| next_span(heap, known.site(), bin))?;
    predict::record_hit(heap, call, bin.unused_cells() + 1);
    heap.known_call(call, bin);
    Some(cell)
}

/// The fast path of the paper's layout: the call's class is known, and the open span of that class has room.
/// Every [`LINES_VISITS`]th call returns `None`, so that maintenance runs and the site is charged for the
/// others.
#[inline]
fn by_lines(heap: &'static Heap, call: &Call) -> Option<usize> {
    let class = heap.predicted_bin(call)?.class.get();
    let visits = heap.visits.get().wrapping_add(1);
    heap.visits.set(visits);
    if visits.is_multiple_of(LINES_VISITS) {
        return None;
    }
    lines::allocate_in_open_run(&heap.lines[usize::from(class)], call.size)
}

/// With spans divided by lines, one in this many allocations of a known call takes the slow path.
const LINES_VISITS: u32 = 64;

/// Takes a cached large object for a call whose site is known. Every [`SLOW_VISITS`]th call returns `None`,
/// so that lifetimes are still measured and the clock is read.
fn cached_large(heap: &Heap, call: &Call) -> Option<usize> {
    if sample::sampling() {
        return None;
    }
    let site = sites::cached(&heap.site_cache, call, heap.stack.get())?;
    let _guard = fork_guard::enter(heap); // the maintenance thread may be emptying a sleeping thread's caches
    let visits = heap.visits.get().wrapping_add(1);
    heap.visits.set(visits);
    if visits.is_multiple_of(SLOW_VISITS) {
        return None;
    }
    large::allocate_cached(&heap.large, heap.id.get(), site.class(), call.size)
}

/// One in this many allocations of large objects takes the slow path even if the cache has one.
const SLOW_VISITS: u32 = 32;

/// Takes a cell that was noted when it was freed, unless a visit is due.
#[inline]
fn freed_cell(heap: &'static Heap, bin: &Bin) -> Option<usize> {
    if bin.freed.is_empty() {
        return None;
    }
    let _guard = fork_guard::enter(heap);
    bin.allocate_freed(heap.id.get())
}

/// Allows the fast path to take some noted cells. In assembly it enters the fork guard without a fence.
fn allow_freed(bin: &Bin) {
    if !fork_guard::fences() {
        bin.allow_freed();
    }
}

/// As above, at a visit: more may be taken until the next one.
#[inline]
fn freed_at_visit(heap: &'static Heap, bin: &Bin) -> Option<usize> {
    if bin.freed.is_empty() {
        return None;
    }
    allow_freed(bin);
    let cell = freed_cell(heap, bin)?;
    count_word(heap);
    Some(cell)
}

/// Takes a cell from the next word of the bin's open span.
fn next_word(heap: &'static Heap, bin: &Bin) -> Option<usize> {
    let cell = bin.advance(Room::Worthwhile).then(|| bin.allocate()).flatten()?;
    count_word(heap);
    Some(cell)
}

/// Counts a visit that took a word, or the like, and runs maintenance now and then.
#[inline]
fn count_word(heap: &'static Heap) {
    let visits = heap.visits.get().wrapping_add(1);
    heap.visits.set(visits);
    if visits.is_multiple_of(WORDS_BETWEEN_TICKS) {
        run_maintenance(heap);
    }
}

/// Takes a cell from the next span of the bin's queue, unless the call's site needs a sample now.
fn next_span(heap: &'static Heap, site: Option<&Site>, bin: &Bin) -> Option<usize> {
    let this_visit = heap.visits.get().wrapping_add(1); // counted as on the path that watches objects
    let wants_sample = |site: &Site| site.wants_sample(this_visit);
    if bin.queue.first().is_none()
        || bin.before_sample.get() == 0
        || observers::observes_all()
        || site.is_some_and(wants_sample)
    {
        return None;
    }
    let _guard = fork_guard::enter(heap);
    heap.visits.set(this_visit);
    if this_visit.is_multiple_of(WORDS_BETWEEN_TICKS) {
        maintenance::run(heap);
    }
    refill::from_queue(heap, bin)
}

/// A program may need no path but this one, so one word in this many runs maintenance.
const WORDS_BETWEEN_TICKS: u32 = 64;
/// Of this many words one is taken for a call that is looked up.
const WORDS_BETWEEN_LOOKUPS: u32 = 16;

#[cold]
#[inline(never)]
fn run_maintenance(heap: &'static Heap) {
    let _guard = fork_guard::enter(heap);
    maintenance::run(heap);
}

/// Allocates an object whose address is a multiple of `alignment`, a power of two.
pub fn allocate_aligned(call: Call, alignment: usize) -> *mut u8 {
    if alignment <= MIN_ALIGNMENT {
        return allocate(call);
    }
    allocate_as(call, alignment, None)
}

/// Allocates an object of a lifetime class that the caller knows.
pub fn allocate_with_class(call: Call, class: usize) -> *mut u8 {
    let heap = current::heap();
    if heap.id.get() != 0 && call.size <= lines::max_small_bytes() && !observers::observes_all() {
        let _guard = fork_guard::enter(heap); // the bin may be a new one
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
    let Some(visit) = start::visit(&call) else { return place_without_heap(&call, alignment) };
    let heap = visit.heap;
    let _guard = fork_guard::enter(heap);
    maintenance::tick(heap);
    let prediction = match class {
        Some(class) => Prediction::certain(class, false),
        None => Prediction { cacheable: false, ..predict::classify(heap, &call) },
    };
    allocated(heap, &call, &prediction, alignment)
}

/// Allocates for a thread that can have no heap: all heap numbers are in use, or there is no memory for one
/// more heap. The object gets its own mapping, which wastes memory but works.
#[cold]
fn place_without_heap(call: &Call, alignment: usize) -> usize {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if registry::is_full() && !WARNED.swap(true, Relaxed) {
        warn(format_args!(
            "more than {} threads allocate: each object of a further one takes a mapping of its own",
            registry::MAX_HEAPS
        ));
    }
    if call.size > isize::MAX as usize {
        return 0;
    }
    let _guard = fork_guard::enter(current::heap());
    direct::allocate(FOREVER, call.size, alignment).unwrap_or(0)
}

/// Allocates off the fast path: places the object, notifies the observers and charges the site.
fn allocated(heap: &'static Heap, call: &Call, prediction: &Prediction, alignment: usize) -> usize {
    let placed = place(heap, call, prediction, alignment);
    if placed.address == 0 {
        return 0;
    }
    let sequence = heap.sequence.replace(heap.sequence.get().wrapping_add(1));
    if placed.sampled || observers::observes_all() {
        let watched = || placed.is_direct() || watch_until_freed(heap, call, placed.address);
        observers::allocated(&Allocation {
            call: *call,
            height: heap.height(call),
            thread: heap.thread.get(),
            sequence,
            alignment,
            address: placed.address,
            sampled: placed.sampled.then(watched),
        });
    }
    if let Some(site) = prediction.site {
        site.charge(placed.charged_bytes);
        watch(heap, site, call, &placed);
    }
    placed.address
}

/// Places the object.
fn place(heap: &'static Heap, call: &Call, prediction: &Prediction, alignment: usize) -> Placed {
    let class = prediction.class;
    let size = call.size;
    if lines::chosen() && size <= MAX_LINES_BYTES && alignment < BLOCK_BYTES / 2 {
        let allocations = if heap.predicted_bin(call).is_some() { LINES_VISITS as usize } else { 1 };
        if alignment <= MIN_ALIGNMENT && prediction.cacheable && !observers::observes_all() {
            // Only the bin's class is used here: with lines it has no cells.
            let size_class = size_class::of_granules(size.div_ceil(GRANULE_BYTES));
            heap.remember(call, heap.bin(class, size_class), prediction.site, prediction.word);
        }
        return Placed {
            address: lines::allocate(&heap.lines[class], class, size, alignment).unwrap_or(0),
            charged_bytes: allocations * size,
            sampled: false,
        };
    }
    let size_class = if alignment <= MIN_ALIGNMENT {
        (size <= lines::max_small_bytes()).then(|| size_class::of_granules(size.div_ceil(GRANULE_BYTES)))
    } else {
        size_class::of_aligned(size, alignment)
    };
    match size_class {
        Some(size_class) => {
            let bin = heap.bin(class, size_class);
            if prediction.cacheable && !observers::observes_all() {
                heap.remember(call, bin, prediction.site, prediction.word);
            }
            place_small(heap, bin)
        }
        None => Placed {
            address: place_large(heap, class, size, alignment).unwrap_or(0),
            charged_bytes: size,
            sampled: sample::samples_large(&heap.large_before_sample, size),
        },
    }
}

/// Places a large object; if there is no memory, the thread releases all its caches and tries again.
fn place_large(heap: &'static Heap, class: usize, size: usize, alignment: usize) -> Option<usize> {
    let allocate = || large::allocate(&heap.large, heap.id.get(), class, size, alignment);
    let object = allocate().or_else(|| {
        out_of_memory::release_all(heap);
        if os::data_is_limited() {
            region::decommit_freed();
        }
        allocate()
    })?;
    events::add(Event::LargeBytes, extent::usable_size(object, 0) as u64);
    Some(object)
}

fn place_small(heap: &'static Heap, bin: &'static Bin) -> Placed {
    allow_freed(bin);
    if let Some(address) = bin.allocate().or_else(|| bin.allocate_freed(heap.id.get())) {
        return Placed { address, charged_bytes: 0, sampled: false };
    }
    let sampled = bin.before_sample.get() == 0 && sample::sampling();
    if sampled {
        let next = sample::cells_before_sample(bin.cell_bytes());
        bin.before_sample.set(next.saturating_add(1)); // the cells that the bin takes next include this one
    }
    let refill = refill::refill(heap, bin);
    let charged_bytes = if refill.new_span { SPAN_BYTES } else { 0 };
    let cell = refill.cell.or_else(|| out_of_memory::any_cell(heap, bin));
    Placed { address: cell.unwrap_or(0), charged_bytes, sampled }
}
