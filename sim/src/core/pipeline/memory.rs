//! Loads and stores of the core: translation, the queue of stores with its forwarding, and the way into the
//! caches.

use crate::base::cause::Cause;
use crate::core::pipeline::{Behind, Core};
use crate::isa::block::Access;
use crate::memory::hierarchy::{Level, Purpose};
use crate::memory::tlb::{PageTables, Side};

/// Entries of the table that finds a store by the eight bytes that it writes.
pub(super) const FORWARDS: usize = 512;

/// A store that may still be in the queue.
#[derive(Clone, Copy, Default)]
pub(super) struct QueuedStore {
    granule: u64,
    ready: u64,
    drained: u64,
}

/// The cause for which an instruction was late at commit: first one, then another.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    /// The second cause.
    pub cause: Cause,
    /// The cycle from which the second cause counts.
    pub since: u64,
    /// The first cause.
    pub before: Cause,
}

impl Wait {
    /// For one cause alone.
    #[inline(always)]
    pub fn of(cause: Cause) -> Wait {
        Wait { cause, since: 0, before: cause }
    }
}

impl Core {
    /// When the data of all the instruction's loads is there, and the cause if it comes later than at once.
    #[inline(always)]
    pub(super) fn load<T: PageTables>(
        &mut self,
        accesses: &[Access],
        issued: u64,
        behind: &mut Behind<T>,
    ) -> (u64, Option<Wait>) {
        let mut all = issued + 1;
        let mut cause = None;
        for access in accesses.iter().filter(|access| !access.store) {
            let (done, late) = self.load_one(access, issued, behind);
            if done > all {
                (all, cause) = (done, late);
            }
        }
        (all, cause)
    }

    #[inline(always)]
    fn load_one<T: PageTables>(
        &mut self,
        access: &Access,
        issued: u64,
        behind: &mut Behind<T>,
    ) -> (u64, Option<Wait>) {
        if access.device {
            return (issued + DEVICE_CYCLES, Some(Wait::of(Cause::Serial)));
        }
        let Translation { physical, fresh, at: translated } = translate(access, issued, behind);
        let walked = (translated > issued).then_some(Wait::of(Cause::DataTlb));
        let last = access.physical + u64::from(access.size) - 1;
        for granule in [access.physical >> 3, last >> 3] {
            let store = &self.stores[granule as usize & (FORWARDS - 1)];
            if store.granule == granule && translated < store.drained {
                self.forwards += 1;
                return (translated.max(store.ready) + self.forward, walked);
            }
        }
        let line = physical >> 6;
        let (mut done, mut level) = behind.hierarchy.access(Level::L1d, line, false, fresh, translated);
        if last >> 6 != access.physical >> 6 {
            let (second, from) = behind.hierarchy.access(Level::L1d, line + 1, false, fresh, translated);
            (done, level) = (done.max(second), level.max(from));
        }
        let Some(cause) = cause_of(level) else { return (done, walked) };
        let before = if walked.is_some() { Cause::DataTlb } else { cause };
        (done, Some(Wait { cause, since: translated, before }))
    }

    /// Stores leave the queue in order, once committed and once the core owns the line, which it requests at
    /// issue. When this store has left, and the cause of its wait.
    #[inline(always)]
    pub(super) fn store<T: PageTables>(
        &mut self,
        accesses: &[Access],
        issued: u64,
        behind: &mut Behind<T>,
    ) -> (u64, Cause) {
        let mut drained = self.commit.max(self.drained);
        let mut cause = if self.drained > self.commit { self.drained_cause } else { Cause::Execution };
        for access in accesses.iter().filter(|access| access.store) {
            if access.device {
                drained += DEVICE_CYCLES;
                cause = Cause::Serial;
                continue;
            }
            let Translation { physical, fresh, at } = translate(access, issued, behind);
            let last = access.physical + u64::from(access.size) - 1;
            let line = physical >> 6;
            let (mut owned, mut level) = behind.hierarchy.access(Level::L1d, line, true, fresh, at);
            if last >> 6 != access.physical >> 6 {
                let (second, from) = behind.hierarchy.access(Level::L1d, line + 1, true, fresh, at);
                (owned, level) = (owned.max(second), level.max(from));
            }
            if owned > drained {
                let walked = if at > issued { Cause::DataTlb } else { Cause::Execution };
                (drained, cause) = (owned, cause_of(level).unwrap_or(walked));
            }
            for granule in access.physical >> 3..=last >> 3 {
                self.stores[granule as usize & (FORWARDS - 1)] =
                    QueuedStore { granule, ready: issued, drained };
            }
        }
        self.drained = drained;
        self.drained_cause = cause;
        (drained, cause)
    }
}

/// The cause of waiting for a line that the L1d does not have.
#[inline(always)]
fn cause_of(level: Level) -> Option<Cause> {
    match level {
        Level::L1i | Level::L1d => None,
        Level::L2 => Some(Cause::L2),
        Level::Llc => Some(Cause::Llc),
        Level::Dram => Some(Cause::Dram),
    }
}

/// A device's register: outside of the paper's subject.
const DEVICE_CYCLES: u64 = 300;

/// An access's physical address, and when it is known. Translating also sets the hierarchy's purpose.
pub(super) struct Translation {
    pub physical: u64,
    /// A line of Memento's region that was never used: no need to read it from DRAM.
    pub fresh: bool,
    pub at: u64,
}

#[inline(always)]
pub(super) fn translate<T: PageTables>(access: &Access, at: u64, behind: &mut Behind<T>) -> Translation {
    let physical = access.physical;
    if let Some(extension) = &mut behind.extension
        && extension.contains(access.address)
    {
        let (physical, fresh, known) = extension.translate(access, at, behind.hierarchy, behind.tlbs);
        behind.hierarchy.purpose = Purpose::Objects;
        return Translation { physical, fresh, at: known };
    }
    let purpose = if access.address >> 63 == 1 { Purpose::Kernel } else { Purpose::Program };
    behind.hierarchy.purpose = purpose;
    if behind.tlbs.quick(Side::Data, access.address, physical) {
        return Translation { physical, fresh: false, at };
    }
    let translated =
        behind.tlbs.slow(Side::Data, access.address, physical, at, behind.hierarchy, behind.tables);
    behind.hierarchy.purpose = purpose;
    Translation { physical, fresh: false, at: translated.at }
}
