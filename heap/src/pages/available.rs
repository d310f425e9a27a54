//! A set of huge pages that many threads search and change without a lock.
//!
//! It is a tree of bits, 64 to a node: a bit in an upper level means that the word below it may have bits.
//! [`AvailableSet::first`] finds the lowest member in four loads, so the heap fills its lowest pages first
//! and the others drain. The set is a hint: a thread that finds a page takes that page's lock and checks
//! again.

use core::sync::atomic::Ordering::SeqCst;

#[cfg(loom)]
use crate::sequential::AtomicU64;

#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;

const LEAVES: usize = if cfg!(loom) { 67 } else { 8192 };
const MIDDLES: usize = LEAVES.div_ceil(64);
const TOPS: usize = MIDDLES.div_ceil(64);

/// Members are numbers below this: huge page ids of up to 64 regions.
pub const CAPACITY: usize = LEAVES * 64;

/// The set.
pub struct AvailableSet {
    leaves: [AtomicU64; LEAVES],
    middles: [AtomicU64; MIDDLES],
    tops: [AtomicU64; TOPS],
}

impl Default for AvailableSet {
    fn default() -> Self {
        Self::new()
    }
}

impl AvailableSet {
    /// The empty set.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            leaves: [const { AtomicU64::new(0) }; LEAVES],
            middles: [const { AtomicU64::new(0) }; MIDDLES],
            tops: [const { AtomicU64::new(0) }; TOPS],
        }
    }

    /// The empty set.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            leaves: core::array::from_fn(|_| AtomicU64::new(0)),
            middles: core::array::from_fn(|_| AtomicU64::new(0)),
            tops: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Adds `id`. The leaf is set before its parents, so a search that misses it happened before the
    /// insertion.
    pub fn insert(&self, id: usize) {
        let (middle, top) = (id / 64, id / 4096);
        self.leaves[middle].fetch_or(1 << (id % 64), SeqCst);
        if self.middles[top].fetch_or(1 << (middle % 64), SeqCst) & 1 << (middle % 64) == 0 {
            self.tops[top / 64].fetch_or(1 << (top % 64), SeqCst);
        }
    }

    /// Removes `id`; whether it was a member. A parent is cleared when its word is empty, and set again if
    /// the word was filled meanwhile.
    pub fn remove(&self, id: usize) -> bool {
        let (middle, top) = (id / 64, id / 4096);
        let before = self.leaves[middle].fetch_and(!(1 << (id % 64)), SeqCst);
        if before & !(1 << (id % 64)) != 0 || before == 0 {
            return before & 1 << (id % 64) != 0;
        }
        let above = self.middles[top].fetch_and(!(1 << (middle % 64)), SeqCst);
        if above & !(1 << (middle % 64)) == 0 {
            self.tops[top / 64].fetch_and(!(1 << (top % 64)), SeqCst);
        }
        if self.leaves[middle].load(SeqCst) != 0 {
            self.middles[top].fetch_or(1 << (middle % 64), SeqCst);
        }
        if self.middles[top].load(SeqCst) != 0 {
            self.tops[top / 64].fetch_or(1 << (top % 64), SeqCst);
        }
        true
    }

    /// As [`Self::insert`]; also sets `flag` of `nonempty`, which shows searchers that this set has members.
    pub fn insert_flagged(&self, id: usize, nonempty: &AtomicU64, flag: u64) {
        self.insert(id);
        if nonempty.load(SeqCst) & flag == 0 {
            nonempty.fetch_or(flag, SeqCst);
        }
    }

    /// As [`Self::remove`]; also clears `flag` of `nonempty` with the last member. A removal in progress may
    /// hide other members, and another removal may then see the set as empty: so each removal corrects the
    /// flag at its end.
    pub fn remove_flagged(&self, id: usize, nonempty: &AtomicU64, flag: u64) {
        self.remove(id);
        if self.first(0).is_none() {
            nonempty.fetch_and(!flag, SeqCst);
            if self.first(0).is_none() {
                return;
            }
        }
        if nonempty.load(SeqCst) & flag == 0 {
            nonempty.fetch_or(flag, SeqCst);
        }
    }

    /// Whether `id` is a member.
    pub fn contains(&self, id: usize) -> bool {
        self.leaves[id / 64].load(SeqCst) >> (id % 64) & 1 == 1
    }

    /// The lowest member from `start` on.
    pub fn first(&self, start: usize) -> Option<usize> {
        let mut id = start;
        while id < CAPACITY {
            let leaf = self.leaves[id / 64].load(SeqCst) & u64::MAX << (id % 64);
            if leaf != 0 {
                return Some(id / 64 * 64 + leaf.trailing_zeros() as usize);
            }
            id = match next(&self.middles, id / 64 + 1) {
                Some(middle) => middle * 64,
                None => {
                    let above = id / 4096 + 1;
                    let beyond = || next(&self.tops, above.next_multiple_of(64).max(above + 1));
                    next(&self.tops, above).or_else(beyond)? * 4096
                }
            };
        }
        None
    }
}

/// The lowest bit from `from` on, within the word that `from` lies in.
fn next(words: &[AtomicU64], from: usize) -> Option<usize> {
    let word = words.get(from / 64)?.load(SeqCst) & u64::MAX << (from % 64);
    (word != 0).then(|| from / 64 * 64 + word.trailing_zeros() as usize)
}
