//! QEMU as a [`Hypervisor`]. Submodules have its command line, its monitor, and its confinement on the host.
//!
//! Monitor, agent port and console are socket pairs that QEMU inherits: they are not in the file system, no
//! other process can connect to them, and nothing is left to clean up.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vm_protocol::{Answer, Mode, Operation};

use crate::base::error::Error;
use crate::base::settings::{Backing, Settings};
use crate::hypervisor::accelerator::Accelerator;
use crate::hypervisor::agent_client::AgentClient;
use crate::hypervisor::process::{self, Process, Started};
use crate::model::device::Device;
use crate::model::hypervisor::{AskError, Hypervisor};
use crate::model::record::Record;
use command_line::{AGENT_PORT, arguments};
use monitor::Monitor;

mod command_line;
mod confinement;
mod monitor;
mod qmp;

const PROGRAM: &str = "qemu-system-x86_64";

/// QEMU's monitor closes before QEMU has ended: the kernel frees the guest's memory in between.
const EXIT_PATIENCE: Duration = Duration::from_secs(60);

/// Finds QEMU.
///
/// # Errors
/// It is not installed.
pub fn find() -> Result<PathBuf, Error> {
    which::which(PROGRAM)
        .map_err(|_| Error::Missing(format!("{PROGRAM} is not installed: apt install qemu-system-x86")))
}

/// Starts QEMU, which records in `record` what happens to it and to the agent.
///
/// # Errors
/// It cannot be started, or ends at once.
pub fn boot(
    program: &Path,
    settings: &Settings,
    accelerator: Accelerator,
    record: &Arc<Record>,
) -> Result<Started<Qemu>, Error> {
    let failed = |error: io::Error| Error::Failed(format!("cannot start {}: {error}", program.display()));
    let (monitor, its_monitor) = UnixStream::pair().map_err(failed)?;
    let (agent, its_agent) = UnixStream::pair().map_err(failed)?;
    let (console, its_console) = UnixStream::pair().map_err(failed)?;
    let (relay, its_relay) = UnixStream::pair().map_err(failed)?;
    let theirs = [its_monitor, its_agent, its_console, its_relay];
    let descriptors = theirs.each_ref().map(AsRawFd::as_raw_fd);
    let (confinement, files) = confinement::plan(settings, program, accelerator)?;
    let mut command = Command::new(program);
    command.args(arguments(settings, accelerator, descriptors, &files)).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let group = confinement.as_ref().map(|confinement| confinement.group);
    let parent = std::process::id();
    // SAFETY: the closure only makes system calls that are allowed between fork and exec, on plain values.
    unsafe {
        command.pre_exec(move || {
            // First, because a change of user would undo the parent-death signal.
            group.map_or(Ok(()), confinement::become_user)?;
            inherit(descriptors)?;
            process::die_with(parent)
        });
    }
    let confine = move || confinement.map_or(Ok(()), |confinement| confinement.enter());
    let record_of_end = Arc::clone(record);
    let process = process::start(
        "QEMU",
        command,
        confine,
        move |_| {
            // QEMU has its own descriptors of these by now.
            drop(theirs);
            Box::new(console)
        },
        move |why| record_of_end.ended(why),
    )?;
    let console = Arc::clone(&process.console);
    let record_of_events = Arc::clone(record);
    // The port outlives its agents.
    let guest = AgentClient::new(agent, move |event| record_of_events.agent_event(event), || {});
    let guest = Arc::new(guest.map_err(|error| Error::Failed(format!("the agent's port: {error}")))?);
    let hypervisor = Qemu::connect(process, monitor, settings, guest, record)
        .map_err(|error| record.why_it_ended(Instant::now() + EXIT_PATIENCE).unwrap_or(error))?;
    Ok(Started { hypervisor, relay: Some(relay), console })
}

/// A running QEMU with its monitor connected.
pub struct Qemu {
    process: Process,
    monitor: Monitor,
    agent: Arc<AgentClient>,
    backing: Backing,
}

impl Qemu {
    /// Connects QEMU's monitor.
    fn connect(
        process: Process,
        monitor: UnixStream,
        settings: &Settings,
        agent: Arc<AgentClient>,
        record: &Arc<Record>,
    ) -> Result<Qemu, Error> {
        let (link, client) = (Arc::clone(record), Arc::clone(&agent));
        let monitor = Monitor::new(monitor, move |event| match event {
            qmp::Event::PortChange { id, open: true } if id == AGENT_PORT => link.agent_connected(),
            qmp::Event::PortChange { id, open: false } if id == AGENT_PORT => {
                link.agent_lost();
                client.fail_pending();
            }
            qmp::Event::PortChange { .. } | qmp::Event::Other { .. } => {}
        })?;
        let qemu = Qemu { process, monitor, agent, backing: settings.backing };
        if settings.layout.mode == Mode::Ranges {
            // Else QEMU lets the guest use only as much of the device's addresses as is requested, from the
            // first on. It never takes back what it has let it use. The guest, which has only begun to boot,
            // sees the second size alone.
            qemu.request_size(Device::All, settings.hotplug_bytes())?;
            qemu.request_size(Device::All, 0)?;
        }
        Ok(qemu)
    }
}

impl Hypervisor for Qemu {
    fn request_size(&self, device: Device, bytes: u64) -> Result<(), Error> {
        self.monitor.set_number(&path(device), "requested-size", bytes)
    }

    fn plugged_size(&self, device: Device) -> Result<u64, Error> {
        self.monitor.number(&path(device), "size")
    }

    fn ask_agent(&self, op: Operation, timeout: Duration) -> Result<Answer, AskError> {
        self.agent.ask(op, timeout)
    }

    fn require_host_memory(&self, purpose: &str, bytes: u64) -> Result<(), Error> {
        self.backing.require(purpose, bytes)
    }

    fn pid(&self) -> u32 {
        self.process.pid
    }

    fn kill(&self) {
        self.process.pidfd.kill();
    }
}

fn path(device: Device) -> String {
    format!("/machine/peripheral/{}", device.id())
}

/// In the child: keeps the sockets open over exec.
fn inherit(descriptors: [RawFd; 4]) -> io::Result<()> {
    for descriptor in descriptors {
        // SAFETY: changes a flag of a descriptor that this process has.
        if unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
