//! Allocation and freeing whole: the fast paths of [`crate::heap`], and behind them everything else.
//!
//! The functions here are what malloc, new and free are made of; `heap/malloc` gives them their C names.

use core::sync::atomic::Ordering::Relaxed;

use crate::fork;
use crate::geometry::*;
use crate::heap::{self, Bin, Call, Freed, Heap};
use crate::lifetime::FOREVER;
use crate::predict::{self, Prediction};
use crate::refill;
use crate::sites::{self, Site};
use crate::size_class::{self, GRANULE_BYTES};
use crate::span::{Place, Span};
use crate::text::misuse;
use crate::{
    direct, global, large, large_blocks, lines, maintenance, os, profile, region, remote, thread, trace,
};

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
        && bin.advance()
        && let Some(cell) = bin.allocate()
    {
        predict::was_hit(heap, &call, bin.in_hand() + 1);
        return cell;
    }
    if call.size > MAX_SMALL_BYTES
        && !profile::on()
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
        let bin = heap.bin(class.min(FOREVER), size_class::of_granules(call.size.div_ceil(GRANULE_BYTES)));
        if let Some(cell) = bin.allocate().or_else(|| bin.advance().then(|| bin.allocate()).flatten()) {
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
                heap.remember(call, bin);
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
    let sampled = bin.before_sample.get() == 0;
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
    if placed.sampled || profile::on() && region::span(placed.address).any_watched() {
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

/// Frees an object; null is none. `caller` is named should the pointer be wrong.
#[inline(always)]
pub fn free(address: usize, caller: usize) {
    match heap::free_fast(address) {
        Freed::Yes => {}
        Freed::MayBeEmpty => settle(address),
        Freed::No => free_slow(address, caller),
    }
}

#[cold]
#[inline(never)]
fn settle(address: usize) {
    let (heap, span) = (thread::current(), region::span(address));
    if span.is_empty() {
        let _pass = fork::pass(heap);
        refill::settle(heap, span);
    }
}

#[cold]
#[inline(never)]
fn free_slow(address: usize, caller: usize) {
    if address == 0 {
        return;
    }
    let heap = thread::current();
    let _pass = fork::pass(heap);
    if trace::on() {
        trace::freed(heap, address);
    }
    let span =
        region::span_if_plain(address).or_else(|| region::holds(address).then(|| region::span(address)));
    let Some(span) = span else {
        if profile::on() {
            profile::freed(heap, address);
        }
        if direct::free(address).is_none() {
            not_of_this_heap(address, caller);
        }
        return;
    };
    match span.owner() {
        0 if span.place() == Place::Lines => {
            lines::free(address, caller);
        }
        0 => large::free(heap, address, caller),
        owner => free_cell(heap, span, owner, address, caller),
    }
}

#[cold]
fn not_of_this_heap(address: usize, caller: usize) -> ! {
    match direct::size_around(address) {
        Some(size) => misuse("invalid pointer, inside an object", address, size, caller),
        None => misuse("invalid pointer, not of this heap or freed already", address, 0, caller),
    }
}

/// A watched object is about to be freed.
pub(crate) fn watched_is_freed(heap: &Heap, address: usize) {
    sites::freed(address);
    if profile::on() {
        profile::freed(heap, address);
    }
}

fn free_cell(heap: &'static Heap, span: &'static Span, owner: u32, address: usize, caller: usize) {
    let cell_bytes = span.cell_bytes.load(Relaxed) as usize;
    let Some(cell) = span.cell_at(address) else {
        misuse("invalid pointer, inside an object or behind the last", address, cell_bytes, caller);
    };
    let own = owner == heap.id.get();
    if !span.is_live(cell) || span.remote().is_marked(cell) || own && span.is_pending(cell) {
        misuse("double free or never allocated", address, cell_bytes, caller);
    }
    let watched = span.is_watched(cell);
    if watched {
        watched_is_freed(heap, address);
    }
    if own {
        if watched {
            span.forget_watch(cell);
        } else {
            let word = span.live_word(cell / 64);
            word.store(word.load(Relaxed) & !(1 << (cell % 64)), Relaxed);
        }
        refill::settle(heap, span);
        return;
    }
    if heap.id.get() != 0 && !trace::on() {
        if !heap.outbox.put(span, cell) {
            misuse("double free", address, cell_bytes, caller);
        }
        return;
    }
    if span.remote().mark(cell / 64, 1 << (cell % 64)) != 0 {
        misuse("double free", address, cell_bytes, caller);
    }
    remote::list(span, false);
}

/// Bytes that the object at `address` may use; 0 for null.
pub fn usable_size(address: usize, caller: usize) -> usize {
    if address == 0 {
        return 0;
    }
    if let Some(bytes) = cell_bytes(address) {
        return bytes;
    }
    let _pass = fork::pass(thread::current());
    match extent(address, caller) {
        Extent::Cell(bytes) | Extent::Direct(bytes) => bytes,
        Extent::Lines => lines::usable_size(address, caller),
        Extent::Blocks(count) => count * BLOCK_BYTES,
    }
}

/// The bytes of the live cell that begins at `address`: what nearly all objects are. Servers ask at each call.
#[inline]
fn cell_bytes(address: usize) -> Option<usize> {
    let span = region::span_if_plain(address).filter(|span| span.owner() != 0)?;
    let cell = span.cell_at(address)?;
    span.is_live(cell).then(|| span.cell_bytes.load(Relaxed) as usize)
}

enum Extent {
    Cell(usize),
    Lines,
    Blocks(usize),
    Direct(usize),
}

fn extent(address: usize, caller: usize) -> Extent {
    if !region::holds(address) {
        return Extent::Direct(direct::size(address).unwrap_or_else(|| not_of_this_heap(address, caller)));
    }
    let span = region::span(address);
    match span.owner() {
        0 if span.place() == Place::Lines => Extent::Lines,
        0 => Extent::Blocks(large::blocks(address).unwrap_or_else(|| large::not_live(address, caller))),
        _ => match span.cell_at(address) {
            Some(cell) if span.is_live(cell) => Extent::Cell(span.cell_bytes.load(Relaxed) as usize),
            _ => {
                let cell_bytes = span.cell_bytes.load(Relaxed) as usize;
                misuse("invalid pointer, no live object begins here", address, cell_bytes, caller);
            }
        },
    }
}

/// Resizes the object at `address`, which is not null, where it lies or by moving pages; `None`: it must be copied.
pub fn resize_in_place(address: usize, call: &Call) -> Option<*mut u8> {
    if trace::on() {
        return None; // a trace knows allocations and frees only
    }
    let size = call.size;
    let fits = |bytes: usize| (size <= bytes && size >= bytes / 2).then_some(address as *mut u8);
    if let Some(bytes) = cell_bytes(address) {
        return fits(bytes);
    }
    let _pass = fork::pass(thread::current());
    match extent(address, call.caller) {
        Extent::Cell(bytes) => fits(bytes),
        Extent::Lines => (size == lines::usable_size(address, call.caller)).then_some(address as *mut u8),
        Extent::Blocks(count) => {
            if size <= MAX_SMALL_BYTES || size >= MIN_DIRECT_BYTES {
                return None;
            }
            let wanted = size.div_ceil(BLOCK_BYTES);
            (wanted == count || large_blocks::resize(address, count, wanted)).then_some(address as *mut u8)
        }
        Extent::Direct(_) if size < MIN_DIRECT_BYTES || size > isize::MAX as usize => None,
        Extent::Direct(_) => direct::resize(address, size).map(|moved| {
            if profile::on() && moved != address {
                profile::moved(address, moved);
            }
            moved as *mut u8
        }),
    }
}

/// Whether the object at `address` was just given by the operating system and reads as zero.
pub fn is_fresh_mapping(address: usize) -> bool {
    !region::holds(address)
}

/// Returns all the memory that can be; whether there was any.
pub fn trim() -> bool {
    let heap = thread::current();
    let _pass = fork::pass(heap);
    if heap.id.get() != 0 {
        refill::flush(heap, true);
    }
    global::trim()
}
