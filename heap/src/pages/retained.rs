//! Free huge pages that stay mapped for the next taker: so a heap that breathes does not fault them in at each breath.
//!
//! The paper returns every free page at once, as `MAYFLY_HEAP_RETAIN=0` does. Clearing a huge page for its next use costs
//! tens of microseconds to a millisecond (on a virtual machine whose host takes free memory back), so by default a quarter of the
//! pages in use may be retained: with the heap shrinks what it retains. Of pages that nobody needed for a tenth of a second an
//! eighth goes, so after two seconds of rest all have: what a heap needs varies from one tenth to the next.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::pages::available::AvailableSet;
use crate::pages::region;
use crate::system::events;

/// The default: in proportion to the pages in use.
pub const IN_PROPORTION: usize = usize::MAX;
const LEAST: usize = 2;
const MOST: usize = 64;
const ONE_IN: usize = 4;
/// Of pages that nobody needed one in this many goes at a time.
const ONE_IDLE_IN: usize = 8;

static PAGES: AvailableSet = AvailableSet::new();
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The fewest that were retained since the last look: those were not needed.
static FEWEST: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(IN_PROPORTION);

/// How many may be retained: a number of pages, or [`IN_PROPORTION`].
pub fn configure(limit: usize) {
    LIMIT.store(limit, Relaxed);
}

fn limit() -> usize {
    match LIMIT.load(Relaxed) {
        IN_PROPORTION => (events::pages() / ONE_IN).clamp(LEAST, MOST),
        limit => limit,
    }
}

/// Whether one more may be retained.
pub fn has_room() -> bool {
    COUNT.load(Relaxed) < limit()
}

/// Retains the free page at `address`.
pub fn keep(address: usize) {
    COUNT.fetch_add(1, Relaxed);
    PAGES.insert(region::id(address));
}

/// Takes the lowest retained page.
pub fn take() -> Option<usize> {
    loop {
        let id = PAGES.first(0)?;
        if PAGES.remove(id) {
            let left = COUNT.fetch_sub(1, Relaxed) - 1;
            FEWEST.fetch_min(left, Relaxed);
            return Some(region::address(id));
        }
    }
}

/// How many are to go: those that are too many, or some of those that were not needed since the last call.
pub fn idle() -> usize {
    let count = COUNT.load(Relaxed);
    let unneeded = if LIMIT.load(Relaxed) == IN_PROPORTION { FEWEST.swap(count, Relaxed) } else { 0 };
    unneeded.div_ceil(ONE_IDLE_IN).max(count.saturating_sub(limit()))
}

/// How many are retained beyond the limit of now.
pub fn excess() -> usize {
    COUNT.load(Relaxed).saturating_sub(limit())
}

/// How many are retained.
pub fn count() -> usize {
    COUNT.load(Relaxed)
}

/// Whether the page with this id is retained.
pub fn holds(id: usize) -> bool {
    PAGES.contains(id)
}
