//! The program that `run`, `trace` and `share run` start with a library preloaded: it replaces this process,
//! or is its child.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;
use tracing::debug;

use crate::failure::{Failure, plain_reason};
use crate::libraries::Preload;
use crate::program::{self, Obstacle};

/// A command with a library in its `LD_PRELOAD`, ready to start.
pub struct Preloaded {
    command: Command,
    name: OsString,
    program: PathBuf,
}

impl Preloaded {
    /// Finds the library and the program. A program for which the loader ignores `LD_PRELOAD` runs without
    /// the library, after a warning.
    ///
    /// # Errors
    /// There is no such library, no such program (exit code 127), or it is for another machine (126).
    pub fn new(command_line: &[OsString], library: &Preload) -> Result<Preloaded> {
        let what = library.what;
        let name = command_line.first().context("no command given")?.clone();
        let shown = name.to_string_lossy();
        let program: PathBuf =
            program::find(&name).ok_or_else(|| Failure::new(127, format!("{shown}: command not found")))?;
        let path = program.display();
        let mut preloads = true;
        match program::obstacle(&program) {
            Some(Obstacle::Foreign(kind)) => {
                let reason = format!("{path}: is {kind}, the {what} is for x86-64");
                return Err(Failure::new(126, reason).into());
            }
            Some(Obstacle::Ignored(kind)) => {
                eprintln!("mayfly: warning: {path} is {kind}: it runs without Mayfly's {what}");
            }
            Some(Obstacle::Sanitizer(name)) => {
                eprintln!(
                    "mayfly: warning: {path} is built with {name}, which needs its own malloc: it runs \
                     without Mayfly's {what}; build it without -fsanitize to have that"
                );
                preloads = false;
            }
            Some(Obstacle::OwnMalloc) => {
                eprintln!(
                    "mayfly: warning: {path} has a malloc of its own: Mayfly's {what} does not serve it"
                );
            }
            None => {}
        }
        let mut command = Command::new(&program);
        command.arg0(&name).args(&command_line[1..]);
        if preloads {
            let library = library.path()?;
            let mut preload = library.clone().into_os_string();
            if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty()) {
                preload.push(":");
                preload.push(others);
            }
            debug!(library = %library.display(), program = %path, "preload");
            command.env("LD_PRELOAD", preload);
        }
        Ok(Preloaded { command, name, program })
    }

    /// The program's file.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Sets a variable for the program.
    pub fn set(&mut self, variable: &str, value: impl AsRef<OsStr>) {
        debug!("{variable}={}", value.as_ref().to_string_lossy());
        self.command.env(variable, value);
    }

    fn cannot_start(&self, error: &std::io::Error) -> anyhow::Error {
        let reason = plain_reason(error);
        Failure::new(126, format!("{}: {reason}", self.name.to_string_lossy())).into()
    }

    /// Becomes the program. Returns only when that fails.
    pub fn replace_this_process(mut self) -> anyhow::Error {
        let error = self.command.exec();
        self.cannot_start(&error)
    }

    /// Starts the program and waits until it ends, calling `while_running` about ten times a second. Signals
    /// that would end this process, or that servers are managed with, are forwarded to the program.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn run(mut self, mut while_running: impl FnMut(u32)) -> Result<Finished> {
        let terminal = std::io::stdin().is_terminal();
        let mut signals = Signals::new(forwarded(terminal)).context("cannot take signals")?;
        let mut child = self.command.spawn().map_err(|error| self.cannot_start(&error))?;
        let pid = child.id();
        let handle = signals.handle();
        let forwarder = std::thread::spawn(move || {
            for signal in signals.forever() {
                // A terminal sends Ctrl-C to the program as well: forwarding would send it twice.
                if !(terminal && matches!(signal, SIGINT | SIGQUIT)) {
                    // SAFETY: while this thread runs, the child has not been waited for, or is being waited
                    // for: at worst the signal is for a process that has ended.
                    unsafe { libc::kill(pid as libc::pid_t, signal) };
                }
            }
        });
        let status = wait(&mut child, || while_running(pid));
        handle.close();
        forwarder.join().expect("the thread that forwards signals does not panic");
        Ok(Finished { pid, status: status.context("cannot wait for the program")? })
    }
}

/// The signals that this process takes. It goes on ignoring those that it was started with ignored, by nohup:
/// the program inherits that, and not a handler. Apache and gunicorn are managed by the last three, which a
/// terminal sends itself.
fn forwarded(terminal: bool) -> Vec<libc::c_int> {
    let managing: &[libc::c_int] = if terminal { &[] } else { &[SIGWINCH, SIGTTIN, SIGTTOU] };
    let ending = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];
    ending.iter().chain(managing).copied().filter(|&signal| !is_ignored(signal)).collect()
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: plain numbers and pointers, for which zero is a value, and which the call fills; it changes
    // nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Short waits at first, so that a short command does not take longer.
fn wait(child: &mut Child, mut while_running: impl FnMut()) -> std::io::Result<ExitStatus> {
    let mut pause_ms = 1;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if pause_ms >= 100 {
            while_running();
        }
        std::thread::sleep(std::time::Duration::from_millis(pause_ms));
        pause_ms = (pause_ms * 2).min(100);
    }
}

/// A program that has ended.
pub struct Finished {
    /// Its process id.
    pub pid: u32,
    status: ExitStatus,
}

impl Finished {
    /// Its exit code, or 128 + the signal that ended it.
    pub fn exit_code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// The signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }
}
