//! A large object of which the program uses little does not lie on huge pages in a young heap, and one that
//! it fills does. Programs allocate tables for the worst case: slapd has 18 MiB for each thread, and writes
//! to 100 KiB of them.

mod model_time;

use heap::observe::stats;
use heap::system::os;
use heap::units::geometry::{BLOCK_BYTES, HUGE_PAGE_BYTES};
use heap::units::lifetime_class::FOREVER;
use model_time::{SHORT, allocate, free};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Small pages of an object that are in memory.
fn resident(object: usize, bytes: usize) -> usize {
    let first = object & !(PAGE - 1);
    let parts = (first..object + bytes).step_by(HUGE_PAGE_BYTES);
    parts.map(|at| os::resident_pages(at, HUGE_PAGE_BYTES.min(object + bytes - at)).unwrap()).sum()
}

fn touch(object: usize, bytes: usize) {
    // SAFETY: an object of this test's, of at least so many bytes.
    unsafe { std::ptr::write_bytes(object as *mut u8, 1, bytes) };
}

/// Whether the mapping at an address asks for huge pages.
fn asks_for_huge_pages(address: usize) -> bool {
    let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_here = false;
    for line in all.lines() {
        let ends = line.split_whitespace().next().and_then(|word| word.split_once('-'));
        if let Some((start, end)) = ends
            && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
        {
            is_here = (start..end).contains(&address);
        } else if is_here && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.split_whitespace().any(|flag| flag == "hg");
        }
    }
    panic!("{address:#x} is not mapped");
}

#[test]
fn tables_of_which_little_is_used_are_small_pages_and_filled_ones_huge() {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let probe = vec![0u8; 2 * PAGE];
    if !setting.contains("[madvise]")
        || os::resident_pages(probe.as_ptr() as usize & !(PAGE - 1), 1).is_none()
    {
        eprintln!("\nskipped: tables_of_which_little_is_used: needs huge pages `madvise`, and no filter");
        return;
    }
    let mut pass = model_time::begin();
    // More than a small heap, whose pages are all small.
    let others: Vec<usize> = (0..20).map(|_| allocate(HUGE_PAGE_BYTES / 3, SHORT)).collect();
    let tables: Vec<(usize, usize)> = [2 * MIB - BLOCK_BYTES, 3 * MIB, 18 * MIB]
        .into_iter()
        .flat_map(|bytes| (0..2).map(move |_| (allocate(bytes, FOREVER), bytes)))
        .collect();
    for &(table, bytes) in &tables {
        touch(table, 2 * PAGE);
        touch(table + bytes - PAGE, 1);
    }
    let all = || -> usize { tables.iter().map(|&(table, bytes)| resident(table, bytes)).sum() };
    assert!(all() <= 4 * tables.len(), "{} pages", all());
    let census = stats::census();
    assert!(census.direct.1 - census.untouched_bytes <= 8 * PAGE, "{} untouched", census.untouched_bytes);
    pass(3_000);
    for &(table, bytes) in &tables {
        touch(table + bytes / 2, PAGE);
    }
    assert!(all() <= 6 * tables.len(), "{} pages after three seconds", all());

    let filled = allocate(40 * MIB, FOREVER);
    assert!(!asks_for_huge_pages(filled));
    touch(filled, 12 * MIB);
    pass(300);
    assert!(asks_for_huge_pages(filled));
    let next = allocate(40 * MIB, FOREVER);
    assert!(asks_for_huge_pages(next), "the next of its size");
    [filled, next].iter().chain(&others).for_each(|&object| free(object));
    tables.iter().for_each(|&(table, _)| free(table));
}
