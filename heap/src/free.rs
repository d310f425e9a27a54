//! Freeing whole: the fast path of [`crate::heap`], and behind it frees of other threads' objects, of large ones and of
//! watched ones, and every wrong pointer.

use core::sync::atomic::Ordering::Relaxed;

use crate::heap::{self, Freed, Heap};
use crate::span::{Place, Span};
use crate::text::misuse;
use crate::{direct, fork, large, lines, maintenance, profile, refill, region, remote, sites, thread, trace};

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
        maintenance::tick(heap); // a program that only frees gives back what it has in hand, too
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
    free_where_it_lies(heap, address, caller);
    if heap.id.get() != 0 {
        maintenance::tick_of_free(heap);
    }
}

fn free_where_it_lies(heap: &'static Heap, address: usize, caller: usize) {
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
pub(crate) fn not_of_this_heap(address: usize, caller: usize) -> ! {
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
