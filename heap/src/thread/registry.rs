//! All heaps, by number, and those whose thread has ended.
//!
//! A heap outlives its thread: the next new thread moves in. Until then the heap is *vacant*: running threads take its
//! partly free spans when they need some, and whoever frees an object in it from outside clears up behind itself.

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

/// Heaps that can exist, and so threads that can allocate at once: what a span's tag has room for.
pub const MAX_HEAPS: usize = MAX_OWNER as usize;

static HEAPS: [AtomicPtr<Heap>; MAX_HEAPS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_HEAPS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static VACANT_COUNT: AtomicUsize = AtomicUsize::new(0);
static LOCK: Lock = Lock::new();

struct Vacant(Cell<Option<&'static Heap>>);
// SAFETY: read and written with LOCK held only.
unsafe impl Sync for Vacant {}
static VACANT: Vacant = Vacant(Cell::new(None));

/// The lock that fork must not find held.
pub fn lock() -> &'static Lock {
    &LOCK
}

/// The heap with this number, which spans carry as their owner; `None` for 0.
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

/// Whether there is no number left for one more.
pub fn is_full() -> bool {
    COUNT.load(Relaxed) == MAX_HEAPS
}

/// How many threads have one, give or take those that come and go in this moment.
pub fn in_use() -> usize {
    COUNT.load(Relaxed).saturating_sub(VACANT_COUNT.load(Relaxed))
}

/// A heap for a new thread: a vacant one or a new one; `None` when there is no memory or no number left.
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

/// The thread of `heap` has ended; its spans were flushed.
pub fn move_out(heap: &'static Heap) {
    let _guard = LOCK.lock();
    vacate(heap);
}

fn vacate(heap: &'static Heap) {
    remote::vacate(heap);
    heap.next_vacant.set(VACANT.0.replace(Some(heap)));
    VACANT_COUNT.fetch_add(1, Relaxed);
}

/// After fork, in the child: only the calling thread's heap has a thread left.
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

/// A partly free span for `bin` from a vacant heap. Whoever finds none, or finds another thread looking, does not look again
/// for a while: where threads come and go, and every heap is as full as the next, all would wait for one another here.
pub fn adopt(heap: &'static Heap, bin: &Bin, room: Room) -> Option<&'static Span> {
    const LOOKED_AT: usize = 8;
    const MOST_MISSES: u8 = 6;
    if VACANT_COUNT.load(Relaxed) == 0 {
        return None;
    }
    let looks = heap.looks_for_vacant.get().wrapping_add(1);
    heap.looks_for_vacant.set(looks);
    let misses = heap.vacant_misses.get();
    if room == Room::Worthwhile && !looks.is_multiple_of(1 << misses) {
        return None;
    }
    let (class, size_class) = (bin.class.get() as usize, bin.size_class.get() as usize);
    let found = LOCK.try_lock().and_then(|guard| {
        events::count(Event::VacantSearched);
        let vacant = core::iter::successors(VACANT.0.get(), |other| other.next_vacant.get());
        let looked_at = if room == Room::Any { MAX_HEAPS } else { LOOKED_AT };
        let adopt_from = |other| remote::adopt(heap, other, &guard, || find(other, class, size_class, room));
        vacant.take(looked_at).find_map(adopt_from)
    });
    heap.vacant_misses.set(if found.is_some() { 0 } else { (misses + 1).min(MOST_MISSES) });
    found
}

/// Takes a span out of a vacant heap's bin; where memory is scarce, of any class. The lock is held.
fn find(vacant: &'static Heap, class: usize, size_class: usize, room: Room) -> Option<&'static Span> {
    let of_class = |class| {
        let bin = vacant.bin_if_used(class, size_class)?;
        if room == Room::Any {
            bin.close();
        }
        bin.next_queued(room)
    };
    let span = of_class(class).or_else(|| (0..CLASSES).filter(|_| room == Room::Any).find_map(of_class))?;
    span.class.store(class as u8, Relaxed);
    Some(span)
}
