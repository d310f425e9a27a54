//! QEMU as a [`Hypervisor`]: its process, from start to end. Submodules have its command line, its monitor,
//! and its confinement on the host.
//!
//! Monitor, agent port and console are socket pairs that QEMU inherits: they are not in the file system, no
//! other process can connect to them, and nothing is left to clean up. The kernel kills QEMU when the thread
//! that started it ends (PR_SET_PDEATHSIG), so that thread waits for QEMU's end.

use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use vm_protocol::{Answer, Operation};

use crate::base::error::Error;
use crate::base::settings::{Backing, Settings};
use crate::hypervisor::accelerator::Accelerator;
use crate::hypervisor::agent_client::AgentClient;
use crate::model::device::Device;
use crate::model::hypervisor::{AskError, Event, Hypervisor};
use command_line::{AGENT_PORT, arguments};
use monitor::Monitor;

mod command_line;
mod confinement;
mod monitor;
mod qmp;

const PROGRAM: &str = "qemu-system-x86_64";

/// How much of the end of the guest's console is kept: enough for a kernel panic.
const CONSOLE_BYTES: usize = 64 << 10;

/// Finds QEMU.
///
/// # Errors
/// It is not installed.
pub fn find() -> Result<PathBuf, Error> {
    which::which(PROGRAM)
        .map_err(|_| Error::Missing(format!("{PROGRAM} is not installed: apt install qemu-system-x86")))
}

/// A QEMU process that was started, and the host's ends of its sockets.
pub struct Started {
    /// The process; its monitor has not been connected.
    pub process: Process,
    /// For [`crate::hypervisor::agent_client::AgentClient`].
    pub agent: UnixStream,
    /// Connections of functions ([`vm_protocol::relay`]).
    pub relay: UnixStream,
    /// The end of the guest's console.
    pub console: Arc<Mutex<Vec<u8>>>,
}

/// Starts QEMU. `on_end` is called once, when QEMU has ended, with one line that describes how.
///
/// # Errors
/// It cannot be started.
pub fn start(
    program: &Path,
    settings: &Settings,
    accelerator: Accelerator,
    on_end: impl FnOnce(String) + Send + 'static,
) -> Result<Started, Error> {
    let failed =
        |error: std::io::Error| Error::Failed(format!("cannot start {}: {error}", program.display()));
    let (monitor, its_monitor) = UnixStream::pair().map_err(failed)?;
    let (agent, its_agent) = UnixStream::pair().map_err(failed)?;
    let (console_reader, its_console) = UnixStream::pair().map_err(failed)?;
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
            inherit_and_die_with(parent, descriptors)
        });
    }

    let console = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&console);
    let reading = spawn_thread("vm-console", move || keep_last(console_reader, &kept, CONSOLE_BYTES))?;
    let (started, start) = channel();
    let last_console = Arc::clone(&console);
    spawn_thread("vm-qemu", move || {
        // Only this thread, and QEMU after it, leave the host's root.
        let confined = confinement.map_or(Ok(()), |confinement| confinement.enter());
        let mut child = match confined.and_then(|()| command.spawn()) {
            Ok(child) => child,
            Err(error) => return drop(started.send(Err(error))),
        };
        drop(theirs);
        let pidfd = Pidfd::new(&child);
        if pidfd.is_err() {
            let _ = child.kill();
        }
        let _ = started.send(pidfd.map(|pidfd| (child.id(), pidfd)));
        on_end(watch(&mut child, reading, &last_console));
    })?;
    let (pid, pidfd) =
        start.recv().map_err(|_| Error::Failed("QEMU's thread ended".to_string()))?.map_err(failed)?;
    let process = Process { pid, pidfd, monitor, backing: settings.backing };
    Ok(Started { process, agent, relay, console })
}

/// QEMU's process, and the host's end of its monitor.
pub struct Process {
    pid: u32,
    pidfd: Pidfd,
    monitor: UnixStream,
    backing: Backing,
}

impl Process {
    /// Connects QEMU's monitor. `on_event` is called for each event and must not send commands.
    ///
    /// # Errors
    /// QEMU ends or does not answer.
    pub fn connect(
        self,
        agent: Arc<AgentClient>,
        mut on_event: impl FnMut(Event) + Send + 'static,
    ) -> Result<Qemu, Error> {
        let monitor = Monitor::new(self.monitor, move |event| match event {
            qmp::Event::PortChange { id, open: true } if id == AGENT_PORT => on_event(Event::AgentConnected),
            qmp::Event::PortChange { id, open: false } if id == AGENT_PORT => {
                on_event(Event::AgentDisconnected)
            }
            qmp::Event::PortChange { .. } | qmp::Event::Other { .. } => {}
        })?;
        Ok(Qemu { pid: self.pid, pidfd: self.pidfd, monitor, agent, backing: self.backing })
    }
}

/// A running QEMU with its monitor connected.
pub struct Qemu {
    pid: u32,
    pidfd: Pidfd,
    monitor: Monitor,
    agent: Arc<AgentClient>,
    backing: Backing,
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
        self.pid
    }

    fn kill(&self) {
        self.pidfd.kill();
    }
}

fn path(device: Device) -> String {
    format!("/machine/peripheral/{}", device.id())
}

/// A pidfd: refers to QEMU's process and to no other, even once that has ended. Dropping it kills QEMU.
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// For a child that has not been waited for.
    fn new(child: &Child) -> std::io::Result<Pidfd> {
        // SAFETY: takes plain values and returns a new descriptor or -1.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        Ok(Pidfd(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) }))
    }

    /// Kills it, if it has not ended.
    pub fn kill(&self) {
        let nothing = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, and a null pointer is allowed here.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), libc::SIGKILL, nothing, 0) };
    }
}

impl Drop for Pidfd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let started = std::thread::Builder::new().name(name.to_string()).spawn(work);
    started.map_err(|error| Error::Failed(format!("cannot start a thread: {error}")))
}

/// In the child, after its change of user: keeps the sockets open over exec, has the kernel kill it with the
/// parent, and sets no_new_privs.
fn inherit_and_die_with(parent: u32, descriptors: [RawFd; 4]) -> std::io::Result<()> {
    for descriptor in descriptors {
        // SAFETY: changes a flag of a descriptor that this process has.
        if unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) } < 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    // SAFETY: takes and returns plain values.
    let death_signal = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: takes and returns plain values.
    let parent_now = unsafe { libc::getppid() };
    // SAFETY: takes numbers.
    let no_new_privs = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if no_new_privs < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // The parent may have died before the signal was set.
    if death_signal < 0 || parent_now as u32 != parent {
        return Err(std::io::ErrorKind::Interrupted.into());
    }
    Ok(())
}

/// Waits for QEMU's end and returns how it ended, with QEMU's last error message or else the guest's panic.
fn watch(child: &mut Child, reading: JoinHandle<()>, console: &Mutex<Vec<u8>>) -> String {
    let mut errors = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_end(&mut errors);
    }
    let how = match child.wait() {
        Ok(status) => how_it_ended(status),
        Err(error) => error.to_string(),
    };
    // Only QEMU had the console's other end: when the reader ends, the console has been read to its end.
    let _ = reading.join();
    let errors = String::from_utf8_lossy(&errors).into_owned();
    let console = String::from_utf8_lossy(&console.lock().expect("no panic under this lock")).into_owned();
    // An oops comes before the panic that it causes, and has the cause.
    let last = |text| console.lines().rev().find(|line| line.contains(text));
    let panic = last("Oops: ").or(last("Kernel panic"));
    match errors.lines().rev().find(|line| !line.trim().is_empty() && !line.contains("warning:")).or(panic) {
        Some(line) => format!("{how}: {}", line.trim()),
        None => how,
    }
}

fn how_it_ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => "the guest powered off or rebooted".to_string(),
        (Some(code), _) => format!("QEMU exited with code {code}"),
        (None, Some(signal)) => format!("QEMU was killed by signal {signal}"),
        (None, None) => "QEMU ended".to_string(),
    }
}

fn keep_last(mut reader: UnixStream, kept: &Mutex<Vec<u8>>, limit: usize) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = reader.read(&mut bytes) {
        let mut kept = kept.lock().expect("no panic under this lock");
        kept.extend_from_slice(&bytes[..count]);
        if kept.len() > 2 * limit {
            let surplus = kept.len() - limit;
            kept.drain(..surplus);
        }
    }
}
