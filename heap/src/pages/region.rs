//! Address space: 16 GiB regions, one or more for each lifetime class (LLAMA §6.1, §8), and the huge pages in them.
//!
//! A region is reserved whole, its metadata readable from the start and its huge pages made usable one by one.
//! Where that much address space is not to be had (RLIMIT_AS, strict overcommit), a *piecemeal* region claims only
//! a place, shared by all classes, and maps each huge page and its metadata when they are needed.
//!
//! The paper never uses a huge page's addresses twice; here the lowest freed place is used again, so that page
//! tables and metadata stay small. [`SPAN_METADATA`] answers in one load whether an
//! address can be the heap's, and where its metadata is.

use core::sync::atomic::{
    AtomicU8, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::pages::available::AvailableSet;
use crate::pages::huge_page::HugePage;
use crate::span::cells::Span;
use crate::system::lock::Lock;
use crate::system::os;
use crate::units::geometry::*;

/// In [`REGIONS`]: the region is piecemeal, so metadata may be unmapped.
const PIECEMEAL: u8 = 0x80;

/// For each 16 GiB of address space: 0, or the region's number plus one.
static REGIONS: [AtomicU8; REGION_SLOTS] = [const { AtomicU8::new(0) }; REGION_SLOTS];

/// For each 16 GiB of address space: 0, or what to add to (address / 16 KiB) × 320 to get to the span's metadata. Piecemeal
/// regions, whose metadata may be unmapped, have 0: they are asked about by [`holds`].
static SPAN_METADATA: [AtomicUsize; REGION_SLOTS] = [const { AtomicUsize::new(0) }; REGION_SLOTS];

struct Region {
    base: AtomicUsize,
    class: AtomicU8,
    /// Huge pages from here on were never used.
    frontier: AtomicU32,
}

/// In `Region::class`: any class.
const SHARED: u8 = u8::MAX;

static TABLE: [Region; MAX_REGIONS] =
    [const { Region { base: AtomicUsize::new(0), class: AtomicU8::new(0), frontier: AtomicU32::new(0) } };
        MAX_REGIONS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Huge pages that were used and are free, by id.
static FREED: AvailableSet = AvailableSet::new();
/// Held while places for huge pages are chosen.
static PLACES: Lock = Lock::new();

/// The metadata of the block span around `address`, if that is in a region; the fast path's question.
#[inline(always)]
pub fn span_if_plain(address: usize) -> Option<&'static Span> {
    let base = SPAN_METADATA.get(address >> REGION_SHIFT)?.load(Relaxed);
    if base == 0 {
        return None;
    }
    let metadata = (address / SPAN_BYTES * SPAN_METADATA_BYTES).wrapping_add(base);
    // SAFETY: a region's metadata is mapped, zeroed is a valid Span, and it is never unmapped.
    unsafe {
        core::hint::assert_unchecked(metadata != 0);
        Some(&*(metadata as *const Span))
    }
}

/// Whether `address` lies among the huge pages of the heap, with metadata that is mapped.
pub fn holds(address: usize) -> bool {
    let Some(slot) = REGIONS.get(address >> REGION_SHIFT) else { return false };
    let number = slot.load(Acquire);
    if number == 0 {
        return false;
    }
    let region = &TABLE[(number & !PIECEMEAL) as usize - 1];
    let index = huge_page_index(address);
    index >= FIRST_HUGE_PAGE
        && index < region.frontier.load(Acquire) as usize
        && (number & PIECEMEAL == 0 || huge_page_in_region(address).high_water.load(Relaxed) != NEVER_MAPPED)
}

/// In `high_water` of a piecemeal page: another mapping was in the way.
const NEVER_MAPPED: u16 = u16::MAX;

fn huge_page_in_region(address: usize) -> &'static HugePage {
    // SAFETY: huge page metadata of every region is mapped, zeroed is a valid HugePage, and it is never unmapped.
    unsafe { &*(huge_page_metadata_address(address) as *const HugePage) }
}

/// The metadata of the huge page around `address`, which lies in a region.
#[inline(always)]
pub fn huge_page(address: usize) -> &'static HugePage {
    debug_assert!(REGIONS[address >> REGION_SHIFT].load(Relaxed) != 0);
    huge_page_in_region(address)
}

/// The metadata of the block span around `address`, for which [`holds`] said yes.
#[inline(always)]
pub fn span(address: usize) -> &'static Span {
    debug_assert!(holds(address));
    // SAFETY: the metadata is mapped, zeroed is a valid Span, and it is never unmapped.
    unsafe { &*(span_metadata_address(address) as *const Span) }
}

/// The huge page's number among all that the heap can have.
pub fn id(address: usize) -> usize {
    let number = (REGIONS[address >> REGION_SHIFT].load(Relaxed) & !PIECEMEAL) as usize;
    (number - 1) * HUGE_PAGES_PER_REGION + huge_page_index(address)
}

/// The address of the huge page with this number.
pub fn address(id: usize) -> usize {
    TABLE[id / HUGE_PAGES_PER_REGION].base.load(Relaxed) + id % HUGE_PAGES_PER_REGION * HUGE_PAGE_BYTES
}

/// Ids of all huge pages that were ever used, region by region, from `start` on; the end wraps to `None`.
pub fn next_used(start: usize) -> Option<usize> {
    let (mut number, mut index) = (start / HUGE_PAGES_PER_REGION, start % HUGE_PAGES_PER_REGION);
    while number < COUNT.load(Acquire) {
        let index_from = index.max(FIRST_HUGE_PAGE);
        if index_from < TABLE[number].frontier.load(Acquire) as usize {
            let id = number * HUGE_PAGES_PER_REGION + index_from;
            if huge_page_in_region(address(id)).high_water.load(Relaxed) != NEVER_MAPPED {
                return Some(id);
            }
            index = index_from + 1;
            continue;
        }
        (number, index) = (number + 1, 0);
    }
    None
}

/// A place for `count` huge pages in a row, in a region of `class`; `None` when address space or memory ran out.
/// The pages are usable; fresh ones read as zero.
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
            if let Some(at) = take_freed(start, count).or_else(|| take_fresh(region, count)) {
                return Some(at);
            }
            if (region.frontier.load(Relaxed) as usize) < HUGE_PAGES_PER_REGION {
                break; // there is room, but no memory
            }
        }
        number += 1;
    }
    // No more memory may be mapped (RLIMIT_DATA, RLIMIT_AS): what other classes have freed is mapped already.
    (0..COUNT.load(Relaxed)).find_map(|number| take_freed(number * HUGE_PAGES_PER_REGION, count))
}

/// Gives a place back for reuse; its memory was returned before. In a piecemeal region the addresses go back, too: there they
/// are what is scarce (RLIMIT_AS), and threads' stacks and the program's own mappings need them. The metadata stays mapped.
pub fn give(address: usize) {
    let id = id(address);
    if is_shared(id) {
        os::unmap(address, HUGE_PAGE_BYTES);
    }
    FREED.insert(id);
}

fn is_shared(id: usize) -> bool {
    TABLE[id / HUGE_PAGES_PER_REGION].class.load(Relaxed) == SHARED
}

/// Maps places of a piecemeal region again that were given back; `false` if one cannot be: all are given back then, but one
/// in whose place something else is mapped now.
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
            huge_page_in_region(at).high_water.store(NEVER_MAPPED, Relaxed);
        } else {
            FREED.insert(id);
        }
        return false;
    }
    true
}

/// Whether the place can be used again.
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
    if is_shared(first) && !map_again(first, count) {
        return None;
    }
    let at = address(first);
    (0..count).for_each(|i| os::back_with_reserved(at + i * HUGE_PAGE_BYTES));
    Some(at)
}

fn take_fresh(region: &Region, count: usize) -> Option<usize> {
    let base = region.base.load(Relaxed);
    let mut first = region.frontier.load(Relaxed) as usize;
    let mut run = 0;
    while run < count {
        let index = first + run;
        if index >= HUGE_PAGES_PER_REGION {
            return None;
        }
        let at = base + index * HUGE_PAGE_BYTES;
        let metadata = span_metadata_address(at);
        if region.class.load(Relaxed) == SHARED {
            os::map_at(metadata, SPAN_METADATA_PER_HUGE_PAGE)?;
            if os::map_at(at, HUGE_PAGE_BYTES).is_none() {
                // Either memory ran out, then the next place fails too, or something is in the way.
                os::unmap(metadata, SPAN_METADATA_PER_HUGE_PAGE);
                if !os::is_room_for(HUGE_PAGE_BYTES) {
                    return abandon(first, run, base);
                }
                huge_page_in_region(at).high_water.store(NEVER_MAPPED, Relaxed);
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

/// A run that could not be completed: what it has is free for others.
fn abandon(first: usize, run: usize, base: usize) -> Option<usize> {
    (first..first + run).for_each(|index| give(base + index * HUGE_PAGE_BYTES));
    None
}

fn add_region(class: usize) -> bool {
    let number = COUNT.load(Relaxed);
    if number == MAX_REGIONS {
        return false;
    }
    let (base, owner, mark) = match reserve_whole() {
        Some(base) => (base, class as u8, 0),
        None => match claim_place() {
            Some(base) => (base, SHARED, PIECEMEAL),
            None => return false,
        },
    };
    let region = &TABLE[number];
    region.base.store(base, Relaxed);
    region.class.store(owner, Relaxed);
    region.frontier.store(FIRST_HUGE_PAGE as u32, Relaxed);
    REGIONS[base >> REGION_SHIFT].store((number as u8 + 1) | mark, Release);
    if mark == 0 {
        let of_first_span = base / SPAN_BYTES * SPAN_METADATA_BYTES;
        let metadata = (base + SPAN_METADATA_OFFSET).wrapping_sub(of_first_span);
        SPAN_METADATA[base >> REGION_SHIFT].store(metadata, Release);
    }
    COUNT.store(number + 1, Release);
    true
}

fn reserve_whole() -> Option<usize> {
    let base = os::reserve(REGION_BYTES, REGION_BYTES)?;
    let objects = base + FIRST_HUGE_PAGE * HUGE_PAGE_BYTES;
    if !os::allow_reads(base, objects - base) || !os::commit(base, SPAN_METADATA_OFFSET) {
        os::unmap(base, REGION_BYTES);
        return None;
    }
    os::advise_small(base, objects - base);
    os::advise_huge(objects, base + REGION_BYTES - objects);
    Some(base)
}

/// A region's base in a free part of the address space, with only the huge page metadata mapped.
fn claim_place() -> Option<usize> {
    let probe = os::map_anywhere(HUGE_PAGE_BYTES)?;
    os::unmap(probe, HUGE_PAGE_BYTES);
    let mut base = region_base(probe);
    for _ in 0..64 {
        base = base.checked_sub(REGION_BYTES).filter(|&base| base >= REGION_BYTES)?;
        if let Some(at) = os::map_at(base, SPAN_METADATA_OFFSET) {
            return Some(at);
        }
    }
    None
}
