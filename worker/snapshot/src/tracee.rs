//! A stopped process: registers, and system calls that it makes for its tracer, by ptrace. Dropping it lets
//! every thread continue where it was. All calls must come from the thread that stopped it.

use std::fs;
use std::io::{Error as IoError, ErrorKind};
use std::mem::{size_of, zeroed};
use std::os::unix::fs::FileExt;

use libc::{c_int, c_long, c_void, pid_t, user_regs_struct};

use crate::{Error, While};

/// More threads than this are not taken.
pub const MOST_THREADS: usize = 64;
/// PTRACE_GET_RSEQ_CONFIGURATION of linux/ptrace.h.
const GET_RSEQ: libc::c_uint = 0x420f;
const NT_X86_XSTATE: c_long = 0x202;
/// Bytes of the extended registers, at most.
pub const XSTATE_BYTES: usize = 16384;

/// `struct ptrace_rseq_configuration` of linux/ptrace.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rseq {
    pub address: u64,
    pub bytes: u32,
    pub signature: u32,
    flags: u32,
    pad: u32,
}

/// A thread as it was when it was stopped.
pub struct Thread {
    pub id: pid_t,
    pub registers: user_regs_struct,
}

/// A process whose threads are all stopped.
pub struct Tracee {
    pub process: pid_t,
    threads: Vec<Thread>,
    memory: fs::File,
}

fn checked(result: c_long) -> Result<c_long, IoError> {
    if result < 0 { Err(IoError::last_os_error()) } else { Ok(result) }
}

/// A request without memory of the tracer's.
pub fn request(what: libc::c_uint, thread: pid_t, data: usize) -> Result<c_long, IoError> {
    // SAFETY: these requests take numbers only.
    checked(unsafe { libc::ptrace(what, thread, std::ptr::null_mut::<c_void>(), data as *mut c_void) })
}

pub fn wait_until_stopped(thread: pid_t) -> Result<c_int, IoError> {
    let mut status = 0;
    loop {
        // SAFETY: one number that outlives the call.
        match checked(unsafe { libc::waitpid(thread, &mut status, libc::__WALL) }.into()) {
            Ok(_) if libc::WIFSTOPPED(status) => return Ok(status),
            Ok(_) => return Err(IoError::new(ErrorKind::NotFound, "it has ended")),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

impl Tracee {
    /// Stops all threads of a process.
    ///
    /// # Errors
    /// It has too many threads, has ended, or may not be traced.
    pub fn stop(process: pid_t) -> Result<Tracee, Error> {
        let memory = fs::File::open(format!("/proc/{process}/mem")).during("its memory cannot be read")?;
        let mut tracee = Tracee { process, threads: Vec::new(), memory };
        // A thread that runs may start others: until a look finds no new one.
        loop {
            let mut is_new = false;
            for entry in fs::read_dir(format!("/proc/{process}/task")).during("it has ended")? {
                let name = entry.during("it has ended")?.file_name();
                let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
                if tracee.threads.iter().any(|thread| thread.id == id) {
                    continue;
                }
                if tracee.threads.len() == MOST_THREADS {
                    return Err(Error::Unsupported(format!("a process of more than {MOST_THREADS} threads")));
                }
                tracee.add(id).during("it cannot be stopped")?;
                is_new = true;
            }
            if !is_new {
                break;
            }
        }
        // The main thread comes first, then the others in the order in which they were started.
        tracee.threads.sort_by_key(|thread| (thread.id != process, thread.id));
        Ok(tracee)
    }

    fn add(&mut self, id: pid_t) -> Result<(), IoError> {
        request(libc::PTRACE_SEIZE, id, libc::PTRACE_O_TRACESYSGOOD as usize)?;
        // SAFETY: all-zero registers are valid, and are read below.
        self.threads.push(Thread { id, registers: unsafe { zeroed() } });
        request(libc::PTRACE_INTERRUPT, id, 0)?;
        let status = wait_until_stopped(id)?;
        if status >> 16 != libc::PTRACE_EVENT_STOP {
            return Err(IoError::new(ErrorKind::ResourceBusy, "a signal has just arrived"));
        }
        let registers = registers(id)?;
        self.threads.last_mut().expect("pushed above").registers = registers;
        Ok(())
    }

    /// Its threads, the main one first.
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// Reads its memory.
    ///
    /// # Errors
    /// It is not mapped there.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.memory.read_exact_at(bytes, address).during("its memory cannot be read")
    }

    /// Reads a number of 64 bits.
    ///
    /// # Errors
    /// As [`Tracee::read`].
    pub fn read_word(&self, address: u64) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A system call that a thread makes: it stands behind a `syscall` instruction. Returns the result, which
    /// is negative for an error.
    ///
    /// # Errors
    /// It has ended.
    pub fn call(&self, thread: &Thread, number: c_long, arguments: &[u64]) -> Result<i64, Error> {
        let mut changed = thread.registers;
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        changed.rip -= 2;
        changed.rax = number as u64;
        changed.orig_rax = u64::MAX; // not in a system call that could be begun again
        [changed.rdi, changed.rsi, changed.rdx, changed.r10, changed.r8, changed.r9] = all;
        let result = self.step(thread.id, &changed);
        set_registers(thread.id, &thread.registers).during("it has ended")?;
        result.during("it cannot make a system call")
    }

    fn step(&self, thread: pid_t, changed: &user_regs_struct) -> Result<i64, IoError> {
        set_registers(thread, changed)?;
        request(libc::PTRACE_SINGLESTEP, thread, 0)?;
        let status = wait_until_stopped(thread)?;
        if libc::WSTOPSIG(status) != libc::SIGTRAP {
            return Err(IoError::new(ErrorKind::ResourceBusy, "a signal has just arrived"));
        }
        Ok(registers(thread)?.rax as i64)
    }

    /// The extended registers, in XSAVE's standard format.
    ///
    /// # Errors
    /// It has ended.
    pub fn extended_registers(&self, thread: &Thread) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0_u8; XSTATE_BYTES];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: the kernel writes at most the part's length, and puts there how much it has written.
        let read = unsafe {
            libc::ptrace(libc::PTRACE_GETREGSET, thread.id, NT_X86_XSTATE as *mut c_void, &raw mut part)
        };
        checked(read).during("its registers cannot be read")?;
        bytes.truncate(part.iov_len);
        Ok(bytes)
    }

    /// Sets what [`Tracee::extended_registers`] has read.
    ///
    /// # Errors
    /// It has ended.
    pub fn set_extended_registers(&self, thread: &Thread, bytes: &[u8]) -> Result<(), IoError> {
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the kernel reads as many bytes as there are.
        let set = unsafe {
            libc::ptrace(libc::PTRACE_SETREGSET, thread.id, NT_X86_XSTATE as *mut c_void, &raw mut part)
        };
        checked(set).map(drop)
    }

    /// Which signals a thread blocks.
    ///
    /// # Errors
    /// It has ended.
    pub fn blocked_signals(&self, thread: &Thread) -> Result<u64, Error> {
        let mut mask = 0_u64;
        // SAFETY: the kernel writes 8 bytes, which the number has.
        let read = unsafe {
            libc::ptrace(libc::PTRACE_GETSIGMASK, thread.id, size_of::<u64>() as *mut c_void, &raw mut mask)
        };
        checked(read).during("its signals cannot be read")?;
        Ok(mask)
    }

    /// Has a thread block these signals alone.
    ///
    /// # Errors
    /// It has ended.
    pub fn set_blocked_signals(&self, thread: &Thread, mask: u64) -> Result<(), IoError> {
        // SAFETY: the kernel reads 8 bytes, which the number has.
        let set = unsafe {
            libc::ptrace(libc::PTRACE_SETSIGMASK, thread.id, size_of::<u64>() as *mut c_void, &raw const mask)
        };
        checked(set).map(drop)
    }

    /// Writes a number of 64 bits to its memory.
    ///
    /// # Errors
    /// It is not mapped there.
    pub fn write_word(&self, thread: &Thread, address: u64, word: u64) -> Result<(), IoError> {
        // SAFETY: numbers alone; the kernel writes to the other process.
        let written = unsafe {
            libc::ptrace(libc::PTRACE_POKEDATA, thread.id, address as *mut c_void, word as *mut c_void)
        };
        checked(written).map(drop)
    }

    /// Its restartable sequences; all zero if it has none.
    ///
    /// # Errors
    /// It has ended, or the kernel does not tell.
    pub fn rseq(&self, thread: &Thread) -> Result<Rseq, Error> {
        let mut rseq = Rseq::default();
        // SAFETY: the kernel writes at most the structure's size, which is passed.
        let read =
            unsafe { libc::ptrace(GET_RSEQ, thread.id, size_of::<Rseq>() as *mut c_void, &raw mut rseq) };
        checked(read).during("its restartable sequences cannot be read")?;
        Ok(rseq)
    }

    /// The head of its list of robust locks, and its length.
    ///
    /// # Errors
    /// It has ended.
    pub fn robust_list(&self, thread: &Thread) -> Result<(u64, u64), Error> {
        let (mut head, mut bytes) = (0_u64, 0_u64);
        // SAFETY: the kernel writes two numbers of 64 bits.
        let read =
            unsafe { libc::syscall(libc::SYS_get_robust_list, thread.id, &raw mut head, &raw mut bytes) };
        checked(read).during("its robust locks cannot be read")?;
        Ok((head, bytes))
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        for thread in &self.threads {
            // If it fails, the thread has ended.
            let _ = request(libc::PTRACE_DETACH, thread.id, 0);
        }
    }
}

pub fn registers(thread: pid_t) -> Result<user_regs_struct, IoError> {
    // SAFETY: all-zero registers are valid; the kernel writes the structure.
    unsafe {
        let mut registers: user_regs_struct = zeroed();
        let read =
            libc::ptrace(libc::PTRACE_GETREGS, thread, std::ptr::null_mut::<c_void>(), &raw mut registers);
        checked(read)?;
        Ok(registers)
    }
}

pub fn set_registers(thread: pid_t, registers: &user_regs_struct) -> Result<(), IoError> {
    // SAFETY: the kernel reads the structure, which outlives the call.
    let written = unsafe {
        libc::ptrace(
            libc::PTRACE_SETREGS,
            thread,
            std::ptr::null_mut::<c_void>(),
            std::ptr::from_ref(registers),
        )
    };
    checked(written).map(drop)
}
