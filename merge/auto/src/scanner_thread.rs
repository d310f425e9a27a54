//! The scanner's thread: its start, its rests, its end. A process begins with none, and has one at most. Once
//! it has ended because the program restricts itself, no other starts.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use mappings::page_map;

use crate::event::Event;
use crate::{blocks, settings};

/// Whether a thread was started in this process.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// Whether it must end, and no other may start.
static OVER: AtomicBool = AtomicBool::new(false);
/// Its number; [`OF_NONE`] if it could not be started.
static THREAD: AtomicI32 = AtomicI32::new(0);
const OF_NONE: i32 = -1;
/// Whether it has nothing more to do than to end.
static DONE: AtomicBool = AtomicBool::new(false);
/// The process that this library knows: a child of vfork shares its memory.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// A first freed block is kept, or the thread must end.
static CHANGE: Event = Event::new();
/// Whether the thread waits for a freed block.
static WAITS: AtomicBool = AtomicBool::new(false);

/// How long the program waits for the end: longer than the thread waits for a store that does not answer.
const MOST_WAIT: Duration = Duration::from_secs(25);
const A_MOMENT: Duration = Duration::from_micros(50);
/// How long freed blocks are kept, at least.
const UNUSED: Duration = Duration::from_secs(1);

/// Starts the thread, which runs `scan`, if this process has not had one.
pub fn begin(scan: fn()) {
    if BEGUN.load(Ordering::Relaxed) || BEGUN.swap(true, Ordering::SeqCst) {
        return;
    }
    // In this order, as `end` does it the other way round: one of both sees the other.
    if OVER.load(Ordering::SeqCst) {
        return THREAD.store(OF_NONE, Ordering::Release);
    }
    // The program's signals are for its own threads, which may wait for them: this thread starts with all of
    // them blocked.
    // SAFETY: both sets are initialised by the calls; this thread's mask is as it was afterwards.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        // Without a thread the program runs as before; nothing is shared.
        let started = std::thread::Builder::new().name("mayfly-merge".to_owned()).spawn(move || {
            THREAD.store(libc::gettid(), Ordering::Release);
            scan();
            DONE.store(true, Ordering::Release);
        });
        if started.is_err() {
            THREAD.store(OF_NONE, Ordering::Release);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
    }
}

/// Before the program restricts itself: ends the thread, and waits until the kernel has removed it.
pub fn end() {
    // In this order: a program that has a filter of system calls already makes none here.
    // SAFETY: takes no arguments.
    if OVER.load(Ordering::Relaxed) || PROCESS.load(Ordering::Relaxed) != unsafe { libc::getpid() } {
        return;
    }
    OVER.store(true, Ordering::SeqCst);
    if !BEGUN.load(Ordering::SeqCst) {
        return;
    }
    CHANGE.tell();
    let until = Instant::now() + MOST_WAIT;
    while !has_ended() && Instant::now() < until {
        std::thread::sleep(A_MOMENT);
    }
}

fn has_ended() -> bool {
    let thread = THREAD.load(Ordering::Acquire);
    if matches!(thread, 0 | OF_NONE) {
        return thread == OF_NONE;
    }
    // SAFETY: signal 0 is not sent.
    let answer = unsafe { libc::syscall(libc::SYS_tgkill, PROCESS.load(Ordering::Relaxed), thread, 0) };
    let is_missing = std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    // A filter that the process was started with may forbid the question.
    answer < 0 && (is_missing || DONE.load(Ordering::Acquire))
}

/// Whether the thread must end.
pub fn is_over() -> bool {
    OVER.load(Ordering::Acquire)
}

/// A freed block is kept now.
pub fn note_freed() {
    if WAITS.load(Ordering::SeqCst) && !is_over() && WAITS.swap(false, Ordering::SeqCst) {
        CHANGE.tell();
    }
}

/// Waits for the next scan. Meanwhile freed blocks are unmapped that the program does not take again within
/// [`UNUSED`]: `round_ends` is when the next of them are.
pub fn rest(pause: Duration, round_ends: &mut Option<Instant>) {
    let end = Instant::now() + pause;
    loop {
        let (seen, now) = (CHANGE.seen(), Instant::now());
        if round_ends.is_some_and(|at| now >= at) {
            blocks::unmap_unused();
            *round_ends = None;
        }
        if is_over() || now >= end {
            return;
        }
        if round_ends.is_none() {
            // In this order, as a free does it the other way round: one of both sees the other.
            WAITS.store(true, Ordering::SeqCst);
            if blocks::keeps_any() {
                WAITS.store(false, Ordering::SeqCst);
                *round_ends = Some(now + UNUSED);
            }
        }
        CHANGE.wait(seen, round_ends.map_or(end, |at| at.min(end)).saturating_duration_since(now));
    }
}

/// When the library is loaded. Pauses the scanner during a fork. A child has no scanner; its next large
/// allocation starts one. (One that was forked by clone gets none at all: a program that clones may need to
/// be one thread, for a namespace.)
pub fn survive_forks() {
    extern "C" fn in_child() {
        blocks::begin_in_child();
        // A filter stays in force.
        if is_over() {
            return;
        }
        BEGUN.store(false, Ordering::Relaxed);
        THREAD.store(0, Ordering::Relaxed);
        note_process();
        if settings::is_on() {
            page_map::open_early();
        }
    }
    note_process();
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(blocks::pause), Some(blocks::resume), Some(in_child)) };
}

fn note_process() {
    // SAFETY: takes no arguments.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}
