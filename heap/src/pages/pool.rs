//! Active huge pages with free blocks, by lifetime class and by their longest run of free blocks.
//!
//! The paper keeps a list of active pages for each class and searches their bit vectors in turn (§6.5). Here
//! a page is in one of nine sets of its class, by floor(log2(longest run)). So a request finds a suitable
//! page in a few loads: of the fullest suitable kind, at the lowest address. [`NONEMPTY`] records which of
//! the 63 sets have members.
//!
//! Sets change by atomic instructions, so a page stays in its set when blocks are taken from it, and moves
//! down when a search has failed on it; a page that gets a longer run moves up at once.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use crate::pages::available::AvailableSet;
use crate::pages::huge_page::{HugePage, NO_BUCKET, State};
use crate::units::bits;
use crate::units::lifetime_class::CLASSES;

/// Sets for each class: longest runs of 1, 2–3, 4–7, … 128–255 and 256 blocks.
pub const BUCKETS: usize = 9;

static SETS: [[AvailableSet; BUCKETS]; CLASSES] =
    [const { [const { AvailableSet::new() }; BUCKETS] }; CLASSES];
static NONEMPTY: AtomicU64 = AtomicU64::new(0);

/// As [`update`], unless the page has no more room than its set implies.
#[inline]
pub fn update_if_roomier(page: &HugePage, id: usize, class_before: usize) {
    let before = page.bucket.load(Relaxed);
    let same_class = class_before == page.class();
    if same_class
        && before != NO_BUCKET
        && bits::is_none(&bits::starts_of_runs(&page.free_blocks(), 2 << before))
    {
        return;
    }
    update(page, id, class_before);
}

/// Moves the page to the set where it belongs. The caller holds the page's lock.
pub fn update(page: &HugePage, id: usize, class_before: usize) {
    let free = page.free_blocks();
    let bucket = match page.state() {
        State::Active => bits::log2_longest_run(&free).map_or(NO_BUCKET, |log2| log2 as u8),
        _ => NO_BUCKET,
    };
    let before = page.bucket.load(Relaxed);
    if before == bucket && class_before == page.class() {
        return;
    }
    if before != NO_BUCKET {
        let before = before as usize;
        SETS[class_before][before].remove_flagged(id, &NONEMPTY, flag(class_before, before));
    }
    if bucket != NO_BUCKET {
        let (class, bucket) = (page.class(), bucket as usize);
        SETS[class][bucket].insert_flagged(id, &NONEMPTY, flag(class, bucket));
    }
    page.bucket.store(bucket, Relaxed);
}

/// The sets that contain the page, as flags.
pub fn sets_with(id: usize) -> u64 {
    let sets = (0..CLASSES).flat_map(|class| (0..BUCKETS).map(move |bucket| (class, bucket)));
    let with = sets.filter(|&(class, bucket)| SETS[class][bucket].contains(id));
    with.fold(0, |flags, (class, bucket)| flags | flag(class, bucket))
}

/// Flags of the sets that a search visits.
pub fn nonempty() -> u64 {
    NONEMPTY.load(SeqCst)
}

/// The flag of a set in [`NONEMPTY`].
pub fn flag(class: usize, bucket: usize) -> u64 {
    1 << (class * BUCKETS + bucket)
}

/// Calls `attempt` with the ids of pages of `class` that may have a run of `blocks`, the fullest kind first,
/// until it returns a value. In the lowest kind, where runs may be too short, it tries only a few pages.
pub fn search<T>(class: usize, blocks: usize, mut attempt: impl FnMut(usize) -> Option<T>) -> Option<T> {
    const TRIES_WHERE_IT_MAY_MISS: usize = 4;
    let nonempty = (NONEMPTY.load(SeqCst) >> (class * BUCKETS)) as usize & ((1 << BUCKETS) - 1);
    let lowest = blocks.ilog2() as usize;
    let mut kinds = nonempty >> lowest << lowest;
    while kinds != 0 {
        let bucket = kinds.trailing_zeros() as usize;
        kinds &= kinds - 1;
        let tries = if bucket == lowest { TRIES_WHERE_IT_MAY_MISS } else { usize::MAX };
        let mut start = 0;
        for _ in 0..tries {
            let Some(id) = SETS[class][bucket].first(start) else { break };
            if let Some(found) = attempt(id) {
                return Some(found);
            }
            start = id + 1;
        }
    }
    None
}
