//! Free: the fast path of [`crate::thread::local`], and behind it frees of other threads' objects, of large
//! and of watched ones, and all invalid pointers.

use core::sync::atomic::Ordering::Relaxed;

use crate::entry::extent;
use crate::entry::maintenance;
use crate::entry::start;
use crate::lifetime::sites;
use crate::pages::{direct, region};
use crate::span::cells::{Role, Span};
use crate::span::remote;
use crate::system::glibc_heap;
use crate::system::observers;
use crate::system::text::misuse;
use crate::thread::current::Visit;
use crate::thread::local::{self, Freed, Heap};
use crate::thread::{current, fork_guard, large, lines, refill};
use crate::units::call::ReturnSlot;
use crate::units::geometry::*;

/// Frees an object; null is allowed. If the pointer is invalid, the error message names the caller.
#[inline(always)]
pub fn free(address: usize, from: ReturnSlot) {
    match local::free_fast(address) {
        Freed::Yes => {}
        Freed::Unsettled => settle(address),
        Freed::No => free_slow(address, from),
    }
}

/// The cell at `address`, of one of the thread's spans, was freed: its bin notes it, or the span is settled,
/// which may be empty.
#[cold]
#[inline(never)]
pub fn settle(address: usize) {
    let (heap, span) = (current::heap(), region::span(address));
    let is_noted = span.noting_bin().is_some_and(|bin| heap.bin_numbered(bin).freed.note(address));
    if !is_noted && span.is_empty() {
        let _guard = fork_guard::enter(heap);
        // The maintenance thread may have given it up meanwhile.
        if span.owner() == heap.id.get() {
            refill::settle(heap, span);
        }
        maintenance::tick(heap); // a program that only frees must also release its caches
    }
}

/// As [`free`], for an object that the fast path left alone.
#[cold]
pub fn free_slow(address: usize, from: ReturnSlot) {
    let heap = current::heap();
    if heap.bytes.counts_frees() {
        note_freed(heap, address, from);
    }
    if !free_of_another(heap, address) && !free_into_cache(heap, address) {
        free_otherwise(heap, address, from);
    }
}

/// Counts a free, for a thread that asked how many bytes it frees.
#[cold]
fn note_freed(heap: &'static Heap, address: usize, from: ReturnSlot) {
    heap.bytes.note_freed(extent::usable_size(address, from.caller()));
    heap.bytes.renew(heap.allocated_bytes());
}

#[inline(never)]
fn free_otherwise(heap: &'static Heap, address: usize, from: ReturnSlot) {
    if address == 0 {
        return;
    }
    if lines::chosen() && free_by_lines(heap, address, from) {
        return;
    }
    let visit = enter_to_free(heap, address, from);
    let heap = visit.as_ref().map_or(heap, |visit| visit.heap);
    let _guard = fork_guard::enter(heap);
    if observers::observes_all() {
        observers::freed(heap.number(), address);
    }
    free_where_it_lies(heap, address, from.caller());
    count(heap);
}

/// Gives a thread that has no heap, and frees other threads' cells again and again, a heap.
#[inline]
fn enter_to_free(heap: &Heap, address: usize, from: ReturnSlot) -> Option<Visit> {
    let is_cell = || region::span_if_plain(address).is_some_and(|span| span.owner() != 0);
    let should_enter = heap.id.get() == 0 && is_cell() && current::should_enter_to_free();
    should_enter.then(|| start::visit(&from.call_for(0)))?
}

/// Counts a slow free, and runs maintenance when it is time.
#[inline]
fn count(heap: &'static Heap) {
    if heap.id.get() != 0 && maintenance::count_free(heap) {
        maintenance::run(heap);
    }
}

/// The fast path for another thread's object: it lies in the same 64 cells as one that this thread freed
/// before, so setting a bit in the remote free buffer is enough. `false`: the slow path must continue, or
/// report an error.
#[inline(always)]
fn free_of_another(heap: &'static Heap, address: usize) -> bool {
    let Some(span) = region::span_if_plain(address) else { return false };
    let (owner, own) = (span.owner(), heap.id.get());
    if owner == 0 || own == 0 || owner == own || observers::observes_all() {
        return false;
    }
    let Some(cell) = span.cell_at(address) else { return false };
    let (word, bit) = (cell / 64, 1 << (cell % 64));
    // A watched cell has no live bit.
    if span.live_word(word).load(Relaxed) & bit == 0 || span.remote().marked(word) & bit != 0 {
        return false;
    }
    let _guard = fork_guard::enter(heap);
    if !heap.remote_free_buffer.add_to_known_word(span, cell) {
        return false;
    }
    count(heap);
    true
}

/// The fast path for a large object: the thread caches it. `false`: the slow path must continue, or report an
/// error.
#[inline(always)]
fn free_into_cache(heap: &'static Heap, address: usize) -> bool {
    let Some(span) = region::span_if_plain(address) else { return false };
    let may_be = span.owner() == 0 && address.is_multiple_of(BLOCK_BYTES) && heap.id.get() != 0;
    if !may_be || observers::observes_all() {
        return false;
    }
    let object = span.large(block_index(address));
    let Some(blocks) = object.plain_blocks().filter(|&blocks| heap.large.keeps(blocks)) else {
        return false;
    };
    let _guard = fork_guard::enter(heap);
    large::keep(&heap.large, heap.id.get(), object, address, blocks);
    count(heap);
    true
}

/// The fast path of the paper's layout; `false` if the object lies elsewhere, or observers record every call.
#[inline]
fn free_by_lines(heap: &'static Heap, address: usize, from: ReturnSlot) -> bool {
    let Some(span) = region::span_if_plain(address).filter(|span| span.role() == Role::Lines) else {
        return false;
    };
    if observers::observes_all() || heap.id.get() == 0 {
        return false;
    }
    let last = lines::free(span, address, from.caller());
    let run_maintenance = maintenance::count_free(heap);
    if last || run_maintenance {
        let _guard = fork_guard::enter(heap);
        if last {
            lines::give_back(span);
        }
        if run_maintenance {
            maintenance::run(heap);
        }
    }
    true
}

fn free_where_it_lies(heap: &'static Heap, address: usize, caller: usize) {
    let span =
        region::span_if_plain(address).or_else(|| region::holds(address).then(|| region::span(address)));
    let Some(span) = span else {
        if observers::observes_samples() {
            observers::sample_freed(heap.number(), address);
        }
        if direct::free(address).is_none() && !glibc_heap::free(address) {
            extent::not_of_this_heap(address, caller);
        }
        return;
    };
    match span.owner() {
        0 if span.role() == Role::Lines => {
            if lines::free(span, address, caller) {
                lines::give_back(span);
            }
        }
        0 => free_large(heap, address, caller),
        owner => free_cell(heap, span, owner, address, caller),
    }
}

/// Records the lifetime of a watched object that is about to be freed.
fn watched_is_freed(heap: &Heap, address: usize) {
    sites::freed(address);
    if observers::observes_samples() {
        observers::sample_freed(heap.number(), address);
    }
}

fn free_large(heap: &'static Heap, address: usize, caller: usize) {
    let Some(blocks) = large::blocks(address) else {
        large::not_live(address, caller);
    };
    let object = region::large_object(address);
    if object.is_watched() {
        watched_is_freed(heap, address);
        object.set_watched(false);
    }
    large::free(&heap.large, heap.id.get(), address, blocks, caller);
}

fn free_cell(heap: &'static Heap, span: &'static Span, owner: u32, address: usize, caller: usize) {
    let cell_bytes = span.cell_bytes.load(Relaxed) as usize;
    let Some(cell) = span.cell_at(address) else {
        misuse("invalid pointer, inside an object or behind the last", address, cell_bytes, caller);
    };
    let own = owner == heap.id.get();
    if !span.is_live(cell) || span.remote().is_marked(cell) {
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
    if heap.id.get() != 0 && !observers::observes_all() {
        if !heap.remote_free_buffer.add(span, cell) {
            misuse("double free", address, cell_bytes, caller);
        }
        return;
    }
    if span.remote().mark(cell / 64, 1 << (cell % 64)) != 0 {
        misuse("double free", address, cell_bytes, caller);
    }
    remote::list(span, false);
}
