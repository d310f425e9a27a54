//! The keeper: a thread that does what is due when no other thread comes by, in programs that have threads.
//!
//! Maintenance is done by whoever is on a slow path ([`crate::entry::maintenance`]). When a load ends, threads go to sleep with what
//! they have in hand: frees that they have not posted, frees by others that wait for them, empty spans, large objects. Nobody
//! else may touch a thread's heap while the thread may be on a fast path, which has no lock. But what a sleeper holds in its *slow*
//! paths' lists may be taken over while the gate that forks shut is shut ([`crate::thread::fork_guard`]): then no thread is on a slow path. Of
//! the cells of a sleeper's spans nothing is changed then, since its fast path of freeing may be in the midst of a word; only spans
//! of which nothing lives any more are taken, counting what others have freed: no correct program can touch those. Open
//! spans stay, for they have cells that the fast path of allocating may hand out.
//!
//! The first `pthread_create` starts the keeper; a program without threads has none. It sleeps ever longer while there is
//! nothing to do, and ends when it is the last thread that is left.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::entry::{maintenance, start};
use crate::pages::sparse;
use crate::span::cells::{Role, Span};
use crate::span::remote;
use crate::system::events::Event;
use crate::system::{clock, os};
use crate::thread::current::EMPTY;
use crate::thread::local::Heap;
use crate::thread::{fork_guard, refill, registry};
use crate::units::call::Call;

/// Between two looks, ms: at first, and when nothing is due.
const LEAST_PAUSE_MS: u64 = 100;
const MOST_PAUSE_MS: u64 = 1600;
/// A thread that did nothing on a slow path for so long sleeps.
const SLEEPER_MS: u64 = 300;

/// The process that has one: a forked child has none. 0 for none.
static RUNS_IN: AtomicU32 = AtomicU32::new(0);

/// Whether a keeper is to be started now; asked by the program's `pthread_create`. `true` once, and in a forked child again.
pub fn claim_start() -> bool {
    let process = os::process_id();
    RUNS_IN.load(Relaxed) != process && !clock::is_set() && RUNS_IN.swap(process, Relaxed) != process
}

/// It could not be started, or has ended.
pub fn mark_stopped() {
    RUNS_IN.store(0, Relaxed);
}

/// What the thread does.
pub fn run() {
    let here = 0u8;
    let Some(visit) = start::visit(&Call { size: 0, caller: 0, stack: (&raw const here).addr() }) else {
        return mark_stopped();
    };
    let own = visit.heap;
    let (mut pause_ms, mut work_before) = (LEAST_PAUSE_MS, 0);
    while !is_last_thread() {
        os::sleep_ms(pause_ms);
        {
            let _guard = fork_guard::enter(own);
            maintenance::run(own);
        }
        let collected = collect_from_sleepers(own);
        give_back_sparse(own);
        let work = work_of(own);
        let idle = work == work_before && !collected;
        work_before = work;
        pause_ms = if idle { (pause_ms * 2).min(MOST_PAUSE_MS) } else { LEAST_PAUSE_MS };
    }
    mark_stopped();
}

/// All others have ended, and the process with them if this one does.
fn is_last_thread() -> bool {
    registry::in_use() <= 2 && os::is_last_thread()
}

/// Whether there was anything.
fn collect_from_sleepers(own: &'static Heap) -> bool {
    let now_ms = clock::now_ms();
    let sleeps = |heap: &&'static Heap| {
        heap.id.get() != own.id.get()
            && heap.tenancy.taken()
            && now_ms.saturating_sub(heap.maintained_ms.get()) >= SLEEPER_MS
            && holds_anything(heap, now_ms)
    };
    if !registry::heaps().any(|heap| sleeps(&heap)) {
        return false;
    }
    fork_guard::lock_exclusive(own.id.get(), |inside| inside(&EMPTY) || registry::heaps().any(inside));
    registry::lock().hold();
    registry::heaps().filter(sleeps).for_each(|heap| collect(heap, now_ms));
    registry::lock().release();
    fork_guard::unlock_exclusive(false);
    true
}

/// Of pages on which little lives what is free goes back; not many at a time, for meanwhile others wait.
fn give_back_sparse(own: &'static Heap) {
    const AT_A_TIME: usize = 4;
    let found: [Option<usize>; AT_A_TIME] = core::array::from_fn(|_| sparse::find(clock::now_ms()));
    if found.iter().any(Option::is_some) {
        fork_guard::lock_exclusive(own.id.get(), |inside| inside(&EMPTY) || registry::heaps().any(inside));
        found.into_iter().flatten().for_each(sparse::give_back);
        fork_guard::unlock_exclusive(false);
    }
}

/// What the keeper's own looks have changed so far.
fn work_of(own: &Heap) -> u64 {
    let of = |event: Event| own.counts.of(event as usize);
    of(Event::BlocksDiscarded) + of(Event::PageReturned) + of(Event::Promoted) + of(Event::Demoted)
}

/// It may have something in its lists. Read while the thread may change it: worth a guess. Frees by others are looked at once
/// in a while only: most are of spans that live.
fn holds_anything(heap: &Heap, now_ms: u64) -> bool {
    let looks_at_remote = now_ms.saturating_sub(heap.collected_ms.get()) >= MOST_PAUSE_MS;
    !heap.remote_free_buffer.is_empty()
        || heap.large.kept().next().is_some()
        || heap.span_caches.iter().any(|cache| cache.count() > 0)
        || !heap.remote.is_empty() && looks_at_remote
}

/// The gate is shut, and the thread that lives in `heap` is not on a slow path.
fn collect(heap: &'static Heap, now_ms: u64) {
    heap.collected_ms.set(now_ms);
    heap.remote_free_buffer.flush(true);
    heap.large.flush(heap.id.get());
    remote::collect_if(heap, true, is_dead);
    refill::empty_span_caches(heap);
}

/// Nothing on the span lives, counting what others have freed, and its thread has nothing more to do with it.
fn is_dead(span: &Span) -> bool {
    span.role() == Role::Queued
        && !span.any_watched()
        && (0..span.words()).all(|i| span.live_word(i).load(Relaxed) & !span.remote().marked(i) == 0)
}
