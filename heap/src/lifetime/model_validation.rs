//! Validates the model against the program. The predictions of a model for another program, another build or
//! a past load mean nothing here. Two signs reveal one: most frames on the stacks belong to modules that it
//! does not know, or watched objects contradict its classes. Then the heap stops using it and learns online.
//!
//! A model that passes is still weighed against online learning. For each watched object the heap adds up
//! what each prediction would have cost ([`cost`]): per caller and predicted class, and over all. It follows
//! the cheaper source. By that measure the combination costs no more than the better of the two, apart from
//! the time it takes to find out which that is.

use core::sync::atomic::{AtomicBool, AtomicI8, AtomicI32, AtomicU32, Ordering::Relaxed};

use crate::lifetime::cost;
use crate::system::events::{self, Event};
use crate::system::text::warn;

/// The state of the model, exported so that a node's agent reads it from outside even if the program's heap
/// is idle (`node/src/observe/model_coverage.rs`). New words are only appended, and none moves.
#[repr(C)]
pub struct ModelCoverage {
    /// 1 with a model, else 0.
    loaded: AtomicU32,
    /// Calling contexts that the model was run for.
    contexts: AtomicU32,
    /// Those of them whose frames all lie in modules that it knows.
    known_contexts: AtomicU32,
    /// Why the model is not trusted: 0 if it is, else [`FOREIGN`] or [`WRONG`].
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

/// Whether the reason was logged.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Contexts to examine before the model is judged by their frames.
const ENOUGH_CONTEXTS: u32 = 64;
static FRAMES: AtomicU32 = AtomicU32::new(0);
static KNOWN_FRAMES: AtomicU32 = AtomicU32::new(0);

/// Well-known sites to compare before the model is judged by its classes.
const ENOUGH_SITES: u32 = 32;
static SITES: AtomicU32 = AtomicU32::new(0);
static WRONG_SITES: AtomicU32 = AtomicU32::new(0);

/// The cost of one predicted class, for the sites of one caller, minus the cost of online learning. All zeros
/// is even.
#[derive(Default)]
pub struct Balance(AtomicI8);

/// The balance over all callers.
static OF_ALL: AtomicI32 = AtomicI32::new(0);
/// From this balance on a caller's own decides; nearer to even, the balance over all callers does.
const DECIDES: i32 = 24;
const DECIDES_FOR_ALL: i32 = 192;
/// Balances are clamped, so that the choice can change with the load.
const MOST: i32 = 120;
const MOST_OF_ALL: i32 = 4 * DECIDES_FOR_ALL;

/// The two predictions for an object.
pub struct Predicted {
    /// The model's class.
    pub model: usize,
    /// The class of online learning.
    pub other: usize,
}

impl Balance {
    /// Even.
    pub const fn new() -> Self {
        Self(AtomicI8::new(0))
    }

    /// Resets it for another caller.
    pub fn forget(&self) {
        self.0.store(0, Relaxed);
    }

    /// An object of this caller has lived into the class `to`, having been counted up to `from`; the caller
    /// holds the lock of the sites.
    pub fn outlived(&self, predicted: &Predicted, from: usize, to: usize) {
        let cost = |word: usize| cost::so_far(word, to) - cost::so_far(word, from);
        self.add(cost(predicted.model) - cost(predicted.other));
    }

    /// It has died in this class; the cost of its life was counted before.
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

    /// Whether the heap follows the model for this caller.
    #[inline]
    pub fn favours_model(&self) -> bool {
        let own = i32::from(self.0.load(Relaxed));
        if own.abs() >= DECIDES { own < 0 } else { OF_ALL.load(Relaxed) < DECIDES_FOR_ALL }
    }
}

/// A model was loaded.
pub fn begin() {
    mayfly_heap_model.loaded.store(1, Relaxed);
}

/// Whether the model is trusted.
#[inline]
pub fn is_trusted() -> bool {
    mayfly_heap_model.doubt.load(Relaxed) == 0
}

/// Records a context of this many frames in modules, of which the model knows this many. Code that was made
/// at run time is in no module and does not count.
pub fn looked_at(frames: u32, known: u32) {
    mayfly_heap_model.known_contexts.fetch_add(u32::from(frames == known), Relaxed);
    let all = FRAMES.fetch_add(frames, Relaxed).saturating_add(frames);
    let known = KNOWN_FRAMES.fetch_add(known, Relaxed).saturating_add(known);
    let contexts = mayfly_heap_model.contexts.fetch_add(1, Relaxed) + 1;
    if contexts == ENOUGH_CONTEXTS && u64::from(known) * 3 < u64::from(all) * 2 {
        doubt(FOREIGN);
    }
}

/// Records a well-known site's class beside the model's.
pub fn compared(model: usize, found: usize) {
    let sites = SITES.fetch_add(1, Relaxed) + 1;
    let wrong = u32::from(model.abs_diff(found) > 1);
    let wrong = WRONG_SITES.fetch_add(wrong, Relaxed) + wrong;
    if sites >= ENOUGH_SITES && wrong * 2 > sites {
        doubt(WRONG);
    }
}

fn doubt(reason: u32) {
    let _ = mayfly_heap_model.doubt.compare_exchange(0, reason, Relaxed, Relaxed); // the first reason counts
}

/// Whether the model lost trust since the last call; logs the reason once. Called once a tick.
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
            "the model is for another program or build and is ignored: it knows the modules of {known}% of the frames on the \
             stack; learning online"
        ));
    } else {
        let wrong = share(&WRONG_SITES, &SITES);
        warn(format_args!(
            "the model is ignored: it contradicts {wrong}% of the call sites that are known by now; learning online"
        ));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects with this lifetime, of a caller with these two predictions.
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
        // A live object is charged once, however many steps its ageing takes.
        let (step_by_step, at_once) = (Balance::new(), Balance::new());
        let predicted = Predicted { model: 1, other: 4 };
        (0..5).for_each(|class| step_by_step.outlived(&predicted, class, class + 1));
        at_once.outlived(&predicted, 0, 5);
        assert_eq!(step_by_step.0.load(Relaxed), at_once.0.load(Relaxed));
    }
}
