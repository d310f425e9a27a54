//! Threads: what the kernel keeps of each, and the frame by which rt_sigreturn continues it.
//!
//! Each thread must be in a system call that waits and may be begun again: the restored one begins it again.
//! Waits that end after a time begin that anew.
//!
//! A restored process is in a PID namespace of its own, which gives out ids in order. So its threads are
//! started in the order of their ids. Threads that end at once take the ids that are missing, and each has
//! the one that it had. glibc keeps the id where the kernel writes it, so another would do; Go and musl keep
//! it elsewhere.

use std::arch::x86_64::__cpuid_count;

use libc::{c_long, user_regs_struct};

use crate::plan::{Operation, Plan};
use crate::restorer::special;
use crate::tracee::{Rseq, Thread, Tracee};
use crate::{Error, WAITS, While, status};

/// System calls in which a thread may wait: they hold no descriptor that is unknown here, since files are
/// looked at on their own.
const WAITING: [c_long; 15] = [
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_rt_sigtimedwait,
];
const EPOLLS: [c_long; 3] = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
/// `syscall`, as a little-endian number.
const SYSCALL: u64 = 0x050f;
const PR_GET_TID_ADDRESS: u64 = 40;
const ARCH_SET_GS: u64 = 0x1001;
const ARCH_SET_FS: u64 = 0x1002;
/// What glibc and musl start threads with, but for the place that the id is written to.
const THREAD_FLAGS: libc::c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_CLEARTID;
/// Ids that are missing between two threads' are passed over, up to so many.
const MOST_MISSING: u64 = 64;
/// Bits of XCR0 for AMX, whose state a fresh process may not load before it has asked for it.
const AMX: u64 = 3 << 17;
/// Begin and end of the extended registers in a frame (linux: asm/sigcontext.h).
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// A frame has extended registers, and a valid stack segment, which is to be loaded.
const FRAME_FLAGS: u64 = 7;
const USER_CODE: u16 = 0x33;
const USER_DATA: u16 = 0x2b;

/// What is kept of a thread.
pub struct State {
    registers: user_regs_struct,
    extended: Vec<u8>,
    rseq: Rseq,
    robust_list: (u64, u64),
    id_address: u64,
    /// In its own PID namespace.
    id: u64,
    /// Whether its C library keeps the id at `id_address` alone.
    may_have_another: bool,
    /// `stack_t`: the alternate stack of its signal handlers.
    alternate_stack: [u8; 24],
    blocked_signals: u64,
    name: String,
}

/// Where a thread's system calls write what they tell: below its stack's red zone.
pub fn below_stack(thread: &Thread) -> u64 {
    thread.registers.rsp.wrapping_sub(4096) & !15
}

/// Whether all threads wait, as far as /proc tells.
///
/// # Errors
/// One does not, or the process has ended.
pub fn all_wait(process: libc::pid_t) -> Result<(), Error> {
    for task in std::fs::read_dir(format!("/proc/{process}/task")).during("it has ended")? {
        let name = task.during("it has ended")?.file_name();
        let call = status::text(process, &format!("task/{}/syscall", name.display()))?;
        let number = call.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
        if !number.is_some_and(|number| WAITING.contains(&number)) {
            return Err(does_not_wait("thread", call.trim()));
        }
    }
    Ok(())
}

fn does_not_wait(what: &str, call: impl std::fmt::Display) -> Error {
    Error::Unsupported(format!("a {what} that does not wait (system call {call})"))
}

impl State {
    /// Reads a stopped thread; `at_line` if the main one must wait there.
    ///
    /// # Errors
    /// It does not wait, or has something that is unknown here.
    pub fn read(tracee: &Tracee, thread: &Thread, at_line: bool) -> Result<State, Error> {
        let registers = thread.registers;
        let is_main = thread.id == tracee.process;
        let call = registers.orig_rax as c_long;
        let waits = match is_main && at_line {
            true => call == libc::SYS_read && registers.rdi == WAITS as u64,
            false => WAITING.contains(&call),
        };
        let mut instruction = [0; 2];
        tracee.read(registers.rip.wrapping_sub(2), &mut instruction)?;
        if !waits || u64::from(u16::from_le_bytes(instruction)) != SYSCALL {
            let what = if is_main { "main thread" } else { "thread" };
            return Err(does_not_wait(what, call));
        }
        let at = below_stack(thread);
        let told = |number: c_long, arguments: &[u64]| match tracee.call(thread, number, arguments)? {
            0 => Ok(()),
            error => Err(Error::Unsupported(format!("a thread whose system call {number} gives {error}"))),
        };
        told(libc::SYS_prctl, &[PR_GET_TID_ADDRESS, at])?;
        let id_address = tracee.read_word(at)?;
        let about = status::text(tracee.process, &format!("task/{}/status", thread.id))?;
        let ids = status::value(&about, "NSpid").unwrap_or_default();
        let id: u64 = ids.split_ascii_whitespace().last().and_then(|id| id.parse().ok()).unwrap_or_default();
        let mut kept = [0; 4];
        let is_read = id_address != 0 && tracee.read(id_address, &mut kept).is_ok();
        told(libc::SYS_sigaltstack, &[0, at])?;
        let mut alternate_stack = [0; 24];
        tracee.read(at, &mut alternate_stack)?;
        let extended = extended_part(&tracee.extended_registers(thread)?)?;
        let name = status::text(tracee.process, &format!("task/{}/comm", thread.id))?;
        Ok(State {
            registers,
            extended,
            rseq: tracee.rseq(thread)?,
            robust_list: tracee.robust_list(thread)?,
            id_address,
            id,
            may_have_another: is_read && u64::from(u32::from_ne_bytes(kept)) == id,
            alternate_stack,
            blocked_signals: tracee.blocked_signals(thread)?,
            name: name.trim_end_matches('\n').to_string(),
        })
    }

    /// The start of a thread that is not the main one.
    ///
    /// # Errors
    /// The plan has too many operations.
    pub fn plan_start(&self, plan: &mut Plan) -> Result<crate::plan::Thread, Error> {
        let writes = if self.may_have_another { libc::CLONE_PARENT_SETTID } else { 0 };
        let flags = (THREAD_FLAGS | writes) as u64;
        plan.push_thread([flags, 0, self.id_address, self.id_address, self.registers.fs_base])
    }

    /// Starts threads that end at once, so that this one, after `previous`, has the id that it had.
    ///
    /// # Errors
    /// The plan has too many operations.
    pub fn plan_missing(&self, previous: &State, plan: &mut Plan) -> Result<Vec<crate::plan::Thread>, Error> {
        let missing = Some(self.id.saturating_sub(previous.id + 1)).filter(|count| *count <= MOST_MISSING);
        let missing = missing.unwrap_or_default();
        (0..missing).map(|_| plan.push_thread([THREAD_FLAGS as u64, 0, 0, 0, 0])).collect()
    }

    /// What a thread does last: it sets its own state, and becomes what it was.
    ///
    /// # Errors
    /// The plan has too much.
    pub fn plan_end(&self, plan: &mut Plan, is_main: bool) -> Result<(), Error> {
        let name = plan.text(self.name.as_bytes())?;
        plan.push(Operation::call(libc::SYS_prctl, &[libc::PR_SET_NAME as u64, name]))?;
        if is_main {
            plan.push(Operation::call(libc::SYS_arch_prctl, &[ARCH_SET_FS, self.registers.fs_base]))?;
            if self.id_address != 0 {
                plan.push(Operation::call(libc::SYS_set_tid_address, &[self.id_address]))?;
            }
            if self.may_have_another {
                plan.push(Operation::call(special::TID, &[self.id_address]))?;
            }
        }
        if !self.may_have_another {
            // The call takes no argument, and its result must be this one.
            plan.push(Operation::call(libc::SYS_gettid, &[self.id]).at_its_place())?;
        }
        if self.registers.gs_base != 0 {
            plan.push(Operation::call(libc::SYS_arch_prctl, &[ARCH_SET_GS, self.registers.gs_base]))?;
        }
        if self.robust_list.0 != 0 {
            let (head, bytes) = self.robust_list;
            plan.push(Operation::call(libc::SYS_set_robust_list, &[head, bytes]))?;
        }
        let Rseq { address, bytes, signature, .. } = self.rseq;
        if address != 0 {
            let arguments = [address, u64::from(bytes), 0, u64::from(signature)];
            plan.push(Operation::call(libc::SYS_rseq, &arguments))?;
        }
        let extended = plan.data(&self.extended)?;
        let frame = plan.data(&self.frame(extended))?;
        plan.push(Operation::call(special::BECOME, &[frame]))
    }

    /// `struct ucontext` of the kernel.
    fn frame(&self, extended: u64) -> Vec<u8> {
        let r = &self.registers;
        // A call that a signal may interrupt is begun again: ERESTARTSYS and its like. epoll_wait alone says
        // EINTR where nothing but the tracer has interrupted it.
        let result = r.rax as i64;
        let again = (-516..=-512).contains(&result)
            || EPOLLS.contains(&(r.orig_rax as c_long)) && result == -i64::from(libc::EINTR);
        let (rax, rip) = if again { (r.orig_rax, r.rip - 2) } else { (r.rax, r.rip) };
        let mut bytes = Vec::new();
        let mut word = |word: u64| bytes.extend(word.to_le_bytes());
        word(FRAME_FLAGS);
        word(0);
        for part in self.alternate_stack.chunks_exact(8) {
            word(u64::from_le_bytes(part.try_into().expect("8 bytes")));
        }
        let general = [
            r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, rax,
            r.rcx, r.rsp, rip, r.eflags,
        ];
        general.into_iter().for_each(&mut word);
        word(u64::from(USER_CODE) | u64::from(USER_DATA) << 48);
        [0, 0, 0, 0, extended].into_iter().for_each(&mut word);
        [0; 8].into_iter().for_each(&mut word);
        word(self.blocked_signals);
        bytes
    }
}

/// The extended registers as a frame has them: without what a fresh process may not load.
pub fn extended_part(all: &[u8]) -> Result<Vec<u8>, Error> {
    const SOFTWARE: usize = 464;
    const HEADER: usize = 512;
    const LEGACY_AND_HEADER: usize = 576;
    let word =
        |at: usize| all.get(at..at + 8).map(|part| u64::from_le_bytes(part.try_into().expect("8 bytes")));
    let (Some(features), Some(used)) = (word(SOFTWARE), word(HEADER)) else {
        return Err(Error::Unsupported("a processor without XSAVE".into()));
    };
    if used & AMX != 0 {
        return Err(Error::Unsupported("a thread in the middle of matrix instructions (AMX)".into()));
    }
    let features = features & !AMX;
    let bytes = (2..63).filter(|bit| features >> bit & 1 == 1).map(|bit| {
        let about = __cpuid_count(13, bit);
        (about.eax + about.ebx) as usize
    });
    let bytes = bytes.fold(LEGACY_AND_HEADER, usize::max);
    let mut part = all.get(..bytes).map(<[u8]>::to_vec).unwrap_or_default();
    if part.len() < bytes {
        return Err(Error::Unsupported("extended registers that the kernel does not show whole".into()));
    }
    part[SOFTWARE..HEADER].fill(0);
    part[SOFTWARE..SOFTWARE + 4].copy_from_slice(&MAGIC1.to_le_bytes());
    part[SOFTWARE + 4..SOFTWARE + 8].copy_from_slice(&(bytes as u32 + 4).to_le_bytes());
    part[SOFTWARE + 8..SOFTWARE + 16].copy_from_slice(&features.to_le_bytes());
    part[SOFTWARE + 16..SOFTWARE + 20].copy_from_slice(&(bytes as u32).to_le_bytes());
    part.extend(MAGIC2.to_le_bytes());
    Ok(part)
}
