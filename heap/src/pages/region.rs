//! Address space: a window of 16 GiB regions, one or more for each lifetime class (LLAMA §6.1, §8), and the
//! huge pages in them.
//!
//! The heap reserves the whole window ([`crate::units::window`]). A region's metadata becomes readable when
//! the region is first used, and its huge pages become usable one by one. If that much address space cannot
//! be reserved (RLIMIT_AS), the window is *piecemeal*: a range of addresses without a reservation. Then all
//! classes share its regions, which are filled one after the other, and each huge page and its metadata are
//! mapped when needed. If there are too few addresses (under valgrind, or on processors with 39 bits), the
//! window has fewer regions.
//!
//! The paper never reuses a huge page's addresses; here the lowest freed place is reused, so that page tables
//! and metadata stay small. One comparison with [`WINDOW`] shows whether an address has readable metadata.

use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::pages::available::AvailableSet;
use crate::pages::huge_page::HugePage;
use crate::span::cells::Span;
use crate::span::large_object::LargeObject;
use crate::system::lock::Lock;
use crate::system::os;
use crate::units::geometry::*;
use crate::units::window::{WINDOW, Window, huge_page_metadata_at, span_metadata_at};

/// The number of regions in the window.
static REGIONS: AtomicUsize = AtomicUsize::new(0);
/// Whether the window is piecemeal.
static PIECEMEAL: AtomicBool = AtomicBool::new(false);

struct Region {
    class: AtomicU8,
    /// Huge pages from here on were never used.
    frontier: AtomicU32,
}

/// The value of `Region::class` for any class.
const SHARED: u8 = u8::MAX;

static TABLE: [Region; MAX_REGIONS] =
    [const { Region { class: AtomicU8::new(0), frontier: AtomicU32::new(0) } }; MAX_REGIONS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Ids of huge pages that were used and are free.
static FREED: AvailableSet = AvailableSet::new();
/// Held while places for huge pages are chosen.
static PLACES: Lock = Lock::new();

/// The metadata of the block span around `address`, if that may be in the heap; the check of the fast path.
#[inline(always)]
pub fn span_if_plain(address: usize) -> Option<&'static Span> {
    let offset = WINDOW.offset(address);
    if offset >= WINDOW.readable.load(Relaxed) {
        return None;
    }
    let metadata = WINDOW.metadata.load(Relaxed) + span_metadata_at(offset);
    // SAFETY: this part of the metadata is mapped, zeroed is a valid Span, and it is never unmapped.
    unsafe {
        core::hint::assert_unchecked(metadata != 0);
        Some(&*(metadata as *const Span))
    }
}

/// Whether `address` lies in a huge page of the heap.
pub fn holds(address: usize) -> bool {
    let offset = WINDOW.offset(address);
    if offset >= WINDOW.readable.load(Acquire) {
        return false;
    }
    let frontier = TABLE[offset / REGION_BYTES].frontier.load(Acquire) as usize;
    offset % REGION_BYTES / HUGE_PAGE_BYTES < frontier
        && huge_page_in_window(address).high_water.load(Relaxed) != NEVER_MAPPED
}

/// The value of `high_water` for a page of a piecemeal window whose place has another mapping.
const NEVER_MAPPED: u16 = u16::MAX;

fn huge_page_in_window(address: usize) -> &'static HugePage {
    // SAFETY: huge page metadata of every region is mapped, zeroed is a valid HugePage, and it is never
    // unmapped.
    unsafe { &*(WINDOW.huge_page_metadata(address) as *const HugePage) }
}

/// The metadata of the huge page around `address`, which lies in a region.
#[inline(always)]
pub fn huge_page(address: usize) -> &'static HugePage {
    debug_assert!(WINDOW.offset(address) / REGION_BYTES < COUNT.load(Relaxed));
    huge_page_in_window(address)
}

/// The metadata of the block span around `address`, which [`holds`] has confirmed.
#[inline(always)]
pub fn span(address: usize) -> &'static Span {
    debug_assert!(holds(address));
    // SAFETY: the metadata is mapped, zeroed is a valid Span, and it is never unmapped.
    unsafe { &*(WINDOW.span_metadata(address) as *const Span) }
}

/// The metadata of the large object that begins at `address`, which [`holds`] has confirmed.
#[inline(always)]
pub fn large_object(address: usize) -> &'static LargeObject {
    span(address).large(block_index(address))
}

/// The huge page's number among all possible ones.
pub fn id(address: usize) -> usize {
    WINDOW.offset(address) / HUGE_PAGE_BYTES
}

/// The address of the huge page with this number.
pub fn address(id: usize) -> usize {
    WINDOW.base.load(Relaxed) + id * HUGE_PAGE_BYTES
}

/// The next id, from `start` on, of a huge page that was ever used; `None` at the end.
pub fn next_used(start: usize) -> Option<usize> {
    let (mut number, mut index) = (start / HUGE_PAGES_PER_REGION, start % HUGE_PAGES_PER_REGION);
    while number < COUNT.load(Acquire) {
        if index < TABLE[number].frontier.load(Acquire) as usize {
            let id = number * HUGE_PAGES_PER_REGION + index;
            if huge_page_in_window(address(id)).high_water.load(Relaxed) != NEVER_MAPPED {
                return Some(id);
            }
            index += 1;
            continue;
        }
        (number, index) = (number + 1, 0);
    }
    None
}

/// Takes a place for `count` adjacent huge pages, in a region of `class`; `None` if address space or memory
/// ran out. The pages are usable; fresh ones read as zero.
pub fn take(class: usize, count: usize) -> Option<usize> {
    let _places = PLACES.lock();
    let mut number = 0;
    loop {
        if number == COUNT.load(Relaxed) && !add_region(class) {
            break;
        }
        let region = &TABLE[number];
        let owner = region.class.load(Relaxed);
        if owner == SHARED || owner as usize == class {
            let start = number * HUGE_PAGES_PER_REGION;
            if let Some(at) = take_freed(start, count).or_else(|| take_fresh(number, count)) {
                return Some(at);
            }
            if (region.frontier.load(Relaxed) as usize) < HUGE_PAGES_PER_REGION {
                break; // there is room, but no memory
            }
        }
        number += 1;
    }
    // No more memory can be mapped (RLIMIT_DATA, RLIMIT_AS), but what other classes have freed is mapped. And
    // if there can be no more regions, those of other classes may have room.
    let mut regions = 0..COUNT.load(Relaxed);
    let freed = regions.clone().find_map(|number| take_freed(number * HUGE_PAGES_PER_REGION, count));
    freed.or_else(|| regions.find_map(|number| take_fresh(number, count)))
}

/// Whether released places are unusable until they are taken again.
static DECOMMITS: AtomicBool = AtomicBool::new(false);

/// Makes released places unusable, now and from now on: they count as the program's data, and it has reached
/// a limit (RLIMIT_DATA).
pub fn decommit_freed() {
    let _places = PLACES.lock();
    if is_piecemeal() || DECOMMITS.swap(true, Relaxed) {
        return;
    }
    let mut next = 0;
    while let Some(id) = FREED.first(next) {
        os::decommit(address(id), HUGE_PAGE_BYTES);
        next = id + 1;
    }
}

/// Releases a place for reuse; its memory was returned before. A piecemeal window also unmaps the addresses:
/// they are scarce there (RLIMIT_AS), and threads' stacks and the program's own mappings need them. The
/// metadata stays mapped.
pub fn give(address: usize) {
    let id = id(address);
    if is_piecemeal() {
        os::unmap(address, HUGE_PAGE_BYTES);
    } else if DECOMMITS.load(Relaxed) {
        os::decommit(address, HUGE_PAGE_BYTES);
    }
    FREED.insert(id);
}

fn is_piecemeal() -> bool {
    PIECEMEAL.load(Relaxed)
}

/// Maps released places of a piecemeal window again. If one cannot be mapped, it returns `false` and releases
/// the others, but not a place where the program has mapped something.
fn map_again(first: usize, count: usize) -> bool {
    for id in first..first + count {
        let at = address(id);
        if os::map_at(at, HUGE_PAGE_BYTES).is_some() {
            os::advise_huge(at, HUGE_PAGE_BYTES);
            continue;
        }
        (first..id).for_each(|id| give(address(id)));
        (id + 1..first + count).for_each(|id| FREED.insert(id));
        if os::is_room_for(HUGE_PAGE_BYTES) {
            huge_page_in_window(at).high_water.store(NEVER_MAPPED, Relaxed);
        } else {
            FREED.insert(id);
        }
        return false;
    }
    true
}

/// Whether the place is free for reuse.
pub fn is_freed(id: usize) -> bool {
    FREED.contains(id)
}

fn take_freed(start: usize, count: usize) -> Option<usize> {
    let end = start + HUGE_PAGES_PER_REGION;
    let mut first = FREED.first(start).filter(|&id| id < end)?;
    let mut run = 1;
    while run < count {
        let next = FREED.first(first + run).filter(|&id| id < end)?;
        (first, run) = if next == first + run { (first, run + 1) } else { (next, 1) };
    }
    for id in first..first + count {
        FREED.remove(id);
    }
    if is_piecemeal() && !map_again(first, count) {
        return None;
    }
    let at = address(first);
    if DECOMMITS.load(Relaxed) && !os::commit(at, count * HUGE_PAGE_BYTES) {
        (first..first + count).for_each(|id| give(address(id)));
        return None;
    }
    (0..count).for_each(|i| os::back_with_reserved(at + i * HUGE_PAGE_BYTES));
    Some(at)
}

fn take_fresh(number: usize, count: usize) -> Option<usize> {
    let region = &TABLE[number];
    let base = address(number * HUGE_PAGES_PER_REGION);
    let mut first = region.frontier.load(Relaxed) as usize;
    let mut run = 0;
    while run < count {
        let index = first + run;
        if index >= HUGE_PAGES_PER_REGION {
            return None;
        }
        let at = base + index * HUGE_PAGE_BYTES;
        let metadata = WINDOW.span_metadata(at);
        if is_piecemeal() {
            // Metadata stays mapped: after a failed attempt, this page's metadata is already there.
            if WINDOW.offset(at) >= WINDOW.readable.load(Relaxed) {
                os::map_at(metadata, SPAN_METADATA_PER_HUGE_PAGE)?;
                WINDOW.readable.store(WINDOW.offset(at) + HUGE_PAGE_BYTES, Release);
            }
            if os::map_at(at, HUGE_PAGE_BYTES).is_none() {
                // Either memory ran out, and the next place would fail too, or another mapping is in the way.
                if !os::is_room_for(HUGE_PAGE_BYTES) {
                    return abandon(first, run, base);
                }
                huge_page_in_window(at).high_water.store(NEVER_MAPPED, Relaxed);
                abandon(first, run, base);
                region.frontier.store(index as u32 + 1, Release);
                (first, run) = (index + 1, 0);
                continue;
            }
            os::advise_huge(at, HUGE_PAGE_BYTES);
        } else if !os::commit(at, HUGE_PAGE_BYTES) || !os::commit(metadata, SPAN_METADATA_PER_HUGE_PAGE) {
            return abandon(first, run, base);
        }
        region.frontier.store(index as u32 + 1, Release);
        os::back_with_reserved(at);
        run += 1;
    }
    Some(base + first * HUGE_PAGE_BYTES)
}

/// Releases an incomplete run for other requests.
fn abandon(first: usize, run: usize, base: usize) -> Option<usize> {
    (first..first + run).for_each(|index| give(base + index * HUGE_PAGE_BYTES));
    None
}

fn add_region(class: usize) -> bool {
    let number = COUNT.load(Relaxed);
    if !is_open() && !open() || number == REGIONS.load(Relaxed) {
        return false;
    }
    let at = address(number * HUGE_PAGES_PER_REGION);
    let of_pages = WINDOW.huge_page_metadata(at);
    const OF_PAGES: usize = huge_page_metadata_at(REGION_BYTES);
    let of_spans = WINDOW.span_metadata(at);
    const OF_SPANS: usize = span_metadata_at(REGION_BYTES);
    if is_piecemeal() {
        if os::map_at(of_pages, OF_PAGES).is_none() {
            return false;
        }
    } else if !may_have_more() || !os::allow_reads(of_spans, OF_SPANS) || !os::commit(of_pages, OF_PAGES) {
        return false;
    } else {
        os::advise_small(of_spans, OF_SPANS);
        os::advise_huge(at, REGION_BYTES);
        WINDOW.readable.store((number + 1) * REGION_BYTES, Release);
    }
    os::advise_small(of_pages, OF_PAGES);
    TABLE[number].class.store(if is_piecemeal() { SHARED } else { class as u8 }, Relaxed);
    COUNT.store(number + 1, Release);
    true
}

/// A program that limits its address space after the window is reserved means to limit its memory.
fn may_have_more() -> bool {
    os::reserve(REGION_BYTES, HUGE_PAGE_BYTES).map(|probe| os::unmap(probe, REGION_BYTES)).is_some()
}

fn is_open() -> bool {
    WINDOW.base.load(Relaxed) != 0
}

/// Finds a place for the window, with as many regions as there are addresses for.
fn open() -> bool {
    core::iter::successors(Some(MAX_REGIONS), |&regions| (regions > 1).then_some(regions / 4)).any(
        |regions| {
            let whole = os::reserve(Window::bytes(regions), HUGE_PAGE_BYTES);
            let Some(metadata) = whole.or_else(|| find_place(regions)) else { return false };
            PIECEMEAL.store(whole.is_none(), Relaxed);
            REGIONS.store(regions, Relaxed);
            WINDOW.open(metadata, regions);
            true
        },
    )
}

/// Finds addresses for a window and its metadata: a range that seems unmapped, as probed at both ends and at
/// some places between.
fn find_place(regions: usize) -> Option<usize> {
    let mut end = os::map_anywhere(HUGE_PAGE_BYTES)?;
    os::unmap(end, HUGE_PAGE_BYTES);
    for _ in 0..64 {
        end = end.checked_sub(Window::bytes(regions))?;
        let metadata = end & !(HUGE_PAGE_BYTES - 1);
        let base = metadata + Window::lead(regions);
        let looked_at = [metadata, base - HUGE_PAGE_BYTES, base, base + regions * REGION_BYTES / 2];
        let is_free =
            |&at: &usize| os::map_at(at, HUGE_PAGE_BYTES).map(|at| os::unmap(at, HUGE_PAGE_BYTES)).is_some();
        if looked_at.iter().all(is_free) {
            return Some(metadata);
        }
    }
    None
}
