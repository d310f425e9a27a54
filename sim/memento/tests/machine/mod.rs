//! A machine for tests: fixed latencies, TLBs that keep everything until they are shot down, and a list of
//! the accesses.

use std::collections::HashMap;

use memento::{Access, MemorySystem, Port};

/// Cycles of an access through a core's caches, and from the memory controller.
pub const CORE_CYCLES: u64 = 4;
pub const CONTROLLER_CYCLES: u64 = 100;

#[derive(Default)]
pub struct Plain {
    pub tlbs: HashMap<(usize, u64), u64>,
    pub accesses: Vec<(Port, Access, u64)>,
    pub recording: bool,
}

impl MemorySystem for Plain {
    fn access(&mut self, _core: usize, port: Port, access: Access, physical: u64, at: u64) -> u64 {
        if self.recording {
            self.accesses.push((port, access, physical));
        }
        at + if port == Port::Core { CORE_CYCLES } else { CONTROLLER_CYCLES }
    }

    fn instantiate(&mut self, core: usize, port: Port, physical: u64, at: u64) -> u64 {
        self.access(core, port, Access::Write, physical, at)
    }

    fn tlb_lookup(&mut self, core: usize, address: u64, at: u64) -> (Option<u64>, u64) {
        (self.tlbs.get(&(core, address / 4096)).copied(), at + 1)
    }

    fn tlb_fill(&mut self, core: usize, address: u64, physical: u64) {
        self.tlbs.insert((core, address / 4096), physical / 4096);
    }

    fn shootdown(&mut self, core: usize, page: u64) {
        self.tlbs.remove(&(core, page / 4096));
    }
}
