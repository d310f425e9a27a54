//! The client: advise and unadvise for this process, by the kernel where it can, by the engine elsewhere.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use crate::base::error::Error;
use crate::base::mapping::Mapping;
use crate::base::page::PAGE_BYTES;
use crate::client::background::{Background, Ticket};
use crate::client::engine::Engine;
use crate::client::flags::Flags;
use crate::client::statistics::{Path, Statistics};
use crate::client::{address_space, interpose, kernel};

/// The variable that chooses a path: `kernel` or `engine`.
const PATH_VARIABLE: &str = "MAYFLY_MERGE_PATH";

#[derive(Default)]
struct State {
    engine: Option<Engine>,
    counts: Statistics,
    /// Tells a forked child from its parent.
    birthmark: Option<Birthmark>,
    background: Arc<Background>,
}

/// A page that the kernel clears in a child, however it was forked. (A process id is no proof: in a new namespace the child
/// may have its parent's.)
struct Birthmark(Mapping);

impl Birthmark {
    fn new() -> Option<Birthmark> {
        let page = Mapping::anonymous(PAGE_BYTES).ok()?;
        // SAFETY: a page of our own.
        unsafe {
            rustix::mm::madvise(page.start().cast(), PAGE_BYTES, rustix::mm::Advice::LinuxWipeOnFork).ok()?;
            page.start().write(1);
        }
        Some(Birthmark(page))
    }

    fn is_gone(&self) -> bool {
        // SAFETY: a page of our own, which nobody writes after `new`.
        unsafe { self.0.start().read_volatile() == 0 }
    }
}

static STATE: OnceLock<Mutex<State>> = OnceLock::new();

fn mutex() -> &'static Mutex<State> {
    STATE.get_or_init(|| Mutex::new(State { birthmark: Birthmark::new(), ..State::default() }))
}

/// What is held from before a fork to after it.
struct Forking<T>(UnsafeCell<Option<T>>);

// SAFETY: touched only between `keep` and `let_go`, by the one thread that holds what is in it.
unsafe impl<T> Sync for Forking<T> {}

impl<T> Forking<T> {
    /// # Safety
    /// Whoever has a `T` is the only one.
    unsafe fn keep(&self, held: T) {
        // SAFETY: nobody else is between this and `let_go`.
        unsafe { *self.0.get() = Some(held) };
    }

    /// # Safety
    /// By the thread that keeps it; in the child, by the one that there is.
    unsafe fn let_go(&self) {
        // Out of its place first: another thread that forks may put its own there as soon as this is dropped.
        // SAFETY: as above.
        let held = unsafe { (*self.0.get()).take() };
        drop(held);
    }
}

/// The state, so that the child gets it whole; and what stands in, likewise.
static FORKING: Forking<(MutexGuard<'static, State>, interpose::Held)> = Forking(UnsafeCell::new(None));

fn lock() -> MutexGuard<'static, State> {
    mutex().lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

extern "C" fn before_fork() {
    let guard = lock();
    // SAFETY: a lock has one guard.
    unsafe { FORKING.keep((guard, interpose::hold())) };
}

extern "C" fn after_fork() {
    // SAFETY: the thread that forked, or its copy.
    unsafe { FORKING.let_go() };
}

extern "C" fn after_fork_in_child() {
    interpose::active_calls::forget_all();
    after_fork();
}

/// When the library is loaded, and not at the first call: a fork could come in between, and what its child finds half done it
/// would wait for, for ever.
extern "C" fn loaded() {
    // SAFETY: a block of our own; the functions stay as long as the library, which is linked not to be unloaded
    // (library/build.rs).
    unsafe {
        // An allocator registers its handlers with its first block. Ours come later, so they run earlier: they wait for
        // calls, and those allocate.
        libc::free(black_box(libc::malloc(1)));
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child));
    }
    interpose::look_up();
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// The state, made ready for this process.
fn state() -> MutexGuard<'static, State> {
    let mut state = lock();
    if state.birthmark.as_ref().is_some_and(Birthmark::is_gone) {
        state.birthmark = Birthmark::new();
        state.background = Arc::new(Background::of_child(&state.background));
        state.counts = Statistics::default();
        if let Some(engine) = &mut state.engine {
            engine.has_forked();
        }
    }
    state
}

fn range(address: usize, length: usize) -> Result<Range<usize>, Error> {
    if !address.is_multiple_of(PAGE_BYTES) || !length.is_multiple_of(PAGE_BYTES) {
        return Err(Error::new(
            libc::EINVAL,
            format!("{address:#x}+{length:#x}: address and length must be multiples of {PAGE_BYTES}"),
        ));
    }
    match address.checked_add(length) {
        Some(end) if address != 0 || length == 0 => Ok(address..end),
        _ => Err(Error::new(libc::ENOMEM, format!("{address:#x}+{length:#x}: no such addresses"))),
    }
}

/// In order, and none twice: what a range is, is asked before the first of them is shared.
fn joined(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let overlaps = next.start < last.end;
        if overlaps {
            last.end = last.end.max(next.end);
        }
        overlaps
    });
    ranges
}

/// Which way the next call goes.
pub fn path() -> Result<Path, Error> {
    match std::env::var(PATH_VARIABLE).as_deref() {
        Ok("engine") => Ok(Path::Engine),
        Ok("kernel") if kernel::is_there() => Ok(Path::Kernel),
        Ok("kernel") => Err(Error::new(
            libc::ENOTSUP,
            "this kernel has no UPM (/sys/kernel/mm/upm): boot Mayfly's, or unset MAYFLY_MERGE_PATH",
        )),
        Ok("" | "auto") | Err(_) => Ok(if kernel::is_there() { Path::Kernel } else { Path::Engine }),
        Ok(other) => {
            Err(Error::new(libc::EINVAL, format!("{PATH_VARIABLE}={other}: it is kernel, engine or auto")))
        }
    }
}

/// Merges the pages of ranges, each an address and a length, and returns when they are shared (UPM §IV-D).
///
/// # Errors
/// As merge/include/mayfly_merge.h says. The contents of the ranges are right in any case.
pub fn advise(ranges: &[(usize, usize)], flags: Flags) -> Result<(), Error> {
    let whole = ranges.iter().map(|&(address, length)| range(address, length));
    let mut ranges = whole.collect::<Result<Vec<_>, Error>>()?;
    ranges.retain(|range| !range.is_empty());
    let ranges = joined(ranges);
    let path = path()?;
    let mut state = state();
    let state = &mut *state;
    let clock = std::time::Instant::now();
    state.counts.path = path;
    let result = match path {
        _ if ranges.is_empty() => Ok(()),
        Path::Kernel => ranges.iter().try_for_each(|range| {
            state.counts.pages += (range.len() / PAGE_BYTES) as u64;
            kernel::advise(range)
        }),
        _ => state.engine().and_then(|(engine, counts)| engine.advise(&ranges, flags, counts)),
    };
    state.counts.calls += 1;
    state.counts.total_ns += clock.elapsed().as_nanos() as u64;
    result
}

impl State {
    fn engine(&mut self) -> Result<(&mut Engine, &mut Statistics), Error> {
        let engine = match &mut self.engine {
            Some(engine) => engine,
            none => none.insert(Engine::new()?),
        };
        Ok((engine, &mut self.counts))
    }
}

/// Gives every page of a range that is shared through the store or the kernel a private copy again.
///
/// # Errors
/// As merge/include/mayfly_merge.h says.
pub fn unadvise(address: usize, length: usize) -> Result<(), Error> {
    let range = range(address, length)?;
    let mut state = state();
    match path()? {
        _ if range.is_empty() => Ok(()),
        Path::Kernel => kernel::unadvise(&range),
        _ => {
            let state = &mut *state;
            match &mut state.engine {
                Some(engine) => engine.unadvise(range, &mut state.counts),
                // Nothing was ever shared.
                None => address_space::areas(&range).map(drop),
            }
        }
    }
}

/// Begins [`advise`] on a thread of the library's own (UPM §VII).
///
/// # Errors
/// The range is not one of whole pages; no thread can be made.
pub fn advise_begin(address: usize, length: usize, flags: Flags) -> Result<Ticket, Error> {
    range(address, length)?;
    let background = state().background.clone();
    background.begin(address, length, flags, advise)
}

/// Waits for a call that was begun, for ever if there is no timeout; its result is given once.
///
/// # Errors
/// `ETIMEDOUT` if it is not done yet, `EINVAL` if there is none, or the call's own.
pub fn advise_wait(ticket: Ticket, timeout: Option<Duration>) -> Result<(), Error> {
    // Not held while waiting: the call needs it.
    let background = state().background.clone();
    background.wait(ticket, timeout)
}

/// What this process's calls have done.
pub fn statistics() -> Statistics {
    Statistics { size: size_of::<Statistics>() as u32, ..state().counts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_place_of_what_a_fork_held_is_free_before_the_next_one_may_come() {
        static PLACE: Forking<Held> = Forking(UnsafeCell::new(None));
        static WAS_FREE: AtomicBool = AtomicBool::new(false);
        struct Held;
        impl Drop for Held {
            fn drop(&mut self) {
                // SAFETY: this test's only.
                WAS_FREE.store(unsafe { (*PLACE.0.get()).is_none() }, Ordering::Relaxed);
            }
        }
        // SAFETY: one thread.
        unsafe {
            PLACE.keep(Held);
            PLACE.let_go();
        }
        assert!(WAS_FREE.load(Ordering::Relaxed));
    }
}
