//! The guest's memory as QEMU has it mapped: one piece from physical address 0 on.

use sim::memory::tlb::PageTables;

/// The host mapping of the guest's memory.
#[derive(Clone, Copy, Default)]
pub struct GuestMemory {
    /// The host's address of the guest's physical address 0; 0 while unknown.
    base: u64,
    /// The end of the guest's memory: page tables beyond it are ignored.
    bytes: u64,
}

impl GuestMemory {
    /// Computed from one byte whose host and guest address are both known. `bytes`: the size of guest memory.
    pub fn learn(host: u64, physical: u64, bytes: u64) -> GuestMemory {
        GuestMemory { base: host - physical, bytes }
    }

    /// Whether it has yet to be learnt.
    pub fn is_unknown(&self) -> bool {
        self.base == 0
    }

    /// The guest's physical address for a host address.
    pub fn physical(&self, host: u64) -> u64 {
        host.wrapping_sub(self.base)
    }

    /// Whether this is an address of the guest's memory.
    pub fn contains(&self, physical: u64) -> bool {
        physical < self.bytes
    }
}

impl PageTables for GuestMemory {
    fn entry(&self, physical: u64) -> u64 {
        let physical = physical & !7;
        if self.base == 0 || !self.contains(physical) {
            return 0;
        }
        // SAFETY: QEMU keeps the guest's memory mapped, in one piece below the hole for devices (the launcher
        // gives a guest at most 2 GiB), and the address is inside it. Only the virtual CPU's own thread,
        // which is in a callback, writes page tables.
        unsafe { ((self.base + physical) as *const u64).read_volatile() }
    }
}
