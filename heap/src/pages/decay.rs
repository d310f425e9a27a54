//! Returns free blocks of huge pages that hold little for a while; such a page becomes small, and huge again
//! when it fills.
//!
//! LLAMA returns only whole huge pages (§6.2), which is right as long as pages empty as wholes. But after its
//! load has fallen, a server keeps objects of sessions and caches scattered over pages that its peak filled;
//! there the free memory is worth more than huge pages. So a page is *cold* if no block was taken from it for
//! [`DECAY_MS`] and at least half of it is free. The heap discards its free blocks. khugepaged would fill the
//! page again (one used part in 512 is enough), so the heap advises against huge pages there. A small heap
//! begins on small pages: a program that allocates next to nothing does not pay for a huge page. In a heap of
//! up to 64 MiB so does a page that an object of 1.5 MiB or more takes first: programs allocate tables of
//! which they use a few entries. A small page becomes huge once three quarters of it are live and touched.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::pages::huge_page::{HugePage, State};
use crate::pages::region;
use crate::system::events::{self, Event};
use crate::system::{clock, filtered, os};
use crate::units::bits::{self, Bits};
use crate::units::geometry::*;

/// The default: ms without taken blocks after which a page is cold.
pub const DECAY_MS: u64 = 2000;
/// Never, the paper's policy.
pub const NEVER: u64 = u64::MAX;
static AFTER_MS: AtomicU64 = AtomicU64::new(DECAY_MS);

/// A page with more live blocks than this is not cold.
const MOST_LIVE: usize = BLOCKS_PER_HUGE_PAGE / 2;
/// Live blocks from which a small page becomes huge.
const ENOUGH_LIVE: usize = BLOCKS_PER_HUGE_PAGE / 4 * 3;
/// Pages in use from which new pages are huge at once.
const SMALL_HEAP_PAGES: usize = 4;
/// The same for pages of objects of at least [`SPARSE_BLOCKS`].
const YOUNG_HEAP_PAGES: usize = 32;
const SPARSE_BLOCKS: usize = ENOUGH_LIVE;
/// Small pages of a whole one that were touched, from which it is worth a huge page.
const ENOUGH_TOUCHED: usize = HUGE_PAGE_BYTES / SMALL_PAGE_BYTES / 4 * 3;
/// The most small pages at one time: each takes up to two of the process' 65,530 mappings.
const MOST_SMALL: usize = 8192;
const SMALL_PAGE_BYTES: usize = 4096;
static SMALL: AtomicUsize = AtomicUsize::new(0);

/// Sets when pages are cold; before the first allocation.
pub fn configure(after_ms: u64) {
    AFTER_MS.store(after_ms, Relaxed);
}

/// Whether parts of huge pages are returned.
pub fn is_on() -> bool {
    AFTER_MS.load(Relaxed) != NEVER && os::pages() == os::Pages::Transparent
}

/// Whether few pages are in use, none of them huge.
pub fn heap_is_small() -> bool {
    is_on() && events::pages() < SMALL_HEAP_PAGES
}

/// Prepares a page that comes into use for an object of so many blocks, or for a span: huge, or small while
/// the heap is small. A retained page is resident, and keeps its size.
pub fn begin(page: &HugePage, address: usize, blocks: usize, retained: bool) {
    let may_be_sparse = blocks >= SPARSE_BLOCKS && !filtered::is_possible();
    let most = if may_be_sparse { YOUNG_HEAP_PAGES } else { SMALL_HEAP_PAGES };
    if is_on() && events::pages() < most {
        if retained {
            return;
        }
        note_small(page);
        os::advise_small(address, HUGE_PAGE_BYTES); // if it was small, it may have been unmapped since
    } else {
        make_huge(page, address);
    }
}

/// Whether this page may be small: it is already, or there may be one more.
pub(crate) fn may_be_small(page: &HugePage) -> bool {
    page.small.load(Relaxed) != 0 || SMALL.load(Relaxed) < MOST_SMALL
}

pub(crate) fn make_small(page: &HugePage, address: usize) {
    if note_small(page) {
        os::advise_small(address, HUGE_PAGE_BYTES);
    }
}

/// Whether the page was not small before.
fn note_small(page: &HugePage) -> bool {
    let is_new = page.small.swap(1, Relaxed) == 0;
    SMALL.fetch_add(usize::from(is_new), Relaxed);
    is_new
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

/// Changes the size of a page in use if necessary; now and then, by one thread.
pub fn consider(page: &HugePage, address: usize, now_ms: u64) {
    if !is_on() || !matches!(page.state(), State::Open | State::Active) {
        return;
    }
    let live = bits::count(&page.live.load());
    let is_small = page.small.load(Relaxed) != 0;
    let is_whole = live >= ENOUGH_LIVE && page.given_back.load(Relaxed) == 0;
    if is_small && is_whole && events::pages() > SMALL_HEAP_PAGES && is_touched(page, address, now_ms) {
        let _guard = page.lock.lock();
        if matches!(page.state(), State::Open | State::Active) {
            make_huge(page, address);
        }
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

/// Whether most of a page was touched, as far as the kernel tells. Looks once a second.
fn is_touched(page: &HugePage, address: usize, now_ms: u64) -> bool {
    let second = (now_ms >> 10) as u8;
    page.looked.swap(second, Relaxed) != second
        && os::resident_pages(address, HUGE_PAGE_BYTES).is_none_or(|count| count >= ENOUGH_TOUCHED)
}

/// Notes that blocks of a page are taken now. The caller holds the page's lock.
pub fn note_taken(page: &HugePage) {
    page.taken_ms.store(clock::now_ms(), Relaxed);
}

/// Returns the free blocks of pages that have live ones: what `malloc_trim` returns beyond whole huge pages.
/// Whether there were any.
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

/// Bytes of a page in use or retained that may be resident.
pub fn resident_bytes(page: &HugePage) -> usize {
    let (touched, live, discarded) = (touched(page), page.live.load(), page.discarded.load());
    let resident: Bits = core::array::from_fn(|word| touched[word] & !(discarded[word] & !live[word]));
    let within_spans = page.given_back.load(Relaxed) as usize * SMALL_PAGE_BYTES;
    (bits::count(&resident) * BLOCK_BYTES).saturating_sub(within_spans)
}

/// Blocks that were touched: all of a huge page, from the first touch on.
fn touched(page: &HugePage) -> Bits {
    let whole = page.small.load(Relaxed) == 0 && !os::on_base_pages();
    if whole { bits::ALL } else { bits::range(0, page.high_water.load(Relaxed) as usize) }
}

/// Free blocks that may be resident.
fn idle(page: &HugePage) -> Bits {
    let touched = touched(page);
    let (live, discarded) = (page.live.load(), page.discarded.load());
    core::array::from_fn(|word| touched[word] & !live[word] & !discarded[word])
}

pub(crate) fn discard_free(page: &HugePage, address: usize) {
    let idle = idle(page);
    if !os::on_base_pages() {
        make_small(page, address); // before discarding: khugepaged must not undo it
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
