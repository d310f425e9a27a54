//! A VM for each trust domain of a template: `Metadata.Mayfly.Vm` of a function names its own, and those that name none have one together.
//! Each has a code disk, a kernel and partitions of its own; what happens in one is no other's concern.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use vm::protocol::Mode;
use worker_page::data;

use super::disk::Disk;
use super::{Machine, Part, Plan, life, word};
use crate::history::History;
use crate::options::Options;
use crate::sandbox::{Kind, Later, Maker, Order, Overall, Sandbox};

/// An emulated processor is that much slower.
const SLOWER: u32 = 6;

/// Functions that live in one VM.
#[derive(Debug)]
pub struct Domain {
    /// As they name it.
    pub name: Option<String>,
    /// Memory of the largest of them.
    pub largest_mib: u32,
    /// What their instances see of the host.
    pub parts: Vec<Part>,
}

/// The VMs.
pub struct Domains {
    mode: Mode,
    machines: BTreeMap<Option<String>, Arc<Machine>>,
}

impl Domains {
    /// Makes the VMs and boots them, one after the other. Each has room for as many instances as the plan says: memory that is not
    /// plugged costs nothing, and how many there are in all the pool sees to.
    ///
    /// # Errors
    /// A code disk cannot be made, or a VM does not come up.
    pub fn boot(
        plan: &Plan,
        domains: Vec<Domain>,
        options: &Arc<Options>,
        folder: &Path,
        history: &Arc<History>,
    ) -> Result<Domains> {
        let mut booted = Domains { mode: plan.mode, machines: BTreeMap::new() };
        for (number, mut domain) in domains.into_iter().enumerate() {
            let own = folder.join(format!("vm-{number}"));
            let parts = std::mem::take(&mut domain.parts);
            let boot = || -> Result<Arc<Machine>> {
                // QEMU is a user of its own, whatever this process's umask is.
                let made = fs::create_dir(&own)
                    .and_then(|()| fs::set_permissions(&own, fs::Permissions::from_mode(0o711)));
                made.with_context(|| format!("cannot make {}", own.display()))?;
                let disk = Disk::make(&own, parts)?;
                let machine = Machine::new(plan, &domain, disk, options.clone(), folder, history.clone())?;
                let machine = Arc::new(machine);
                machine.boot()?;
                Ok(machine)
            };
            match boot() {
                Ok(machine) => drop(booted.machines.insert(domain.name, machine)),
                Err(error) => {
                    booted.close();
                    return Err(error);
                }
            }
        }
        Ok(booted)
    }

    /// Does something with all VMs at once.
    fn each<T: Send>(&self, what: impl Fn(&Machine) -> T + Sync) -> Vec<T> {
        let what = &what;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.machines.values().map(|machine| scope.spawn(move || what(machine))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        })
    }
}

impl Maker for Domains {
    fn start(self: Arc<Self>, order: Order) -> Later<'static, Result<Arc<dyn Sandbox>>> {
        Box::pin(async move {
            let machine = self.machines.get(&order.deployment.settings.vm);
            let machine = machine.context("it has no VM: functions come from the template")?;
            Ok(Arc::new(life::start(machine, order).await?) as Arc<dyn Sandbox>)
        })
    }

    fn slower(&self) -> u32 {
        SLOWER
    }

    fn memory(&self) -> Overall {
        let all = self.each(Machine::memory_now).into_iter().flatten();
        Overall { store: data::Store::default(), vm: all.reduce(together) }
    }

    fn kind(&self) -> Kind {
        Kind { sandbox: "vm", partitions: word(self.mode) }
    }

    fn closing(&self) {
        self.machines.values().for_each(|machine| machine.closing());
    }

    /// Powers them off.
    fn close(&self) {
        self.each(Machine::close);
    }
}

/// Two VMs as one.
fn together(one: data::Vm, other: data::Vm) -> data::Vm {
    data::Vm {
        resident_bytes: one.resident_bytes + other.resident_bytes,
        partitions: one.partitions + other.partitions,
        plugged: one.plugged + other.plugged,
        used: one.used + other.used,
        plugged_bytes: one.plugged_bytes + other.plugged_bytes,
        merged_bytes: one.merged_bytes + other.merged_bytes,
        mapped_merged_bytes: one.mapped_merged_bytes + other.mapped_merged_bytes,
    }
}
