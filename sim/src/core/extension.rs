//! Memento's units (crate `memento`) in this machine: its calls of them, checked against the guest's shim.
//!
//! The shim in the guest has computed each address already; the units compute it again, as hardware would.
//! The two must agree on every operation, or the run ends.

use crate::isa::block::Access;
use crate::memory::hierarchy::{Hierarchy, Level, Purpose};
use crate::memory::tlb::{Side, Tlbs};
use memento::{Config, Exception, Port, Units};

/// The pool's physical pages: behind Table 3's 64 GB, where the guest has nothing.
const POOL: std::ops::Range<u64> = 64 << 30..80 << 30;

/// The units, and the region of the process that runs.
pub struct Extension {
    /// The units.
    pub units: Units,
    /// The core whose turn it is, and the region of the process that it runs.
    core: usize,
    region: std::ops::Range<u64>,
    /// Of all processes: (page table's root, region).
    regions: Vec<(u64, std::ops::Range<u64>)>,
    /// Operations so far, to name the one that failed.
    pub operations: u64,
    /// The units' counters when the region began.
    before: memento::Statistics,
    /// How full the arenas were when it ended, or the last process before that.
    pub occupancy: memento::Occupancy,
}

/// The machine as the units see it.
pub struct View<'a> {
    /// Caches and memory.
    pub hierarchy: &'a mut Hierarchy,
    /// Translation.
    pub tlbs: &'a mut Tlbs,
    /// Translations of other cores that are no longer valid: the core, and the page.
    pub shootdowns: &'a mut Vec<(usize, u64)>,
}

impl memento::MemorySystem for View<'_> {
    fn access(&mut self, core: usize, port: Port, access: memento::Access, physical: u64, at: u64) -> u64 {
        self.enter(core, port, physical, access != memento::Access::Read, false, at)
    }

    fn instantiate(&mut self, core: usize, port: Port, physical: u64, at: u64) -> u64 {
        self.enter(core, port, physical, true, true, at)
    }

    fn tlb_lookup(&mut self, _core: usize, address: u64, at: u64) -> (Option<u64>, u64) {
        self.tlbs.find(address, at)
    }

    fn tlb_fill(&mut self, _core: usize, address: u64, physical: u64) {
        self.tlbs.fill(Side::Data, address, physical, false);
    }

    fn shootdown(&mut self, core: usize, page: u64) {
        if core == self.hierarchy.core() {
            self.tlbs.shootdown(page);
        } else {
            self.shootdowns.push((core, page));
        }
    }
}

impl View<'_> {
    fn enter(&mut self, core: usize, port: Port, physical: u64, write: bool, fresh: bool, at: u64) -> u64 {
        self.hierarchy.purpose = Purpose::Units;
        if port == Port::Controller {
            return self.hierarchy.access(Level::Llc, physical >> 6, write, fresh, at).0;
        }
        // Another core's HOT writes an entry back, through that core's caches.
        let own = self.hierarchy.core();
        self.hierarchy.switch(core);
        let at = self.hierarchy.unit_start(at);
        let done = self.hierarchy.access(Level::L1d, physical >> 6, write, fresh, at).0;
        self.hierarchy.switch(own);
        done
    }
}

impl Extension {
    /// Units as `config` says, for so many cores.
    pub fn new(config: &Config, cores: usize) -> Extension {
        Extension {
            units: Units::new(config, cores, POOL),
            core: 0,
            region: 0..0,
            regions: Vec::new(),
            operations: 0,
            before: memento::Statistics::default(),
            occupancy: memento::Occupancy::default(),
        }
    }

    /// Whether the address is in the region of the process that runs.
    #[inline(always)]
    pub fn contains(&self, address: u64) -> bool {
        self.region.contains(&address)
    }

    /// Translates an access to the region: its physical address, whether its line is new, and when that is
    /// known.
    pub fn translate(
        &mut self,
        access: &Access,
        at: u64,
        hierarchy: &mut Hierarchy,
        tlbs: &mut Tlbs,
    ) -> (u64, bool, u64) {
        let fresh = self.units.touch(self.core, access.address);
        if let Some(physical) = self.units.lookup(self.core, access.address) {
            if tlbs.quick(Side::Data, access.address, physical) {
                return (physical, fresh, at);
            }
            if let Some(at) = tlbs.second_level(Side::Data, access.address, physical, at) {
                return (physical, fresh, at);
            }
        } else {
            tlbs.count_miss();
        }
        let start = at + tlbs.l2_cycles();
        // A walk frees no page.
        let view = &mut View { hierarchy, tlbs, shootdowns: &mut Vec::new() };
        let (physical, done) = match self.units.walk(self.core, access.address, start, view) {
            Ok(found) => found,
            // A page of a freed arena: the program uses memory after its free, and there is no page.
            Err(_) => return (access.physical, false, start),
        };
        tlbs.fill(Side::Data, access.address, physical, false);
        tlbs.count_walk(start, done);
        (physical, fresh, done)
    }

    /// The mark MEMENTO_REGION: returns when the region is set up.
    ///
    /// # Errors
    /// One line: the units refuse the region.
    pub fn set_region(
        &mut self,
        core: usize,
        process: u64,
        start: u64,
        end_and_flags: u64,
        at: u64,
        view: &mut View,
    ) -> Result<u64, String> {
        let end = end_and_flags & !0xfff;
        let config = self.units.config();
        for (flag, set, name) in [(1, config.eager, "eager"), (2, config.whole_pages, "whole_pages")] {
            if (end_and_flags & flag != 0) != set {
                return Err(format!("the shim and the units do not agree on memento.{name}"));
            }
        }
        let done = self
            .units
            .set_region(core, process, start..end, at, view)
            .map_err(|exception| format!("MRS {start:#x}, MRE {end:#x}: {exception}"))?;
        self.regions.retain(|(other, _)| *other != process);
        self.regions.push((process, start..end));
        self.region = start..end;
        Ok(done)
    }

    /// Another process runs, or the machine continues with another core, on which this process runs: when the
    /// process's region is loaded and the HOT flushed.
    pub fn switch(&mut self, core: usize, process: u64, at: u64, view: &mut View) -> u64 {
        self.core = core;
        let found = self.regions.iter().find(|(other, _)| *other == process);
        self.region = found.map_or(0..0, |(_, region)| region.clone());
        if self.regions.is_empty() { at } else { self.units.context_switch(core, process, at, view) }
    }

    /// A process has exited, and others may run: when its pages are back in the pool.
    pub fn exit(&mut self, process: u64, at: u64, view: &mut View) -> u64 {
        if !self.has_region(process) {
            return at;
        }
        self.occupancy = self.units.occupancy();
        self.regions.retain(|(other, _)| *other != process);
        self.units.process_exit(process, at, view)
    }

    /// All processes have exited: when their pages are back in the pool.
    pub fn end(&mut self, at: u64, view: &mut View) -> u64 {
        if !self.regions.is_empty() {
            self.occupancy = self.units.occupancy();
        }
        self.region = 0..0;
        let exited = std::mem::take(&mut self.regions);
        exited.iter().fold(at, |at, (process, _)| self.units.process_exit(*process, at, view))
    }

    /// A thread's buffer of non-local frees is emptied.
    ///
    /// # Errors
    /// One line with the exception that the units raised.
    pub fn free_batch(&mut self, lane: u64, at: u64, view: &mut View) -> Result<u64, String> {
        self.operations += 1;
        let done = self.units.drain(self.core, lane as usize, at, view);
        match done.exception {
            None => Ok(done.at),
            Some(exception) => Err(format!("operation {}, a batch of frees: {exception}", self.operations)),
        }
    }

    /// Whether the process has a region.
    pub fn has_region(&self, process: u64) -> bool {
        self.regions.iter().any(|(other, _)| *other == process)
    }

    /// The measured region starts here.
    pub fn start_region(&mut self) {
        self.before = self.units.statistics().clone();
        self.units.hold_from_here();
    }

    /// The units' counters since the region's start, by name; an array's elements by kind of page.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let object = |statistics: &memento::Statistics| serde_json::to_value(statistics).unwrap_or_default();
        let (now, before) = (object(self.units.statistics()), object(&self.before));
        let mut all = Vec::new();
        for (name, value) in now.as_object().into_iter().flatten() {
            let difference = |now: &serde_json::Value, before: &serde_json::Value| {
                now.as_u64().unwrap_or(0) - before.as_u64().unwrap_or(0)
            };
            match value.as_array() {
                None => all.push((name.clone(), difference(value, &before[name]))),
                Some(list) => {
                    for ((index, value), kind) in list.iter().enumerate().zip(["data", "tables", "blocks"]) {
                        all.push((format!("{name}.{kind}"), difference(value, &before[name][index])));
                    }
                }
            }
        }
        all
    }

    /// obj-alloc, by the closing mark's operands: `size | lane << 32` and the shim's address.
    ///
    /// # Errors
    /// One line: the units raised an exception, or allocated elsewhere than the shim.
    pub fn allocate(
        &mut self,
        size_and_lane: u64,
        address: u64,
        at: u64,
        view: &mut View,
    ) -> Result<u64, String> {
        self.operations += 1;
        let (size, lane) = (size_and_lane & 0xffff_ffff, (size_and_lane >> 32) as usize);
        let done = self.units.obj_alloc(self.core, lane, size, at, view);
        if done.address != address {
            return Err(format!(
                "operation {}, obj-alloc of {size} bytes: the shim's address is {address:#x}, the units' {:#x}",
                self.operations, done.address
            ));
        }
        Ok(done.at)
    }

    /// obj-free, by the closing mark's operands: address and lane; `refused`: the shim has detected a double
    /// free.
    ///
    /// # Errors
    /// One line: shim and units disagree on whether the object may be freed.
    pub fn free(
        &mut self,
        address: u64,
        lane: u64,
        refused: bool,
        at: u64,
        view: &mut View,
    ) -> Result<u64, String> {
        self.operations += 1;
        let done = self.units.obj_free(self.core, lane as usize, address, at, view);
        let agrees = if refused { done.exception.is_some() } else { done.exception.is_none() };
        if !agrees {
            let outcome =
                |exception: Option<Exception>| exception.map_or("no exception".to_owned(), |e| e.to_string());
            let shim = if refused { "an exception" } else { "no exception" };
            return Err(format!(
                "operation {}, obj-free of {address:#x}: the shim has {shim}, the units {}",
                self.operations,
                outcome(done.exception)
            ));
        }
        Ok(done.at)
    }
}
