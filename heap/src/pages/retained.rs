//! Free huge pages that stay mapped for the next use, so that a heap that shrinks and grows does not fault
//! them in each time.
//!
//! The paper returns every free page at once, as `MAYFLY_HEAP_RETAIN=0` does. But clearing a huge page for
//! its next use costs tens of microseconds to a millisecond (on a virtual machine whose host reclaims free
//! memory). So by default the heap may retain a quarter as many pages as are in use; when the heap shrinks,
//! it retains fewer. An eighth of the pages that were not needed for a tenth of a second is returned, so
//! after two idle seconds all are: what a heap needs varies from one tenth to the next.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::pages::available::AvailableSet;
use crate::pages::region;
use crate::system::events;

/// The default: in proportion to the pages in use.
pub const IN_PROPORTION: usize = usize::MAX;
const LEAST: usize = 2;
const MOST: usize = 64;
const ONE_IN: usize = 4;
/// The part of unneeded pages that is returned at a time.
const ONE_IDLE_IN: usize = 8;

static PAGES: AvailableSet = AvailableSet::new();
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The fewest that were retained since the last check: that many were not needed.
static FEWEST: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(IN_PROPORTION);

/// Sets how many may be retained: a number of pages, or [`IN_PROPORTION`].
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

/// How many to return: those above the limit, or some of those not needed since the last call.
pub fn idle() -> usize {
    let count = COUNT.load(Relaxed);
    let unneeded = if LIMIT.load(Relaxed) == IN_PROPORTION { FEWEST.swap(count, Relaxed) } else { 0 };
    unneeded.div_ceil(ONE_IDLE_IN).max(count.saturating_sub(limit()))
}

/// How many are retained above the present limit.
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
