//! A VM for each trust domain of a template: `Metadata.Mayfly.Vm` of a function names its own, and those
//! that name none have one together. Each has a code disk, a kernel and partitions of its own; a failure
//! in one affects no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use anyhow::{Context, Result};
use worker_page::data;

use super::code_disk::Disk;
use super::{Host, Part, PartitionedVm, Plan, SLOWER, lifecycle};
use crate::function::worker_options::Options;
use crate::sandbox::history::History;
use crate::sandbox::interface::{BoxFuture, Kind, Maker, Order, Overall, Sandbox};
use crate::sandbox::network::Outside;
use crate::sandbox::snapshots;

/// Functions that live in one VM.
#[derive(Debug)]
pub struct VmDomain {
    /// The name that they give it.
    pub name: Option<String>,
    /// The memory of the largest function.
    pub largest_mib: u32,
    /// The files of the host that their instances see.
    pub parts: Vec<Part>,
}

/// The VMs.
pub struct VmDomains {
    plan: Plan,
    host: Arc<Host>,
    vms: Mutex<Vms>,
    /// Has the worker log only once that there are no snapshots.
    no_snapshots: Once,
}

#[derive(Default)]
struct Vms {
    /// The VMs for new instances, by domain.
    now: BTreeMap<Option<String>, Arc<PartitionedVm>>,
    /// Replaced ones, until their last instance has ended.
    leaving: Vec<Arc<PartitionedVm>>,
    /// The number of VMs ever made, which names them.
    made: usize,
}

impl VmDomains {
    /// None yet. `folder` is the worker's own.
    pub fn new(plan: Plan, options: Arc<Options>, folder: &Path, history: Arc<History>) -> VmDomains {
        let host = Host {
            options,
            folder: folder.into(),
            history,
            outside: Outside::default(),
            long_heads: Arc::default(),
        };
        VmDomains { plan, host: Arc::new(host), vms: Mutex::default(), no_snapshots: Once::new() }
    }

    /// Provides a VM for each of these domains, and for no other. A VM that suits its domain stays; others
    /// are booted, one after the other, before anything changes. Each has partitions for as many instances
    /// as the plan allows: memory that is not plugged costs nothing, and the pool limits the sum of all
    /// instances. Returns the domains whose VM was replaced; instances of their functions still run in the
    /// earlier one.
    ///
    /// # Errors
    /// A code disk cannot be made, or a VM does not come up.
    pub fn provide(&self, domains: Vec<VmDomain>) -> Result<BTreeSet<Option<String>>> {
        let wanted: BTreeSet<Option<String>> = domains.iter().map(|domain| domain.name.clone()).collect();
        let mut booted: BTreeMap<Option<String>, Arc<PartitionedVm>> = BTreeMap::new();
        for domain in domains {
            let there = self.lock().now.get(&domain.name).cloned();
            if there.is_some_and(|vm| vm.suits(&domain)) {
                continue;
            }
            let name = domain.name.clone();
            match self.boot(domain) {
                Ok(vm) => drop(booted.insert(name, vm)),
                Err(error) => {
                    booted.values().for_each(PartitionedVm::replace);
                    return Err(error);
                }
            }
        }
        let mut vms = self.lock();
        vms.leaving.retain(|vm| vm.running.borrow().is_some());
        let mut replaced = BTreeSet::new();
        for (name, vm) in booted {
            if let Some(earlier) = vms.now.insert(name.clone(), vm) {
                replaced.insert(name);
                vms.leaving.push(earlier);
            }
        }
        let gone: Vec<_> = vms.now.keys().filter(|name| !wanted.contains(*name)).cloned().collect();
        let gone: Vec<_> = gone.iter().filter_map(|name| vms.now.remove(name)).collect();
        vms.leaving.extend(gone);
        vms.leaving.iter().for_each(PartitionedVm::replace);
        Ok(replaced)
    }

    fn boot(&self, domain: VmDomain) -> Result<Arc<PartitionedVm>> {
        let number = {
            let mut vms = self.lock();
            vms.made += 1;
            vms.made
        };
        let own = self.host.folder.join(format!("vm-{number}"));
        let booted = self.boot_in(&own, domain, number);
        if booted.is_err() {
            // An operator who reloads a template until it is right would fill the disk.
            let _ = fs::remove_dir_all(&own);
        }
        booted
    }

    fn boot_in(&self, own: &Path, domain: VmDomain, number: usize) -> Result<Arc<PartitionedVm>> {
        // QEMU runs as a user of its own, which must reach this folder whatever this process's umask is.
        let made =
            fs::create_dir(own).and_then(|()| fs::set_permissions(own, fs::Permissions::from_mode(0o711)));
        made.with_context(|| format!("cannot make {}", own.display()))?;
        let disk = Disk::make(own, domain.parts.clone())?;
        let vm = Arc::new(PartitionedVm::new(&self.plan, &domain, number, disk, self.host.clone())?);
        vm.boot()?;
        Ok(vm)
    }

    fn lock(&self) -> MutexGuard<'_, Vms> {
        self.vms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `what` for all VMs at the same time.
    fn each<T: Send>(&self, what: impl Fn(&PartitionedVm) -> T + Sync) -> Vec<T> {
        let (what, vms) = (&what, self.all());
        std::thread::scope(|scope| {
            let threads: Vec<_> = vms.iter().map(|vm| scope.spawn(move || what(vm))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        })
    }

    fn all(&self) -> Vec<Arc<PartitionedVm>> {
        let vms = self.lock();
        vms.now.values().chain(&vms.leaving).cloned().collect()
    }
}

impl Maker for VmDomains {
    fn start(self: Arc<Self>, order: Order) -> BoxFuture<'static, Result<Arc<dyn Sandbox>>> {
        if snapshots::is_wanted(&order.deployment) {
            self.no_snapshots.call_once(|| {
                tracing::warn!("{}: VMs have no snapshots: instances start as ever", order.label());
            });
        }
        Box::pin(async move {
            let vm = self.lock().now.get(&order.deployment.settings.vm).map(PartitionedVm::take);
            let vm = vm.context("it has no VM: functions come from the template")?;
            Ok(Arc::new(lifecycle::start(vm, order).await?) as Arc<dyn Sandbox>)
        })
    }

    fn slower(&self) -> u32 {
        SLOWER
    }

    fn memory(&self) -> Overall {
        let all = self.each(PartitionedVm::memory_now).into_iter().flatten();
        Overall { vm: all.reduce(together), ..Overall::default() }
    }

    fn kind(&self) -> Kind {
        Kind { sandbox: "vm", partitions: self.plan.mode.name() }
    }

    fn takes_code(&self) -> bool {
        false
    }

    fn closing(&self) {
        self.all().iter().for_each(|vm| vm.closing());
    }

    /// Powers them off.
    fn close(&self) {
        self.each(PartitionedVm::close);
        self.host.outside.close();
    }
}

/// The sum of two VMs' memory.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_stays_of_a_vm_that_does_not_come_up() {
        let folder = tempfile::tempdir().unwrap();
        let (kernel, initrd) = (folder.path().join("kernel"), folder.path().join("initrd"));
        let image = vm::image::Image {
            kernel,
            initrd,
            disk: None,
            append: String::new(),
            hotmem: false,
            linux: None,
        };
        let plan = Plan { mode: vm::protocol::Mode::Nodes, partitions: 1, image };
        let options = Arc::new(Options::of_tests(folder.path()));
        let history = Arc::new(History::new(std::time::Instant::now()));
        let own = folder.path().join("own");
        fs::create_dir(&own).unwrap();
        let domains = VmDomains::new(plan, options, &own, history);
        let source = folder.path().join("missing");
        let part = Part { source, name: "0".into(), content: String::new(), is_root: false };
        let domain = VmDomain { name: None, largest_mib: 128, parts: vec![part] };
        assert!(domains.provide(vec![domain]).is_err());
        assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
    }
}
