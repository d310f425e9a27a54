//! `--sandbox vm`: instances live in a microVM, a partition of its memory each (HotMem §4.1).
//!
//! ```text
//!   scale up:    plug a partition ──► spawn the instance in it ──► it asks for work over the relay
//!   scale down:  stop ──► the partition is empty ──► unplug: its memory is the host's again, no page was moved
//! ```
//! Each trust domain has a VM ([`domains`]). If one ends, its instances have ended, their callers receive
//! the reason, and it is booted again. One that lacks what a template read anew needs is replaced: it stays
//! until its last instance has ended.

mod code_disk;
mod domains;
mod flow;
mod guest;
mod lifecycle;
mod order;
mod output;
mod partition;
pub(crate) mod relay;
mod restored;
mod snapshot;
mod tunnel;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::sync::watch;
use vm::protocol::{Layout, MAX_PARTITIONS, Mode, PartitionNumber};
use vm::{Settings, Vm};
use worker_page::data::{self, Event};

pub use code_disk::Part;
pub use domains::{VmDomain, VmDomains};

use code_disk::Disk;
use guest::Guest;
use relay::Relay;

use crate::function::worker_options::{Libraries, Options};
use crate::http::heads::LongHeads;
use crate::sandbox::history::{self, History};
use crate::sandbox::network::Outside;
use worker_pool::InstanceId;

/// A VM that does not come up is tried again after so long.
const PAUSE: Duration = Duration::from_secs(2);
/// An emulated processor is that much slower.
const SLOWER: u32 = 6;
/// How long an instance waits for the VM, which may be emulated on a busy machine. Requests have their own
/// patience.
const PATIENCE: Duration = Duration::from_secs(300);
const BLOCK_MIB: u64 = 128;
/// The shared partition's memory for files. Merged pages have more on top: as much as one instance may
/// have.
const SHARED_MIB: u64 = 256;

/// What the VM is made with.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How its memory grows and shrinks.
    pub mode: Mode,
    /// The most instances at one time.
    pub partitions: u32,
    /// Kernel and root.
    pub image: vm::image::Image,
}

impl Plan {
    /// Whether the guest's kernel merges pages, and keeps those that it has merged out of the partitions.
    pub fn merges(&self) -> bool {
        self.mode.is_kernels()
    }

    /// Whether instances are restored from snapshots: these lie where merged pages lie.
    fn restores(&self, libraries: &Libraries) -> bool {
        self.merges() && libraries.snapshot && libraries.merge.is_some()
    }

    /// Partitions of each VM: with snapshots, one more than there may be instances, for the instance that is
    /// taken or restored on trial. While absent it costs nothing.
    fn partitions_of_each(&self, libraries: &Libraries) -> u32 {
        match self.restores(libraries) {
            // The shared one counts.
            true => (self.partitions + 1).min(MAX_PARTITIONS - 1).max(self.partitions),
            false => self.partitions,
        }
    }
}

/// A VM that runs, and its line to the instances.
pub struct Running {
    pub(crate) vm: Vm,
    pub(crate) relay: Relay,
    guest: Guest,
    /// The instance of each plugged partition, as far as the worker knows.
    holders: Mutex<BTreeMap<PartitionNumber, InstanceId>>,
}

/// Shared by all VMs.
pub struct Host {
    options: Arc<Options>,
    /// The worker's own.
    folder: PathBuf,
    history: Arc<History>,
    outside: Outside,
    long_heads: Arc<LongHeads>,
}

/// The VM of a trust domain, which is booted again whenever it ends.
pub struct PartitionedVm {
    /// Of its trust domain, if that has a name.
    name: Option<String>,
    settings: Settings,
    pub(crate) disk: Disk,
    host: Arc<Host>,
    running: watch::Sender<Option<Arc<Running>>>,
    closing: AtomicBool,
    occupants: Mutex<Occupants>,
}

/// The instances in a VM.
#[derive(Default)]
struct Occupants {
    instances: usize,
    /// New instances start in another VM.
    replaced: bool,
}

/// An instance in a VM, or on its way there.
pub(crate) struct InUse(Arc<PartitionedVm>);

impl Deref for InUse {
    type Target = PartitionedVm;

    fn deref(&self) -> &PartitionedVm {
        &self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.change_occupants(|occupants| occupants.instances -= 1);
    }
}

impl PartitionedVm {
    /// A VM whose partitions hold the largest of the domain's functions; not booted yet.
    ///
    /// # Errors
    /// There cannot be such a VM.
    fn new(
        plan: &Plan,
        VmDomain { name, largest_mib, .. }: &VmDomain,
        number: usize,
        disk: Disk,
        host: Arc<Host>,
    ) -> Result<PartitionedVm> {
        let partition_mib = u64::from(*largest_mib).next_multiple_of(BLOCK_MIB);
        let cpus = std::thread::available_parallelism().map_or(1, |number| number.get() as u32);
        let settings = Settings {
            name: vm_name(name.as_deref(), number),
            layout: Layout {
                mode: plan.mode,
                partition_bytes: vec![
                    partition_mib << 20;
                    plan.partitions_of_each(&host.options.libraries) as usize
                ],
                shared_bytes: (SHARED_MIB + if plan.merges() { partition_mib } else { 0 }) << 20,
            },
            boot_bytes: None,
            limit_bytes: None,
            cpus: cpus.max(2),
            hypervisor: vm::settings::HypervisorChoice::Qemu,
            accelerator: vm::settings::AcceleratorChoice::Auto,
            image: plan.image.clone(),
            code: Some(disk.file.clone()),
            backing: vm::settings::Backing::Anonymous,
            reports_free_memory: plan.merges(),
            append: String::new(),
            patience: Duration::from_secs(120),
        };
        settings.check()?;
        let (running, closing) = (watch::Sender::new(None), AtomicBool::new(false));
        let (name, occupants) = (name.clone(), Mutex::default());
        Ok(PartitionedVm { name, settings, disk, host, running, closing, occupants })
    }

    /// Boots the VM, and boots it again whenever it ends, on a thread of its own. Returns when it runs.
    ///
    /// # Errors
    /// It does not come up the first time.
    fn boot(self: &Arc<Self>) -> Result<()> {
        self.boot_once().with_context(|| format!("{} for the instances", self.label()))?;
        let vm = Arc::clone(self);
        let runtime = tokio::runtime::Handle::current();
        std::thread::Builder::new().name("vm".into()).spawn(move || {
            let _in_runtime = runtime.enter();
            vm.supervise();
        })?;
        Ok(())
    }

    fn boot_once(&self) -> Result<()> {
        let vm = Vm::boot(&self.settings)?;
        let Some(stream) = vm.take_relay() else { bail!("the VM has no relay") };
        let boot = vm.boot_time();
        self.note(&format!("up, mode {}", self.settings.layout.mode.name()), Some(boot));
        let relay = Relay::new(stream)?;
        self.running.send_replace(Some(Arc::new(Running {
            vm,
            relay,
            guest: Guest::default(),
            holders: Mutex::default(),
        })));
        Ok(())
    }

    fn supervise(&self) {
        loop {
            let running = self.running.borrow().clone();
            if let Some(running) = running {
                let day = Duration::from_secs(86_400);
                let Some(how) = running.vm.wait_for_end(Instant::now() + day) else { continue };
                if self.is_closing() {
                    return;
                }
                tracing::error!("{} ended: {how}; its instances have ended with it", self.label());
                self.note(&format!("ended: {how}"), None);
                self.running.send_replace(None);
            }
            if self.is_closing() {
                return;
            }
            match self.boot_once() {
                // A thread that closed it meanwhile found none that runs.
                Ok(()) if self.is_closing() => return self.close(),
                Ok(()) => {}
                Err(error) => {
                    tracing::error!("{} does not boot again: {error:#}", self.label());
                    self.note(&format!("does not boot: {error:#}"), None);
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Its name in logs.
    fn label(&self) -> String {
        self.name.as_ref().map_or_else(|| "the VM".into(), |name| format!("the VM {name}"))
    }

    fn note(&self, message: &str, took: Option<Duration>) {
        let ms = took.and_then(history::ms);
        let message = self.name.as_ref().map_or_else(|| message.into(), |name| format!("{name} {message}"));
        self.host.history.note(Event { message: Some(message), ms, ..history::event("vm") });
    }

    /// The VM, once it is there.
    ///
    /// # Errors
    /// It does not come up in time.
    pub async fn running(&self) -> Result<Arc<Running>> {
        let mut running = self.running.subscribe();
        let there = tokio::time::timeout(PATIENCE, running.wait_for(Option::is_some)).await;
        let there = there.context("the VM is down")?.context("the VM is gone")?;
        there.clone().context("the VM is down")
    }

    /// Whether this VM is the one that runs now, as far as is known.
    pub(crate) fn is_running(&self, running: &Arc<Running>) -> bool {
        self.running.borrow().as_ref().is_some_and(|now| Arc::ptr_eq(now, running))
    }

    /// Its memory, as host and guest see it. A guest that does not answer at once is not waited for: then
    /// it is its last report.
    fn memory_now(&self) -> Option<data::Vm> {
        let running = self.running.borrow().clone()?;
        let merged = running.guest.memory(&running).merged;
        let status = running.vm.status();
        let is_plugged = |state: &&vm::State| !matches!(state, vm::State::Absent | vm::State::Plugging);
        let plugged = status.partitions.iter().filter(is_plugged).count() as u64;
        let used = status.partitions.iter().filter(|state| state.instance().is_some()).count() as u64;
        Some(data::Vm {
            resident_bytes: status.host_resident_bytes,
            partitions: status.partitions.len() as u64,
            plugged,
            used,
            plugged_bytes: plugged * self.settings.layout.bytes_of(PartitionNumber(0)),
            merged_bytes: merged.bytes,
            mapped_merged_bytes: merged.advised_bytes,
        })
    }

    /// Whether these functions can live in it as it is.
    fn suits(&self, domain: &VmDomain) -> bool {
        u64::from(domain.largest_mib) << 20 <= self.settings.layout.bytes_of(PartitionNumber(0))
            && self.disk.has(&domain.parts)
    }

    /// Takes an instance.
    fn take(self: &Arc<Self>) -> InUse {
        self.change_occupants(|occupants| occupants.instances += 1);
        InUse(self.clone())
    }

    /// It takes no new instances, and is closed with its last one.
    fn replace(self: &Arc<Self>) {
        self.closing();
        self.change_occupants(|occupants| occupants.replaced = true);
    }

    fn change_occupants(self: &Arc<Self>, change: impl FnOnce(&mut Occupants)) {
        let is_over = {
            let mut occupants = self.occupants.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut occupants);
            occupants.replaced && occupants.instances == 0
        };
        if is_over {
            let vm = self.clone();
            let close = move || {
                vm.close();
                vm.note("replaced, and gone with its last instance", None);
                let own = vm.disk.file.parent().unwrap_or(&vm.disk.file);
                if let Err(error) = std::fs::remove_dir_all(own) {
                    tracing::warn!("cannot remove {}: {error}", own.display());
                }
            };
            // If no thread can be started for it, the VM ends with the worker.
            let _ = std::thread::Builder::new().name("vm".into()).spawn(close);
        }
    }

    /// From now on the VM is not booted again.
    fn closing(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Powers the VM off.
    fn close(&self) {
        self.closing();
        if let Some(running) = self.running.send_replace(None) {
            running.vm.shut_down();
        }
    }
}

/// Names a VM among this host's processes; `number` distinguishes it from the one that it replaces.
fn vm_name(domain: Option<&str>, number: usize) -> String {
    let domain = domain.map(|domain| format!("-{domain}")).unwrap_or_default();
    format!("worker-{}-{number}{domain}", std::process::id())
}

/// Whether there is an image to boot, and which.
///
/// # Errors
/// It was never built; the error names the command that does.
pub fn image(mode: Mode) -> Result<vm::image::Image> {
    let kernel = if mode.is_kernels() { vm::image::Kernel::Hotmem } else { vm::image::Kernel::Stock };
    Ok(vm::image::latest(kernel)?)
}

/// Where a VM's disk is made.
pub fn disk_file(folder: &Path) -> std::path::PathBuf {
    folder.join("code.ext4")
}
