//! Where advised memory lies: a table that is only added to, and that may be read from inside an allocator.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

const MOST: usize = 4096;

/// Start and end of each range, in turn. The thread that rests writes; ranges that grow at their end stay one.
static BOUNDS: [AtomicUsize; 2 * MOST] = [const { AtomicUsize::new(0) }; 2 * MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Notes a range. False if there is no room for another: then it must not be advised.
pub fn add(range: &Range<usize>) -> bool {
    let count = COUNT.load(Ordering::Relaxed);
    for at in 0..count {
        let (start, end) = bounds(at);
        if start <= range.start && range.start <= end {
            BOUNDS[2 * at + 1].store(end.max(range.end), Ordering::Release);
            return true;
        }
    }
    if count == MOST {
        return false;
    }
    BOUNDS[2 * count].store(range.start, Ordering::Relaxed);
    BOUNDS[2 * count + 1].store(range.end, Ordering::Relaxed);
    COUNT.store(count + 1, Ordering::Release);
    true
}

/// Whether some of the range was ever advised.
pub fn overlaps(range: &Range<usize>) -> bool {
    (0..COUNT.load(Ordering::Acquire)).map(bounds).any(|(start, end)| start < range.end && range.start < end)
}

fn bounds(at: usize) -> (usize, usize) {
    (BOUNDS[2 * at].load(Ordering::Acquire), BOUNDS[2 * at + 1].load(Ordering::Acquire))
}
