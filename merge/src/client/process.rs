//! `advise` and `unadvise` for this process: by the kernel where it has UPM, else by the engine.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use mappings::raw_calls;

use crate::base::error::Error;
use crate::base::page::PAGE_BYTES;
use crate::client::background::{Background, Ticket};
use crate::client::engine::Engine;
use crate::client::flags::Flags;
use crate::client::statistics::{Path, Statistics};
use crate::client::{address_space, interpose, kernel, page_map, this_process};

/// The variable that chooses a path: `kernel` or `engine`.
const PATH_VARIABLE: &str = "MAYFLY_MERGE_PATH";

#[derive(Default)]
struct State {
    engine: Option<Engine>,
    counts: Statistics,
    background: Arc<Background>,
}

static STATE: OnceLock<Mutex<State>> = OnceLock::new();

fn mutex() -> &'static Mutex<State> {
    STATE.get_or_init(Mutex::default)
}

/// Guards that the forking thread holds from before a fork to after it.
struct HeldOverFork<T>(UnsafeCell<Option<T>>);

// SAFETY: touched only between `put` and `release`, by the one thread that holds the guards in it.
unsafe impl<T> Sync for HeldOverFork<T> {}

impl<T> HeldOverFork<T> {
    /// # Safety
    /// The caller's `T` is the only one.
    unsafe fn put(&self, held: T) {
        // SAFETY: no other thread is between this and `release`.
        unsafe { *self.0.get() = Some(held) };
    }

    /// # Safety
    /// Called by the thread that called `put`; in the child, by its only thread.
    unsafe fn release(&self) {
        // Moved out first: another thread that forks may put its own there as soon as this one drops.
        // SAFETY: as above.
        let held = unsafe { (*self.0.get()).take() };
        drop(held);
    }
}

/// The guard of the state, so that the child gets it whole, and that of the interposed functions.
static HELD_OVER_FORK: HeldOverFork<(Option<MutexGuard<'static, State>>, interpose::Guard)> =
    HeldOverFork(UnsafeCell::new(None));

/// The state, in a child adapted to it; None in one that does not have it.
fn lock() -> Option<MutexGuard<'static, State>> {
    let is_ours = this_process::has_state(mutex(), State::leave_to_parent);
    is_ours.then(|| mutex().lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

extern "C" fn before_fork() {
    let guard = lock();
    // SAFETY: a lock has one guard.
    unsafe { HELD_OVER_FORK.put((guard, interpose::lock())) };
}

extern "C" fn after_fork() {
    // SAFETY: the caller is the thread that forked, or its copy in the child.
    unsafe { HELD_OVER_FORK.release() };
}

extern "C" fn after_fork_in_child() {
    after_fork();
    this_process::begin_in_child();
    page_map::open_early();
}

/// Runs when the library is loaded, and not at the first call: a fork could happen during that call, and the
/// child would wait for ever for a half-done initialisation.
extern "C" fn on_load() {
    // SAFETY: a block of our own; the functions stay as long as the library, which is linked not to be
    // unloaded (library/build.rs).
    unsafe {
        // An allocator registers its fork handlers with its first block. Ours are registered later, so they
        // run earlier: they wait for calls, and those allocate.
        libc::free(black_box(libc::malloc(1)));
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child));
    }
    mutex();
    this_process::begin();
    interpose::resolve_originals();
    page_map::open_early();
}

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

fn state() -> Result<MutexGuard<'static, State>, Error> {
    lock().ok_or_else(|| {
        let line = "this process was forked by clone, past the C library's handlers, while another thread merged: \
                    it keeps what it shares, and can change nothing of it before execve (fork() has no such limit)";
        Error::new(libc::ENOTSUP, line)
    })
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

/// In order, without overlaps: every range is examined before the first of them is shared.
fn sorted_and_joined(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
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

/// The path of the next call.
///
/// # Errors
/// `MAYFLY_MERGE_PATH` names no path, or the kernel's where the kernel has none.
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
            Err(Error::new(libc::EINVAL, format!("{PATH_VARIABLE}={other}: must be kernel, engine or auto")))
        }
    }
}

/// Merges the pages of ranges, each an address and a length, and returns when they are shared (UPM §IV-D).
///
/// # Errors
/// As merge/include/mayfly_merge.h documents. The contents of the ranges are right in any case.
pub fn advise(ranges: &[(usize, usize)], flags: Flags) -> Result<(), Error> {
    let whole = ranges.iter().map(|&(address, length)| range(address, length));
    let mut ranges = whole.collect::<Result<Vec<_>, Error>>()?;
    ranges.retain(|range| !range.is_empty());
    let ranges = sorted_and_joined(ranges);
    let path = path()?;
    let mut state = state()?;
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
    /// In a child: the mappings stay shared, all else is the parent's.
    fn leave_to_parent(&mut self) {
        self.background = Arc::new(Background::of_child(&self.background));
        self.counts = Statistics::default();
        if let Some(engine) = &mut self.engine {
            engine.has_forked();
        }
    }

    fn engine(&mut self) -> Result<(&mut Engine, &mut Statistics), Error> {
        let engine = match &mut self.engine {
            Some(engine) => engine,
            none => none.insert(Engine::new()?),
        };
        Ok((engine, &mut self.counts))
    }
}

/// Makes a range keep the semantics of anonymous memory where the process is restored from a snapshot.
///
/// # Errors
/// That is impossible, and why.
pub fn keep_anonymous(address: usize, length: usize) -> Result<(), Error> {
    let end = address
        .checked_add(length)
        .filter(|end| address.is_multiple_of(PAGE_BYTES) && end.is_multiple_of(PAGE_BYTES));
    match end {
        Some(end) => interpose::keep_anonymous(&(address..end)),
        None => Err(Error::new(libc::EINVAL, "a range must be whole pages".to_owned())),
    }
}

/// A loaded file whose code empties or moves memory past the C library. Memory that it manages must not be
/// advised, unless the kernel merges.
#[must_use]
pub fn bypass() -> Option<PathBuf> {
    raw_calls::here(&std::fs::read("/proc/self/maps").unwrap_or_default())
}

/// Gives every shared page of a range a private copy again.
///
/// # Errors
/// As merge/include/mayfly_merge.h documents.
pub fn unadvise(address: usize, length: usize) -> Result<(), Error> {
    let range = range(address, length)?;
    let mut state = state()?;
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

/// Begins [`advise`] on the library's own thread (UPM §VII).
///
/// # Errors
/// The range does not consist of whole pages; the thread cannot be created.
pub fn advise_begin(address: usize, length: usize, flags: Flags) -> Result<Ticket, Error> {
    range(address, length)?;
    let background = state()?.background.clone();
    background.begin(address, length, flags, advise)
}

/// Waits for a call that has begun, for ever if there is no timeout; each result is returned once.
///
/// # Errors
/// `ETIMEDOUT` if it is still running, `EINVAL` if there is none, or the call's own error.
pub fn advise_wait(ticket: Ticket, timeout: Option<Duration>) -> Result<(), Error> {
    // The state is not locked while waiting: the call needs it.
    let background = state()?.background.clone();
    background.wait(ticket, timeout)
}

/// What this process's calls have done.
pub fn statistics() -> Statistics {
    let counts = state().map_or_else(|_| Statistics::default(), |state| state.counts);
    Statistics { size: size_of::<Statistics>() as u32, ..counts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn release_empties_the_place_before_it_drops_the_guard() {
        static PLACE: HeldOverFork<Held> = HeldOverFork(UnsafeCell::new(None));
        static WAS_FREE: AtomicBool = AtomicBool::new(false);
        struct Held;
        impl Drop for Held {
            fn drop(&mut self) {
                // SAFETY: only this test uses it.
                WAS_FREE.store(unsafe { (*PLACE.0.get()).is_none() }, Ordering::Relaxed);
            }
        }
        // SAFETY: one thread.
        unsafe {
            PLACE.put(Held);
            PLACE.release();
        }
        assert!(WAS_FREE.load(Ordering::Relaxed));
    }
}
