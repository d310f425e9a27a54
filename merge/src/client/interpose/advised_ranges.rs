//! Ranges that were anonymous and have been advised, in order. Allocators may read them at any time, from
//! inside a call. The table holds more than is shared: ranges that were unmapped since stay in it. The kernel
//! reports the present mapping.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::lock;

/// Capacity of the table.
const MAX_RANGES: usize = 8192;

static STARTS: [AtomicUsize; MAX_RANGES] = [const { AtomicUsize::new(0) }; MAX_RANGES];
static ENDS: [AtomicUsize; MAX_RANGES] = [const { AtomicUsize::new(0) }; MAX_RANGES];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Odd while a thread writes; another even number afterwards.
static VERSION: AtomicUsize = AtomicUsize::new(0);

/// Whether some of the range was ever advised.
pub fn overlaps(range: &Range<usize>) -> bool {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return false;
    }
    loop {
        let before = VERSION.load(Ordering::Acquire);
        if before.is_multiple_of(2) {
            let found = search(range);
            std::sync::atomic::fence(Ordering::Acquire);
            if VERSION.load(Ordering::Relaxed) == before {
                return found;
            }
        } else if !lock::is_taken() && VERSION.load(Ordering::Acquire) == before {
            // A child that was forked by clone during the write: the writer does not exist here, and the
            // table may lack a range.
            return true;
        }
        std::hint::spin_loop();
    }
}

fn search(range: &Range<usize>) -> bool {
    let at = first_ending_after(range.start);
    at < COUNT.load(Ordering::Relaxed).min(MAX_RANGES) && STARTS[at].load(Ordering::Relaxed) < range.end
}

fn first_ending_after(address: usize) -> usize {
    let (mut low, mut high) = (0, COUNT.load(Ordering::Relaxed).min(MAX_RANGES));
    while low < high {
        let middle = (low + high) / 2;
        if ENDS[middle].load(Ordering::Relaxed) > address { high = middle } else { low = middle + 1 }
    }
    low
}

/// The only writer: the thread that holds the lock. It adds this to the version before and after.
struct Writer(usize);

impl Writer {
    fn begin() -> Writer {
        // Odd: in a child that was forked during a write, which it remains.
        let step = if VERSION.load(Ordering::Relaxed).is_multiple_of(2) { 1 } else { 2 };
        VERSION.fetch_add(step, Ordering::AcqRel);
        Writer(step)
    }

    /// Replaces the ranges `from..to` by `by`, of which there are at most two.
    fn replace(&self, from: usize, to: usize, by: &[Range<usize>]) -> bool {
        let count = COUNT.load(Ordering::Relaxed);
        let left = count - (to - from) + by.len();
        if left > MAX_RANGES {
            return false;
        }
        let put = |at: usize, (start, end): (usize, usize)| {
            STARTS[at].store(start, Ordering::Relaxed);
            ENDS[at].store(end, Ordering::Relaxed);
        };
        let get = |at: usize| (STARTS[at].load(Ordering::Relaxed), ENDS[at].load(Ordering::Relaxed));
        let rest = count - to;
        if from + by.len() > to {
            (0..rest).rev().for_each(|i| put(from + by.len() + i, get(to + i)));
        } else {
            (0..rest).for_each(|i| put(from + by.len() + i, get(to + i)));
        }
        by.iter().enumerate().for_each(|(i, range)| put(from + i, (range.start, range.end)));
        COUNT.store(left, Ordering::Relaxed);
        true
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        VERSION.fetch_add(self.0, Ordering::Release);
    }
}

/// Adds a range; the caller holds the lock. False if the table is full: then the range must not be shared.
pub fn add(range: &Range<usize>) -> bool {
    let writer = Writer::begin();
    // Ranges that it touches are joined with it.
    let from = first_ending_after(range.start.saturating_sub(1));
    let mut to = from;
    let mut joined = range.clone();
    while to < COUNT.load(Ordering::Relaxed) && STARTS[to].load(Ordering::Relaxed) <= range.end {
        joined.start = joined.start.min(STARTS[to].load(Ordering::Relaxed));
        joined.end = joined.end.max(ENDS[to].load(Ordering::Relaxed));
        to += 1;
    }
    writer.replace(from, to, &[joined])
}

/// The result of [`note`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The range was in the table.
    Already,
    /// The range has been added.
    Added,
    /// The table is full: the range must not be shared.
    TableFull,
}

/// Whether all of the range was advised.
pub fn contains(range: &Range<usize>) -> bool {
    let _held = lock::lock();
    holds(range)
}

/// The same; the caller holds the lock.
fn holds(range: &Range<usize>) -> bool {
    let at = first_ending_after(range.start);
    at < COUNT.load(Ordering::Relaxed)
        && STARTS[at].load(Ordering::Relaxed) <= range.start
        && range.end <= ENDS[at].load(Ordering::Relaxed)
}

/// Adds a range that is about to be advised.
pub fn note(range: &Range<usize>) -> Noted {
    let _held = lock::lock();
    match holds(range) {
        true => Noted::Already,
        false if add(range) => Noted::Added,
        false => Noted::TableFull,
    }
}

/// Removes a range that now maps a file. False if the table has no room to split another.
pub fn forget(range: &Range<usize>) -> bool {
    let _held = lock::lock();
    let writer = Writer::begin();
    let from = first_ending_after(range.start);
    let mut to = from;
    let (mut before, mut after) = (None, None);
    while to < COUNT.load(Ordering::Relaxed) && STARTS[to].load(Ordering::Relaxed) < range.end {
        let (start, end) = (STARTS[to].load(Ordering::Relaxed), ENDS[to].load(Ordering::Relaxed));
        before = before.or((start < range.start).then_some(start..range.start));
        after = (end > range.end).then_some(range.end..end);
        to += 1;
    }
    // Without allocating: an allocator may be reading meanwhile.
    match (before, after) {
        (Some(before), Some(after)) => writer.replace(from, to, &[before, after]),
        (Some(one), None) | (None, Some(one)) => writer.replace(from, to, &[one]),
        (None, None) => writer.replace(from, to, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A single test: the process has one table.
    #[test]
    fn ranges_join_split_and_are_found() {
        let page = 1 << 30;
        let at = |from: usize, to: usize| page + from..page + to;
        assert!(!overlaps(&at(0, 100)));
        assert!([(10, 20), (30, 40), (50, 60)].iter().all(|&(from, to)| note(&at(from, to)) == Noted::Added));
        assert_eq!(note(&at(12, 20)), Noted::Already);
        assert!(overlaps(&at(19, 20)) && !overlaps(&at(20, 30)) && overlaps(&at(0, 11)));
        assert_eq!(note(&at(20, 35)), Noted::Added);
        assert_eq!(COUNT.load(Ordering::Relaxed), 2);
        assert!(overlaps(&at(25, 26)) && overlaps(&at(39, 50)) && !overlaps(&at(40, 50)));
        assert!(forget(&at(15, 55)));
        assert!(overlaps(&at(10, 15)) && !overlaps(&at(15, 55)) && overlaps(&at(55, 60)));
        assert!(forget(&at(11, 12)));
        assert!(overlaps(&at(10, 11)) && !overlaps(&at(11, 12)) && overlaps(&at(12, 13)));
        assert!(forget(&at(0, 100)) && !overlaps(&at(0, 100)));
        let mut noted = 0;
        while note(&at(3 * noted, 3 * noted + 1)) == Noted::Added {
            noted += 1;
        }
        assert_eq!(noted, MAX_RANGES);
        assert!(forget(&at(0, 4 * MAX_RANGES)) && COUNT.load(Ordering::Relaxed) == 0);
    }
}
