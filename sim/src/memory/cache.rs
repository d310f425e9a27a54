//! One level of cache, the same for all levels: write-back, write-allocate, misses held in MSHRs.
//!
//! A line is put in when its miss is sent on, with the cycle at which it will be there: an access before that
//! cycle has merged with the miss and waits for it.

use crate::base::calendar::Calendar;
use crate::base::description::CacheDescription;
use crate::memory::replacement::Policy;

/// A line's address: the physical address over 64.
pub type Line = u64;

const EMPTY: u64 = u64::MAX;

/// Tags, in flat arrays; the [`Hierarchy`](crate::memory::hierarchy::Hierarchy) has the levels behind it.
pub struct Cache {
    ways: usize,
    set_mask: u64,
    tags: Box<[Line]>,
    policy: Policy,
    /// Of each line: the cycle at which its data is there.
    ready: Box<[u64]>,
    dirty: Box<[bool]>,
    /// Of each MSHR: when the miss that has it arrived, and until when it is taken.
    mshrs: Box<[(u64, u64)]>,
    starts: Calendar,
    cycles_per_access: u64,
    /// The part of the latency that is this level's own.
    pub own_cycles: u64,
    /// Counters.
    pub counts: CacheCounts,
}

/// A cache's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct CacheCounts {
    /// Lookups that found the line, there or on its way.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Hits on a line on its way: they wait for the miss before.
    pub merges: u64,
    /// Dirty lines written to the next level.
    pub writebacks: u64,
    /// Cycles that misses waited for an MSHR.
    pub mshr_wait_cycles: u64,
}

impl std::ops::AddAssign for CacheCounts {
    fn add_assign(&mut self, other: CacheCounts) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.merges += other.merges;
        self.writebacks += other.writebacks;
        self.mshr_wait_cycles += other.mshr_wait_cycles;
    }
}

/// An evicted line.
pub struct Victim {
    /// Its address.
    pub line: Line,
    /// It must be written to the next level.
    pub dirty: bool,
}

impl Cache {
    /// An empty cache; `inner_cycles` is the latency of the level before it.
    pub fn new(description: &CacheDescription, inner_cycles: u64) -> Cache {
        let lines = description.sets * description.ways;
        Cache {
            ways: description.ways,
            set_mask: description.sets as u64 - 1,
            tags: vec![EMPTY; lines].into(),
            policy: Policy::new(description.replacement, lines),
            ready: vec![0; lines].into(),
            dirty: vec![false; lines].into(),
            mshrs: vec![(0, 0); description.mshrs].into(),
            starts: Calendar::new(),
            cycles_per_access: description.cycles_per_access,
            own_cycles: description.latency_cycles - inner_cycles,
            counts: CacheCounts::default(),
        }
    }

    #[inline]
    fn first(&self, line: Line) -> usize {
        (line & self.set_mask) as usize * self.ways
    }

    #[inline]
    fn find(&self, line: Line) -> Option<usize> {
        let first = self.first(line);
        self.tags[first..first + self.ways].iter().position(|tag| *tag == line).map(|way| first + way)
    }

    /// When an access that arrives at `at` starts.
    #[inline]
    pub fn start(&mut self, at: u64) -> u64 {
        match self.cycles_per_access {
            0 => at,
            1 => self.starts.take_one(at),
            cycles => (self.starts.take_one(at / cycles) * cycles).max(at),
        }
    }

    /// Looks the line up, as its newest use. The cycle at which its data is there, or nothing.
    #[inline]
    pub fn lookup(&mut self, line: Line, write: bool, at: u64) -> Option<u64> {
        let Some(index) = self.find(line) else {
            self.counts.misses += 1;
            return None;
        };
        self.counts.hits += 1;
        self.policy.used(index);
        self.dirty[index] |= write;
        let ready = self.ready[index];
        self.counts.merges += u64::from(ready > at);
        Some(ready)
    }

    /// Whether it holds the line; changes nothing.
    pub fn holds(&self, line: Line) -> bool {
        self.find(line).is_some()
    }

    /// Whether the line is dirty, if it is here; changes nothing.
    pub fn is_dirty(&self, line: Line) -> Option<bool> {
        self.find(line).map(|index| self.dirty[index])
    }

    /// Takes the line out; whether it was dirty.
    pub fn remove(&mut self, line: Line) -> Option<bool> {
        let index = self.find(line)?;
        self.tags[index] = EMPTY;
        self.policy.emptied(index);
        Some(std::mem::take(&mut self.dirty[index]))
    }

    /// Puts the line in the place of the one that the policy replaces.
    pub fn insert(&mut self, line: Line, dirty: bool, ready: u64) -> Option<Victim> {
        let first = self.first(line);
        let index = self.policy.victim(first..first + self.ways);
        let victim = Victim { line: self.tags[index], dirty: self.dirty[index] };
        self.tags[index] = line;
        self.policy.filled(index);
        self.ready[index] = ready;
        self.dirty[index] = dirty;
        self.counts.writebacks += u64::from(victim.dirty);
        (victim.line != EMPTY).then_some(victim)
    }

    /// The line is written by the level before: marked if it is here.
    pub fn mark_dirty(&mut self, line: Line) -> bool {
        match self.find(line) {
            Some(index) => {
                self.dirty[index] = true;
                true
            }
            None => false,
        }
    }

    /// An MSHR for a miss at `at`: which, and from when. Those of misses that arrive later do not count.
    pub fn reserve(&mut self, at: u64) -> (usize, u64) {
        let mut best = 0;
        for (index, (arrived, until)) in self.mshrs.iter().enumerate() {
            if at < *arrived || *until <= at {
                return (index, at);
            }
            if *until < self.mshrs[best].1 {
                best = index;
            }
        }
        self.counts.mshr_wait_cycles += self.mshrs[best].1 - at;
        (best, self.mshrs[best].1)
    }

    /// The MSHR is taken by the miss that arrived at `arrived` until the line is there.
    pub fn hold(&mut self, mshr: usize, arrived: u64, until: u64) {
        self.mshrs[mshr] = (arrived, until);
    }
}
