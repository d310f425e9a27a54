//! Classifies calls that the thread's prediction table does not know (LLAMA §7).
//!
//! There are four sources: a fixed class; online learning ([`crate::lifetime::sites`]); a trained model
//! ([`crate::lifetime::model`]), alone as in the paper or corrected by online learning; and an oracle, the
//! recorded lifetimes of an earlier run. The thread caches a class that holds for all calls like this one in
//! its table; the oracle's class holds for one object.
//!
//! The model runs when a site is new: sites are the second, larger table behind those of the threads. It runs
//! again after 1,000 hits of a site, and ever more rarely, for the context of the call that makes the hit; if
//! it then gives another class, the longer one holds.

use crate::lifetime::sites::{self, Site};
use crate::lifetime::source::{self, LifetimeSource};
use crate::lifetime::{model, oracle};
use crate::system::events::{self, Event};
use crate::thread::fork_guard;
use crate::thread::local::Heap;
use crate::units::call::Call;
use crate::units::lifetime_class::FOREVER;

/// A call's class.
pub struct Prediction {
    /// Its lifetime class.
    pub class: usize,
    /// The class holds for calls like this one until the epoch changes.
    pub cacheable: bool,
    /// The call site that learns from this object's lifetime.
    pub site: Option<&'static Site>,
    /// The word of the stack that separates it from other sites, see [`sites::Found`].
    pub word: u8,
}

impl Prediction {
    /// A class that is certain, for one object or for all.
    pub fn certain(class: usize, cacheable: bool) -> Self {
        Self { class, cacheable, site: None, word: 0 }
    }
}

/// Classifies a call.
pub fn classify(heap: &Heap, call: &Call) -> Prediction {
    match source::in_use() {
        LifetimeSource::Fixed(class) => Prediction::certain(class, true),
        LifetimeSource::Oracle => {
            Prediction::certain(oracle::class(heap.thread.get(), heap.sequence.get()), false)
        }
        LifetimeSource::Online | LifetimeSource::Model { .. } => {
            if heap.predicted_bin(&heap.lookup_key(call)).is_none() {
                events::count(Event::PredictionMissed);
            } // else the bin needs a span, and its site learns
            let sites::Found { site, word, is_sure } = sites::of(&heap.site_cache, call, heap.stack.get());
            if let Some(site) = site.filter(|site| site.record_hit(1, call.size)) {
                ask_again(site, call);
            }
            Prediction { class: site.map_or(FOREVER, Site::class), cacheable: is_sure, site, word }
        }
    }
}

/// Records that the thread's table knew the call, for `count` objects since the last record.
#[inline]
pub fn record_hit(heap: &'static Heap, call: &Call, count: u32) {
    if matches!(source::in_use(), LifetimeSource::Model { .. })
        && let Some(site) = heap
            .prediction_table
            .site(&heap.lookup_key(call))
            .or_else(|| sites::cached(&heap.site_cache, call, heap.stack.get()))
    {
        let _guard = fork_guard::enter(heap);
        if site.record_hit(count, call.size) {
            ask_again(site, call);
        }
    }
}

/// Runs the model again for a site, in the context of this call (LLAMA §7).
#[cold]
#[inline(never)]
fn ask_again(site: &'static Site, call: &Call) {
    if matches!(source::in_use(), LifetimeSource::Model { .. }) {
        match model::predict(call.caller) {
            Some(class) => {
                events::count(Event::PredictionChecked);
                site.record_model_class(class);
            }
            None => site.record_no_model_class(),
        }
    }
}
