//! Separates contexts that return address, height and size cannot.
//!
//! Behind `operator new`, `xmalloc` or a container's growth, one return address at one height serves both
//! objects of a request and objects that stay. But the frames above such a site lie at fixed distances. So
//! *one word of the stack*, a return address some frames up, separates the callers for the price of one load.
//! This module finds that word. When objects of one site die in classes far apart, the site is *studied*: the
//! stack is unwound for a few dozen of its watched objects. Once enough have died early and enough have not,
//! the nearest return address that separates them becomes the site's word. From then on each value of the
//! word has its own site, below the first one. Values outside code are ignored: they are data that other
//! frames left there.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::learning::model_is_alone;
use super::{Site, find_or_add_below};
use crate::lifetime::unwind;
use crate::system::clock;
use crate::system::events::{self, Event};
use crate::system::os;
use crate::units::call::Call;
use crate::units::lifetime_class::{self, CLASSES};

/// Return addresses to examine, from the caller's caller up.
const FRAMES: usize = 12;
/// Objects of a site whose contexts are stored.
const SAMPLES: usize = 32;
/// The most sites that are studied at a time.
const STUDIES: usize = 8;
/// A study older than this may be replaced.
const PATIENCE_MS: u64 = 10_000;
/// A site is worth a study if this many objects died early, and this many late or never, two classes apart.
const ENOUGH_EARLY: u32 = 6;
const ENOUGH_LATE: u32 = 2;
/// Late objects that the study itself must have before it looks for a word.
const ENOUGH_LATE_SAMPLES: usize = 3;
/// A site is studied again at once until this many studies have failed; then after one more halving of its
/// counts, and then after twice as many each time.
const AT_ONCE: u8 = 2;
/// The most such doublings.
const MOST_DOUBLINGS: u8 = 6;
/// Calls in a row whose word did not point into code, without a watched object's death in between, before the
/// site drops its word.
const MOST_WITHOUT_CODE: u16 = 1000;

/// Return addresses above a call, and the distance of each in words.
#[derive(Default)]
pub struct Context {
    words: [u8; FRAMES],
    addresses: [usize; FRAMES],
    depth: usize,
}

impl Context {
    /// The current one.
    pub fn of(call: &Call) -> Self {
        let mut stack = unwind::Stack::of_most(FRAMES + 1);
        os::keep_errno(|| unwind::from(call.caller, &mut stack));
        let mut context = Self::default();
        for (&address, &slot) in stack.frames().iter().zip(stack.slots()).skip(1) {
            let words = slot.wrapping_sub(call.stack.wrapping_sub(size_of::<usize>())) / size_of::<usize>();
            let Ok(words @ 1..) = u8::try_from(words) else { break };
            context.words[context.depth] = words;
            context.addresses[context.depth] = address;
            context.depth += 1;
        }
        context
    }
}

/// A watched object of a studied site.
struct Sample {
    /// Its address; 0 for none.
    address: AtomicU64,
    born_ms: AtomicU64,
    /// The class it died in, or [`LIVES`].
    died: AtomicU8,
    depth: AtomicU8,
    words: [AtomicU8; FRAMES],
    addresses: [AtomicUsize; FRAMES],
}

const LIVES: u8 = u8::MAX;

impl Sample {
    const fn new() -> Self {
        Self {
            address: AtomicU64::new(0),
            born_ms: AtomicU64::new(0),
            died: AtomicU8::new(LIVES),
            depth: AtomicU8::new(0),
            words: [const { AtomicU8::new(0) }; FRAMES],
            addresses: [const { AtomicUsize::new(0) }; FRAMES],
        }
    }

    fn is_used(&self) -> bool {
        self.address.load(Relaxed) != 0
    }

    /// The return address that lies this many words up.
    fn at(&self, word: u8) -> Option<usize> {
        let depth = usize::from(self.depth.load(Relaxed));
        let found = self.words[..depth].iter().position(|other| other.load(Relaxed) == word)?;
        Some(self.addresses[found].load(Relaxed))
    }

    /// The class it died in, or whose age it has reached.
    fn reached(&self, now_ms: u64) -> usize {
        match self.died.load(Relaxed) {
            LIVES => lifetime_class::of_lifetime_ms(now_ms.saturating_sub(self.born_ms.load(Relaxed))),
            class => usize::from(class),
        }
    }

    /// `false` if it died by `class` at the latest, `true` if it died two classes later or still lives.
    fn is_late(&self, class: usize, now_ms: u64) -> Option<bool> {
        let reached = self.reached(now_ms);
        if reached <= class {
            return (self.died.load(Relaxed) != LIVES).then_some(false);
        }
        (reached >= class + 2).then_some(true)
    }
}

/// A study of a site. All of it changes only with the lock of the sites held.
struct Study {
    /// The site's number plus one; 0 for none.
    site: AtomicU16,
    began_ms: AtomicU64,
    samples: [Sample; SAMPLES],
}

static IN_PROGRESS: [Study; STUDIES] = [const {
    Study {
        site: AtomicU16::new(0),
        began_ms: AtomicU64::new(0),
        samples: [const { Sample::new() }; SAMPLES],
    }
}; STUDIES];

impl Study {
    fn of(site: &Site) -> Option<&'static Self> {
        let number = site.number() as u16 + 1;
        IN_PROGRESS.iter().find(|study| study.site.load(Relaxed) == number)
    }

    fn used(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(|sample| sample.is_used())
    }

    fn begin(&self, site: &Site) {
        self.end();
        self.site.store(site.number() as u16 + 1, Relaxed);
        self.began_ms.store(clock::now_ms(), Relaxed);
        site.studied.store(1, Relaxed);
    }

    fn end(&self) {
        if let Some(number) = self.site.swap(0, Relaxed).checked_sub(1)
            && let Some(site) = Site::numbered(number.into())
        {
            site.studied.store(0, Relaxed);
        }
        self.samples.iter().for_each(|sample| sample.address.store(0, Relaxed));
    }

    /// A place for one more object: replaces one that died early, once there are enough of them.
    fn place(&self) -> Option<&Sample> {
        if let Some(free) = self.samples.iter().find(|sample| !sample.is_used()) {
            return Some(free);
        }
        let dead = || self.used().filter(|sample| sample.died.load(Relaxed) != LIVES);
        let earliest =
            dead().min_by_key(|sample| (sample.died.load(Relaxed), sample.born_ms.load(Relaxed)))?;
        (dead().count() > SAMPLES / 2).then_some(earliest)
    }

    /// Looks for the site's word; `Some(0)` if no word separates objects that died early from the others.
    fn word(&self, now_ms: u64) -> Option<u8> {
        let mut looked = false;
        for class in 0..CLASSES - 2 {
            let decided =
                || self.used().filter_map(move |sample| Some((sample, sample.is_late(class, now_ms)?)));
            let late = decided().filter(|&(_, late)| late).count();
            if late < ENOUGH_LATE_SAMPLES || decided().count() - late < ENOUGH_EARLY as usize {
                continue;
            }
            looked = true;
            let (first_late, _) = decided().find(|&(_, late)| late)?;
            let depth = usize::from(first_late.depth.load(Relaxed));
            let candidates = first_late.words[..depth].iter().map(|word| word.load(Relaxed));
            let found = candidates
                .into_iter()
                .find(|&word| separates(decided().map(|(sample, late)| (sample.at(word), late))));
            if found.is_some() {
                return found;
            }
        }
        let is_used_up = self.used().count() == SAMPLES;
        (looked && is_used_up).then_some(0)
    }
}

/// Whether a word separates objects that live longer (`true`) from others: nearly all calls have a return
/// address there, nearly all calls with the same one agree, and most values were seen more than once.
fn separates(calls: impl Iterator<Item = (Option<usize>, bool)>) -> bool {
    let mut values = [(0, [0usize; 2]); SAMPLES];
    let (mut different, mut all, mut without) = (0, 0, 0);
    for (address, late) in calls {
        all += 1;
        let Some(address) = address else {
            without += 1;
            continue;
        };
        let place = values[..different].iter().position(|&(value, _)| value == address);
        let place = place.unwrap_or_else(|| {
            values[different].0 = address;
            different += 1;
            different - 1
        });
        values[place].1[usize::from(late)] += 1;
    }
    let values = &values[..different];
    let wrong: usize = values.iter().map(|(_, [early, late])| early.min(late)).sum();
    let seen_once = values.iter().filter(|(_, [early, late])| early + late == 1).count();
    let has = |of: usize| values.iter().any(|(_, counts)| counts[of] >= 2 && counts[of] > counts[1 - of]);
    without * 10 <= all && wrong * 10 <= all && seen_once * 4 <= all && has(0) && has(1)
}

/// Starts a study of the site if it is worth one. The caller holds the lock, here and below.
pub(super) fn consider(site: &'static Site) {
    if site.is_studied()
        || site.word() != 0
        || site.parent().is_none()
        || site.is_below()
        || site.rests.load(Relaxed) != 0
        || model_is_alone()
        || !is_mixed(site)
    {
        return;
    }
    let now_ms = clock::now_ms();
    let age = |study: &Study| now_ms.saturating_sub(study.began_ms.load(Relaxed));
    let place = IN_PROGRESS.iter().find(|study| study.site.load(Relaxed) == 0).or_else(|| {
        IN_PROGRESS.iter().max_by_key(|study| age(study)).filter(|study| age(study) >= PATIENCE_MS)
    });
    if let Some(study) = place {
        study.begin(site);
    }
}

/// Whether objects of the site die two or more classes apart, or some never.
fn is_mixed(site: &Site) -> bool {
    let sum = |counts: &[AtomicU16]| counts.iter().map(|n| u32::from(n.load(Relaxed))).sum::<u32>();
    (0..CLASSES - 2).any(|class| {
        sum(&site.dead[..=class]) >= ENOUGH_EARLY
            && sum(&site.dead[class + 2..]) + sum(&site.alive[class + 2..]) >= ENOUGH_LATE
    })
}

/// Adds an object of a studied site that is now watched.
pub(super) fn born(site: &Site, address: usize, context: &Context) {
    let Some(study) = Study::of(site) else { return };
    site.studied.store(site.studied.load(Relaxed).saturating_add(1), Relaxed);
    let Some(sample) = study.place() else { return };
    sample.address.store(address as u64, Relaxed);
    sample.born_ms.store(clock::now_ms(), Relaxed);
    sample.died.store(LIVES, Relaxed);
    sample.depth.store(context.depth as u8, Relaxed);
    for i in 0..context.depth {
        sample.words[i].store(context.words[i], Relaxed);
        sample.addresses[i].store(context.addresses[i], Relaxed);
    }
}

/// Makes the watched object at an address, if it lives, teach another site.
type Reassign = fn(u64, &'static Site);

/// Records the death of a studied site's object.
pub(super) fn died(site: &'static Site, address: usize, class: usize, reassign: Reassign) {
    let Some(study) = Study::of(site) else { return };
    let is_it = |sample: &&Sample| {
        sample.address.load(Relaxed) == address as u64 && sample.died.load(Relaxed) == LIVES
    };
    if let Some(sample) = study.used().find(is_it) {
        sample.died.store(class as u8, Relaxed);
        conclude(site, study, reassign);
    }
}

/// A studied site's object has reached another age.
pub(super) fn aged(site: &'static Site, reassign: Reassign) {
    if let Some(study) = Study::of(site) {
        conclude(site, study, reassign);
    }
}

fn conclude(site: &'static Site, study: &Study, reassign: Reassign) {
    match study.word(clock::now_ms()) {
        None => return,
        Some(0) => record_failed_study(site),
        Some(word) => {
            site.word.store(word, Relaxed);
            events::count(Event::WordLearned);
            pass_samples_to_words(site, study, word, reassign);
            super::learning::has_changed();
        }
    }
    study.end();
}

/// Records a failed study. A studied site's objects are watched at every slow-path visit, so a site without a
/// separating word must be studied less and less often.
fn record_failed_study(site: &Site) {
    let times = site.failed_studies.load(Relaxed);
    site.failed_studies.store((times + 1).min(AT_ONCE + MOST_DOUBLINGS), Relaxed);
    site.rests.store(times.checked_sub(AT_ONCE).map_or(0, |doublings| 1 << doublings), Relaxed);
}

/// Gives the sites below this one what the study saw of their values.
fn pass_samples_to_words(site: &'static Site, study: &Study, word: u8, reassign: Reassign) {
    for sample in study.used() {
        let Some(below) = sample.at(word).and_then(|address| find_or_add_below(site, address)) else {
            continue;
        };
        match sample.died.load(Relaxed) {
            LIVES => reassign(sample.address.load(Relaxed), below),
            class => below.record_own_end(class.into()),
        }
        below.reconsider();
    }
}

/// Records a call whose word did not point into code.
pub(super) fn record_missing_code(site: &Site) {
    let without = site.without_code.load(Relaxed).saturating_add(1);
    site.without_code.store(without, Relaxed);
    if without >= MOST_WITHOUT_CODE {
        site.word.store(0, Relaxed);
        site.failed_studies.store(site.failed_studies.load(Relaxed).max(AT_ONCE), Relaxed);
        record_failed_study(site);
        super::learning::has_changed();
    }
}

#[cfg(test)]
mod tests {
    use super::separates;

    fn calls<'a>(all: &'a [(usize, usize, bool)]) -> impl Iterator<Item = (Option<usize>, bool)> + 'a {
        all.iter().flat_map(|&(times, address, late)| {
            core::iter::repeat_n(((address != 0).then_some(address), late), times)
        })
    }

    #[test]
    fn a_word_separates_if_calls_with_the_same_value_agree() {
        assert!(separates(calls(&[(10, 1, false), (4, 2, true)])));
        assert!(separates(calls(&[(10, 1, false), (8, 3, false), (4, 2, true), (2, 1, true)])));
        assert!(separates(calls(&[(20, 1, false), (1, 0, true), (4, 2, true)])), "one lies elsewhere");
    }

    #[test]
    fn a_word_with_mixed_values_does_not_separate() {
        assert!(!separates(calls(&[(10, 1, false), (4, 1, true)])), "the same for all");
        assert!(
            !separates(calls(&[(10, 1, false), (4, 1, true), (4, 2, true)])),
            "it separates half of them"
        );
        assert!(!separates(calls(&[(10, 0, false), (4, 2, true)])), "most have no return address there");
        assert!(!separates(calls(&[])));
        let each_its_own = |i: usize| (1, i, i.is_multiple_of(3));
        let all: [_; 20] = core::array::from_fn(|i| each_its_own(i + 1));
        assert!(!separates(calls(&all)), "each seen once");
    }
}
