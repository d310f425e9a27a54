//! Between the windows of a sampled run ([`crate::system::sampling`]): instructions only warm caches and
//! TLBs. Time passes as on a core that waits for each access before the next, so that none of them finds the
//! memory busy with others.

use super::memory::translate;
use crate::core::pipeline::{Behind, Core};
use crate::isa::block::{Access, Block, Operation};
use crate::memory::hierarchy::Level;
use crate::memory::tlb::PageTables;

impl Core {
    /// Whether instructions only warm from now on; fetch's cycle is the time then.
    pub fn set_warming(&mut self, warming: bool) {
        self.warming = warming;
        if warming {
            self.warmed_until(self.commit);
        }
    }

    /// One instruction of `block`, in the order in which [`Core::operation`] does the same.
    #[inline(always)]
    pub(super) fn warm<T: PageTables>(
        &mut self,
        block: &Block,
        operation: &Operation,
        accesses: &[Access],
        behind: &mut Behind<T>,
    ) {
        self.fetch(block, operation.offset, behind);
        let mut at = self.fetch;
        for store in [false, true] {
            for access in accesses.iter().filter(|access| access.store == store && !access.device) {
                let place = translate(access, at, behind);
                let line = place.physical >> 6;
                let last = access.physical + u64::from(access.size) - 1;
                at = behind.hierarchy.access(Level::L1d, line, store, place.fresh, place.at).0;
                if last >> 6 != access.physical >> 6 {
                    at = behind.hierarchy.access(Level::L1d, line + 1, store, place.fresh, at).0;
                }
            }
        }
        self.warmed_until(at);
    }

    /// Time advances to `at`.
    pub(super) fn warmed_until(&mut self, at: u64) {
        self.fetch = self.fetch.max(at);
        self.commit = self.commit.max(self.fetch);
    }
}
