//! Periodic work: page deadlines, ages of watched objects, cached empty spans, stale predictions.
//!
//! A thread on a slow path of allocating or freeing does a bounded piece once a tick has passed. In a program
//! with threads the maintenance thread ([`crate::entry::maintenance_thread`]) does it for threads that sleep.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::lifetime::sites;
use crate::pages::{direct, memory_pressure, open_page, page_life, sparse};
use crate::system::{clock, observers};
use crate::thread::local::Heap;
use crate::thread::{compact, current, fork_guard, lines, refill, registry};

/// Between two pieces of work, ms.
const TICK_MS: u64 = 10;
/// Stale predictions stay in use for up to a 32nd of the program's age, and this long at most.
const MOST_PATIENCE_MS: u64 = 1000;
/// Between two flushes of a thread's empty spans, ms; the second is for programs with many threads. A thread
/// that goes to sleep keeps the spans that it used since the last flush, and no other thread may release
/// them: with many threads that is much memory. With few it is little, and acquiring spans again costs more
/// (4% of Redis' speed).
const FLUSH_MS: u64 = 100;
const FLUSH_MANY_MS: u64 = 20;
const MANY_THREADS: usize = 8;
/// Between two checks for empty open pages, in ticks.
const CLOSE_TICKS: u32 = 10;
/// Huge pages checked in a tick: 1024 are 2 GiB.
const PAGES_A_TICK: usize = 256;
/// Huge pages in a tick whose free parts are returned.
const SPARSE_A_TICK: usize = 4;
/// Groups of watched objects checked in a tick.
const GROUPS_A_TICK: usize = 64;

static NEXT_TICK_MS: AtomicU64 = AtomicU64::new(0);
static TICKS: AtomicU32 = AtomicU32::new(0);
static PAGE_CURSOR: AtomicUsize = AtomicUsize::new(0);
static GROUP_CURSOR: AtomicUsize = AtomicUsize::new(0);

/// Slow-path visits between two reads of the clock.
const VISITS: u32 = 8;

/// Counts a slow-path visit; every [`VISITS`]th runs maintenance.
pub fn tick(heap: &'static Heap) {
    let visits = heap.visits.get().wrapping_add(1);
    heap.visits.set(visits);
    if visits.is_multiple_of(VISITS) {
        run(heap);
    }
}

/// Slow frees between two reads of the clock: as many as the remote free buffer, which [`run`] flushes, holds
/// back.
const SLOW_FREES: u32 = 256;

/// Counts a slow free; `true` if maintenance should run, so that a thread that only frees also releases its
/// caches.
#[inline]
pub fn count_free(heap: &Heap) -> bool {
    let frees = heap.slow_frees.get().wrapping_add(1);
    heap.slow_frees.set(frees);
    frees.is_multiple_of(SLOW_FREES)
}

/// Sets the heap's clock and runs maintenance up to that time, as the maintenance thread would have done in a
/// program whose threads sleep.
pub fn set_clock(ns: u64) {
    clock::set(ns);
    let heap = current::heap();
    if heap.id.get() != 0 && clock::now_ms().wrapping_sub(heap.maintained_ms.get()) >= TICK_MS {
        let _guard = fork_guard::enter(heap);
        run(heap);
    }
}

/// Does all work whose time has come, for a program that asks for it.
pub fn run_now() {
    let heap = current::heap();
    if heap.id.get() != 0 {
        let _guard = fork_guard::enter(heap);
        run(heap);
    }
}

/// Does all work whose time has come.
pub fn run(heap: &'static Heap) {
    let now_ms = clock::now_ms();
    if heap.maintained_ms.replace(now_ms) != now_ms {
        heap.remote_free_buffer.flush(false);
    }
    let epoch = sites::epoch();
    let patience_ms = (now_ms / 32).clamp(TICK_MS, MOST_PATIENCE_MS);
    if heap.epoch.get() != epoch && now_ms.wrapping_sub(heap.forgot_ms.get()) >= patience_ms {
        heap.epoch.set(epoch);
        heap.forgot_ms.set(now_ms);
        heap.forget_changed();
    }
    let flush_ms = if registry::in_use() < MANY_THREADS { FLUSH_MS } else { FLUSH_MANY_MS };
    if now_ms.wrapping_sub(heap.flushed_ms.get()) >= flush_ms {
        heap.flushed_ms.set(now_ms);
        refill::flush(heap, false);
        heap.large.share(registry::in_use());
    }
    if now_ms.wrapping_sub(heap.compared_ms.get()) >= FLUSH_MS {
        heap.compared_ms.set(now_ms);
        compact::compare(heap);
    }
    let due = NEXT_TICK_MS.load(Relaxed);
    if now_ms < due || NEXT_TICK_MS.compare_exchange(due, now_ms + TICK_MS, Relaxed, Relaxed).is_err() {
        return;
    }
    let cursor = PAGE_CURSOR.load(Relaxed);
    PAGE_CURSOR
        .store(page_life::expire_deadlines(now_ms, cursor, PAGES_A_TICK, lines::page_expired), Relaxed);
    GROUP_CURSOR.store(sites::grow_older(now_ms, GROUP_CURSOR.load(Relaxed), GROUPS_A_TICK), Relaxed);
    let tick = TICKS.fetch_add(1, Relaxed);
    memory_pressure::tick(now_ms);
    observers::tick(tick, now_ms);
    if tick.is_multiple_of(CLOSE_TICKS) {
        open_page::close_idle(now_ms);
        direct::consider(tick / CLOSE_TICKS);
        page_life::return_idle_pages();
    }
    // With one heap, no other thread is on a slow path; with more, the maintenance thread does it.
    if registry::heaps().nth(1).is_none() {
        (0..SPARSE_A_TICK).map_while(|_| sparse::find(now_ms)).for_each(sparse::give_back);
    }
}
