//! A VM for each trust domain of a template: `Metadata.Mayfly.Vm` of a function names its own, and those
//! that name none have one together. Each has a code disk, a kernel and partitions of its own; a failure
//! in one affects no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use anyhow::{Context, Result};
use tokio::sync::watch;
use worker_page::data;
use worker_pool::FunctionId;

use super::code_disk::Disk;
use super::snapshot::VmSnapshot;
use super::{Host, InUse, Part, PartitionedVm, Plan, SLOWER};
use crate::function::definition::Deployment;
use crate::function::worker_options::Options;
use crate::sandbox::history::History;
use crate::sandbox::interface::{BoxFuture, Kind, Maker, Order, Overall, Sandbox, SnapshotState};
use crate::sandbox::network::Outside;
use crate::sandbox::restoring;
use crate::sandbox::snapshots::Snapshots;

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
    pub(super) plan: Plan,
    pub(super) host: Arc<Host>,
    vms: Mutex<Vms>,
    pub(super) snapshots: Snapshots<VmSnapshot>,
    /// Has the worker log only once that there are no snapshots.
    pub(super) no_snapshots: Once,
    /// Whether the worker ends.
    pub(super) closing: watch::Sender<bool>,
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
        // Together as much as those of containers at most; and each VM has room for some.
        let snapshots = Snapshots::new((options.capacity.memory_mib << 20) / 4);
        let host = Host {
            options,
            folder: folder.into(),
            history,
            outside: Outside::default(),
            long_heads: Arc::default(),
        };
        VmDomains {
            plan,
            host: Arc::new(host),
            vms: Mutex::default(),
            snapshots,
            no_snapshots: Once::new(),
            closing: watch::Sender::new(false),
        }
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

    /// The VM of this domain, for an instance.
    pub(super) fn take(&self, domain: &Option<String>) -> Option<InUse> {
        self.lock().now.get(domain).map(PartitionedVm::take)
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
        Box::pin(
            async move { Ok(Arc::new(restoring::start_or_restore(self, order).await?) as Arc<dyn Sandbox>) },
        )
    }

    fn snapshot_state(&self, deployment: &Deployment) -> SnapshotState {
        self.snapshots.state(deployment)
    }

    fn deleted(&self, function: FunctionId) {
        self.snapshots.forget(function);
    }

    fn slower(&self) -> u32 {
        SLOWER
    }

    fn memory(&self) -> Overall {
        let all = self.each(PartitionedVm::memory_now).into_iter().flatten();
        Overall { vm: all.reduce(together), ..Overall::default() }
    }

    fn kind(&self) -> Kind {
        Kind { sandbox: "vm", partitions: self.plan.mode.name(), snapshots: self.plan.merges() }
    }

    fn takes_code(&self) -> bool {
        false
    }

    fn closing(&self) {
        self.closing.send_replace(true);
        self.all().iter().for_each(|vm| vm.closing());
    }

    /// Powers them off.
    fn close(&self) {
        restoring::end_taking();
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
    use vm::protocol::Mode;

    use super::*;
    use crate::function::worker_options::Libraries;

    fn plan(folder: &Path, mode: Mode, partitions: u32) -> Plan {
        let (kernel, initrd) = (folder.join("kernel"), folder.join("initrd"));
        let append = String::new();
        let image = vm::image::Image { kernel, initrd, disk: None, append, hotmem: false, linux: None };
        Plan { mode, partitions, image }
    }

    #[test]
    fn vms_with_snapshots_have_a_partition_for_the_instance_that_is_taken() {
        let all = Libraries { merge: Some("m".into()), snapshot: true, ..Libraries::default() };
        let partitions = |mode, count, libraries: &Libraries| {
            plan(Path::new("/"), mode, count).partitions_of_each(libraries)
        };
        assert_eq!(partitions(Mode::Hotmem, 4, &all), 5);
        assert_eq!(partitions(Mode::Ranges, 125, &all), 126);
        assert_eq!(partitions(Mode::Hotmem, 126, &all), 126, "with the shared one there are no more");
        assert_eq!(partitions(Mode::Nodes, 4, &all), 4);
        for less in [Libraries { merge: None, ..all.clone() }, Libraries { snapshot: false, ..all }] {
            assert_eq!(partitions(Mode::Hotmem, 4, &less), 4);
        }
    }

    #[test]
    fn nothing_stays_of_a_vm_that_does_not_come_up() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path(), Mode::Nodes, 1);
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
