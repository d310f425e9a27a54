//! What the units hold, for a second model of them that must hold the same (`sim/rtl`). Nothing here takes
//! time or changes anything.

use crate::arena::Header;
use crate::hot::{Entry, Owner};
use crate::units::Units;

impl Units {
    /// The thread `lane` of the process `key`, as HOTs note it.
    pub fn thread(&self, key: u64, lane: usize) -> Option<Owner> {
        self.number_of(key).map(|process| Owner { process, lane })
    }

    /// The thread whose arenas a core's HOT holds.
    pub fn hot_owner(&self, core: usize) -> Option<Owner> {
        self.objects.hots[core].owner
    }

    /// A core's HOT entry of a class.
    pub fn hot_entry(&self, core: usize, class: usize) -> &Entry {
        &self.objects.hots[core].entries[class]
    }

    /// The header in memory at the start of a page.
    pub fn header(&self, physical: u64) -> Header {
        self.objects.headers.read(physical)
    }

    /// The bump pointers that the AAC holds for a core, by their physical addresses, the latest first.
    pub fn aac_entry(&self, core: usize) -> &[u64] {
        self.pages.aac.entry(core)
    }

    /// The physical address of the block of a thread of the process `key`.
    pub fn block(&self, key: u64, lane: usize) -> Option<u64> {
        self.block_of(self.thread(key, lane)?)
    }

    /// The same of a HOT's owner.
    pub fn block_of(&self, owner: Owner) -> Option<u64> {
        self.processes[owner.process].as_ref()?.lanes[owner.lane].as_ref().map(|lane| lane.block)
    }

    /// The physical address behind an address of the region of the process on `core`, if it has a page.
    pub fn backing(&self, core: usize, address: u64) -> Option<u64> {
        let process = self.process_on(core)?;
        if process.contains(address) { self.pages.lookup(process, address) } else { None }
    }
}
