//! Where memory lies that was anonymous and has been advised: ranges in order, which may be read from inside an allocator
//! at any time. It knows more than is shared (what was unmapped since stays in it); what a mapping is now, the kernel tells.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::lock;

/// Ranges at most.
const MOST: usize = 8192;

static STARTS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static ENDS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Odd while somebody writes; another number afterwards.
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
        }
        std::hint::spin_loop();
    }
}

fn search(range: &Range<usize>) -> bool {
    let at = first_ending_after(range.start);
    at < COUNT.load(Ordering::Relaxed).min(MOST) && STARTS[at].load(Ordering::Relaxed) < range.end
}

fn first_ending_after(address: usize) -> usize {
    let (mut low, mut high) = (0, COUNT.load(Ordering::Relaxed).min(MOST));
    while low < high {
        let middle = (low + high) / 2;
        if ENDS[middle].load(Ordering::Relaxed) > address { high = middle } else { low = middle + 1 }
    }
    low
}

/// The only one who writes: whoever holds the lock.
struct Writer;

impl Writer {
    fn begin() -> Writer {
        VERSION.fetch_add(1, Ordering::AcqRel);
        Writer
    }

    /// Replaces the ranges `from..to` by `by`, of which there are at most two.
    fn replace(&self, from: usize, to: usize, by: &[Range<usize>]) -> bool {
        let count = COUNT.load(Ordering::Relaxed);
        let left = count - (to - from) + by.len();
        if left > MOST {
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
        VERSION.fetch_add(1, Ordering::Release);
    }
}

/// Notes a range, which the caller holds the lock for. False if there is no room for another: then it must not be shared.
pub fn add(range: &Range<usize>) -> bool {
    let writer = Writer::begin();
    // Those that it touches become one with it.
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

/// What became of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It was known.
    Before,
    /// It is known from now on.
    Now,
    /// There is no room for another: it must not be shared.
    Not,
}

/// Notes a range that is about to be advised.
pub fn note(range: &Range<usize>) -> Noted {
    let _held = lock::hold();
    let at = first_ending_after(range.start);
    let is_known = at < COUNT.load(Ordering::Relaxed)
        && STARTS[at].load(Ordering::Relaxed) <= range.start
        && range.end <= ENDS[at].load(Ordering::Relaxed);
    match is_known {
        true => Noted::Before,
        false if add(range) => Noted::Now,
        false => Noted::Not,
    }
}

/// Forgets a range that has become something else, a mapping of a file. False if there is no room to split another.
pub fn forget(range: &Range<usize>) -> bool {
    let _held = lock::hold();
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
    // Without allocating: an allocator may be asking meanwhile.
    match (before, after) {
        (Some(before), Some(after)) => writer.replace(from, to, &[before, after]),
        (Some(one), None) | (None, Some(one)) => writer.replace(from, to, &[one]),
        (None, None) => writer.replace(from, to, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test: the table is the process's.
    #[test]
    fn ranges_join_split_and_are_found() {
        let page = 1 << 30;
        let at = |from: usize, to: usize| page + from..page + to;
        assert!(!overlaps(&at(0, 100)));
        assert!([(10, 20), (30, 40), (50, 60)].iter().all(|&(from, to)| note(&at(from, to)) == Noted::Now));
        assert_eq!(note(&at(12, 20)), Noted::Before);
        assert!(overlaps(&at(19, 20)) && !overlaps(&at(20, 30)) && overlaps(&at(0, 11)));
        assert_eq!(note(&at(20, 35)), Noted::Now);
        assert_eq!(COUNT.load(Ordering::Relaxed), 2);
        assert!(overlaps(&at(25, 26)) && overlaps(&at(39, 50)) && !overlaps(&at(40, 50)));
        assert!(forget(&at(15, 55)));
        assert!(overlaps(&at(10, 15)) && !overlaps(&at(15, 55)) && overlaps(&at(55, 60)));
        assert!(forget(&at(11, 12)));
        assert!(overlaps(&at(10, 11)) && !overlaps(&at(11, 12)) && overlaps(&at(12, 13)));
        assert!(forget(&at(0, 100)) && !overlaps(&at(0, 100)));
        let mut noted = 0;
        while note(&at(3 * noted, 3 * noted + 1)) == Noted::Now {
            noted += 1;
        }
        assert_eq!(noted, MOST);
        assert!(forget(&at(0, 4 * MOST)) && COUNT.load(Ordering::Relaxed) == 0);
    }
}
