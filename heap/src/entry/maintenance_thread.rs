//! The background maintenance thread of programs that have threads: it works when the program's threads
//! sleep.
//!
//! Threads on a slow path do maintenance ([`crate::entry::maintenance`]). When a load ends, threads go to
//! sleep with full caches: frees that they have not flushed, other threads' frees that they have not
//! collected, empty spans, large objects. No other thread may touch a thread's heap while that thread may be
//! on a fast path, which takes no lock. But this thread may empty the lists of a sleeper's *slow* paths while
//! it holds the fork guard exclusively ([`crate::thread::fork_guard`]): then no thread is on a slow path. It
//! changes no cells of a sleeper's spans, since the sleeper may have stopped in the middle of a fast free. It
//! takes only spans without live objects, counting other threads' frees: no correct program can touch those.
//! Open spans stay, because the fast path may allocate from their cells.
//!
//! The first `pthread_create` starts the thread; a program without threads has none. It sleeps ever longer
//! while there is nothing to do, and exits when it is the last thread of the process.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

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

/// The shortest and the longest pause between two rounds, ms; the pause grows while there is nothing to do.
const LEAST_PAUSE_MS: u64 = 100;
const MOST_PAUSE_MS: u64 = 1600;
/// A thread sleeps if it was on no slow path for this long.
const SLEEPER_MS: u64 = 300;

/// The process whose maintenance thread runs, 0 for none: a forked child has none.
static RUNS_IN: AtomicU32 = AtomicU32::new(0);

/// Claims the start of the maintenance thread, for the program's `pthread_create`: `true` once in each
/// process.
pub fn claim_start() -> bool {
    let process = os::process_id();
    RUNS_IN.load(Relaxed) != process && !clock::is_set() && RUNS_IN.swap(process, Relaxed) != process
}

/// Whether the program wants the thread.
static ALLOWED: AtomicBool = AtomicBool::new(true);

/// Whether the thread may run.
pub fn is_allowed() -> bool {
    ALLOWED.load(Relaxed)
}

/// Sets whether it may run.
pub fn allow(on: bool) {
    ALLOWED.store(on, Relaxed);
}

/// Whether it runs.
pub fn runs() -> bool {
    RUNS_IN.load(Relaxed) == os::process_id()
}

/// The thread could not be started, or has ended.
pub fn mark_stopped() {
    RUNS_IN.store(0, Relaxed);
}

/// The thread's main function.
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

/// Whether all other threads have ended: the process ends when this one does.
fn is_last_thread() -> bool {
    registry::in_use() <= 2 && os::is_last_thread()
}

/// Collects what sleeping threads hold; whether there was anything.
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

/// Returns free pages of sparse huge pages; a few at a time, since other threads wait meanwhile.
fn give_back_sparse(own: &'static Heap) {
    const AT_A_TIME: usize = 4;
    let found: [Option<usize>; AT_A_TIME] = core::array::from_fn(|_| sparse::find(clock::now_ms()));
    if found.iter().any(Option::is_some) {
        fork_guard::lock_exclusive(own.id.get(), |inside| inside(&EMPTY) || registry::heaps().any(inside));
        found.into_iter().flatten().for_each(sparse::give_back);
        fork_guard::unlock_exclusive(false);
    }
}

/// What this thread's own maintenance has changed so far.
fn work_of(own: &Heap) -> u64 {
    let of = |event: Event| own.counts.of(event as usize);
    of(Event::BlocksDiscarded) + of(Event::PageReturned) + of(Event::Promoted) + of(Event::Demoted)
}

/// Whether the heap's lists may hold something. Read while its thread may change them, so it is a guess.
/// Frees by other threads are checked rarely: most are in spans that still have live objects.
fn holds_anything(heap: &Heap, now_ms: u64) -> bool {
    let looks_at_remote = now_ms.saturating_sub(heap.collected_ms.get()) >= MOST_PAUSE_MS;
    !heap.remote_free_buffer.is_empty()
        || heap.large.kept().next().is_some()
        || heap.span_caches.iter().any(|cache| cache.count() > 0)
        || !heap.remote.is_empty() && looks_at_remote
}

/// Collects from `heap`. This thread holds the fork guard exclusively, so the heap's thread is not on a slow
/// path.
fn collect(heap: &'static Heap, now_ms: u64) {
    heap.collected_ms.set(now_ms);
    heap.remote_free_buffer.flush(true);
    heap.large.flush(heap.id.get());
    remote::collect_if(heap, true, is_dead);
    refill::empty_span_caches(heap);
}

/// Whether no object on the span lives, counting other threads' frees, and its thread allocates nothing from
/// it.
fn is_dead(span: &Span) -> bool {
    span.role() == Role::Queued
        && !span.any_watched()
        && (0..span.words()).all(|i| span.live_word(i).load(Relaxed) & !span.remote().marked(i) == 0)
}
