//! A hypervisor's process on the host, from start to end. The kernel kills it when the thread that started it
//! ends (PR_SET_PDEATHSIG), so that thread waits for its end. The end of the guest's console is kept.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::base::error::Error;

/// How much of the end of the guest's console is kept: enough for a kernel panic.
const CONSOLE_BYTES: usize = 64 << 10;

/// The end of the guest's console.
pub(crate) type Console = Arc<Mutex<Vec<u8>>>;

/// A VM that has been started, whose guest boots.
pub(crate) struct Started<H> {
    pub hypervisor: H,
    /// Connections of functions ([`vm_protocol::relay`]), if the hypervisor has a port for them.
    pub relay: Option<UnixStream>,
    pub console: Console,
}

/// A hypervisor's process. Dropping this kills it.
pub(super) struct Process {
    pub pid: u32,
    pub pidfd: Pidfd,
    pub console: Console,
}

/// Starts a hypervisor of this name, whose stderr is a pipe, on a thread of its own. On that thread `confine`
/// is called before, and `console_of` returns where the console is read. `on_end` is called once, when the
/// process has ended, with one line that describes how.
///
/// # Errors
/// It cannot be started.
pub(super) fn start(
    name: &'static str,
    mut command: Command,
    confine: impl FnOnce() -> io::Result<()> + Send + 'static,
    console_of: impl FnOnce(&mut Child) -> Box<dyn Read + Send> + Send + 'static,
    on_end: impl FnOnce(String) + Send + 'static,
) -> Result<Process, Error> {
    let program = Path::new(command.get_program()).display().to_string();
    let console = Console::default();
    let kept = Arc::clone(&console);
    let (started, start) = channel();
    spawn_thread("vm-process", move || {
        // Only this thread, and the hypervisor after it, leave the host's root.
        let mut child = match confine().and_then(|()| command.spawn()) {
            Ok(child) => child,
            Err(error) => return drop(started.send(Err(error))),
        };
        let reader = console_of(&mut child);
        let keeping = Arc::clone(&kept);
        let reading = spawn_thread("vm-console", move || keep_last(reader, &keeping, CONSOLE_BYTES));
        let pidfd = Pidfd::new(&child);
        let usable = match (pidfd, reading) {
            (Ok(pidfd), Ok(reading)) => Ok((pidfd, reading)),
            (Err(error), _) => Err(error),
            (_, Err(error)) => Err(io::Error::other(error)),
        };
        let reading = match usable {
            Ok((pidfd, reading)) => {
                let _ = started.send(Ok((child.id(), pidfd)));
                reading
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return drop(started.send(Err(error)));
            }
        };
        on_end(watch(name, &mut child, reading, &kept));
    })?;
    let (pid, pidfd) = start
        .recv()
        .map_err(|_| Error::Failed(format!("{name}'s thread ended")))?
        .map_err(|error| Error::Failed(format!("cannot start {program}: {error}")))?;
    Ok(Process { pid, pidfd, console })
}

/// A pidfd: refers to the hypervisor's process and to no other, even once that has ended. Dropping it kills
/// the process.
pub(super) struct Pidfd(OwnedFd);

impl Pidfd {
    /// For a child that has not been waited for.
    fn new(child: &Child) -> io::Result<Pidfd> {
        // SAFETY: takes plain values and returns a new descriptor or -1.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
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

pub(super) fn spawn_thread(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let started = std::thread::Builder::new().name(name.to_string()).spawn(work);
    started.map_err(|error| Error::Failed(format!("cannot start a thread: {error}")))
}

/// In the child, after its change of user: has the kernel kill it with the thread that started it, and sets
/// no_new_privs. Called between fork and exec: makes only system calls.
pub(super) fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: takes and returns plain values.
    let death_signal = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: takes and returns plain values.
    let parent_now = unsafe { libc::getppid() };
    // SAFETY: takes numbers.
    let no_new_privs = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if no_new_privs < 0 {
        return Err(io::Error::last_os_error());
    }
    // The parent may have died before the signal was set.
    if death_signal < 0 || parent_now as u32 != parent {
        return Err(io::ErrorKind::Interrupted.into());
    }
    Ok(())
}

/// Waits for the hypervisor's end and returns how it ended, with its last error message or else the guest's
/// panic.
fn watch(name: &str, child: &mut Child, reading: JoinHandle<()>, console: &Mutex<Vec<u8>>) -> String {
    let mut errors = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_end(&mut errors);
    }
    let how = match child.wait() {
        Ok(status) => how_it_ended(name, status),
        Err(error) => error.to_string(),
    };
    // Only the hypervisor had the console's other end: when the reader ends, the console has been read to its
    // end.
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

fn how_it_ended(name: &str, status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => "the guest powered off or rebooted".to_string(),
        (Some(code), _) => format!("{name} exited with code {code}"),
        (None, Some(signal)) => format!("{name} was killed by signal {signal}"),
        (None, None) => format!("{name} ended"),
    }
}

fn keep_last(mut reader: impl Read, kept: &Mutex<Vec<u8>>, limit: usize) {
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
