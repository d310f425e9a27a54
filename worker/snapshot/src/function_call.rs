//! Has a stopped process call a function of a library, which it loads first if it has not. Its main thread
//! makes the calls, on its own stack, as if they had been made where the thread waits. The other threads stay
//! stopped.
//!
//! The function returns to the `syscall` instruction behind which the thread stands. The kernel stops the
//! thread before the system call that would begin there; that stop ends the call. So no instruction of the
//! process is changed, and no handler of its signals runs: signals are blocked, and those that arrive are
//! sent again afterwards.

use std::fs;
use std::io::{Error as IoError, ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use libc::{c_int, pid_t};
use object::{Object, ObjectSymbol};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::address_space::{MappedFile, Mapping, mappings};
use crate::threads::below_stack;
use crate::tracee::{Tracee, registers, request, set_registers, wait_until_stopped};
use crate::{Error, While};

/// A function that takes longer waits for a thread that is stopped: the process is killed.
const LIMIT: Duration = Duration::from_secs(5);
/// Faults of the function itself, which a block of signals does not hold back.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
/// What the kernel adds to SIGTRAP for a stop at a system call (`PTRACE_O_TRACESYSGOOD`).
const AT_SYSTEM_CALL: c_int = libc::SIGTRAP | 0x80;
/// The direction flag, which is clear where a function begins.
const DIRECTION: u64 = 0x400;

/// Names of the objects that may have `dlopen`: of glibc, of glibc before 2.34, of musl.
const LOADERS: [&str; 4] = ["libc.so.6", "libdl.so.2", "libdl-2", "ld-musl-x86_64.so.1"];
/// Bytes of a C library, at most.
const MOST_LIBRARY: u64 = 64 << 20;
/// Bytes of a path that is passed, with its zero.
const MOST_PATH: usize = 1024;

/// A function without arguments of a library, which returns an `int`.
#[derive(Clone, Debug)]
pub struct Function {
    library: MappedFile,
    offset: u64,
    inside: PathBuf,
}

impl Function {
    /// The function of this name that a library exports, which a process finds at the path `inside`.
    ///
    /// # Errors
    /// The file cannot be read, or has no such function.
    pub fn of_library(library: &Path, inside: &Path, name: &str) -> Result<Function, IoError> {
        let missing = || IoError::new(ErrorKind::NotFound, format!("it has no function {name}"));
        let offset = exported(&fs::read(library)?, name).ok_or_else(missing)?;
        let library = MappedFile::now(library.into()).ok_or_else(missing)?;
        Ok(Function { library, offset, inside: inside.into() })
    }

    /// Has a process call it. It loads the library if it has not, by its own C library. `None` if that
    /// cannot.
    ///
    /// # Errors
    /// As [`call`].
    pub fn call(&self, tracee: &Tracee, all: &[Mapping]) -> Result<Option<i32>, Error> {
        let address = match self.address(tracee, all) {
            Some(address) => Some(address),
            None => {
                let Some(dlopen) = dlopen(tracee, all) else { return Ok(None) };
                call(tracee, dlopen, Some(&self.inside))?;
                self.address(tracee, &mappings(tracee.process)?)
            }
        };
        address.map(|address| call(tracee, address, None)).transpose()
    }

    /// Where it is in a process with these mappings, if that has the library.
    fn address(&self, tracee: &Tracee, all: &[Mapping]) -> Option<u64> {
        let name = self.library.path.file_name()?.to_str()?;
        let is_library = |mapping: &&Mapping| {
            // The path is another in a sandbox; the file is the same.
            mapping.offset == 0
                && mapping.name.ends_with(name)
                && mapping.mapped_file(tracee.process).is_some_and(|it| it.identity == self.library.identity)
        };
        Some(all.iter().find(is_library)?.range.start + self.offset)
    }
}

/// Where a library exports a function of this name, from where it is loaded.
fn exported(library: &[u8], name: &str) -> Option<u64> {
    let file = object::File::parse(library).ok()?;
    let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name) && symbol.is_definition());
    symbol.map(|symbol| symbol.address())
}

fn dlopen(tracee: &Tracee, all: &[Mapping]) -> Option<u64> {
    all.iter().filter(|mapping| mapping.offset == 0 && mapping.is_file()).find_map(|mapping| {
        let name = mapping.name.rsplit('/').next()?;
        LOADERS.iter().find(|loader| name.starts_with(*loader))?;
        let mut library = Vec::new();
        mapping.open(tracee.process)?.take(MOST_LIBRARY).read_to_end(&mut library).ok()?;
        let offset = exported(&library, "dlopen")?;
        Some(mapping.range.start + offset)
    })
}

/// Calls the function at this address; returns what it returns. Its arguments are none, or a path and
/// `RTLD_NOW`. If it fails midway, the process is killed: it may hold a lock for ever.
///
/// # Errors
/// The function has failed, or the process has ended.
fn call(tracee: &Tracee, address: u64, path: Option<&Path>) -> Result<i32, Error> {
    let main = &tracee.threads()[0];
    let (mask, extended) = (tracee.blocked_signals(main)?, tracee.extended_registers(main)?);
    let process = Pid::from_raw(tracee.process)
        .and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok())
        .ok_or(Error::System("it has ended", ErrorKind::NotFound.into()))?;
    let watch = Watch::begin(process.try_clone().during("no descriptor is left")?);
    let mut later = Vec::new();
    let called = run(tracee, address, path, &mut later).and_then(|result| {
        set_registers(main.id, &main.registers)?;
        tracee.set_extended_registers(main, &extended)?;
        tracee.set_blocked_signals(main, mask)?;
        Ok(result)
    });
    drop(watch);
    if called.is_err() {
        let _ = pidfd_send_signal(process.as_fd(), Signal::KILL);
    }
    for signal in later {
        // SAFETY: numbers only; the thread is stopped, and so it exists.
        unsafe { libc::syscall(libc::SYS_tgkill, tracee.process, main.id, signal) };
    }
    called.during("a function of the process has failed")
}

fn run(tracee: &Tracee, address: u64, path: Option<&Path>, later: &mut Vec<c_int>) -> Result<i32, IoError> {
    let main = &tracee.threads()[0];
    let stack = below_stack(main);
    let mut changed = main.registers;
    tracee.set_blocked_signals(main, u64::MAX)?;
    tracee.write_word(main, stack - 8, changed.rip - 2)?;
    if let Some(path) = path {
        // Between the function's stack and the thread's.
        let at = stack + 64;
        write_path(tracee, at, path)?;
        (changed.rdi, changed.rsi) = (at, libc::RTLD_NOW as u64);
    }
    changed.rip = address;
    changed.rsp = stack - 8;
    changed.rax = 0;
    changed.orig_rax = u64::MAX;
    changed.eflags &= !DIRECTION;
    set_registers(main.id, &changed)?;
    loop {
        request(libc::PTRACE_SYSCALL, main.id, 0)?;
        if stopped(main.id, later)? != Stop::AtSystemCall {
            continue;
        }
        let mut now = registers(main.id)?;
        if (now.rip, now.rsp) != (main.registers.rip, stack) {
            continue;
        }
        let result = now.orig_rax as i32;
        // What it returned is no number of a system call. This one does nothing.
        now.orig_rax = libc::SYS_getpid as u64;
        set_registers(main.id, &now)?;
        request(libc::PTRACE_SYSCALL, main.id, 0)?;
        while stopped(main.id, later)? != Stop::AtSystemCall {
            request(libc::PTRACE_SYSCALL, main.id, 0)?;
        }
        // Only from a stop of this kind the call in which it waited is begun again.
        request(libc::PTRACE_INTERRUPT, main.id, 0)?;
        request(libc::PTRACE_CONT, main.id, 0)?;
        while stopped(main.id, later)? != Stop::Interrupted {
            request(libc::PTRACE_CONT, main.id, 0)?;
        }
        return Ok(result);
    }
}

fn write_path(tracee: &Tracee, at: u64, path: &Path) -> Result<(), IoError> {
    let mut bytes = path.as_os_str().as_encoded_bytes().to_vec();
    if bytes.len() >= MOST_PATH {
        return Err(IoError::from(ErrorKind::InvalidFilename));
    }
    bytes.resize(bytes.len() / 8 * 8 + 8, 0);
    for (word, bytes) in bytes.chunks_exact(8).enumerate() {
        let number = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        tracee.write_word(&tracee.threads()[0], at + 8 * word as u64, number)?;
    }
    Ok(())
}

#[derive(PartialEq, Eq)]
enum Stop {
    AtSystemCall,
    Interrupted,
    BySignal,
}

/// Waits for the thread's next stop. It gets no signal.
fn stopped(thread: pid_t, later: &mut Vec<c_int>) -> Result<Stop, IoError> {
    let status = wait_until_stopped(thread)?;
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        libc::PTRACE_EVENT_STOP => return Ok(Stop::Interrupted),
        _ if signal == AT_SYSTEM_CALL => return Ok(Stop::AtSystemCall),
        _ if FAULTS.contains(&signal) => {
            return Err(IoError::other(format!("it got signal {signal}")));
        }
        _ if later.contains(&signal) => {}
        _ => later.push(signal),
    }
    Ok(Stop::BySignal)
}

/// Kills a process unless it is dropped in time.
struct Watch(#[expect(dead_code, reason = "dropped, it ends the wait")] Sender<()>);

impl Watch {
    fn begin(process: OwnedFd) -> Watch {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            if receiver.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                let _ = pidfd_send_signal(process.as_fd(), Signal::KILL);
            }
        });
        Watch(sender)
    }
}
