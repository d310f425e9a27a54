//! Evicts idle sites when the table is full.
//!
//! A server that runs for weeks meets more call sites than the table holds (libraries that are loaded and
//! unloaded, code made at run time, stacks of fibers). Other threads may search the table at any moment
//! without a lock. So an evicted site's place is not emptied but reused for a new one, and a thread that
//! still holds the old site sees the new one's class, which costs packing only. Threads clear their site
//! caches at the next [`generation`].

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::{CAPACITY, COUNT, INDICES, SITES, Site, UNUSED, put_into_index};
use crate::lifetime::model_validation::Balance;
use crate::system::clock;

/// Between two rounds, ms; in between, new calls share their parent's site.
const ROUND_MS: u64 = 1000;

static GENERATION: AtomicU32 = AtomicU32::new(0);
static NEXT_ROUND_MS: AtomicU64 = AtomicU64::new(0);
/// Where the search for a free place continues, once all have been used.
static NEXT_TO_SEARCH: AtomicU32 = AtomicU32::new(0);

/// Changes when sites were evicted.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Finds a free place; the caller holds the lock of the sites.
pub(super) fn free_number() -> Option<usize> {
    let count = COUNT.load(Relaxed) as usize;
    if count < CAPACITY {
        return Some(count);
    }
    next_free().or_else(|| {
        let now_ms = clock::now_ms();
        if now_ms < NEXT_ROUND_MS.load(Relaxed) {
            return None;
        }
        NEXT_ROUND_MS.store(now_ms + ROUND_MS, Relaxed);
        NEXT_TO_SEARCH.store(0, Relaxed);
        forget_old();
        next_free()
    })
}

fn next_free() -> Option<usize> {
    let from = NEXT_TO_SEARCH.load(Relaxed) as usize;
    let free = (from..CAPACITY).find(|&number| SITES[number].key.load(Relaxed) == 0);
    NEXT_TO_SEARCH.store(free.map_or(CAPACITY, |number| number + 1) as u32, Relaxed);
    free
}

/// Evicts sites that were not called since the last round, have no watched object, and are not a remaining
/// site's parent.
fn forget_old() {
    for _ in 0..2 {
        // A parent may have a parent itself.
        for site in SITES.iter().filter(|site| is_needed(site)) {
            if let Some(parent) = site.parent() {
                parent.idle.store(false, Relaxed);
            }
        }
    }
    INDICES.iter().for_each(|index| index.store(0, Relaxed));
    for site in &SITES {
        if is_needed(site) {
            put_into_index(site);
        } else {
            site.forget();
        }
        site.idle.store(true, Relaxed);
    }
    GENERATION.fetch_add(1, Relaxed);
}

fn is_needed(site: &Site) -> bool {
    !site.idle.load(Relaxed) || site.watched.load(Relaxed) > 0 || site.is_studied()
}

impl Site {
    /// Frees the site's place and resets everything else.
    fn forget(&self) {
        self.key.store(0, Relaxed);
        self.parent.store(0, Relaxed);
        self.charged_bytes.store(0, Relaxed);
        self.class.store(0, Relaxed);
        self.model_class.store(0, Relaxed);
        self.used.store(UNUSED, Relaxed);
        self.hits.store(0, Relaxed);
        self.word.store(0, Relaxed);
        self.failed_studies.store(0, Relaxed);
        self.rests.store(0, Relaxed);
        self.without_code.store(0, Relaxed);
        self.agreed.store(0, Relaxed);
        self.alive.iter().chain(&self.dead).for_each(|count| count.store(0, Relaxed));
        self.balances.iter().for_each(Balance::forget);
    }
}
