//! All heaps by number, and the vacant ones.
//!
//! A heap outlives its thread: the next new thread reuses it. Until then the heap is *vacant*: running
//! threads adopt its partly free spans when they need some, and a thread that frees an object in it collects
//! that free itself.

use core::cell::Cell;
use core::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::span::cells::{MAX_OWNER, Room, Span};
use crate::span::remote;
use crate::system::events::{self, Event};
use crate::system::lock::Lock;
use crate::system::os;
use crate::thread::bin::Bin;
use crate::thread::lines;
use crate::thread::local::Heap;
use crate::units::lifetime_class::CLASSES;

/// The number of heaps that can exist, and of threads that can allocate at once: the owner's id in a span has
/// 16 bits.
pub const MAX_HEAPS: usize = MAX_OWNER as usize;

static HEAPS: [AtomicPtr<Heap>; MAX_HEAPS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_HEAPS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static VACANT_COUNT: AtomicUsize = AtomicUsize::new(0);
static LOCK: Lock = Lock::new();

struct Vacant(Cell<Option<&'static Heap>>);
// SAFETY: read and written only with LOCK held.
unsafe impl Sync for Vacant {}
static VACANT: Vacant = Vacant(Cell::new(None));

/// The registry's lock, which a forking thread holds across the fork.
pub fn lock() -> &'static Lock {
    &LOCK
}

/// The heap with this number, the owner's id of spans; `None` for 0.
#[inline]
pub fn heap(id: u32) -> Option<&'static Heap> {
    let index = (id as usize).checked_sub(1)?;
    // SAFETY: heaps are never unmapped.
    unsafe { HEAPS.get(index)?.load(Acquire).as_ref() }
}

/// All heaps.
pub fn heaps() -> impl Iterator<Item = &'static Heap> {
    (1..=COUNT.load(Acquire)).filter_map(|id| heap(id as u32))
}

/// Whether all heap numbers are used.
pub fn is_full() -> bool {
    COUNT.load(Relaxed) == MAX_HEAPS
}

/// How many threads have a heap; inexact while threads start or end.
pub fn in_use() -> usize {
    COUNT.load(Relaxed).saturating_sub(VACANT_COUNT.load(Relaxed))
}

/// Takes a heap for a new thread: a vacant one or a new one; `None` if there is no memory or no number left.
pub fn move_in() -> Option<&'static Heap> {
    let _guard = LOCK.lock();
    if let Some(heap) = VACANT.0.get() {
        VACANT.0.set(heap.next_vacant.take());
        VACANT_COUNT.fetch_sub(1, Relaxed);
        heap.tenancy.set(true);
        return Some(heap);
    }
    let id = COUNT.load(Relaxed) + 1;
    if id > MAX_HEAPS {
        return None;
    }
    let address = os::map_anywhere(size_of::<Heap>())?;
    // SAFETY: fresh zeroed memory, page-aligned and large enough, never unmapped; all zeros is a valid Heap.
    let heap = unsafe { &*(address as *const Heap) };
    heap.id.set(id as u32);
    heap.tenancy.set(true);
    HEAPS[id - 1].store(address as *mut Heap, Release);
    COUNT.store(id, Release);
    Some(heap)
}

/// Makes `heap` vacant: its thread has ended and has flushed its spans.
pub fn move_out(heap: &'static Heap) {
    let _guard = LOCK.lock();
    vacate(heap);
}

fn vacate(heap: &'static Heap) {
    remote::vacate(heap);
    heap.next_vacant.set(VACANT.0.replace(Some(heap)));
    VACANT_COUNT.fetch_add(1, Relaxed);
}

/// In a forked child: makes all heaps but the calling thread's vacant.
pub fn only_survivor(survivor: &Heap) {
    for heap in heaps() {
        heap.busy.store(0, Relaxed);
        if heap.tenancy.taken() && heap.id.get() != survivor.id.get() {
            lines::close_all(&heap.lines);
            heap.remote_free_buffer.flush(true);
            vacate(heap);
        }
    }
}

/// Adopts a partly free span for `bin` from a vacant heap. A thread that finds none, or finds another thread
/// searching, skips its next searches: with many short-lived threads and full heaps all of them would wait
/// for one another here.
pub fn adopt(heap: &'static Heap, bin: &Bin, room: Room) -> Option<&'static Span> {
    const MOST_SEARCHED: usize = 8;
    const MOST_MISSES: u8 = 6;
    if VACANT_COUNT.load(Relaxed) == 0 {
        return None;
    }
    let searches = heap.vacant_searches.get().wrapping_add(1);
    heap.vacant_searches.set(searches);
    let misses = heap.vacant_misses.get();
    if room == Room::Worthwhile && !searches.is_multiple_of(1 << misses) {
        return None;
    }
    let (class, size_class) = (bin.class.get() as usize, bin.size_class.get() as usize);
    let found = LOCK.try_lock().and_then(|guard| {
        events::count(Event::VacantSearched);
        let vacant = core::iter::successors(VACANT.0.get(), |other| other.next_vacant.get());
        let most_searched = if room == Room::Any { MAX_HEAPS } else { MOST_SEARCHED };
        let adopt_from = |other| remote::adopt(heap, other, &guard, || find(other, class, size_class, room));
        vacant.take(most_searched).find_map(adopt_from)
    });
    heap.vacant_misses.set(if found.is_some() { 0 } else { (misses + 1).min(MOST_MISSES) });
    found
}

/// Takes a span out of a vacant heap's bin; under memory pressure of any class. The caller holds the lock.
fn find(vacant: &'static Heap, class: usize, size_class: usize, room: Room) -> Option<&'static Span> {
    let of_class = |class| {
        let bin = vacant.bin_if_used(class, size_class)?;
        if room == Room::Any {
            bin.close();
        }
        bin.next_queued(room)
    };
    let span = of_class(class).or_else(|| (0..CLASSES).filter(|_| room == Room::Any).find_map(of_class))?;
    span.set_class(class);
    span.set_kept(false);
    Some(span)
}
