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
//! `pthread_create` starts the thread; a program without threads has none. It sleeps ever longer while there
//! is nothing to do, and ends with the last other thread but one. A fork by a program's only thread, and
//! calls that want a process of one thread or restrict what it may do, end it first ([`retire`]). After a
//! restriction no other is started: it might have more rights than the program has left itself.

use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::entry::maintenance;
use crate::pages::sparse;
use crate::span::cells::{Role, Span};
use crate::span::remote;
use crate::system::events::Event;
use crate::system::{clock, os, process};
use crate::thread::current::{EMPTY, Visit};
use crate::thread::local::Heap;
use crate::thread::{fork, fork_guard, refill, registry};
use crate::units::call::Call;

/// How long it waits after a thread's end before it counts the threads: the next one may begin at once.
const LINGER_MS: u64 = 5;
/// How often it then counts them: the kernel has an ended thread a little longer.
const MOST_LOOKS: usize = 8;
/// The shortest and the longest pause between two rounds, ms; the pause grows while there is nothing to do.
const LEAST_PAUSE_MS: u64 = 100;
const MOST_PAUSE_MS: u64 = 1600;
/// A thread sleeps if it was on no slow path for this long.
const SLEEPER_MS: u64 = 300;

/// The process whose maintenance thread runs, 0 for none: a forked child has none.
static RUNS_IN: AtomicU32 = AtomicU32::new(0);

/// The thread's id, 0 until it has begun.
static THREAD: AtomicU32 = AtomicU32::new(0);
/// The process that has restricted itself.
static RESTRICTED: AtomicU32 = AtomicU32::new(0);
/// What the thread waits for: a new value wakes it.
static WAKE: AtomicU32 = AtomicU32::new(0);
/// It should end now.
static RETIRES: AtomicBool = AtomicBool::new(false);

/// Claims the start of the maintenance thread, for the program's `pthread_create`: `true` for one thread of a
/// process in which none runs, and may.
pub fn claim_start() -> bool {
    if !is_allowed() || clock::is_set() {
        return false;
    }
    let process = os::process_id();
    RUNS_IN.load(Relaxed) != process
        && RESTRICTED.load(Relaxed) != process
        && RUNS_IN.swap(process, AcqRel) != process
}

/// Ends the thread, and waits until the process no longer has it. Not to be called while another thread may
/// wait for the caller.
pub fn retire() {
    let process = RUNS_IN.load(Acquire);
    if process == 0 || process != os::process_id() || os::thread_id() == THREAD.load(Acquire) {
        return;
    }
    RETIRES.store(true, Release);
    wake();
    wait_while(|| RUNS_IN.load(Acquire) == process);
    let thread = THREAD.swap(0, AcqRel);
    wait_while(|| thread != 0 && os::is_thread(thread)); // the kernel removes it a little later
    RETIRES.store(false, Release);
}

fn wait_while(holds: impl Fn() -> bool) {
    const MOST_WAITS: usize = 20_000; // a signal handler may interrupt the thread that it waits for
    for i in 0..MOST_WAITS {
        if !holds() {
            return;
        }
        if i < 10 { os::yield_now() } else { os::sleep_us(50) }
    }
}

/// The calling process restricts itself: ends the thread, and starts no other.
pub fn restrict() {
    // A child of vfork shares this memory, and restricts only itself.
    if fork::process() == os::process_id() {
        RESTRICTED.store(os::process_id(), Relaxed);
        retire();
    }
}

/// A thread ends: if it is the last but one, the maintenance thread must end, too.
pub fn thread_ends() {
    if registry::in_use() <= 2 && runs() {
        wake();
    }
}

/// Before a fork: a program whose only thread forks has no second one at that moment.
pub fn before_fork() {
    if registry::in_use() <= 2 && runs() {
        retire();
    }
}

fn wake() {
    WAKE.fetch_add(1, Release);
    os::futex_wake(&WAKE);
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
    if !on {
        retire();
    }
}

/// Whether it runs.
pub fn runs() -> bool {
    RUNS_IN.load(Relaxed) == os::process_id()
}

/// The thread could not be started, or has ended.
pub fn mark_stopped() {
    RUNS_IN.store(0, Release);
}

/// The thread's main function; `visit` gives it a heap.
pub fn run(visit: impl FnOnce(&Call) -> Option<Visit>) {
    THREAD.store(os::thread_id(), Release);
    let here = 0u8;
    let Some(visit) = visit(&Call { size: 0, caller: 0, stack: (&raw const here).addr() }) else {
        return mark_stopped();
    };
    let own = visit.heap;
    // The first pause is short: the thread whose start started this one may have ended already.
    let (mut pause_ms, mut work_before) = (LINGER_MS, 0);
    while pause(pause_ms) {
        {
            let _guard = fork_guard::enter(own);
            maintenance::run(own);
        }
        let collected = collect_from_sleepers(own);
        give_back_sparse(own);
        let work = work_of(own);
        let idle = work == work_before && !collected;
        work_before = work;
        pause_ms = if idle { (pause_ms * 2).clamp(LEAST_PAUSE_MS, MOST_PAUSE_MS) } else { LEAST_PAUSE_MS };
    }
    mark_stopped();
}

/// Waits for some time or until a thread ends; `false` if this thread must end: it was asked to, or at most
/// one other is left. The process ends with the last one, and a single thread maintains its heap itself.
fn pause(ms: u64) -> bool {
    let before = WAKE.load(Acquire);
    if RETIRES.load(Acquire) {
        return false;
    }
    os::futex_wait(&WAKE, before, ms);
    let may_stay = || !RETIRES.load(Acquire) && is_allowed();
    let others = || process::threads().is_none_or(|threads| threads > 2);
    let mut looks = if WAKE.load(Acquire) == before { 0 } else { MOST_LOOKS };
    while looks > 0 && may_stay() && registry::in_use() <= 2 {
        os::futex_wait(&WAKE, WAKE.load(Acquire), LINGER_MS);
        looks = if others() { looks - 1 } else { 0 };
    }
    may_stay() && others()
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
fn holds_anything(heap: &'static Heap, now_ms: u64) -> bool {
    let looks_at_remote = now_ms.saturating_sub(heap.collected_ms.get()) >= MOST_PAUSE_MS;
    !heap.remote_free_buffer.is_empty()
        || heap.large.kept().next().is_some()
        || heap.span_caches.iter().any(|cache| cache.count() > 0)
        || refill::noted_empty(heap).next().is_some()
        || !heap.remote.is_empty() && looks_at_remote
}

/// Collects from `heap`. This thread holds the fork guard exclusively, so the heap's thread is not on a slow
/// path.
fn collect(heap: &'static Heap, now_ms: u64) {
    heap.collected_ms.set(now_ms);
    heap.remote_free_buffer.flush(true);
    heap.large.flush(heap.id.get());
    remote::collect_if(heap, true, is_dead);
    refill::settle_noted(heap);
    refill::empty_span_caches(heap);
}

/// Whether no object on the span lives, counting other threads' frees, and its thread allocates nothing from
/// it.
fn is_dead(span: &Span) -> bool {
    span.role() == Role::Queued
        && !span.any_watched()
        && (0..span.words()).all(|i| span.live_word(i).load(Relaxed) & !span.remote().marked(i) == 0)
}
