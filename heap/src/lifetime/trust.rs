//! Whether the model is believed. One of another program, of another build, or of a load that is gone, says what means nothing
//! here. Two things show it: most of what is on the stacks is code of modules that it does not have, or what it says is
//! contradicted by objects that were watched until they were freed. Then it is asked no more, and the heap learns online.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::system::events::{self, Event};
use crate::system::text::warn;

/// What can be said of the model: exported, for a node's agent reads it from outside, where the program's heap is idle, too
/// (`node/src/standing.rs`). Words are added behind the others, and none is moved.
#[repr(C)]
pub struct Standing {
    /// 1 with a model, else 0.
    loaded: AtomicU32,
    /// Calling contexts that it was asked about.
    contexts: AtomicU32,
    /// Those of them that lie wholly in modules that it has.
    known_contexts: AtomicU32,
    /// Why it is believed no more: 0 it is believed, else [`FOREIGN`] or [`WRONG`].
    doubt: AtomicU32,
}

/// See [`Standing`].
#[unsafe(no_mangle)]
#[used]
#[allow(non_upper_case_globals)] // as the other symbols that the library has
pub static mayfly_heap_model: Standing = Standing {
    loaded: AtomicU32::new(0),
    contexts: AtomicU32::new(0),
    known_contexts: AtomicU32::new(0),
    doubt: AtomicU32::new(0),
};
const FOREIGN: u32 = 1;
const WRONG: u32 = 2;

/// Whether the line that says why was written.
static SAID: AtomicBool = AtomicBool::new(false);

/// Contexts that are looked at before the model is judged by their frames.
const ENOUGH_CONTEXTS: u32 = 64;
static FRAMES: AtomicU32 = AtomicU32::new(0);
static KNOWN_FRAMES: AtomicU32 = AtomicU32::new(0);

/// Sites that are known well before it is judged by what they say.
const ENOUGH_SITES: u32 = 32;
static SITES: AtomicU32 = AtomicU32::new(0);
static WRONG_SITES: AtomicU32 = AtomicU32::new(0);

/// There is a model.
pub fn begin() {
    mayfly_heap_model.loaded.store(1, Relaxed);
}

/// Whether what it says counts.
#[inline]
pub fn is_believed() -> bool {
    mayfly_heap_model.doubt.load(Relaxed) == 0
}

/// The model was asked for a context of so many frames in modules, of which so many are in modules that it has. Code that was
/// made at run time is in none, and says nothing.
pub fn looked_at(frames: u32, known: u32) {
    mayfly_heap_model.known_contexts.fetch_add(u32::from(frames == known), Relaxed);
    let all = FRAMES.fetch_add(frames, Relaxed).saturating_add(frames);
    let known = KNOWN_FRAMES.fetch_add(known, Relaxed).saturating_add(known);
    let contexts = mayfly_heap_model.contexts.fetch_add(1, Relaxed) + 1;
    if contexts == ENOUGH_CONTEXTS && u64::from(known) * 3 < u64::from(all) * 2 {
        doubt(FOREIGN);
    }
}

/// A site that the model has a class for is known well, and has another, or the same.
pub fn compared(model: usize, found: usize) {
    let sites = SITES.fetch_add(1, Relaxed) + 1;
    let wrong = u32::from(model.abs_diff(found) > 1);
    let wrong = WRONG_SITES.fetch_add(wrong, Relaxed) + wrong;
    if sites >= ENOUGH_SITES && wrong * 2 > sites {
        doubt(WRONG);
    }
}

fn doubt(reason: u32) {
    let _ = mayfly_heap_model.doubt.compare_exchange(0, reason, Relaxed, Relaxed); // the first one is the reason
}

/// Whether the model has lost its credit since the last time; says why, once. Called once a tick.
pub fn was_lost() -> bool {
    let reason = mayfly_heap_model.doubt.load(Relaxed);
    if reason == 0 || SAID.swap(true, Relaxed) {
        return false;
    }
    events::count(Event::ModelDoubted);
    let share = |part: &AtomicU32, all: &AtomicU32| {
        u64::from(part.load(Relaxed)) * 100 / u64::from(all.load(Relaxed).max(1))
    };
    if reason == FOREIGN {
        let known = share(&KNOWN_FRAMES, &FRAMES);
        warn(format_args!(
            "the model is of another program or build and not believed: it knows the modules of {known}% of the frames on the \
             stack; learning online"
        ));
    } else {
        let wrong = share(&WRONG_SITES, &SITES);
        warn(format_args!(
            "the model is not believed: {wrong}% of the call sites that are known by now are contrary to it; learning online"
        ));
    }
    true
}
