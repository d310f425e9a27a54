//! A VM's settings, fixed when it boots (HotMem §4.1, "VM creation"), and their validation.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vm_protocol::{Layout, MAX_PARTITIONS, Mode};

use crate::base::error::Error;
use crate::base::host_memory::{HostMemory, require_huge_pages};
use crate::base::image::Image;

/// Linux plugs and unplugs whole memory blocks (HotMem §2.2). On x86-64 a block is 128 MiB unless the machine
/// boots with 64 GiB or more.
pub const BLOCK_BYTES: u64 = 128 << 20;

/// The virtio-mem driver can leave parts of a block unplugged, in units of a huge page, which is also QEMU's
/// block size.
pub const PIECE_BYTES: u64 = 2 << 20;

/// Boot memory for the kernel, the root file system and the agent, before any partition is described.
const BASE_BYTES: u64 = 512 << 20;

/// The most boot memory that keeps memory blocks at [`BLOCK_BYTES`].
const MAX_BOOT_BYTES: u64 = 60 << 30;

/// Which program runs the VM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum HypervisorChoice {
    /// The QEMU that is installed.
    #[default]
    Qemu,
    /// This Firecracker.
    Firecracker(PathBuf),
}

/// How QEMU is to run the guest's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcceleratorChoice {
    /// KVM where it boots the kernel, else TCG.
    #[default]
    Auto,
    /// KVM or nothing.
    Kvm,
    /// TCG.
    Tcg,
}

/// What holds the guest's memory on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backing {
    /// Anonymous memory, with transparent huge pages where the host has them.
    #[default]
    Anonymous,
    /// A memfd, which processes that serve the VM's devices can map (vhost-user).
    Shared,
    /// Huge pages of 2 MiB that the host has preallocated; unplugged memory returns to that pool.
    HugePages,
}

impl Backing {
    /// Fails unless the host has this much memory of this kind.
    ///
    /// # Errors
    /// One line: how much is needed, and how much there is.
    pub fn require(self, what: &str, bytes: u64) -> Result<(), Error> {
        match self {
            Backing::HugePages => require_huge_pages(what, bytes),
            Backing::Anonymous | Backing::Shared => HostMemory::require(what, bytes),
        }
    }
}

/// The settings of a VM.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name by which other commands find it.
    pub name: String,
    /// Mode, concurrency factor, sizes.
    pub layout: Layout,
    /// Memory present at boot, besides partitions. `None`: enough for the layout.
    pub boot_bytes: Option<u64>,
    /// The most memory that may be plugged, including the shared partition and not boot memory. `None`: all
    /// partitions.
    pub limit_bytes: Option<u64>,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Which program runs it.
    pub hypervisor: HypervisorChoice,
    /// How QEMU runs the guest's code.
    pub accelerator: AcceleratorChoice,
    /// Kernel and root disk.
    pub image: Image,
    /// A second disk, read-only: the code of the worker's functions.
    pub code: Option<PathBuf>,
    /// What holds its memory.
    pub backing: Backing,
    /// The guest reports free memory, in units of 2 MiB, and the host discards it until it is used again:
    /// memory that instances free or merge returns to the host before they end.
    pub reports_free_memory: bool,
    /// Added to the kernel's command line.
    pub append: String,
    /// Timeout for each step that the guest has to carry out.
    pub patience: Duration,
}

impl Settings {
    /// Boot memory: as given, or [`BASE_BYTES`], plus the page descriptors of everything that can be plugged
    /// (HotMem §5.1: 1/64 of it), plus the structures of each node.
    pub fn boot_bytes(&self) -> u64 {
        self.boot_bytes.unwrap_or_else(|| {
            let hotplug_bytes = match self.layout.mode {
                Mode::Static => 0,
                _ => self.hotplug_bytes(),
            };
            let node_bytes = u64::from(self.layout.partitions()) << 20;
            (BASE_BYTES + hotplug_bytes / 64 + node_bytes).next_multiple_of(BLOCK_BYTES)
        })
    }

    /// Memory present at boot for QEMU and the guest: boot memory, and in mode `static` all partitions, too.
    pub fn memory_at_boot_bytes(&self) -> u64 {
        match self.layout.mode {
            Mode::Static => self.boot_bytes() + self.hotplug_bytes(),
            _ => self.boot_bytes(),
        }
    }

    /// All memory that can be plugged.
    pub fn hotplug_bytes(&self) -> u64 {
        self.layout.all_bytes()
    }

    /// The most memory the VM may have plugged.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.unwrap_or(u64::MAX).min(self.hotplug_bytes())
    }

    /// Validates the settings against each other and the host.
    ///
    /// # Errors
    /// One line about the first setting that is wrong, or the host's memory.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |line: String| Err(Error::Setting(line));
        let layout = &self.layout;
        if !is_name(&self.name) {
            return wrong(format!(
                "a VM's name has 1 to 40 letters, digits, '-' and '_', unlike {:?}",
                self.name
            ));
        }
        if layout.partitions() == 0 {
            return wrong("a VM has at least 1 partition".to_string());
        }
        let shared = u32::from(layout.shared_bytes > 0);
        if layout.partitions() + shared > MAX_PARTITIONS {
            let with = if shared > 0 { " and a shared one" } else { "" };
            return wrong(format!(
                "{} partitions{with} are too many: a VM has at most {MAX_PARTITIONS} in all, because each is a NUMA node \
                 and QEMU has 128",
                layout.partitions()
            ));
        }
        // Mayfly's kernel counts, empties and unplugs whole blocks.
        let (piece, unit) = match layout.mode {
            Mode::Hotmem | Mode::Ranges => (BLOCK_BYTES, "the block in which Linux plugs memory"),
            _ => (PIECE_BYTES, "a huge page"),
        };
        let block = (BLOCK_BYTES, "the block in which Linux plugs memory");
        let whole = [
            ("the shared size", layout.shared_bytes, block),
            ("the memory at boot", self.boot_bytes(), block),
        ];
        let partitions =
            layout.partition_bytes.iter().map(|bytes| ("the partition size", *bytes, (piece, unit)));
        for (what, bytes, (piece, unit)) in whole.into_iter().chain(partitions) {
            if !bytes.is_multiple_of(piece) {
                return wrong(format!(
                    "{what} must be a multiple of {} MiB, {unit}, not {bytes} bytes",
                    piece >> 20
                ));
            }
        }
        if layout.mode == Mode::Ranges
            && layout.partition_bytes.iter().any(|bytes| *bytes != layout.partition_bytes[0])
        {
            return wrong(
                "mode ranges: all partitions have one size, for the kernel cuts its device evenly"
                    .to_string(),
            );
        }
        if layout.partition_bytes.contains(&0) {
            return wrong(format!("a partition has at least {} MiB, {unit}", piece >> 20));
        }
        let largest_bytes = layout.partition_bytes.iter().copied().max().unwrap_or(0);
        let host = HostMemory::read()?;
        if largest_bytes > host.total_bytes {
            return wrong(format!(
                "a partition of {} MiB is larger than this host's memory ({} MiB)",
                largest_bytes >> 20,
                host.total_bytes >> 20
            ));
        }
        let most = self.limit_bytes().saturating_sub(layout.shared_bytes);
        if largest_bytes > most {
            return wrong(format!(
                "a partition of {} MiB is larger than the VM: it may have {} MiB beside boot memory and shared partition",
                largest_bytes >> 20,
                most >> 20
            ));
        }
        if !(256 << 20..=MAX_BOOT_BYTES).contains(&self.boot_bytes()) {
            return wrong(format!("the memory at boot is 256 MiB to {} GiB", MAX_BOOT_BYTES >> 30));
        }
        if !(1..=64).contains(&self.cpus) {
            return wrong("a VM has 1 to 64 CPUs".to_string());
        }
        if layout.mode.is_kernels() && !self.image.hotmem {
            return wrong(format!(
                "mode {} needs Mayfly's kernel, {} is another: mayfly vm image --kernel hotmem",
                layout.mode.name(),
                self.image.kernel.display()
            ));
        }
        if let HypervisorChoice::Firecracker(_) = self.hypervisor {
            self.check_for_firecracker()?;
        }
        let shared_bytes = if layout.mode == Mode::Static { 0 } else { layout.shared_bytes };
        self.backing.require("to boot the VM", self.memory_at_boot_bytes() + shared_bytes)
    }
}

impl Settings {
    /// Fails if Firecracker cannot have these settings.
    fn check_for_firecracker(&self) -> Result<(), Error> {
        let mode = self.layout.mode;
        let line = match self {
            _ if matches!(mode, Mode::Nodes | Mode::Hotmem) => {
                "Firecracker has one memory device and no NUMA nodes: --mode ranges, plain or static"
            }
            // The agent's port is a vsock device, for which Debian's initial RAM file system has no driver.
            _ if !self.image.hotmem => "Firecracker needs Mayfly's kernel: mayfly vm image --kernel hotmem",
            _ if self.accelerator == AcceleratorChoice::Tcg => "Firecracker needs KVM: no --accelerator tcg",
            _ if self.backing != Backing::Anonymous => "Firecracker: no --backing but anonymous",
            _ if self.code.is_some() => "Firecracker has no relay: a worker's VMs run under QEMU",
            _ => return Ok(()),
        };
        Err(Error::Setting(line.to_string()))
    }
}

fn is_name(name: &str) -> bool {
    (1..=40).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn settings() -> Settings {
        let layout =
            Layout { mode: Mode::Nodes, partition_bytes: vec![256 << 20; 4], shared_bytes: 128 << 20 };
        let (kernel, initrd) = (PathBuf::from("/k"), PathBuf::from("/i"));
        Settings {
            name: "a".to_string(),
            layout,
            boot_bytes: None,
            limit_bytes: None,
            cpus: 2,
            hypervisor: HypervisorChoice::Qemu,
            accelerator: AcceleratorChoice::Auto,
            image: Image { kernel, initrd, disk: None, append: String::new(), hotmem: false, linux: None },
            code: None,
            backing: Backing::Anonymous,
            reports_free_memory: false,
            append: String::new(),
            patience: Duration::from_secs(1),
        }
    }

    fn set_partitions(settings: &mut Settings, partitions: usize, bytes: u64) {
        settings.layout.partition_bytes = vec![bytes; partitions];
    }

    fn refusal(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = settings();
        change(&mut settings);
        settings.check().expect_err("it is refused").to_string()
    }

    type Change = fn(&mut Settings);

    fn firecracker_changes() -> [(Change, &'static str); 5] {
        [
            (|s| s.layout.mode = Mode::Hotmem, "--mode ranges, plain or static"),
            (|s| (s.layout.mode, s.image.hotmem) = (Mode::Plain, false), "Firecracker needs Mayfly's kernel"),
            (|s| s.accelerator = AcceleratorChoice::Tcg, "Firecracker needs KVM"),
            (|s| s.backing = Backing::Shared, "no --backing but anonymous"),
            (|s| s.code = Some(PathBuf::from("/c")), "a worker's VMs run under QEMU"),
        ]
    }

    #[test]
    fn invalid_settings_are_refused_in_one_line() {
        settings().check().unwrap();
        let changes: [(Change, &str); 13] = [
            (|s| s.name = "a/b".to_string(), "name"),
            (|s| s.layout.partition_bytes.clear(), "at least 1 partition"),
            (|s| set_partitions(s, 127, 128 << 20), "127 partitions and a shared one are too many"),
            (
                |s| {
                    set_partitions(s, 128, 128 << 20);
                    s.layout.shared_bytes = 0;
                },
                "128 partitions are too many",
            ),
            (
                |s| s.layout.partition_bytes[3] += 1 << 20,
                "the partition size must be a multiple of 2 MiB, a huge page",
            ),
            (
                |s| {
                    s.layout.mode = Mode::Hotmem;
                    s.layout.partition_bytes[3] = 64 << 20;
                },
                "the partition size must be a multiple of 128 MiB, the block",
            ),
            (
                |s| {
                    s.layout.mode = Mode::Ranges;
                    s.layout.partition_bytes[1] = 128 << 20;
                },
                "mode ranges: all partitions have one size",
            ),
            (|s| s.layout.shared_bytes = 1, "the shared size must be a multiple of 128 MiB"),
            (|s| s.layout.partition_bytes[1] = 0, "at least 2 MiB"),
            (|s| s.layout.partition_bytes[2] = 1 << 50, "larger than this host's memory"),
            (
                |s| s.limit_bytes = Some(256 << 20),
                "a partition of 256 MiB is larger than the VM: it may have 128 MiB",
            ),
            (
                |s| s.layout.mode = Mode::Hotmem,
                "mode hotmem needs Mayfly's kernel, /k is another: mayfly vm image --kernel hotmem",
            ),
            (|s| s.boot_bytes = Some(1 << 40), "memory at boot"),
        ];
        for (change, expected) in changes {
            let line = refusal(change);
            assert!(line.contains(expected) && !line.contains('\n'), "{line}");
        }
        let mut most = settings();
        set_partitions(&mut most, 127, 256 << 20);
        most.layout.shared_bytes = 0;
        most.check().unwrap();
        let mut mixed = settings();
        mixed.layout.partition_bytes = vec![256 << 20, 64 << 20, 2 << 20];
        mixed.check().unwrap();
        assert_eq!(mixed.hotplug_bytes(), (128 + 256 + 64 + 2) << 20);
        for (change, expected) in firecracker_changes() {
            let line = refusal(|settings| {
                settings.hypervisor = HypervisorChoice::Firecracker(PathBuf::from("/f"));
                settings.layout.mode = Mode::Ranges;
                settings.image.hotmem = true;
                settings.check().unwrap();
                change(settings);
            });
            assert!(line.contains(expected) && !line.contains('\n'), "{line}");
        }
        most.layout.mode = Mode::Static;
        set_partitions(&mut most, 127, 32 << 30);
        let line = most.check().unwrap_err().to_string();
        assert!(
            line.contains("not enough memory on this host") || line.contains("larger than this host"),
            "{line}"
        );
    }
}
