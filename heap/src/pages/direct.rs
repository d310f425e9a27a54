//! Objects so large that each has its own mapping, aligned to a huge page and found through a small hash
//! table.
//!
//! They begin at 16 MiB, eight huge pages: there sharing the last page would save little, and the kernel can
//! grow and move them by their page tables (mremap) instead of copying.
//!
//! Programs allocate tables of this size of which they use little, and others that they fill. So an object
//! begins on the pages that the system gives, as other allocators' do, unless the last one of its size was
//! filled or 128 MiB are on such pages. [`consider`] asks for huge ones once it is filled.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::pages::decay;
use crate::system::filtered;
use crate::system::lock::Lock;
use crate::system::os;
use crate::units::geometry::{HUGE_PAGE_BYTES, PAGE_BYTES, round_up};

const FIRST_CAPACITY: usize = 256;

static LOCK: Lock = Lock::new();
/// The table of objects. An entry has two words: the address, 0 in an empty one, and the mapped bytes, with
/// notes in the bits that whole pages leave free. `mayfly who` finds the table by this symbol and reads it in
/// other processes: nothing else tells such an object from a mapping of the program's own.
#[unsafe(no_mangle)]
#[used]
#[allow(non_upper_case_globals)] // as the other symbols that the library has
pub static mayfly_heap_objects: Table = Table { address: AtomicUsize::new(0), capacity: AtomicUsize::new(0) };

/// Where the table is, and its capacity, a power of two.
#[repr(C)]
pub struct Table {
    address: AtomicUsize,
    capacity: AtomicUsize,
}

static COUNT: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// The sizes, by their logarithm, of which the last object seen was filled.
static FILLED: AtomicU64 = AtomicU64::new(0);
/// Counts objects of these sizes: of every 16th it is seen whether that still holds.
static OF_FILLED: AtomicU32 = AtomicU32::new(1);
const SEEN_AGAIN: u32 = 16;

/// Mapped bytes of objects that began on the system's pages, and the most: more would take long to touch.
static SMALL_BYTES: AtomicUsize = AtomicUsize::new(0);
const MOST_SMALL_BYTES: usize = 128 << 20;

/// The notes of an entry: the object's class, how often it was looked at, and whether the heap has not asked
/// for huge pages yet.
const CLASS: usize = 0xFF;
const A_LOOK: usize = 0x100;
const LOOKS: usize = 0x700;
const SMALL: usize = 0x800;
/// Smaller objects are here for their alignment.
const LEAST_SMALL_BYTES: usize = 8 * HUGE_PAGE_BYTES;
/// Huge pages of an object that are examined at a time.
const EXAMINED: usize = 32;

type Entry = [AtomicUsize; 2];

fn entries() -> &'static [Entry] {
    let Table { address, capacity } = &mayfly_heap_objects;
    // SAFETY: the table is a mapping of `capacity` entries (none at first); both change only with LOCK held,
    // as here.
    unsafe {
        let table = address.load(Relaxed) as *const Entry;
        if table.is_null() { &[] } else { core::slice::from_raw_parts(table, capacity.load(Relaxed)) }
    }
}

fn home(address: usize, capacity: usize) -> usize {
    (address / PAGE_BYTES).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20 & (capacity - 1)
}

fn bytes_of(entry: &Entry) -> usize {
    entry[1].load(Relaxed) & !(PAGE_BYTES - 1)
}

fn notes_of(entry: &Entry) -> usize {
    entry[1].load(Relaxed) & (PAGE_BYTES - 1)
}

fn find(address: usize) -> Option<usize> {
    let entries = entries();
    if entries.is_empty() || address == 0 {
        return None;
    }
    let mut i = home(address, entries.len());
    loop {
        match entries[i][0].load(Relaxed) {
            0 => return None,
            there if there == address => return Some(i),
            _ => i = (i + 1) & (entries.len() - 1),
        }
    }
}

fn insert(address: usize, bytes: usize, notes: usize) -> bool {
    if (COUNT.load(Relaxed) + 1) * 2 > entries().len() && !grow() {
        return false;
    }
    let entries = entries();
    let mut i = home(address, entries.len());
    while entries[i][0].load(Relaxed) != 0 {
        i = (i + 1) & (entries.len() - 1);
    }
    entries[i][0].store(address, Relaxed);
    entries[i][1].store(bytes | notes, Relaxed);
    COUNT.fetch_add(1, Relaxed);
    BYTES.fetch_add(bytes, Relaxed);
    SMALL_BYTES.fetch_add(small_bytes(bytes, notes), Relaxed);
    true
}

fn small_bytes(bytes: usize, notes: usize) -> usize {
    if notes & SMALL != 0 { bytes } else { 0 }
}

fn grow() -> bool {
    let (old, old_table) = (entries(), mayfly_heap_objects.address.load(Relaxed));
    let capacity = (old.len() * 2).max(FIRST_CAPACITY);
    let Some(table) = os::map_anywhere(capacity * size_of::<Entry>()) else { return false };
    mayfly_heap_objects.address.store(table, Relaxed);
    mayfly_heap_objects.capacity.store(capacity, Relaxed);
    COUNT.store(0, Relaxed);
    BYTES.store(0, Relaxed);
    SMALL_BYTES.store(0, Relaxed);
    for entry in old {
        if entry[0].load(Relaxed) != 0 {
            insert(entry[0].load(Relaxed), bytes_of(entry), notes_of(entry));
        }
    }
    if old_table != 0 {
        os::unmap(old_table, size_of_val(old));
    }
    true
}

/// Removes entry `i`; displaced entries behind it move up. Returns the mapped bytes and the notes.
fn remove(mut i: usize) -> (usize, usize) {
    let entries = entries();
    let (bytes, notes) = (bytes_of(&entries[i]), notes_of(&entries[i]));
    let mut next = i;
    loop {
        next = (next + 1) & (entries.len() - 1);
        let address = entries[next][0].load(Relaxed);
        if address == 0 {
            break;
        }
        let wanted = home(address, entries.len());
        if (next.wrapping_sub(wanted) & (entries.len() - 1)) >= (next.wrapping_sub(i) & (entries.len() - 1)) {
            entries[i][0].store(address, Relaxed);
            entries[i][1].store(entries[next][1].load(Relaxed), Relaxed);
            i = next;
        }
    }
    entries[i][0].store(0, Relaxed);
    COUNT.fetch_sub(1, Relaxed);
    BYTES.fetch_sub(bytes, Relaxed);
    SMALL_BYTES.fetch_sub(small_bytes(bytes, notes), Relaxed);
    (bytes, notes)
}

/// Whether an object of this size begins without huge pages.
fn begins_small(bytes: usize) -> bool {
    let was_filled = FILLED.load(Relaxed) & size_bit(bytes) != 0;
    let is_seen_again = || OF_FILLED.fetch_add(1, Relaxed).is_multiple_of(SEEN_AGAIN);
    let has_room = bytes >= LEAST_SMALL_BYTES && SMALL_BYTES.load(Relaxed) + bytes <= MOST_SMALL_BYTES;
    has_room && decay::is_on() && !filtered::is_possible() && (!was_filled || is_seen_again())
}

fn size_bit(bytes: usize) -> u64 {
    1 << bytes.ilog2()
}

/// Whether an object is filled: three quarters of those of its huge pages that were touched are. `None` if
/// none was, or the kernel does not tell.
fn is_filled(address: usize, bytes: usize) -> Option<bool> {
    let pages = bytes.div_ceil(HUGE_PAGE_BYTES);
    let (mut touched, mut resident) = (0, 0);
    for at in (0..pages).step_by(pages.div_ceil(EXAMINED)).map(|page| page * HUGE_PAGE_BYTES) {
        let examined = HUGE_PAGE_BYTES.min(bytes - at);
        let count = os::resident_pages(address + at, examined)?;
        resident += count;
        touched += if count > 0 { examined / PAGE_BYTES } else { 0 };
    }
    (touched > 0).then_some(resident * 4 >= touched * 3)
}

/// Notes of what an object's size was.
fn learn(bytes: usize, filled: Option<bool>) {
    match filled {
        Some(true) => FILLED.fetch_or(size_bit(bytes), Relaxed),
        Some(false) => FILLED.fetch_and(!size_bit(bytes), Relaxed),
        None => return,
    };
}

/// Asks for huge pages in objects that are filled by now; looks at each ever more rarely. Called in turn, by
/// one thread; `turn` counts the calls.
pub fn consider(turn: u32) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let _guard = LOCK.lock();
    for entry in entries().iter().filter(|entry| entry[0].load(Relaxed) != 0) {
        let (address, bytes, notes) = (entry[0].load(Relaxed), bytes_of(entry), notes_of(entry));
        let looks = (notes & LOOKS) / A_LOOK;
        if notes & SMALL == 0 || !turn.is_multiple_of(1 << looks) {
            continue;
        }
        let filled = is_filled(address, bytes);
        if looks == 0 || filled == Some(true) {
            learn(bytes, filled);
        }
        let notes = if filled == Some(true) || filtered::is_possible() {
            os::advise_huge(address, bytes);
            SMALL_BYTES.fetch_sub(bytes, Relaxed);
            notes & !(SMALL | LOOKS)
        } else {
            notes & !LOOKS | ((looks + 1).min(LOOKS / A_LOOK) * A_LOOK)
        };
        entry[1].store(bytes | notes, Relaxed);
    }
}

/// Allocates fresh zeroed memory; `None` if memory or address space ran out.
pub fn allocate(class: usize, size: usize, alignment: usize) -> Option<usize> {
    let bytes = round_up(size.max(1), PAGE_BYTES)?;
    let alignment = alignment.max(HUGE_PAGE_BYTES);
    let whole = bytes.checked_add(alignment)?;
    let mapping = os::map_object(whole)?;
    let address = mapping.next_multiple_of(alignment);
    os::unmap(mapping, address - mapping);
    os::unmap(address + bytes, mapping + whole - address - bytes);
    let is_small = begins_small(bytes);
    if !is_small {
        os::advise_huge(address, bytes);
    }
    let _guard = LOCK.lock();
    if !insert(address, bytes, class | if is_small { SMALL } else { 0 }) {
        os::unmap(address, bytes);
        return None;
    }
    Some(address)
}

/// The mapped bytes of the object at `address`; `None` if there is none.
pub fn size(address: usize) -> Option<usize> {
    let _guard = LOCK.lock();
    find(address).map(|i| bytes_of(&entries()[i]))
}

/// The size of the object that contains `address`; for messages.
#[cold]
pub fn size_around(address: usize) -> Option<usize> {
    let _guard = LOCK.lock();
    let around = |entry: &&Entry| {
        let start = entry[0].load(Relaxed);
        start != 0 && (start..start + bytes_of(entry)).contains(&address)
    };
    entries().iter().find(around).map(bytes_of)
}

/// Frees the object at `address`; returns its size, or `None` if there is none.
pub fn free(address: usize) -> Option<usize> {
    let (bytes, notes) = {
        let _guard = LOCK.lock();
        remove(find(address)?)
    };
    if notes & SMALL != 0 {
        learn(bytes, is_filled(address, bytes));
    }
    os::unmap(address, bytes);
    Some(bytes)
}

/// Changes an entry. One that has grown beyond the bound of [`SMALL_BYTES`] gets huge pages.
fn put_back(i: usize, address: usize, bytes: usize, mut notes: usize) {
    remove(i);
    if SMALL_BYTES.load(Relaxed) + small_bytes(bytes, notes) > MOST_SMALL_BYTES {
        os::advise_huge(address, bytes);
        notes &= !(SMALL | LOOKS);
    }
    insert(address, bytes, notes); // has room: one was just removed
}

/// Changes the size, moving the pages if necessary; returns the new address, or `None` if nothing changed.
pub fn resize(address: usize, size: usize) -> Option<usize> {
    let bytes = round_up(size, PAGE_BYTES)?;
    let _guard = LOCK.lock();
    let i = find(address)?;
    let (old_bytes, notes) = (bytes_of(&entries()[i]), notes_of(&entries()[i]));
    let moved = os::remap(address, old_bytes, bytes)?;
    put_back(i, moved, bytes, notes);
    Some(moved)
}

/// Changes the size if the mapping can stay where it is; whether it changed.
pub fn resize_unmoved(address: usize, size: usize) -> bool {
    let Some(bytes) = round_up(size, PAGE_BYTES) else { return false };
    let _guard = LOCK.lock();
    let Some(i) = find(address) else { return false };
    let (old_bytes, notes) = (bytes_of(&entries()[i]), notes_of(&entries()[i]));
    let resized = os::resize_mapping(address, old_bytes, bytes);
    if resized {
        put_back(i, address, bytes, notes);
    }
    resized
}

/// Passes the range of each object of `class` to `found`, which must neither allocate nor free.
pub fn each(class: usize, mut found: impl FnMut(Range<usize>)) {
    let _guard = LOCK.lock();
    for entry in
        entries().iter().filter(|entry| entry[0].load(Relaxed) != 0 && notes_of(entry) & CLASS == class)
    {
        let start = entry[0].load(Relaxed);
        found(start..start + bytes_of(entry));
    }
}

/// The number of objects, and their mapped bytes.
pub fn total() -> (usize, usize) {
    (COUNT.load(Relaxed), BYTES.load(Relaxed))
}

/// Bytes of the objects that are not resident, as far as the kernel tells; none of those on huge pages.
pub fn untouched_bytes() -> usize {
    let _guard = LOCK.lock();
    let untouched = |entry: &Entry| -> Option<usize> {
        let (address, bytes) = (entry[0].load(Relaxed), bytes_of(entry));
        let pages = |at| os::resident_pages(address + at, HUGE_PAGE_BYTES.min(bytes - at));
        let resident = (0..bytes).step_by(HUGE_PAGE_BYTES).map(pages).sum::<Option<usize>>()?;
        Some(bytes.saturating_sub(resident * PAGE_BYTES))
    };
    let small = |entry: &&Entry| entry[0].load(Relaxed) != 0 && notes_of(entry) & SMALL != 0;
    entries().iter().filter(small).filter_map(untouched).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_and_frees_many_mappings() {
        let addresses: std::vec::Vec<_> =
            (0..600).map(|i| allocate(i % 7, PAGE_BYTES * (1 + i % 7), 1).unwrap()).collect();
        for (i, &address) in addresses.iter().enumerate() {
            assert_eq!(size(address), Some(PAGE_BYTES * (1 + i % 7)));
            assert_eq!(address % HUGE_PAGE_BYTES, 0);
        }
        let mut of_class_3 = 0;
        each(3, |range| of_class_3 += (range.len() == PAGE_BYTES * 4) as usize);
        assert_eq!(of_class_3, 600 / 7 + 1);
        for &address in addresses.iter().step_by(2) {
            assert!(free(address).is_some());
            assert_eq!(free(address), None);
        }
        for (i, &address) in addresses.iter().enumerate().skip(1).step_by(2) {
            assert_eq!(free(address), Some(PAGE_BYTES * (1 + i % 7)));
        }
    }
}
