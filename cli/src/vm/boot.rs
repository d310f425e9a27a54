//! `mayfly vm image` and `mayfly vm boot`: what a VM boots, and the process that owns it.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use vm::image::{self, Image};
use vm::protocol::{Layout, Mode};
use vm::report::{GuestStatus, Status};
use vm::settings::{AcceleratorChoice, Backing, HypervisorChoice};
use vm::{Settings, Vm, control, supervisor};

use crate::progress;
use crate::quantity;
use crate::vm::selector::print_json;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum KernelName {
    /// Debian's
    Stock,
    /// Mayfly's, with HotMem's partitions
    Hotmem,
    /// Mayfly's, with the kernel's own checks: slow
    HotmemDebug,
}

impl KernelName {
    fn kernel(self) -> image::Kernel {
        match self {
            KernelName::Stock => image::Kernel::Stock,
            KernelName::Hotmem => image::Kernel::Hotmem,
            KernelName::HotmemDebug => image::Kernel::HotmemDebug,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ModeName {
    /// A NUMA node per partition, on any kernel
    Nodes,
    /// The same on Mayfly's kernel, which keeps all other processes out of a partition
    Hotmem,
    /// The same in one virtio-mem device, whose memory Mayfly's kernel cuts into partitions
    Ranges,
    /// One virtio-mem device for all, for comparison
    Plain,
    /// All memory from boot, for comparison
    Static,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BackingName {
    /// Anonymous memory, in huge pages where the host has them
    Anonymous,
    /// A file in memory that other processes can map (vhost-user)
    Shared,
    /// Huge pages that the host has reserved (vm.nr_hugepages)
    Huge,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum AcceleratorName {
    /// KVM if it boots the kernel, else TCG
    Auto,
    /// The CPU's virtualization
    Kvm,
    /// Translation: works everywhere, slower
    Tcg,
}

/// Build what VMs boot: a kernel, Debian with python3, and the agent (cached: a second run only checks)
#[derive(Args)]
pub struct ImageArguments {
    /// Which kernel
    #[arg(long, value_enum, default_value = "stock")]
    kernel: KernelName,
    /// Which version of Linux, 6.12 or 7.3 [default: the first that this system's apt has]
    #[arg(long, value_name = "VERSION")]
    linux: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl ImageArguments {
    /// Builds it and prints its folder.
    ///
    /// # Errors
    /// The builder fails.
    pub fn execute(self) -> Result<i32> {
        let folder = image::build(self.kernel.kernel(), self.linux.as_deref())?;
        if self.json {
            print_json(&json!({ "folder": folder, "kernel": self.kernel.kernel().name() }))?;
        } else {
            println!("{}", folder.display());
        }
        Ok(0)
    }
}

const BOOT_EXAMPLES: &str = "\
Examples:
  mayfly vm boot                                        in the foreground; Ctrl-C ends the VM
  mayfly vm boot --detach --partitions 64 --partition-size 384MiB
  mayfly vm boot --detach --partition-size 512MiB,128MiB,64MiB
  mayfly vm boot --detach --mode hotmem --name a        needs: mayfly vm image --kernel hotmem
  mayfly vm boot --mode ranges --firecracker ./firecracker
  mayfly vm boot --mode plain --append init_on_alloc=0  the paper's baseline, kernel words added

Sizes are multiples of 128MiB, the block in which Linux plugs memory; partitions may have any multiple
of 2MiB, but in mode hotmem. Killing this process kills the VM.";

/// Start a VM, and own it until it ends
#[derive(Args)]
#[command(after_help = BOOT_EXAMPLES)]
pub struct BootArguments {
    /// The name by which other verbs find it
    #[arg(long, default_value = "mayfly")]
    name: String,
    /// How memory is made elastic
    #[arg(long, value_enum, default_value = "nodes")]
    mode: ModeName,
    /// The most instances at one time: the concurrency factor [default: 4, or as many as there are sizes]
    #[arg(short = 'n', long, value_name = "N")]
    partitions: Option<u16>,
    /// Memory of one instance; several sizes: one for each partition
    #[arg(
        long,
        value_name = "SIZE,...",
        default_value = "256MiB",
        value_delimiter = ',',
        value_parser = quantity::parse_bytes
    )]
    partition_size: Vec<u64>,
    /// Memory for the files that instances share; 0: these lie in boot memory
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = quantity::parse_bytes)]
    shared_size: u64,
    /// The most memory the VM may have plugged at one time [default: all of it]
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes)]
    limit: Option<u64>,
    /// Memory at boot [default: enough to describe everything that can be plugged]
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes)]
    memory: Option<u64>,
    /// Virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 2)]
    cpus: u32,
    /// Run it under this Firecracker (1.14 or later, KVM) instead of QEMU: mode ranges, plain or static
    #[arg(long, value_name = "PROGRAM")]
    firecracker: Option<PathBuf>,
    /// How the guest's code is run
    #[arg(long, value_enum, default_value = "auto")]
    accelerator: AcceleratorName,
    /// What holds the guest's memory on the host
    #[arg(long, value_enum, default_value = "anonymous")]
    backing: BackingName,
    /// Memory that is free in the guest stays with it until it is unplugged, and is not reported to the host
    #[arg(long)]
    keep_free_memory: bool,
    /// Which kernel [default: hotmem for modes hotmem and ranges and for Firecracker, else stock]
    #[arg(long, value_enum)]
    kernel: Option<KernelName>,
    /// A folder with another image, described by its vm.json
    #[arg(long, value_name = "FOLDER", conflicts_with = "kernel")]
    image: Option<PathBuf>,
    /// More words for the kernel's command line
    #[arg(long, value_name = "WORDS", default_value = "")]
    append: String,
    /// How long to wait for the guest at any one step
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = quantity::parse_duration)]
    patience: Duration,
    /// Return when the VM is ready; the VM runs in the background until `mayfly vm down`
    #[arg(long)]
    detach: bool,
    /// Print one JSON object when it is ready
    #[arg(long)]
    json: bool,
}

impl BootArguments {
    /// Boots the VM and serves it.
    ///
    /// # Errors
    /// It does not come up, or ends by itself.
    pub fn execute(self) -> Result<i32> {
        let settings = self.settings()?;
        if self.detach {
            settings.check()?;
            return detach(&settings.name, self.json);
        }
        let socket = control::folder()?.join(format!("{}.sock", settings.name));
        let json = self.json;
        let booting = progress::of_waiting("booting the VM");
        let show = |vm: &Vm| {
            booting.finish_and_clear();
            let mut status = json!(vm.status());
            status["socket"] = json!(socket);
            // The VM keeps running even if no process reads this.
            let _ = if json { print_json(&status) } else { print_ready(&vm.status()) };
        };
        supervisor::run(&settings, show)?;
        Ok(0)
    }

    /// The size of each partition.
    fn partition_bytes(&self) -> Result<Vec<u64>> {
        match (&self.partition_size[..], self.partitions) {
            ([size], count) => Ok(vec![*size; count.unwrap_or(4).into()]),
            (sizes, Some(count)) if usize::from(count) != sizes.len() => {
                bail!("{count} partitions and {} sizes: give one size for all, or one for each", sizes.len())
            }
            (sizes, _) => Ok(sizes.to_vec()),
        }
    }

    fn settings(&self) -> Result<Settings> {
        let mode = match self.mode {
            ModeName::Nodes => Mode::Nodes,
            ModeName::Hotmem => Mode::Hotmem,
            ModeName::Ranges => Mode::Ranges,
            ModeName::Plain => Mode::Plain,
            ModeName::Static => Mode::Static,
        };
        let needs_ours = mode.is_kernels() || self.firecracker.is_some();
        let usual = if needs_ours { image::Kernel::Hotmem } else { image::Kernel::Stock };
        let image = match &self.image {
            Some(folder) => Image::open(folder)?,
            None => image::latest(self.kernel.map_or(usual, KernelName::kernel))?,
        };
        Ok(Settings {
            name: self.name.clone(),
            layout: Layout { mode, partition_bytes: self.partition_bytes()?, shared_bytes: self.shared_size },
            boot_bytes: self.memory,
            limit_bytes: self.limit,
            cpus: self.cpus,
            hypervisor: self
                .firecracker
                .clone()
                .map_or(HypervisorChoice::Qemu, HypervisorChoice::Firecracker),
            accelerator: match self.accelerator {
                AcceleratorName::Auto => AcceleratorChoice::Auto,
                AcceleratorName::Kvm => AcceleratorChoice::Kvm,
                AcceleratorName::Tcg => AcceleratorChoice::Tcg,
            },
            image,
            code: None,
            backing: match self.backing {
                BackingName::Anonymous => Backing::Anonymous,
                BackingName::Shared => Backing::Shared,
                BackingName::Huge => Backing::HugePages,
            },
            reports_free_memory: !self.keep_free_memory,
            append: self.append.clone(),
            patience: self.patience,
        })
    }
}

/// "4 partitions of 256 MiB", or all sizes where they differ.
fn partitions_line(layout: &Layout) -> String {
    let size = |bytes: &u64| quantity::bytes(*bytes as f64);
    let sizes = &layout.partition_bytes;
    match sizes.iter().all(|bytes| *bytes == sizes[0]) {
        true => format!("{} partitions of {}", sizes.len(), size(&sizes[0])),
        false => format!("partitions of {}", sizes.iter().map(size).collect::<Vec<_>>().join(", ")),
    }
}

fn print_ready(status: &Status) -> Result<()> {
    let Status { name, accelerator, layout, .. } = status;
    let kernel = match &status.guest {
        GuestStatus::Up { kernel } => kernel,
        GuestStatus::Down { why } | GuestStatus::Ended { why } => why,
    };
    let mode = serde_json::to_value(layout.mode)?;
    println!(
        "{name} is ready after {:.1} s: kernel {kernel}, {accelerator}, mode {}, {}, {} shared",
        status.boot_ns as f64 / 1e9,
        mode.as_str().unwrap_or_default(),
        partitions_line(layout),
        quantity::bytes(layout.shared_bytes as f64),
    );
    Ok(())
}

/// Starts the same command without `--detach` in a session of its own and waits until it reports that the VM
/// is ready. Its stderr goes to a log file beside the socket.
fn detach(name: &str, json: bool) -> Result<i32> {
    let log = control::folder()?.join(format!("{name}.log"));
    let stderr = std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let program = std::env::current_exe().context("cannot find myself")?;
    let arguments =
        std::env::args_os().skip(1).filter(|argument| argument != "--detach" && argument != "--json");
    let mut command = Command::new(program);
    command.args(arguments).arg("--json").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    // SAFETY: setsid is allowed between fork and exec and takes nothing.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        })
    };
    let mut child = command.spawn().context("cannot start the VM's process")?;
    let mut line = String::new();
    let booting = progress::of_waiting("booting the VM");
    BufReader::new(child.stdout.take().expect("stdout is a pipe")).read_line(&mut line)?;
    booting.finish_and_clear();
    if line.is_empty() {
        let status = child.wait()?;
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        match text.lines().rev().find_map(|line| line.strip_prefix("mayfly: ")) {
            Some(reason) => bail!("{reason}"),
            None => bail!("the VM's process ended ({status}): see {}", log.display()),
        }
    }
    if json {
        print!("{line}");
        return Ok(0);
    }
    let status: Value = serde_json::from_str(&line)?;
    print_ready(&serde_json::from_value(status)?)?;
    Ok(0)
}
