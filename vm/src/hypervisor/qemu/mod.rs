//! QEMU as a [`Hypervisor`]: its process, from its start to its end. Its command line, its monitor and what it may do on
//! the host are files of their own.
//!
//! Monitor, agent port and console are socket pairs that QEMU inherits: nothing in the file system, nobody else can
//! connect, nothing stays behind. QEMU is killed by the kernel when the thread that started it ends, so that thread
//! stays until QEMU does.

use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use qapi::qmp;

use crate::base::error::Error;
use crate::base::settings::Settings;
use crate::hypervisor::accelerator::Accelerator;
use crate::model::device::Device;
use crate::model::hypervisor::{Hypervisor, News};
use command_line::{AGENT_PORT, arguments};
use monitor::Monitor;

mod command_line;
mod confinement;
mod monitor;

const PROGRAM: &str = "qemu-system-x86_64";

/// The last of the guest's console is kept: enough for a kernel's last words.
const CONSOLE_BYTES: usize = 64 << 10;

/// Finds QEMU.
///
/// # Errors
/// It is not installed.
pub fn find() -> Result<PathBuf, Error> {
    which::which(PROGRAM)
        .map_err(|_| Error::Missing(format!("{PROGRAM} is not installed: apt install qemu-system-x86")))
}

/// A QEMU that was started, and the host's ends of its sockets.
pub struct Started {
    /// QEMU itself, which has not been greeted.
    pub process: Process,
    /// For [`crate::hypervisor::agent_client::Guest`].
    pub agent: UnixStream,
    /// Connections of functions ([`vm_protocol::relay`]).
    pub relay: UnixStream,
    /// The last of the guest's console.
    pub console: Arc<Mutex<Vec<u8>>>,
}

/// Starts QEMU. `on_end` is called once, when it has ended, with one line that says how.
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
            // Before the rest, some of which a change of user would undo.
            group.map_or(Ok(()), confinement::become_user)?;
            inherit_and_die_with(parent, descriptors)
        });
    }

    let console = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&console);
    let reading = spawn_thread("vm-console", move || keep_last(console_reader, &kept, CONSOLE_BYTES))?;
    let (started, start) = channel();
    let words = Arc::clone(&console);
    spawn_thread("vm-qemu", move || {
        // This thread alone, and QEMU after it, leave the host's root.
        let apart = confinement.map_or(Ok(()), |confinement| confinement.enter());
        let mut child = match apart.and_then(|()| command.spawn()) {
            Ok(child) => child,
            Err(error) => return drop(started.send(Err(error))),
        };
        drop(theirs);
        let handle = Handle::new(&child);
        if handle.is_err() {
            let _ = child.kill();
        }
        let _ = started.send(handle.map(|handle| (child.id(), handle)));
        on_end(watch(&mut child, reading, &words));
    })?;
    let (pid, handle) =
        start.recv().map_err(|_| Error::Failed("QEMU's thread ended".to_string()))?.map_err(failed)?;
    Ok(Started { process: Process { pid, handle, monitor }, agent, relay, console })
}

/// QEMU's process, and the host's end of its monitor.
pub struct Process {
    pid: u32,
    handle: Handle,
    monitor: UnixStream,
}

impl Process {
    /// Greets QEMU; `on_news` is called with what it tells, and must not ask.
    ///
    /// # Errors
    /// QEMU ends or says nothing.
    pub fn greet(self, mut on_news: impl FnMut(News) + Send + 'static) -> Result<Qemu, Error> {
        let monitor = Monitor::new(self.monitor, move |event| match event {
            qmp::Event::VSERPORT_CHANGE { data, .. } if data.id != AGENT_PORT => {}
            qmp::Event::VSERPORT_CHANGE { data, .. } if data.open => on_news(News::AgentCame),
            qmp::Event::VSERPORT_CHANGE { .. } => on_news(News::AgentLost),
            _ => {}
        })?;
        Ok(Qemu { pid: self.pid, handle: self.handle, monitor })
    }
}

/// A QEMU that runs and does what it is asked.
pub struct Qemu {
    pid: u32,
    handle: Handle,
    monitor: Monitor,
}

impl Hypervisor for Qemu {
    fn request(&self, device: Device, bytes: u64) -> Result<(), Error> {
        self.monitor.set_number(&path(device), "requested-size", bytes)
    }

    fn size(&self, device: Device) -> Result<u64, Error> {
        self.monitor.number(&path(device), "size")
    }

    fn pid(&self) -> u32 {
        self.pid
    }

    fn kill(&self) {
        self.handle.kill();
    }
}

fn path(device: Device) -> String {
    format!("/machine/peripheral/{}", device.id())
}

/// Names QEMU's process and no other, also when it has ended (a pidfd). Dropping it kills QEMU.
pub struct Handle(OwnedFd);

impl Handle {
    /// For a child that has not been waited for.
    fn new(child: &Child) -> std::io::Result<Handle> {
        // SAFETY: takes plain values and returns a new descriptor or -1.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
        Ok(Handle(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) }))
    }

    /// Kills it, if it has not ended.
    pub fn kill(&self) {
        let nothing = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, and a null pointer is allowed here.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), libc::SIGKILL, nothing, 0) };
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let started = std::thread::Builder::new().name(name.to_string()).spawn(work);
    started.map_err(|error| Error::Failed(format!("cannot start a thread: {error}")))
}

/// In the child, which has its user by then: keeps the sockets over exec, asks to be
/// killed with the parent, and gives up ever having more privileges.
fn inherit_and_die_with(parent: u32, descriptors: [RawFd; 4]) -> std::io::Result<()> {
    for descriptor in descriptors {
        // SAFETY: changes a flag of a descriptor that this process has.
        if unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) } < 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    // SAFETY: takes and returns plain values.
    let asked = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: takes and returns plain values.
    let now = unsafe { libc::getppid() };
    // SAFETY: takes numbers.
    let no_more = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // The parent may have died before it was asked for.
    if no_more < 0 {
        return Err(std::io::Error::last_os_error());
    }
    if asked < 0 || now as u32 != parent {
        return Err(std::io::ErrorKind::Interrupted.into());
    }
    Ok(())
}

/// Waits for QEMU and says how it ended: its own words, else the guest's last ones.
fn watch(child: &mut Child, reading: JoinHandle<()>, console: &Mutex<Vec<u8>>) -> String {
    let mut words = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_end(&mut words);
    }
    let how = match child.wait() {
        Ok(status) => how_it_ended(status),
        Err(error) => error.to_string(),
    };
    // QEMU alone had the console's other end: its last words are all read when the reader ends.
    let _ = reading.join();
    let words = String::from_utf8_lossy(&words).into_owned();
    let console = String::from_utf8_lossy(&console.lock().expect("no panic under this lock")).into_owned();
    // What went wrong comes before the panic that it led to.
    let last = |text| console.lines().rev().find(|line| line.contains(text));
    let panic = last("Oops: ").or(last("Kernel panic"));
    match words.lines().rev().find(|line| !line.trim().is_empty() && !line.contains("warning:")).or(panic) {
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
