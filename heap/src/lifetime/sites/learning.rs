//! Learns a site's lifetimes and derives its class.
//!
//! A site counts how many watched objects died in each lifetime class, and the ages of live ones. Its class
//! is the smallest by which 95% die (T95, §5.1); a live object counts against every class that it has
//! outlived. A site with too little data gets ∞ while it has allocated little: rarely allocated objects tend
//! to stay, and if not, little is lost. Once it has allocated much, it gets the class that its oldest objects
//! have reached, so that bulk does not mix with what stays.
//!
//! With a trained model alone ([`crate::lifetime::model`]), its class is final (LLAMA §7). Otherwise it holds
//! from when the site has allocated a little until enough is known. Where the model's class for this caller
//! has cost more than online learning would have ([`model_validation::Balance`]), it is ignored.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{LOCK, Site, add_to};
use crate::lifetime::model_validation::{self, Predicted};
use crate::lifetime::source::{self, LifetimeSource};
use crate::system::events::{self, Event};
use crate::units::lifetime_class::{CLASSES, FOREVER};

/// The most live objects that a site watches: further ones teach little.
const MAX_WATCHED: u16 = 24;
/// The same while the site is studied.
const MOST_STUDIED: u16 = 48;
/// A study that needs more objects than this waits for a rare one, and samples less.
const SOON_STUDIED: u8 = 100;
/// Deaths after which a site's class is known.
pub(super) const ENOUGH_ENDS: u32 = 3;
/// Bytes up to which a site whose class is not known may share pages with what stays.
const LITTLE_BYTES: u32 = 256 << 10;
/// Bytes up to which a site may share pages with what stays, whatever the model predicts: a profile has
/// hardly seen such a site, and one object of it that stays would hold a huge page among short-lived ones.
const LITTLE_TO_MODEL: u32 = 64 << 10;
/// Deaths after which a site's own class counts instead of the model's.
const ENOUGH_AGAINST_MODEL: u32 = 8;
/// Deaths after which a site's class is compared with the model's.
const ENOUGH_TO_COMPARE: u32 = 16;
/// The most live objects that count for the model, where it predicts longer lifetimes than the freed objects
/// had.
const MOST_DOUBTS: u32 = 6;
/// The model runs again after this many hits (LLAMA §7), and after twice as many each time that it predicts
/// no longer class, for this many doublings: a run costs as much as a thousand hits.
const HITS_TO_CHECK: u32 = 1000;
pub(super) const MOST_DOUBLINGS: u8 = 6;
/// Counts of deaths are halved beyond this, so that a site can change its class.
pub(super) const MANY_ENDS: u32 = 256;

/// Changes with any site's class: prediction tables filled before are out of date.
static EPOCH: AtomicU32 = AtomicU32::new(1);

/// The version of the learned lifetimes.
#[inline]
pub fn epoch() -> u32 {
    EPOCH.load(Relaxed)
}

/// A site's class or word has changed.
pub(super) fn has_changed() {
    EPOCH.fetch_add(1, Relaxed);
}

/// Whether a trusted model decides without online correction.
pub(super) fn model_is_alone() -> bool {
    source::in_use() == LifetimeSource::Model { online: false } && model_validation::is_trusted()
}

impl Site {
    /// The class predicted for this site's objects.
    pub fn class(&self) -> usize {
        self.class.load(Relaxed) as usize
    }

    /// Whether its objects' contexts are being examined, see [`super::stack_words`].
    pub fn is_studied(&self) -> bool {
        self.studied.load(Relaxed) != 0
    }

    pub(super) fn ends(&self) -> u32 {
        self.dead.iter().map(|n| u32::from(n.load(Relaxed))).sum()
    }

    /// Whether to watch one more object, at a thread's visit number `visit`: always at first and at the start
    /// of a study, then less often.
    pub fn wants_sample(&self, visit: u32) -> bool {
        match self.studied.load(Relaxed) {
            0 => {}
            1..=SOON_STUDIED => return self.watched.load(Relaxed) < MOST_STUDIED,
            _ => return self.watched.load(Relaxed) < MOST_STUDIED && visit.is_multiple_of(8),
        }
        // Contexts that a table model does not know are learned online.
        if self.watched.load(Relaxed) >= MAX_WATCHED || model_is_alone() && self.model_class().is_some() {
            return false;
        }
        match self.ends() + u32::from(self.watched.load(Relaxed)) {
            0..8 => true,
            8..32 => visit.is_multiple_of(8),
            _ => visit.is_multiple_of(64),
        }
    }

    /// The class by which 95% of the watched objects die; `None` if too few have. With `current`, the present
    /// class, a change needs evidence a little beyond 95%, so that a site does not oscillate.
    pub(super) fn known_class(&self, current: Option<usize>) -> Option<usize> {
        self.class_from_ends(current, self.model_class())
    }

    /// The same, given the model's class, if there is one.
    fn class_from_ends(&self, current: Option<usize>, model: Option<usize>) -> Option<usize> {
        let ends = self.ends();
        if ends < ENOUGH_ENDS {
            return None;
        }
        let mut by_now = 0;
        for class in 0..CLASSES {
            by_now += u32::from(self.dead[class].load(Relaxed));
            let alive_from =
                |first: usize| self.alive[first..].iter().map(|n| u32::from(n.load(Relaxed))).sum();
            let mut outlived: u32 = alive_from(class + 1);
            if model.is_some_and(|model| class < model) {
                outlived = outlived.max(MOST_DOUBTS.min(alive_from(0)));
            }
            let wanted = match current {
                Some(current) if class < current => 97,
                Some(_) => 93,
                None => 95,
            };
            if by_now * 100 >= (ends + outlived) * wanted {
                return Some(class);
            }
        }
        Some(FOREVER)
    }

    /// The model's class for this site, if the model is trusted.
    pub(super) fn trusted_model_class(&self) -> Option<usize> {
        usize::from(self.model_class.load(Relaxed)).checked_sub(1).filter(|_| model_validation::is_trusted())
    }

    /// The same, if the heap follows the model for this caller.
    pub(super) fn model_class(&self) -> Option<usize> {
        let caller = self.parent().unwrap_or(self);
        self.trusted_model_class().filter(|&class| model_is_alone() || caller.balances[class].favours_model())
    }

    /// The class that online learning would give, for an object that is about to be watched.
    pub(super) fn class_without_model(&self) -> usize {
        let parents = self.parent().and_then(|parent| parent.class_from_ends(None, None));
        self.class_from_ends(None, None).or(parents).unwrap_or(FOREVER)
    }

    /// Weighs the model's class against `other`, the class of online learning, for a watched object that has
    /// lived into the class `to` since it was counted in `from`, and may have died there.
    pub(super) fn weigh(&self, other: usize, from: usize, to: usize, has_died: bool) {
        let Some((model, parent)) = self.trusted_model_class().zip(self.parent()) else { return };
        let predicted = Predicted { model, other };
        let balance = &parent.balances[model];
        balance.outlived(&predicted, from, to);
        if has_died {
            balance.ended(&predicted, to);
        }
    }

    /// Counts `count` objects of `size` bytes; whether the model should run again.
    pub fn record_hit(&self, count: u32, size: usize) -> bool {
        if self.model_class().is_some() {
            self.add_bytes(size.saturating_mul(count as usize), LITTLE_TO_MODEL);
        }
        let hits = self.hits.load(Relaxed).saturating_add(count);
        let runs_again = hits >= HITS_TO_CHECK << self.agreed.load(Relaxed).min(MOST_DOUBLINGS);
        self.hits.store(if runs_again { 0 } else { hits }, Relaxed);
        runs_again
    }

    /// Records another run of the model. If the class differs, the longer one holds: under-prediction costs
    /// more.
    pub fn record_model_class(&self, class: usize) {
        let _guard = LOCK.lock();
        let before = self.trusted_model_class();
        if before != Some(class) {
            events::count(Event::PredictionDisagreed);
        }
        if before.is_some_and(|before| before >= class) {
            return self.agreed.store((self.agreed.load(Relaxed) + 1).min(MOST_DOUBLINGS), Relaxed);
        }
        self.agreed.store(0, Relaxed);
        events::count(Event::PredictionLengthened);
        self.model_class.store(class as u8 + 1, Relaxed);
        self.reconsider();
    }

    /// Records that the model ran again and does not know this context: it runs less and less often.
    pub fn record_no_model_class(&self) {
        self.agreed.store((self.agreed.load(Relaxed) + 1).min(MOST_DOUBLINGS), Relaxed);
    }

    fn best_class(&self) -> usize {
        let model = self.model_class();
        if let Some(class) = model {
            if model_is_alone() {
                return class;
            }
            if self.ends() < ENOUGH_AGAINST_MODEL {
                if self.charged_bytes.load(Relaxed) < LITTLE_TO_MODEL {
                    return FOREVER;
                }
                let oldest = self.alive.iter().rposition(|n| n.load(Relaxed) > 0).unwrap_or(0);
                return class.max(oldest);
            }
        }
        let parents = self.parent().filter(|_| !self.is_below()).and_then(|parent| parent.known_class(None));
        if let Some(class) = self.known_class(Some(self.class())) {
            // Sizes and stack heights of one return address with similar lifetimes share a class: each class
            // in use costs open spans.
            let is_like = |parents: &usize| {
                parents.abs_diff(class) <= 1 || model.is_none() && self.ends() < MANY_ENDS / 8
            };
            return parents.filter(is_like).unwrap_or(class);
        }
        if self.charged_bytes.load(Relaxed) >= LITTLE_BYTES {
            let oldest = self.alive.iter().rposition(|n| n.load(Relaxed) > 0).unwrap_or(0);
            return (oldest + 1).min(FOREVER);
        }
        parents.unwrap_or(FOREVER)
    }

    pub(super) fn reconsider(&self) {
        let class = self.best_class();
        if self.class.swap(class as u8, Relaxed) as usize != class {
            has_changed();
            events::count(Event::PredictionChanged);
        }
    }

    /// Charges memory to the site. With a model, the bytes requested are counted instead.
    pub fn charge(&self, bytes: usize) {
        if self.model_class().is_none() {
            self.add_bytes(bytes, LITTLE_BYTES);
        }
    }

    fn add_bytes(&self, bytes: usize, little: u32) {
        let before = self.charged_bytes.load(Relaxed);
        if before >= little {
            return; // much already: the amount no longer matters
        }
        let now = before.saturating_add(bytes.min(u32::MAX as usize) as u32);
        self.charged_bytes.store(now, Relaxed);
        if now >= little {
            let _guard = LOCK.lock();
            self.reconsider();
        }
    }

    /// Records an object's death in this class, and nothing else.
    pub(super) fn record_own_end(&self, class: usize) {
        add_to(&self.dead[class], 1);
    }

    pub(super) fn record_end(&self, class: usize) {
        if self.ends() >= MANY_ENDS {
            self.dead.iter().for_each(|n| n.store(n.load(Relaxed) / 2, Relaxed));
            self.rests.store(self.rests.load(Relaxed).saturating_sub(1), Relaxed);
        }
        self.without_code.store(0, Relaxed);
        self.record_own_end(class);
        if self.ends() == ENOUGH_TO_COMPARE
            && self.parent().is_some()
            && let Some(model) = self.trusted_model_class()
        {
            self.compare(model);
        }
    }

    /// Compares the model's class with the observed lifetimes, once. Live objects may still confirm it.
    fn compare(&self, model: usize) {
        let died_by =
            |class: usize| self.dead[..=class].iter().map(|n| u32::from(n.load(Relaxed))).sum::<u32>();
        let found = (0..CLASSES).find(|&class| died_by(class) * 100 >= ENOUGH_TO_COMPARE * 95);
        let alive: u32 = self.alive.iter().map(|n| u32::from(n.load(Relaxed))).sum();
        let found = found.unwrap_or(FOREVER);
        if found >= model || alive * 2 < ENOUGH_TO_COMPARE {
            model_validation::compared(model, found);
        }
    }

    /// Changes the number of live watched objects of age `class`, here and in the parent.
    pub(super) fn change_alive(&self, class: usize, change: i16) {
        add_to(&self.alive[class], change);
        if let Some(parent) = self.parent() {
            add_to(&parent.alive[class], change);
        }
    }
}
