//! Pages that earn their size, and those that do not: free blocks of a huge page on which little lives go back to the operating
//! system after a while, and the page is huge no more; a page that fills again becomes huge again.
//!
//! LLAMA gives back whole huge pages only (§6.2), which is right as long as pages empty as wholes. A server whose load has
//! fallen keeps what its sessions and caches hold, here and there on pages that its peak has filled; there a page's promise to
//! stay huge is worth less than what it holds back. So a page from which no block was taken for [`DECAY_MS`] and of which at
//! least half is free is *cold*: its free blocks are discarded. The kernel would make it whole again (khugepaged fills a page
//! of which one part in 512 is used), so it is told not to. And a small heap begins on small pages: a program that
//! allocates next to nothing does not pay a huge page for it.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::pages::huge_page::{HugePage, State};
use crate::pages::region;
use crate::system::events::{self, Event};
use crate::system::{clock, os};
use crate::units::bits::{self, Bits};
use crate::units::geometry::*;

/// The default: ms after which a page is cold, from which no block was taken.
pub const DECAY_MS: u64 = 2000;
/// Never: the paper's way.
pub const NEVER: u64 = u64::MAX;
static AFTER_MS: AtomicU64 = AtomicU64::new(DECAY_MS);

/// Live blocks of a page that is too full to be cold.
const MOST_LIVE: usize = BLOCKS_PER_HUGE_PAGE / 2;
/// Live blocks of a small page that has earned to be huge.
const ENOUGH_LIVE: usize = BLOCKS_PER_HUGE_PAGE / 4 * 3;
/// Pages in use before a new page is huge at once.
const SMALL_HEAP_PAGES: usize = 4;
/// Pages that may be small at one time: each takes up to two of the process' 65,530 mappings.
const MOST_SMALL: usize = 8192;
static SMALL: AtomicUsize = AtomicUsize::new(0);

/// Chooses when pages are cold; before the first allocation.
pub fn configure(after_ms: u64) {
    AFTER_MS.store(after_ms, Relaxed);
}

/// Whether parts of huge pages are given back.
pub fn is_on() -> bool {
    AFTER_MS.load(Relaxed) != NEVER && os::pages() == os::Pages::Transparent
}

/// Few pages are in use, and none of them is huge.
pub fn heap_is_small() -> bool {
    is_on() && events::pages() < SMALL_HEAP_PAGES
}

/// A page comes into use: huge, or small while the heap is. One that was retained is in memory, and stays what it is.
pub fn begin(page: &HugePage, address: usize, retained: bool) {
    if is_on() && events::pages() < SMALL_HEAP_PAGES {
        if retained {
            return;
        }
        make_small(page, address);
    } else {
        make_huge(page, address);
    }
}

/// Whether one more page may be small, if it is not yet.
pub(crate) fn may_be_small(page: &HugePage) -> bool {
    page.small.load(Relaxed) != 0 || SMALL.load(Relaxed) < MOST_SMALL
}

pub(crate) fn make_small(page: &HugePage, address: usize) {
    if page.small.swap(1, Relaxed) == 0 {
        SMALL.fetch_add(1, Relaxed);
        os::advise_small(address, HUGE_PAGE_BYTES);
    }
}

fn make_huge(page: &HugePage, address: usize) {
    if page.small.swap(0, Relaxed) != 0 {
        SMALL.fetch_sub(1, Relaxed);
        os::advise_huge(address, HUGE_PAGE_BYTES);
    }
}

/// How long a page must be left alone to be cold, ms.
pub fn after_ms() -> u64 {
    AFTER_MS.load(Relaxed)
}

/// Looks whether a page in use has earned another size; now and then, by one thread.
pub fn consider(page: &HugePage, address: usize, now_ms: u64) {
    if !is_on() || !matches!(page.state(), State::Open | State::Active) {
        return;
    }
    let live = bits::count(&page.live.load());
    let is_small = page.small.load(Relaxed) != 0;
    let is_whole = live >= ENOUGH_LIVE && page.given_back.load(Relaxed) == 0;
    if is_small && is_whole && events::pages() > SMALL_HEAP_PAGES {
        let _guard = page.lock.lock();
        make_huge(page, address);
        return;
    }
    let is_cold = now_ms.saturating_sub(page.taken_ms.load(Relaxed)) >= after_ms();
    if is_cold && live <= MOST_LIVE && !bits::is_none(&idle(page)) && may_be_small(page) {
        let _guard = page.lock.lock();
        if matches!(page.state(), State::Open | State::Active) {
            discard_free(page, address);
        }
    }
}

/// Notes that blocks of a page are taken now. The page's lock is held.
pub fn note_taken(page: &HugePage) {
    page.taken_ms.store(clock::now_ms(), Relaxed);
}

/// Returns all free blocks of pages of which something lives: what `malloc_trim` gives back beyond whole huge pages. Whether
/// there was one.
pub fn trim() -> bool {
    if !is_on() && !os::on_base_pages() {
        return false;
    }
    let (mut any, mut next) = (false, 0);
    while let Some(id) = region::next_used(next) {
        next = id + 1;
        let address = region::address(id);
        let page = region::huge_page(address);
        let _guard = page.lock.lock();
        let sparse = || os::on_base_pages() || bits::count(&page.live.load()) <= MOST_LIVE;
        if matches!(page.state(), State::Open | State::Active) && sparse() && !bits::is_none(&idle(page)) {
            discard_free(page, address);
            any = true;
        }
    }
    any
}

/// Free blocks that may be in memory. Of a huge page that is all of it from the first touch on.
fn idle(page: &HugePage) -> Bits {
    let whole = page.small.load(Relaxed) == 0 && !os::on_base_pages();
    let touched = if whole { bits::ALL } else { bits::range(0, page.high_water.load(Relaxed) as usize) };
    let (live, discarded) = (page.live.load(), page.discarded.load());
    core::array::from_fn(|word| touched[word] & !live[word] & !discarded[word])
}

pub(crate) fn discard_free(page: &HugePage, address: usize) {
    let idle = idle(page);
    if !os::on_base_pages() {
        make_small(page, address); // before anything is discarded: khugepaged must not undo it
    }
    let mut first = 0;
    while first < BLOCKS_PER_HUGE_PAGE {
        let length = (first..BLOCKS_PER_HUGE_PAGE).take_while(|&block| bits::get(&idle, block)).count();
        if length > 0 {
            os::discard(address + first * BLOCK_BYTES, length * BLOCK_BYTES);
            events::add(Event::BlocksDiscarded, length as u64);
        }
        first += length + 1;
    }
    page.discarded.set(&idle);
}
