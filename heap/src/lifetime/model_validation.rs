//! Whether the model is believed. One of another program, of another build, or of a load that is gone, says what means nothing
//! here. Two things show it: most of what is on the stacks is code of modules that it does not have, or what it says is
//! contradicted by objects that were watched until they were freed. Then it is asked no more, and the heap learns online.
//!
//! Short of that, it is weighed against what would be learned without it: of each watched object both are asked, and what
//! each one's word would have cost ([`cost`]) is added up, for its caller and what the model says, and for all. Whoever cost less is followed. So by
//! that count the two together cost no more than the better of them, but for what it takes to tell which that is.

use core::sync::atomic::{AtomicBool, AtomicI8, AtomicI32, AtomicU32, Ordering::Relaxed};

use crate::lifetime::cost;
use crate::system::events::{self, Event};
use crate::system::text::warn;

/// What can be said of the model: exported, for a node's agent reads it from outside, where the program's heap is idle, too
/// (`node/src/observe/model_coverage.rs`). Words are added behind the others, and none is moved.
#[repr(C)]
pub struct ModelCoverage {
    /// 1 with a model, else 0.
    loaded: AtomicU32,
    /// Calling contexts that it was asked about.
    contexts: AtomicU32,
    /// Those of them that lie wholly in modules that it has.
    known_contexts: AtomicU32,
    /// Why it is believed no more: 0 it is believed, else [`FOREIGN`] or [`WRONG`].
    doubt: AtomicU32,
}

/// See [`ModelCoverage`].
#[unsafe(no_mangle)]
#[used]
#[allow(non_upper_case_globals)] // as the other symbols that the library has
pub static mayfly_heap_model: ModelCoverage = ModelCoverage {
    loaded: AtomicU32::new(0),
    contexts: AtomicU32::new(0),
    known_contexts: AtomicU32::new(0),
    doubt: AtomicU32::new(0),
};
const FOREIGN: u32 = 1;
const WRONG: u32 = 2;

/// Whether the line that says why was written.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Contexts that are looked at before the model is judged by their frames.
const ENOUGH_CONTEXTS: u32 = 64;
static FRAMES: AtomicU32 = AtomicU32::new(0);
static KNOWN_FRAMES: AtomicU32 = AtomicU32::new(0);

/// Sites that are known well before it is judged by what they say.
const ENOUGH_SITES: u32 = 32;
static SITES: AtomicU32 = AtomicU32::new(0);
static WRONG_SITES: AtomicU32 = AtomicU32::new(0);

/// What a word of the model, of the sites of one caller, has cost more than what was learned without it; less than 0 if it cost
/// less. All zeros is even.
#[derive(Default)]
pub struct Balance(AtomicI8);

/// Of all callers.
static OF_ALL: AtomicI32 = AtomicI32::new(0);
/// From so much on a caller's own balance decides, and that of all callers where it is nearer to even.
const DECIDES: i32 = 24;
const DECIDES_FOR_ALL: i32 = 192;
/// What is over this is forgotten, so that minds can change.
const MOST: i32 = 120;
const MOST_OF_ALL: i32 = 4 * DECIDES_FOR_ALL;

/// What two words cost an object that has grown from one class to another, or has died there.
pub struct Predicted {
    /// The class that the model says.
    pub model: usize,
    /// The class that would be learned without it.
    pub other: usize,
}

impl Balance {
    /// Even.
    pub const fn new() -> Self {
        Self(AtomicI8::new(0))
    }

    /// Of another caller from now on: even.
    pub fn forget(&self) {
        self.0.store(0, Relaxed);
    }

    /// An object of this caller has lived into the class `to`, having been seen in `from`; the lock of the sites is held.
    pub fn outlived(&self, predicted: &Predicted, from: usize, to: usize) {
        let cost = |word: usize| cost::so_far(word, to) - cost::so_far(word, from);
        self.add(cost(predicted.model) - cost(predicted.other));
    }

    /// It has died in this class; what it had cost before was counted.
    pub fn ended(&self, predicted: &Predicted, lived: usize) {
        let cost = |word: usize| cost::of(word, lived) - cost::so_far(word, lived);
        self.add(cost(predicted.model) - cost(predicted.other));
    }

    fn add(&self, difference: i32) {
        let own = (i32::from(self.0.load(Relaxed)) + difference).clamp(-MOST, MOST);
        self.0.store(own as i8, Relaxed);
        let all = (OF_ALL.load(Relaxed) + difference).clamp(-MOST_OF_ALL, MOST_OF_ALL);
        OF_ALL.store(all, Relaxed);
    }

    /// Whether the model is followed for this caller.
    #[inline]
    pub fn favours_model(&self) -> bool {
        let own = i32::from(self.0.load(Relaxed));
        if own.abs() >= DECIDES { own < 0 } else { OF_ALL.load(Relaxed) < DECIDES_FOR_ALL }
    }
}

/// There is a model.
pub fn begin() {
    mayfly_heap_model.loaded.store(1, Relaxed);
}

/// Whether what it says counts.
#[inline]
pub fn is_trusted() -> bool {
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
pub fn report_distrust() -> bool {
    let reason = mayfly_heap_model.doubt.load(Relaxed);
    if reason == 0 || REPORTED.swap(true, Relaxed) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects that live so long, of a caller of which two say that they live so long.
    fn follow(balance: &Balance, predicted: &Predicted, lived: usize, objects: usize) {
        for _ in 0..objects {
            balance.outlived(predicted, 0, lived);
            balance.ended(predicted, lived);
        }
    }

    #[test]
    fn follows_the_cheaper_source_and_changes_with_the_load() {
        let balance = Balance::new();
        assert!(balance.favours_model(), "it is, until something is known");
        follow(&balance, &Predicted { model: 6, other: 0 }, 0, 3);
        assert!(!balance.favours_model());
        follow(&balance, &Predicted { model: 6, other: 0 }, 6, 20);
        assert!(balance.favours_model(), "the load has changed");
        let even = Balance::new();
        follow(&even, &Predicted { model: 1, other: 0 }, 0, 20);
        assert!(even.favours_model(), "a class more is nearly as good as right");
        // What lives is charged once, however often it is looked at on the way.
        let (step_by_step, at_once) = (Balance::new(), Balance::new());
        let predicted = Predicted { model: 1, other: 4 };
        (0..5).for_each(|class| step_by_step.outlived(&predicted, class, class + 1));
        at_once.outlived(&predicted, 0, 5);
        assert_eq!(step_by_step.0.load(Relaxed), at_once.0.load(Relaxed));
    }
}
