//! Firecracker as a [`Hypervisor`]. Submodules have its API, its configuration, and the agent's port.
//!
//! Firecracker has one virtio-mem device, which chooses nothing: the host requests a size, and the guest's
//! driver decides which blocks it plugs or unplugs. So partitions are ranges of that device (mode `ranges`),
//! and Mayfly's driver takes the one that the agent has named. Two things differ from QEMU's device:
//!
//! - It refuses a size until the guest's driver has started, and lets the guest use only as much of its
//!   addresses, from the first on, as the largest size that was ever requested
//!   ([`Firecracker::open_addresses`]).
//! - If the size is lowered while the guest plugs, it answers the guest's next request with an error. For
//!   Linux the device is broken from then on; QEMU answers so that Linux looks at the new size
//!   ([`Firecracker::wait_while_plugging`]).

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;
use tempfile::TempDir;
use vm_protocol::{Answer, Layout, Mode, Operation, PartitionNumber};

use crate::base::error::Error;
use crate::base::settings::{Backing, Settings};
use crate::hypervisor::guest_kernel;
use crate::hypervisor::process::{self, Process, Started};
use crate::model::device::Device;
use crate::model::hypervisor::{AskError, Hypervisor};
use crate::model::record::Record;
use agent_port::AgentPort;
use api::Api;

mod agent_port;
mod api;
mod configuration;

const MEMORY: &str = "/hotplug/memory";

/// Between the process's start and that of its API.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Firecracker answers no request while it ends.
const EXIT_PATIENCE: Duration = Duration::from_secs(60);

/// A guest that has plugged nothing for so long has stopped: it has no more memory to describe what it plugs.
const REST: Duration = Duration::from_secs(2);

const POLL_EVERY: Duration = Duration::from_millis(5);

/// The state of the virtio-mem device. Firecracker answers more.
#[derive(Deserialize)]
struct MemoryStatus {
    plugged_size_mib: u64,
    requested_size_mib: u64,
}

/// Starts Firecracker, which records in `record` what happens to it and to the agent.
///
/// # Errors
/// It cannot be started, refuses the configuration, or cannot start the guest: KVM is missing.
pub fn boot(
    program: &Path,
    settings: &Settings,
    record: &Arc<Record>,
) -> Result<Started<Firecracker>, Error> {
    let failed =
        |error: std::io::Error| Error::Failed(format!("cannot start {}: {error}", program.display()));
    // Only this user may enter it.
    let folder = tempfile::Builder::new().prefix("mayfly-firecracker-").tempdir().map_err(failed)?;
    let (socket, vsock) = (folder.path().join("api"), folder.path().join("vsock"));
    let kernel = bootable_kernel(&settings.image.kernel, folder.path())?;
    let agent = AgentPort::listen(&vsock, record)?;
    let mut command = Command::new(program);
    // Of the two transports PCI is the one that all of Mayfly's kernels have. Its log would hide the console.
    command.arg("--api-sock").arg(&socket).args(["--enable-pci", "--level", "Error"]).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let parent = std::process::id();
    // SAFETY: the closure only makes system calls that are allowed between fork and exec, on plain values.
    unsafe { command.pre_exec(move || process::die_with(parent)) };
    let record_of_end = Arc::clone(record);
    let process = process::start(
        "Firecracker",
        command,
        || Ok(()),
        |child| Box::new(child.stdout.take().expect("stdout is a pipe")),
        move |why| record_of_end.ended(why),
    )?;
    let console = Arc::clone(&process.console);
    let started = Instant::now();
    while UnixStream::connect(&socket).is_err() && started.elapsed() < START_PATIENCE {
        if let Some(error) = record.why_it_ended(Instant::now() + POLL_EVERY) {
            return Err(error);
        }
    }
    let firecracker = Firecracker { process, api: Api::new(socket)?, agent, _folder: folder };
    for (path, body) in configuration::requests(settings, &kernel, &vsock) {
        firecracker.api.put(path, &body).map_err(|error| match error {
            Error::Ended(_) => record.why_it_ended(Instant::now() + EXIT_PATIENCE).unwrap_or(error),
            other => other,
        })?;
    }
    // Firecracker has loaded it.
    if kernel != settings.image.kernel {
        let _ = std::fs::remove_file(kernel);
    }
    Ok(Started { hypervisor: firecracker, relay: None, console })
}

/// A file of the kernel that every Firecracker boots: an ELF file. Up to 1.16 it boots no bzImage.
fn bootable_kernel(image: &Path, folder: &Path) -> Result<PathBuf, Error> {
    let failed = |path: &Path, error| Error::Failed(format!("{}: {error}", path.display()));
    let bytes = std::fs::read(image).map_err(|error| failed(image, error))?;
    let Some(elf) = guest_kernel::elf_inside(&bytes) else { return Ok(image.to_path_buf()) };
    let path = folder.join("kernel");
    std::fs::write(&path, elf).map_err(|error| failed(&path, error))?;
    Ok(path)
}

/// A running Firecracker.
pub struct Firecracker {
    process: Process,
    api: Api,
    agent: Arc<AgentPort>,
    /// Has its sockets.
    _folder: TempDir,
}

impl Firecracker {
    fn memory(&self) -> Result<MemoryStatus, Error> {
        serde_json::from_value(self.api.get(MEMORY)?)
            .map_err(|error| Error::Failed(format!("Firecracker's answer to GET {MEMORY}: {error}")))
    }

    fn request(&self, bytes: u64) -> Result<(), Error> {
        self.api.patch(MEMORY, &json!({"requested_size_mib": bytes >> 20}))
    }

    /// Before the size is lowered to this: waits until the guest has plugged all that was requested, or has
    /// stopped.
    fn wait_while_plugging(&self, bytes: u64) -> Result<(), Error> {
        let (mut last, mut since) = (None, Instant::now());
        loop {
            let MemoryStatus { plugged_size_mib, requested_size_mib } = self.memory()?;
            if bytes >> 20 >= requested_size_mib || plugged_size_mib >= requested_size_mib {
                return Ok(());
            }
            if last != Some(plugged_size_mib) {
                (last, since) = (Some(plugged_size_mib), Instant::now());
            }
            if since.elapsed() > REST {
                return Ok(());
            }
            std::thread::sleep(POLL_EVERY);
        }
    }

    fn wait_for_size(&self, bytes: u64, deadline: Instant) -> Result<(), Error> {
        while self.plugged_size(Device::All)? != bytes {
            if Instant::now() >= deadline {
                let what = format!("the guest does not bring its memory to {} MiB", bytes >> 20);
                return Err(Error::GuestDown(what));
            }
            std::thread::sleep(POLL_EVERY);
        }
        Ok(())
    }
}

impl Hypervisor for Firecracker {
    fn request_size(&self, _: Device, bytes: u64) -> Result<(), Error> {
        self.wait_while_plugging(bytes)?;
        self.request(bytes)
    }

    fn plugged_size(&self, _: Device) -> Result<u64, Error> {
        self.memory().map(|memory| memory.plugged_size_mib << 20)
    }

    fn ask_agent(&self, op: Operation, timeout: Duration) -> Result<Answer, AskError> {
        self.agent.ask(op, timeout)
    }

    /// Requests all of the device's addresses once. The guest must not plug all that: the size could then not
    /// be lowered again soon. So the agent names a partition first; the driver plugs that one and stops.
    fn open_addresses(&self, layout: &Layout, deadline: Instant) -> Result<(), Error> {
        let first = PartitionNumber(0);
        if layout.mode != Mode::Ranges || layout.partitions() == 0 {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        self.ask_agent(Operation::NameRange { partition: first }, left)
            .map_err(|error| Error::GuestDown(format!("its agent does not name a partition ({error:?})")))?;
        self.request(layout.all_bytes())?;
        self.wait_for_size(layout.shared_bytes + layout.bytes_of(first), deadline)?;
        self.request(layout.shared_bytes)?;
        self.wait_for_size(layout.shared_bytes, deadline)
    }

    fn require_host_memory(&self, purpose: &str, bytes: u64) -> Result<(), Error> {
        Backing::Anonymous.require(purpose, bytes)
    }

    fn pid(&self) -> u32 {
        self.process.pid
    }

    fn kill(&self) {
        self.process.pidfd.kill();
    }
}
