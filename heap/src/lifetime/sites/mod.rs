//! Call sites and their lifetimes, learned while the program runs or predicted by a model.
//!
//! A *site* is a return address, stack height and size (LLAMA §7); its *parent* is the return address alone,
//! for new contexts. Where these do not separate callers, a word of the stack does (`sites/stack_words.rs`).
//! Some allocations are watched until they are freed (`sites/watched.rs`), and their lifetimes teach their
//! sites (`sites/learning.rs`). With a trained model ([`crate::lifetime::model`]) a new site gets the class
//! that the model predicts for the calling context.

mod eviction;
mod learning;
mod recall;
mod site_cache;
mod stack_words;
mod watched;

use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use self::learning::model_is_alone;
use crate::lifetime::model_validation::Balance;
use crate::lifetime::source::{self, LifetimeSource};
use crate::lifetime::{caller_id, model, unwind};
use crate::system::events::{self, Event};
use crate::system::lock::Lock;
use crate::system::thread_stack::ThreadStack;
use crate::units::call::Call;
use crate::units::lifetime_class::{CLASSES, FOREVER};
use crate::units::size_class::GRANULE_BYTES;

pub use self::learning::epoch;
pub use self::recall::{is_used, recall, used};
pub use self::site_cache::SiteCache;
pub use self::stack_words::Context;
pub use self::watched::{freed, grow_older, watch};

/// The capacity of the table. When it is full, idle sites are evicted, see [`eviction`]; until then, calls
/// from further sites share their parent's.
const CAPACITY: usize = 48 << 10;
/// Entries of the index in use at first, and when the table is full. Sites hash to any entry in use, and
/// every page touched costs the program memory.
const LEAST_INDEX: usize = 1 << 11;
const MOST_INDEX: usize = 1 << 17;

/// A call site and its data.
#[derive(Default)]
pub struct Site {
    key: AtomicU64,
    /// Number of the parent plus one; 0 if this is a parent.
    parent: AtomicU32,
    /// Bytes that the site has taken in spans and large objects, or with a model requested; counted up to a
    /// limit.
    charged_bytes: AtomicU32,
    class: AtomicU8,
    /// The model's class plus one; 0 if the model was not run.
    model_class: AtomicU8,
    /// [`UNUSED`], [`USED`] or [`NOT_KEPT`].
    used: AtomicU8,
    /// Not called since the table was last full.
    idle: AtomicBool,
    /// Objects since the model last ran.
    hits: AtomicU32,
    /// How often in a row the model predicted no longer class.
    agreed: AtomicU8,
    /// Live watched objects.
    watched: AtomicU16,
    /// How many of them have reached the age of each class.
    alive: [AtomicU16; CLASSES],
    /// How many objects died in each class.
    dead: [AtomicU16; CLASSES],
    /// For a parent: for each class of the model, whether the heap follows the model.
    balances: [Balance; CLASSES],
    /// The word of the stack that separates its callers, in words above the return address; 0 for none. See
    /// [`stack_words`].
    word: AtomicU8,
    /// While a study looks for such a word: objects examined, plus one; else 0.
    studied: AtomicU8,
    /// Studies that found none.
    failed_studies: AtomicU8,
    /// Halvings of its counts to wait for before the next study.
    rests: AtomicU8,
    /// Calls whose word did not point into code, since one of its objects died.
    without_code: AtomicU16,
}

/// Read from a table, not called yet.
const UNUSED: u8 = 0;
/// Called; kept for the next run.
const USED: u8 = 1;
/// Called; not kept, since its caller has no id in the next run.
const NOT_KEPT: u8 = 2;

static SITES: [Site; CAPACITY] = [const { Site::new() }; CAPACITY];
static INDICES: [AtomicU16; MOST_INDEX] = [const { AtomicU16::new(0) }; MOST_INDEX];
/// Index entries in use: a power of two, at least twice the number of sites.
static INDEX: AtomicUsize = AtomicUsize::new(LEAST_INDEX);
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Held while a site is added or a watch changes.
static LOCK: Lock = Lock::new();

impl Site {
    const fn new() -> Self {
        Self {
            key: AtomicU64::new(0),
            parent: AtomicU32::new(0),
            charged_bytes: AtomicU32::new(0),
            class: AtomicU8::new(0),
            model_class: AtomicU8::new(0),
            used: AtomicU8::new(UNUSED),
            idle: AtomicBool::new(false),
            hits: AtomicU32::new(0),
            agreed: AtomicU8::new(0),
            watched: AtomicU16::new(0),
            alive: [const { AtomicU16::new(0) }; CLASSES],
            dead: [const { AtomicU16::new(0) }; CLASSES],
            balances: [const { Balance::new() }; CLASSES],
            word: AtomicU8::new(0),
            studied: AtomicU8::new(0),
            failed_studies: AtomicU8::new(0),
            rests: AtomicU8::new(0),
            without_code: AtomicU16::new(0),
        }
    }
}

/// The number of known sites.
pub fn count() -> u32 {
    COUNT.load(Relaxed)
}

fn mix(value: u64) -> u64 {
    let mixed = (value ^ value >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (mixed ^ mixed >> 32) | 1
}

/// Up to this size, sizes share a site only within a granule.
const EACH_GRANULE_BYTES: usize = 8 << 10;

/// Sizes that share a site: 16 B apart when small, an eighth of the size apart when large.
fn size_key(size: usize) -> u64 {
    if size <= EACH_GRANULE_BYTES {
        size.div_ceil(GRANULE_BYTES) as u64
    } else {
        let log2 = size.ilog2();
        1024 + u64::from(log2) * 8 + (size >> (log2 - 3) & 7) as u64
    }
}

/// A call's site, and how tables can identify the call.
pub struct Found {
    /// Its site.
    pub site: Option<&'static Site>,
    /// The word of the stack that completes the call's key, see [`Site::word`]; 0 for none.
    pub word: u8,
    /// Calls with the same key have the same site.
    pub is_sure: bool,
}

/// Finds the site of a call, through the thread's cache if possible.
pub fn of(known: &SiteCache, call: &Call, stack: ThreadStack) -> Found {
    known.refresh();
    let first = known.get(call).inspect(|site| site.clear_idle()).or_else(|| {
        let site = look_up(call, stack);
        let (slot, key) = known.slot(call);
        slot.set((key, site));
        site
    });
    match first.map(|first| (first, first.word())) {
        Some((first, word)) if word != 0 && stack.may_read(call, word) => below(known, call, first, word),
        _ => Found { site: first, word: 0, is_sure: true },
    }
}

/// The cached site of a call; none if lifetimes are not learned.
#[inline]
pub fn cached(known: &SiteCache, call: &Call, stack: ThreadStack) -> Option<&'static Site> {
    let site = known.get(call)?;
    let word = site.word();
    if word == 0 || !stack.may_read(call, word) {
        return Some(site);
    }
    // SAFETY: it may be read.
    known.get(&call.with_word(unsafe { call.word_above(word) }))
}

/// Finds the site below `first` for a call of a site with a word.
#[cold]
fn below(known: &SiteCache, call: &Call, first: &'static Site, word: u8) -> Found {
    // SAFETY: the caller has checked that it may be read.
    let value = unsafe { call.word_above(word) };
    let lookup_key = call.with_word(value);
    let found = known.get(&lookup_key).inspect(|site| site.clear_idle()).or_else(|| {
        if !unwind::is_code(value) {
            return None;
        }
        let site = look_up_below(call, first, value);
        let (slot, key) = known.slot(&lookup_key);
        slot.set((key, site));
        site
    });
    if found.is_none() {
        let _guard = LOCK.lock();
        stack_words::record_missing_code(first);
    }
    Found { site: found.or(Some(first)), word: found.map_or(0, |_| word), is_sure: found.is_some() }
}

/// Finds or adds the call's site; its parent's if there is no room, `None` if there is no room for that
/// either.
fn look_up(call: &Call, stack: ThreadStack) -> Option<&'static Site> {
    // On a stack other than the thread's own (a fiber's) the height means nothing, and each such stack would
    // create its own sites. There the offset within a page takes its place, which stacks mapped one by one
    // have in common.
    const ELSEWHERE: usize = 1 << 30;
    let height = if stack.is_of(call) { stack.height(call) } else { ELSEWHERE | (call.stack & 0xFFF) };
    let height = height as u64;
    let (place, used) =
        caller_id::in_each_run(call.caller).map_or((call.caller as u64, NOT_KEPT), |place| (place, USED));
    let parent_key = mix(place);
    let key =
        mix(parent_key ^ height.wrapping_mul(0xA076_1D64_78BD_642F) ^ size_key(call.size).rotate_right(16));
    if let Some(site) = find(key) {
        site.record_call();
        return Some(site);
    }
    let model_class = ask_model(call);
    let _guard = LOCK.lock();
    let parent = find(parent_key).or_else(|| add(parent_key, None, model_class))?;
    parent.used.store(used, Relaxed);
    let site = find(key).or_else(|| add(key, Some(parent), model_class)).unwrap_or(parent);
    site.used.store(used, Relaxed);
    Some(site)
}

fn ask_model(call: &Call) -> Option<usize> {
    match source::in_use() {
        LifetimeSource::Model { .. } => model::predict(call.caller),
        _ => None,
    }
}

/// Finds or adds the site for a word's value, below the first site of its calls; the first site if there is
/// no room.
fn look_up_below(call: &Call, first: &'static Site, value: usize) -> Option<&'static Site> {
    if let Some(site) = find(first.key_below(value).0) {
        site.record_call();
        return Some(site);
    }
    let model_class = ask_model(call);
    let _guard = LOCK.lock();
    let site = find_or_add_below(first, value).unwrap_or(first);
    if let Some(class) = model_class.filter(|_| site.is_below()) {
        site.model_class.store(class as u8 + 1, Relaxed);
        site.reconsider();
    }
    Some(site)
}

/// As above, if there is room; the caller holds the lock.
fn find_or_add_below(first: &'static Site, value: usize) -> Option<&'static Site> {
    let (key, used) = first.key_below(value);
    find(key).or_else(|| add(key, Some(first), None)).inspect(|site| {
        site.clear_idle();
        site.used.store(used, Relaxed);
    })
}

/// Without the lock this may miss a site, while the index grows or sites are evicted.
fn find(key: u64) -> Option<&'static Site> {
    let last = INDEX.load(Acquire) - 1;
    let mut i = key as usize >> 1;
    loop {
        let number = INDICES[i & last].load(Acquire) as usize;
        let site = &SITES[number.checked_sub(1)?];
        if site.key.load(Relaxed) == key {
            return Some(site);
        }
        i += 1;
    }
}

fn add(key: u64, parent: Option<&'static Site>, model_class: Option<usize>) -> Option<&'static Site> {
    let number = eviction::free_number()?;
    let site = &SITES[number];
    site.key.store(key, Relaxed);
    site.idle.store(false, Relaxed);
    site.parent.store(parent.map_or(0, |parent| parent.number() as u32 + 1), Relaxed);
    site.model_class.store(model_class.map_or(0, |class| class as u8 + 1), Relaxed);
    let is_followed = |class: usize| parent.is_none_or(|parent| parent.balances[class].favours_model());
    let first = match model_class {
        Some(class) if model_is_alone() => class,
        Some(class) if is_followed(class) => FOREVER,
        _ if site.is_below() => FOREVER,
        _ => parent.and_then(|parent| parent.known_class(None)).unwrap_or(FOREVER),
    };
    site.class.store(first as u8, Relaxed);
    COUNT.fetch_max(number as u32 + 1, Relaxed);
    if number >= INDEX.load(Relaxed) / 2 {
        let entries = INDEX.load(Relaxed);
        INDICES[..entries].iter().for_each(|index| index.store(0, Relaxed));
        INDEX.store(entries * 2, Release);
        SITES[..number].iter().filter(|site| site.key.load(Relaxed) != 0).for_each(put_into_index);
    }
    put_into_index(site);
    Some(site)
}

fn put_into_index(site: &Site) {
    let last = INDEX.load(Relaxed) - 1;
    let mut i = site.key.load(Relaxed) as usize >> 1;
    while INDICES[i & last].load(Relaxed) != 0 {
        i += 1;
    }
    INDICES[i & last].store(site.number() as u16 + 1, Release);
}

impl Site {
    #[inline]
    fn clear_idle(&self) {
        if self.idle.load(Relaxed) {
            self.idle.store(false, Relaxed);
        }
    }

    /// Its number, which no other site has.
    pub fn number(&self) -> usize {
        (core::ptr::from_ref(self) as usize - SITES.as_ptr() as usize) / size_of::<Site>()
    }

    /// The site with this number.
    pub fn numbered(number: usize) -> Option<&'static Site> {
        SITES.get(number)
    }

    /// The word of the stack, in words above the return address, that separates this site's calls; 0 for
    /// none.
    #[inline]
    pub fn word(&self) -> u8 {
        self.word.load(Relaxed)
    }

    /// Whether its parent's word separates it from other sites.
    fn is_below(&self) -> bool {
        self.parent().is_some_and(|parent| parent.parent().is_some())
    }

    /// The key and use of the site below this one, for a value of the word.
    fn key_below(&self, value: usize) -> (u64, u8) {
        let (place, used) = caller_id::in_each_run(value)
            .map_or((value as u64, NOT_KEPT), |place| (place, self.used.load(Relaxed)));
        (mix(self.key.load(Relaxed).rotate_left(32) ^ mix(place)), used)
    }

    /// Records a call, which may be the first since the site was read from a table.
    fn record_call(&self) {
        self.clear_idle();
        if self.used.load(Relaxed) == UNUSED && self.used.swap(USED, Relaxed) == UNUSED {
            events::count(Event::SiteRecalled);
        }
    }

    /// The site that groups this one with others of the same return address.
    pub fn parent(&self) -> Option<&'static Site> {
        Some(&SITES[(self.parent.load(Relaxed) as usize).checked_sub(1)?])
    }
}

fn add_to(count: &AtomicU16, change: i16) {
    count.store(count.load(Relaxed).saturating_add_signed(change), Relaxed);
}
