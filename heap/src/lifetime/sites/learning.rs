//! What is learned of one site, and the class that follows.
//!
//! A site keeps how many watched objects died in each lifetime class, and how old those are that live. Its class is the
//! smallest by which 95% die (T95, §5.1); an object that lives counts against every class it has outlived. A site of which
//! too little is known gets ∞ while it has allocated little: what a program allocates seldom tends to stay, and if not,
//! little is lost. Once it has allocated much it gets the class that its oldest objects have reached, so that bulk does not
//! mix with what stays.
//!
//! What a trained model says of it ([`crate::lifetime::model`]) is its class for good if the model is alone (LLAMA §7); otherwise from
//! when it has allocated a little, and until enough is known. Where it has said the same of the
//! same caller, and that has cost more than what would have been learned without it ([`model_validation::Balance`]), it is as if there were none.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{LOCK, Site, add_to};
use crate::lifetime::model_validation::{self, Predicted};
use crate::lifetime::source::{self, Source};
use crate::system::events::{self, Event};
use crate::units::lifetime_class::{CLASSES, FOREVER};

/// Live objects that a site has watched at most: beyond them a new one teaches little.
const MAX_WATCHED: u16 = 24;
/// As above, while the site is studied.
const MOST_STUDIED: u16 = 48;
/// A study that has not ended with so many objects waits for one that is rare.
const SOON_STUDIED: u8 = 100;
/// A site is known from this many ends on.
pub(super) const ENOUGH_ENDS: u32 = 3;
/// Until it has allocated this much, an unknown site may live among what stays.
const LITTLE_BYTES: u32 = 256 << 10;
/// Until it has allocated this much, a site may live among what stays, whatever the model says of it: a profile has hardly
/// seen it, and one object of it that stays holds a huge page among many that do not.
const LITTLE_TO_MODEL: u32 = 64 << 10;
/// A site of which the model has an opinion is known from this many on.
const ENOUGH_AGAINST_MODEL: u32 = 8;
/// A site of which so many objects were freed is held against what the model said of it.
const ENOUGH_TO_COMPARE: u32 = 16;
/// As many objects that live speak for the model where it says that they live longer than the freed ones did.
const MOST_DOUBTS: u32 = 6;
/// The model is asked again after this many hits (LLAMA §7), and after twice as many each time that it says nothing
/// longer, up to this many times: a run of the model is worth a thousand hits.
const HITS_TO_CHECK: u32 = 1000;
pub(super) const MOST_DOUBLINGS: u8 = 6;
/// Ends are halved beyond this many, so that a site can change its mind.
pub(super) const MANY_ENDS: u32 = 256;

/// Changes when a site's class does: prediction tables filled before are out of date.
static EPOCH: AtomicU32 = AtomicU32::new(1);

/// The version of what was learned.
#[inline]
pub fn epoch() -> u32 {
    EPOCH.load(Relaxed)
}

/// A site's class or word has.
pub(super) fn has_changed() {
    EPOCH.fetch_add(1, Relaxed);
}

/// There is a model, and what it says is not corrected.
pub(super) fn model_is_alone() -> bool {
    source::in_use() == Source::Model { online: false } && model_validation::is_trusted()
}

impl Site {
    /// The class predicted for this site's objects.
    pub fn class(&self) -> usize {
        self.class.load(Relaxed) as usize
    }

    /// Its objects' contexts are looked at, see [`super::stack_words`].
    pub fn is_studied(&self) -> bool {
        self.studied.load(Relaxed) != 0
    }

    pub(super) fn ends(&self) -> u32 {
        self.dead.iter().map(|n| u32::from(n.load(Relaxed))).sum()
    }

    /// Whether one more object should be watched, at a thread's visit number `visit`: all at first and as a study begins, else fewer.
    pub fn wants_sample(&self, visit: u32) -> bool {
        match self.studied.load(Relaxed) {
            0 => {}
            1..=SOON_STUDIED => return self.watched.load(Relaxed) < MOST_STUDIED,
            _ => return self.watched.load(Relaxed) < MOST_STUDIED && visit.is_multiple_of(8),
        }
        // What a table does not know is learned online.
        if self.watched.load(Relaxed) >= MAX_WATCHED || model_is_alone() && self.model_class().is_some() {
            return false;
        }
        match self.ends() + u32::from(self.watched.load(Relaxed)) {
            0..8 => true,
            8..32 => visit.is_multiple_of(8),
            _ => visit.is_multiple_of(64),
        }
    }

    /// The class by which 95% of the watched objects die; `None` while too few have.
    /// With `current`, the class of now, a change needs evidence a little beyond 95%, so that a site does not waver.
    pub(super) fn known_class(&self, current: Option<usize>) -> Option<usize> {
        self.class_from_ends(current, self.model_class())
    }

    /// The same, where a model says so or there is none.
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

    /// What the model said of this site, if it is believed.
    pub(super) fn trusted_model_class(&self) -> Option<usize> {
        usize::from(self.model_class.load(Relaxed)).checked_sub(1).filter(|_| model_validation::is_trusted())
    }

    /// The same, if it is followed where it says so of this caller.
    pub(super) fn model_class(&self) -> Option<usize> {
        let caller = self.parent().unwrap_or(self);
        self.trusted_model_class().filter(|&class| model_is_alone() || caller.balances[class].favours_model())
    }

    /// The class that would be learned without the model, for an object that is about to be watched.
    pub(super) fn class_without_model(&self) -> usize {
        let parents = self.parent().and_then(|parent| parent.class_from_ends(None, None));
        self.class_from_ends(None, None).or(parents).unwrap_or(FOREVER)
    }

    /// One of its watched objects, of which this class would have been said without the model, has lived into the class `to`,
    /// having been seen in `from`; and has died there.
    pub(super) fn weigh(&self, other: usize, from: usize, to: usize, has_died: bool) {
        let Some((model, parent)) = self.trusted_model_class().zip(self.parent()) else { return };
        let predicted = Predicted { model, other };
        let balance = &parent.balances[model];
        balance.outlived(&predicted, from, to);
        if has_died {
            balance.ended(&predicted, to);
        }
    }

    /// Counts `count` objects of `size` bytes; whether the model should be asked again.
    pub fn record_hit(&self, count: u32, size: usize) -> bool {
        if self.model_class().is_some() {
            self.add_bytes(size.saturating_mul(count as usize), LITTLE_TO_MODEL);
        }
        let hits = self.hits.load(Relaxed).saturating_add(count);
        let due = hits >= HITS_TO_CHECK << self.agreed.load(Relaxed).min(MOST_DOUBLINGS);
        self.hits.store(if due { 0 } else { hits }, Relaxed);
        due
    }

    /// The model was asked again. Where it says something else, the longer class holds: under-prediction costs more.
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

    /// It was asked again, and does not know this context: it is asked ever more seldom.
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
            // Sizes and stack heights of one return address that differ little are not told apart: each class that
            // is in use costs open spans.
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

    /// The site took this much memory. Where there is a model it counts what the site was asked for instead.
    pub fn charge(&self, bytes: usize) {
        if self.model_class().is_none() {
            self.add_bytes(bytes, LITTLE_BYTES);
        }
    }

    fn add_bytes(&self, bytes: usize, little: u32) {
        let before = self.charged_bytes.load(Relaxed);
        if before >= little {
            return; // known to be much: how much is not asked
        }
        let now = before.saturating_add(bytes.min(u32::MAX as usize) as u32);
        self.charged_bytes.store(now, Relaxed);
        if now >= little {
            let _guard = LOCK.lock();
            self.reconsider();
        }
    }

    /// An object died in this class: that is all that is noted.
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

    /// Holds what the model said against the lifetimes that were seen, once. Objects that live may yet do as it said.
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

    /// Watched objects that have reached the age of `class` became more or fewer, here and with the parent.
    pub(super) fn change_alive(&self, class: usize, change: i16) {
        add_to(&self.alive[class], change);
        if let Some(parent) = self.parent() {
            add_to(&parent.alive[class], change);
        }
    }
}
