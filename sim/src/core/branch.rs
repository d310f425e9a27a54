//! Branch prediction: TAGE for directions, a BTB, indirect targets by path or, where that is new, by branch,
//! a return stack. The paper names none; cores of its kind have these, in larger sizes.

use crate::base::description::BranchDescription;
use crate::isa::block::End;

const TABLES: usize = 4;
const HISTORY: [u32; TABLES] = [8, 16, 32, 64];

#[derive(Clone, Copy, Default)]
struct Tagged {
    tag: u16,
    counter: i8,
    useful: u8,
}

/// The counters of branches.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct BranchCounts {
    /// Conditional branches.
    pub conditional: u64,
    /// Of which took the other direction.
    pub conditional_mispredicted: u64,
    /// Jumps and calls through registers or memory.
    pub indirect: u64,
    /// Of which had another target than predicted.
    pub indirect_mispredicted: u64,
    /// Returns.
    pub returns: u64,
    /// Of which had another target than predicted.
    pub returns_mispredicted: u64,
    /// Taken branches that missed the BTB.
    pub btb_misses: u64,
}

impl std::ops::AddAssign for BranchCounts {
    fn add_assign(&mut self, other: BranchCounts) {
        self.conditional += other.conditional;
        self.conditional_mispredicted += other.conditional_mispredicted;
        self.indirect += other.indirect;
        self.indirect_mispredicted += other.indirect_mispredicted;
        self.returns += other.returns;
        self.returns_mispredicted += other.returns_mispredicted;
        self.btb_misses += other.btb_misses;
    }
}

/// The outcome of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Fetch continues.
    Right,
    /// The target was found when the branch was decoded.
    LateTarget,
    /// Found when the branch was executed.
    Wrong,
}

/// All tables.
pub struct Predictor {
    base: Box<[i8]>,
    tagged: [Box<[Tagged]>; TABLES],
    btb: Box<[u64]>,
    /// By branch and path: the target.
    indirect: Box<[(u64, u64)]>,
    /// By branch alone, for a path that is new.
    latest: Box<[(u64, u64)]>,
    returns: Box<[u64]>,
    top: usize,
    history: u64,
    path: u64,
    ageing: u32,
    /// Counters.
    pub counts: BranchCounts,
}

impl Predictor {
    /// With empty tables.
    pub fn new(description: &BranchDescription) -> Predictor {
        Predictor {
            base: vec![-1; description.base_entries].into(),
            tagged: std::array::from_fn(|_| vec![Tagged::default(); description.tagged_entries].into()),
            btb: vec![0; description.btb_entries].into(),
            indirect: vec![(0, 0); description.indirect_entries].into(),
            latest: vec![(0, 0); description.indirect_entries].into(),
            returns: vec![0; description.return_entries].into(),
            top: 0,
            history: 0,
            path: 0,
            ageing: 0,
            counts: BranchCounts::default(),
        }
    }

    /// The branch at `pc` (the address behind it is `behind`) ended so and its target was `target`.
    #[inline]
    pub fn resolve(&mut self, pc: u64, behind: u64, end: End, target: u64) -> Outcome {
        match end {
            End::Fallthrough | End::System => Outcome::Right,
            End::Conditional(_) => {
                let taken = target != behind;
                self.counts.conditional += 1;
                let right = self.direction(pc, taken);
                if !right {
                    self.counts.conditional_mispredicted += 1;
                    Outcome::Wrong
                } else if taken {
                    self.known(pc)
                } else {
                    Outcome::Right
                }
            }
            End::Jump(_) => self.known(pc),
            End::Call(_) => {
                self.push(behind);
                self.known(pc)
            }
            End::IndirectJump => self.elsewhere(pc, target),
            End::IndirectCall => {
                self.push(behind);
                self.elsewhere(pc, target)
            }
            End::Return => {
                self.counts.returns += 1;
                let expected = self.returns[self.top];
                self.forget_call();
                if expected == target {
                    return Outcome::Right;
                }
                self.counts.returns_mispredicted += 1;
                Outcome::Wrong
            }
        }
    }

    /// Another core has executed the return of the last call.
    pub fn forget_call(&mut self) {
        self.top = if self.top == 0 { self.returns.len() - 1 } else { self.top - 1 };
    }

    fn push(&mut self, behind: u64) {
        self.top = if self.top + 1 == self.returns.len() { 0 } else { self.top + 1 };
        self.returns[self.top] = behind;
    }

    #[inline]
    fn known(&mut self, pc: u64) -> Outcome {
        let entry = &mut self.btb[(pc ^ pc >> 12) as usize & (self.btb.len() - 1)];
        if *entry == pc {
            return Outcome::Right;
        }
        *entry = pc;
        self.counts.btb_misses += 1;
        Outcome::LateTarget
    }

    fn elsewhere(&mut self, pc: u64, target: u64) -> Outcome {
        self.counts.indirect += 1;
        let key = pc ^ self.path << 20;
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let entry = &mut self.indirect[hash as usize & (self.indirect.len() - 1)];
        let place = (pc ^ pc >> 11) as usize & (self.latest.len() - 1);
        let latest = &mut self.latest[place];
        let predicted =
            if entry.0 == key { *entry } else { (key, if latest.0 == pc { latest.1 } else { 0 }) };
        let right = predicted == (key, target);
        *entry = (key, target);
        *latest = (pc, target);
        self.path = (self.path << 5 ^ target >> 2) & 0xff_ffff;
        if right {
            return Outcome::Right;
        }
        self.counts.indirect_mispredicted += 1;
        Outcome::Wrong
    }

    /// Predicts, compares, learns. True if right.
    #[inline]
    fn direction(&mut self, pc: u64, taken: bool) -> bool {
        let mask = self.tagged[0].len() - 1;
        let mut places = [(0usize, 0u16); TABLES];
        let mut provider = None;
        for table in 0..TABLES {
            let recent =
                if HISTORY[table] == 64 { self.history } else { self.history & ((1 << HISTORY[table]) - 1) };
            let mixed = (pc ^ recent.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17 + table as u32))
                .wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let place = ((mixed >> 40) as usize & mask, (mixed >> 20) as u16 & 0x3ff | 0x400);
            places[table] = place;
            if self.tagged[table][place.0].tag == place.1 {
                provider = Some(table);
            }
        }
        let base = (pc ^ pc >> 13) as usize & (self.base.len() - 1);
        let predicted = match provider {
            Some(table) => self.tagged[table][places[table].0].counter >= 0,
            None => self.base[base] >= 0,
        };
        match provider {
            Some(table) => {
                let entry = &mut self.tagged[table][places[table].0];
                entry.counter = step(entry.counter, taken, 3);
                if predicted == taken {
                    entry.useful = (entry.useful + 1).min(3);
                }
            }
            None => self.base[base] = step(self.base[base], taken, 1),
        }
        if predicted != taken {
            self.allocate(provider.map_or(0, |table| table + 1), &places, taken);
        }
        self.history = self.history << 1 | u64::from(taken);
        predicted == taken
    }

    /// A wrong prediction: the branch gets an entry with a longer history.
    fn allocate(&mut self, from: usize, places: &[(usize, u16); TABLES], taken: bool) {
        for (table, (index, tag)) in places.iter().copied().enumerate().skip(from) {
            let entry = &mut self.tagged[table][index];
            if entry.useful == 0 {
                *entry = Tagged { tag, counter: if taken { 0 } else { -1 }, useful: 0 };
                return;
            }
        }
        for (table, (index, _)) in places.iter().enumerate().skip(from) {
            self.tagged[table][*index].useful -= 1;
        }
        self.ageing += 1;
        if self.ageing == 1 << 14 {
            self.ageing = 0;
            for entry in self.tagged.iter_mut().flat_map(|table| table.iter_mut()) {
                entry.useful >>= 1;
            }
        }
    }
}

/// A saturating counter of −(limit+1) to limit.
fn step(counter: i8, up: bool, limit: i8) -> i8 {
    if up { (counter + 1).min(limit) } else { (counter - 1).max(-limit - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_with_one_target_is_known_on_any_path() {
        let mut predictor =
            Predictor::new(&crate::base::description::Description::load("table3", &[]).unwrap().branch);
        for turn in 0..100 {
            // Another path each time, and the same call behind it.
            predictor.resolve(0x1000, 0x1002, End::IndirectJump, 0x2000 + turn * 64);
            predictor.resolve(0x3000, 0x3002, End::IndirectJump, 0x4000);
        }
        assert_eq!(predictor.counts.indirect_mispredicted, 101, "the first call, and each of the others");
    }
}
