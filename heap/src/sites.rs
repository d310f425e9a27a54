//! Lifetimes learned while the program runs: some allocations are watched until they are freed, and teach the call site
//! they came from.
//!
//! A *site* is a return address, stack height and size (LLAMA §7); its *parent* is the return address alone, for contexts that
//! are new. Each site keeps how many watched objects died in each lifetime class, and how old those are that live.
//! Its class is the smallest by which 95% die (T95, §5.1); an object that lives counts against every class it has
//! outlived. A site of which too little is known gets ∞ while it has allocated little: what a program allocates seldom
//! tends to stay, and if not, little is lost. Once it has allocated much it gets the class that its oldest objects
//! have reached, so that bulk does not mix with what stays.
//!
//! With a trained model ([`crate::model`]) a new site gets the class that it predicts for the calling context. Alone, that is
//! the site's class for good (LLAMA §7); otherwise from when it has allocated a little, and until enough is known.

use core::cell::Cell;
use core::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::clock;
use crate::geometry::MAX_SMALL_BYTES;
use crate::heap::{Call, Heap};
use crate::lifetime::{self, CLASSES, FOREVER};
use crate::lock::Lock;
use crate::model;
use crate::predict::{self, Source};
use crate::size_class::GRANULE_BYTES;
use crate::stats::{self, Event};
use crate::table::{self, Kept};

/// Sites that can be known; calls from further ones share their parent's.
const CAPACITY: usize = 48 << 10;
const INDEX: usize = 1 << 17;
/// Objects that can be watched at once: groups of slots chosen by address.
const GROUPS: usize = 1 << 10;
const GROUP: usize = 4;
/// Live objects that a site has watched at most: beyond them a new one teaches little.
const MAX_WATCHED: u16 = 24;
/// A site is known from this many ends on.
const ENOUGH_ENDS: u32 = 3;
/// Until it has allocated this much, an unknown site may live among what stays.
const LITTLE_BYTES: u32 = 256 << 10;
/// Until it has allocated this much, a site may live among what stays, whatever the model says of it: a profile has hardly
/// seen it, and one object of it that stays holds a huge page among many that do not.
const LITTLE_TO_MODEL: u32 = 64 << 10;
/// A site of which the model has an opinion is known from this many on.
const ENOUGH_AGAINST_MODEL: u32 = 8;
/// As many objects that live speak for the model where it says that they live longer than the freed ones did.
const MOST_DOUBTS: u32 = 6;
/// The model is asked again after this many hits (LLAMA §7), and after twice as many each time that it says nothing
/// longer, up to this many times: a run of the model is worth a thousand hits.
const HITS_TO_CHECK: u32 = 1000;
const MOST_DOUBLINGS: u8 = 6;
/// Ends are halved beyond this many, so that a site can change its mind.
const MANY_ENDS: u32 = 256;

/// What is known of one call site.
#[derive(Default)]
pub struct Site {
    key: AtomicU64,
    /// Number of the parent plus one; 0: this is one.
    parent: AtomicU32,
    /// Bytes that the site has taken in spans and large objects, or with a model was asked for, until they are no longer little.
    charged_bytes: AtomicU32,
    class: AtomicU8,
    /// What the model said, plus one; 0 if it was not asked.
    model_class: AtomicU8,
    /// [`UNUSED`], [`USED`] or [`NOT_KEPT`].
    used: AtomicU8,
    /// Objects since the model was last asked.
    hits: AtomicU32,
    /// How often in a row it said nothing longer.
    agreed: AtomicU8,
    /// Watched objects that live.
    watched: AtomicU16,
    /// Of those, how many have reached the age of each class.
    alive: [AtomicU16; CLASSES],
    /// How many died in each class.
    dead: [AtomicU16; CLASSES],
}

/// Read from a table, and not called yet.
const UNUSED: u8 = 0;
/// Called, to be kept for the next run.
const USED: u8 = 1;
/// Called, and not to be known again in the next run.
const NOT_KEPT: u8 = 2;

/// A watched object.
#[derive(Default)]
struct Watch {
    address: AtomicU64,
    birth_ms: AtomicU32,
    site: AtomicU16,
    age_class: AtomicU8,
}

static SITES: [Site; CAPACITY] = [const { Site::new() }; CAPACITY];
static INDICES: [AtomicU16; INDEX] = [const { AtomicU16::new(0) }; INDEX];
static COUNT: AtomicU32 = AtomicU32::new(0);
static WATCHES: [[Watch; GROUP]; GROUPS] = [const { [const { Watch::new() }; GROUP] }; GROUPS];
/// Held while a site is added or a watch changes.
static LOCK: Lock = Lock::new();
/// Changes when a site's class does: prediction tables filled before are out of date.
static EPOCH: AtomicU32 = AtomicU32::new(1);

impl Site {
    const fn new() -> Self {
        Self {
            key: AtomicU64::new(0),
            parent: AtomicU32::new(0),
            charged_bytes: AtomicU32::new(0),
            class: AtomicU8::new(0),
            model_class: AtomicU8::new(0),
            used: AtomicU8::new(UNUSED),
            hits: AtomicU32::new(0),
            agreed: AtomicU8::new(0),
            watched: AtomicU16::new(0),
            alive: [const { AtomicU16::new(0) }; CLASSES],
            dead: [const { AtomicU16::new(0) }; CLASSES],
        }
    }
}
impl Watch {
    const fn new() -> Self {
        Self {
            address: AtomicU64::new(0),
            birth_ms: AtomicU32::new(0),
            site: AtomicU16::new(0),
            age_class: AtomicU8::new(0),
        }
    }
}

/// The version of what was learned.
#[inline]
pub fn epoch() -> u32 {
    EPOCH.load(Relaxed)
}

/// How many sites are known.
pub fn count() -> u32 {
    COUNT.load(Relaxed)
}

fn mix(value: u64) -> u64 {
    let mixed = (value ^ value >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (mixed ^ mixed >> 32) | 1
}

/// Sizes that share a site: 16 B apart when small, an eighth of the size apart when large.
fn size_key(size: usize) -> u64 {
    if size <= MAX_SMALL_BYTES {
        size.div_ceil(GRANULE_BYTES) as u64
    } else {
        let log2 = size.ilog2();
        1024 + u64::from(log2) * 8 + (size >> (log2 - 3) & 7) as u64
    }
}

/// Entries of a thread's short way to its sites.
const KNOWN_SITES: usize = 512;

/// A thread's short way to the sites of its calls. All zeros is an empty one.
pub struct KnownSites([Cell<(u64, Option<&'static Site>)>; KNOWN_SITES]);

impl KnownSites {
    /// Knows none.
    pub const fn new() -> Self {
        Self([const { Cell::new((0, None)) }; KNOWN_SITES])
    }
}

impl KnownSites {
    #[inline]
    fn slot(&self, call: &Call) -> (&Cell<(u64, Option<&'static Site>)>, u64) {
        let call_site = (call.caller as u64).wrapping_add((call.stack as u64) << 16).rotate_left(20);
        let key = (call_site ^ call.size as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        (&self.0[(key >> (u64::BITS - KNOWN_SITES.ilog2())) as usize], key)
    }

    /// The call's site, if it was looked up of late; none while lifetimes are not learned.
    #[inline]
    pub fn get(&self, call: &Call) -> Option<&'static Site> {
        let (slot, key) = self.slot(call);
        let (known, site) = slot.get();
        site.filter(|_| known == key)
    }
}

impl Default for KnownSites {
    fn default() -> Self {
        Self::new()
    }
}

/// The call's site, by the short way if the thread has been there.
pub fn of(heap: &Heap, call: &Call) -> Option<&'static Site> {
    if let Some(site) = heap.known_sites.get(call) {
        return Some(site);
    }
    let (slot, key) = heap.known_sites.slot(call);
    let site = look_up(heap, call);
    slot.set((key, site));
    site
}

/// The call's site, added if it is new; its parent's when there is no room; `None` when there is none for that either.
fn look_up(heap: &Heap, call: &Call) -> Option<&'static Site> {
    let height = heap.stack_base.get().wrapping_sub(call.stack) as u64;
    let (place, used) =
        table::place(call.caller).map_or((call.caller as u64, NOT_KEPT), |place| (place, USED));
    let parent_key = mix(place);
    let key =
        mix(parent_key ^ height.wrapping_mul(0xA076_1D64_78BD_642F) ^ size_key(call.size).rotate_right(16));
    if let Some(site) = find(key) {
        if site.used.load(Relaxed) == UNUSED && site.used.swap(USED, Relaxed) == UNUSED {
            stats::count(Event::SiteRecalled);
        }
        return Some(site);
    }
    let model_class = match predict::source() {
        Source::Model { .. } => model::predict(call.caller),
        _ => None,
    };
    let _guard = LOCK.lock();
    let parent = find(parent_key).or_else(|| add(parent_key, None, model_class))?;
    parent.used.store(used, Relaxed);
    let site = find(key).or_else(|| add(key, Some(parent), model_class)).unwrap_or(parent);
    site.used.store(used, Relaxed);
    Some(site)
}

fn find(key: u64) -> Option<&'static Site> {
    let mut i = key as usize >> 1;
    loop {
        let number = INDICES[i % INDEX].load(Acquire) as usize;
        let site = &SITES[number.checked_sub(1)?];
        if site.key.load(Relaxed) == key {
            return Some(site);
        }
        i += 1;
    }
}

fn add(key: u64, parent: Option<&'static Site>, model_class: Option<usize>) -> Option<&'static Site> {
    let number = COUNT.load(Relaxed) as usize;
    let site = SITES.get(number)?;
    site.key.store(key, Relaxed);
    site.parent.store(parent.map_or(0, |parent| parent.number() as u32 + 1), Relaxed);
    site.model_class.store(model_class.map_or(0, |class| class as u8 + 1), Relaxed);
    let first = match model_class {
        Some(class) if is_alone() => class,
        Some(_) => FOREVER,
        None => parent.and_then(|parent| parent.known_class(None)).unwrap_or(FOREVER),
    };
    site.class.store(first as u8, Relaxed);
    COUNT.store(number as u32 + 1, Relaxed);
    let mut i = key as usize >> 1;
    while INDICES[i % INDEX].load(Relaxed) != 0 {
        i += 1;
    }
    INDICES[i % INDEX].store(number as u16 + 1, Release);
    Some(site)
}

/// There is a model, and what it says is not corrected.
fn is_alone() -> bool {
    predict::source() == Source::Model { online: false }
}

impl Site {
    /// The class predicted for this site's objects.
    pub fn class(&self) -> usize {
        self.class.load(Relaxed) as usize
    }

    /// Its number: no two sites have the same.
    pub fn number(&self) -> usize {
        (core::ptr::from_ref(self) as usize - SITES.as_ptr() as usize) / size_of::<Site>()
    }

    /// The site with this number.
    pub fn numbered(number: usize) -> Option<&'static Site> {
        SITES.get(number)
    }

    fn parent(&self) -> Option<&'static Site> {
        Some(&SITES[(self.parent.load(Relaxed) as usize).checked_sub(1)?])
    }

    fn ends(&self) -> u32 {
        self.dead.iter().map(|n| u32::from(n.load(Relaxed))).sum()
    }

    /// Whether one more object should be watched, at a thread's visit number `visit`: all at first, then ever fewer.
    pub fn wants_sample(&self, visit: u32) -> bool {
        if self.watched.load(Relaxed) >= MAX_WATCHED || is_alone() {
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
    fn known_class(&self, current: Option<usize>) -> Option<usize> {
        let ends = self.ends();
        if ends < ENOUGH_ENDS {
            return None;
        }
        let model = self.model_class();
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

    /// What the model said of this site.
    fn model_class(&self) -> Option<usize> {
        usize::from(self.model_class.load(Relaxed)).checked_sub(1)
    }

    /// Counts `count` objects of `size` bytes; whether the model should be asked again.
    pub fn was_hit(&self, count: u32, size: usize) -> bool {
        if self.model_class().is_some() {
            self.add_bytes(size.saturating_mul(count as usize), LITTLE_TO_MODEL);
        }
        let hits = self.hits.load(Relaxed).saturating_add(count);
        let due = hits >= HITS_TO_CHECK << self.agreed.load(Relaxed).min(MOST_DOUBLINGS);
        self.hits.store(if due { 0 } else { hits }, Relaxed);
        due
    }

    /// The model was asked again. Where it says something else, the longer class holds: under-prediction costs more.
    pub fn model_says(&self, class: usize) {
        let _guard = LOCK.lock();
        let before = self.model_class();
        if before != Some(class) {
            stats::count(Event::PredictionDisagreed);
        }
        if before.is_some_and(|before| before >= class) {
            return self.agreed.store((self.agreed.load(Relaxed) + 1).min(MOST_DOUBLINGS), Relaxed);
        }
        self.agreed.store(0, Relaxed);
        stats::count(Event::PredictionLengthened);
        self.model_class.store(class as u8 + 1, Relaxed);
        self.reconsider();
    }

    fn best_class(&self) -> usize {
        let model = self.model_class();
        if let Some(class) = model {
            if is_alone() {
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
        let parents = self.parent().and_then(|parent| parent.known_class(None));
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

    fn reconsider(&self) {
        let class = self.best_class();
        if self.class.swap(class as u8, Relaxed) as usize != class {
            EPOCH.fetch_add(1, Relaxed);
            stats::count(Event::PredictionChanged);
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

    fn record_end(&self, class: usize) {
        if self.ends() >= MANY_ENDS {
            self.dead.iter().for_each(|n| n.store(n.load(Relaxed) / 2, Relaxed));
        }
        add_to(&self.dead[class], 1);
    }

    /// Watched objects that have reached the age of `class` became more or fewer, here and with the parent.
    fn change_alive(&self, class: usize, change: i16) {
        add_to(&self.alive[class], change);
        if let Some(parent) = self.parent() {
            add_to(&parent.alive[class], change);
        }
    }
}

fn add_to(count: &AtomicU16, change: i16) {
    count.store(count.load(Relaxed).saturating_add_signed(change), Relaxed);
}

fn group(address: usize) -> &'static [Watch; GROUP] {
    &WATCHES[(mix(address as u64 >> 4) >> 40) as usize % GROUPS]
}

/// Watches the object at `address`; `false` if there is no room.
pub fn watch(site: &'static Site, address: usize) -> bool {
    let _guard = LOCK.lock();
    let Some(slot) = group(address).iter().find(|slot| slot.address.load(Relaxed) == 0) else { return false };
    slot.address.store(address as u64, Relaxed);
    slot.birth_ms.store(clock::now_ms(), Relaxed);
    slot.site.store(site.number() as u16, Relaxed);
    slot.age_class.store(0, Relaxed);
    add_to(&site.watched, 1);
    site.change_alive(0, 1);
    true
}

/// The watched object at `address` was freed.
pub fn freed(address: usize) {
    let _guard = LOCK.lock();
    let Some(slot) = group(address).iter().find(|slot| slot.address.load(Relaxed) == address as u64) else {
        return;
    };
    let lifetime_ms = clock::now_ms().saturating_sub(slot.birth_ms.load(Relaxed));
    end(slot, lifetime::of_lifetime_ms(lifetime_ms));
}

fn end(slot: &Watch, class: usize) {
    let site = &SITES[slot.site.load(Relaxed) as usize];
    slot.address.store(0, Relaxed);
    add_to(&site.watched, -1);
    site.change_alive(slot.age_class.load(Relaxed) as usize, -1);
    stats::count(Event::LifetimeMeasured);
    site.record_end(class);
    site.reconsider();
    if let Some(parent) = site.parent() {
        parent.record_end(class);
        parent.reconsider();
    }
}

/// Looks at some of the watched objects and lets their sites know how old they have become; once a tick, by one thread.
pub fn grow_older(now_ms: u32, cursor: usize, groups: usize) -> usize {
    let _guard = LOCK.lock();
    for watch in (cursor..cursor + groups).flat_map(|i| &WATCHES[i % GROUPS]) {
        if watch.address.load(Relaxed) == 0 {
            continue;
        }
        let age = lifetime::of_lifetime_ms(now_ms.saturating_sub(watch.birth_ms.load(Relaxed)));
        let before = watch.age_class.swap(age as u8, Relaxed) as usize;
        if age != before {
            let site = &SITES[watch.site.load(Relaxed) as usize];
            site.change_alive(before, -1);
            site.change_alive(age, 1);
            site.reconsider();
        }
    }
    (cursor + groups) % GROUPS
}

/// Sites to keep for the next run, parents first.
pub fn used() -> impl Iterator<Item = &'static Site> {
    SITES[..count() as usize].iter().filter(|site| site.used.load(Relaxed) == USED)
}

/// Whether this process has used the site with this key.
pub fn is_used(key: u64) -> bool {
    find(key).is_some_and(|site| site.used.load(Relaxed) != UNUSED)
}

/// Adds a site that an earlier run knew. Some room is left for new ones.
pub fn recall(kept: &Kept) {
    let _guard = LOCK.lock();
    if COUNT.load(Relaxed) as usize >= CAPACITY / 4 * 3 || find(kept.key).is_some() {
        return;
    }
    let parent = find(kept.parent).filter(|_| kept.parent != 0);
    if parent.is_none() && kept.parent != 0 {
        return;
    }
    let Some(site) = add(kept.key, parent, usize::from(kept.model_class).checked_sub(1)) else { return };
    site.class.store(kept.class, Relaxed);
    site.charged_bytes.store(kept.charged_bytes, Relaxed);
    site.agreed.store(kept.agreed.min(MOST_DOUBLINGS), Relaxed);
    site.dead.iter().zip(kept.dead).for_each(|(to, from)| to.store(from.min(MANY_ENDS as u16), Relaxed));
}

impl Site {
    /// What the next run needs to know of it. At the program's end, objects older than the site's class never died.
    pub fn kept(&self, at_end: bool) -> Kept {
        let class = self.class.load(Relaxed);
        let model_class = self.model_class.load(Relaxed);
        let parent = self.parent().map_or(0, |parent| parent.key.load(Relaxed));
        let mut kept =
            Kept::new(self.key.load(Relaxed), parent, class, model_class, self.agreed.load(Relaxed));
        kept.charged_bytes = self.charged_bytes.load(Relaxed);
        kept.dead = [const { 0 }; CLASSES];
        kept.dead.iter_mut().zip(&self.dead).for_each(|(to, from)| *to = from.load(Relaxed));
        if at_end {
            let outlived = if self.ends() < ENOUGH_ENDS { 0 } else { usize::from(class) + 1 };
            let old = self.alive.iter().skip(outlived).map(|n| n.load(Relaxed)).sum::<u16>();
            kept.dead[FOREVER] = kept.dead[FOREVER].saturating_add(old);
        }
        kept
    }
}
