//! The seccomp filter of an instance: it allows the system calls that ordinary programs use, and none that
//! manage the machine. The worker's sandboxes on the host and instances in a VM use the same list.
//!
//! Calls that are not listed fail with ENOSYS, as on an older kernel, so that libraries fall back. Left out
//! on purpose: ptrace and reading other processes' memory, keyrings, bpf, perf, io_uring, mounting,
//! namespaces, modules, clocks, writing out whole file systems (`sync` waits for all disks of the host), and
//! new address families beyond Unix and IP.
//!
//! Merging pages needs userfaultfd. Only `UFFD_USER_MODE_ONLY` is allowed, which stops no system call:
//! otherwise an instance could stop the kernel in the middle of a copy, which many exploits of race
//! conditions rely on.

use std::collections::BTreeMap;

use libc::*;
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare,
    SeccompCondition as Condition, SeccompFilter, SeccompRule as Rule, TargetArch, sock_filter,
};

/// Allowed with any arguments.
#[rustfmt::skip]
const ALLOWED: &[i64] = &[
    // Files.
    SYS_read, SYS_write, SYS_open, SYS_close, SYS_stat, SYS_fstat, SYS_lstat, SYS_poll, SYS_lseek, SYS_pread64,
    SYS_pwrite64, SYS_readv, SYS_writev, SYS_preadv, SYS_pwritev, SYS_preadv2, SYS_pwritev2, SYS_access, SYS_pipe,
    SYS_pipe2, SYS_select, SYS_pselect6, SYS_ppoll, SYS_dup, SYS_dup2, SYS_dup3, SYS_sendfile, SYS_fcntl, SYS_flock,
    SYS_fsync, SYS_fdatasync, SYS_sync_file_range, SYS_truncate, SYS_ftruncate, SYS_getdents, SYS_getdents64,
    SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_rename, SYS_renameat, SYS_renameat2, SYS_mkdir, SYS_mkdirat, SYS_rmdir,
    SYS_creat, SYS_link, SYS_linkat, SYS_unlink, SYS_unlinkat, SYS_symlink, SYS_symlinkat, SYS_readlink,
    SYS_readlinkat, SYS_chmod, SYS_fchmod, SYS_fchmodat, SYS_fchmodat2, SYS_chown, SYS_fchown, SYS_lchown,
    SYS_fchownat, SYS_umask, SYS_openat, SYS_openat2, SYS_newfstatat, SYS_statx, SYS_faccessat, SYS_faccessat2,
    SYS_utime, SYS_utimes, SYS_futimesat, SYS_utimensat, SYS_statfs, SYS_fstatfs, SYS_fadvise64, SYS_fallocate,
    SYS_readahead, SYS_splice, SYS_tee, SYS_vmsplice, SYS_copy_file_range, SYS_close_range, SYS_memfd_create,
    SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_setxattr,
    SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, SYS_inotify_init,
    SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch,
    // Waiting.
    SYS_epoll_create, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_wait, SYS_epoll_pwait, SYS_epoll_pwait2,
    SYS_eventfd, SYS_eventfd2, SYS_signalfd, SYS_signalfd4, SYS_timerfd_create, SYS_timerfd_settime,
    SYS_timerfd_gettime, SYS_io_setup, SYS_io_destroy, SYS_io_getevents, SYS_io_submit, SYS_io_cancel,
    // Memory.
    SYS_mmap, SYS_mprotect, SYS_munmap, SYS_brk, SYS_mremap, SYS_msync, SYS_mincore, SYS_madvise, SYS_mlock,
    SYS_mlock2, SYS_munlock, SYS_mlockall, SYS_munlockall, SYS_membarrier, SYS_get_mempolicy, SYS_pkey_alloc, SYS_pkey_free, SYS_pkey_mprotect, SYS_shmget, SYS_shmat, SYS_shmctl, SYS_shmdt,
    SYS_semget, SYS_semop, SYS_semctl, SYS_semtimedop, SYS_rseq,
    // Processes and threads. `clone` is filtered by its flags below.
    SYS_fork, SYS_vfork, SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_kill,
    SYS_tkill, SYS_tgkill, SYS_getpid, SYS_getppid, SYS_gettid, SYS_getpgid, SYS_setpgid, SYS_getpgrp, SYS_getsid,
    SYS_setsid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid, SYS_getresgid, SYS_getgroups,
    SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setgroups, SYS_setfsuid,
    SYS_setfsgid, SYS_capget, SYS_capset, SYS_prctl, SYS_arch_prctl, SYS_set_tid_address, SYS_set_robust_list,
    SYS_get_robust_list, SYS_futex, SYS_futex_waitv, SYS_sched_yield, SYS_sched_getaffinity, SYS_sched_setaffinity,
    SYS_sched_getparam, SYS_sched_setparam, SYS_sched_getscheduler, SYS_sched_setscheduler,
    SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval, SYS_sched_getattr,
    SYS_sched_setattr, SYS_getpriority, SYS_setpriority, SYS_getrlimit, SYS_setrlimit, SYS_prlimit64, SYS_getrusage,
    SYS_times, SYS_getcpu, SYS_pidfd_open, SYS_pidfd_send_signal, SYS_ioprio_get, SYS_ioprio_set, SYS_kcmp,
    // Signals and time.
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending, SYS_rt_sigtimedwait,
    SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_rt_sigsuspend, SYS_sigaltstack, SYS_pause, SYS_alarm,
    SYS_getitimer, SYS_setitimer, SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres,
    SYS_gettimeofday, SYS_time, SYS_timer_create, SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun,
    SYS_timer_delete, SYS_restart_syscall,
    // Sockets. `socket` is filtered by its address family below.
    SYS_connect, SYS_accept, SYS_accept4, SYS_bind, SYS_listen, SYS_socketpair, SYS_shutdown, SYS_getsockname,
    SYS_getpeername, SYS_getsockopt, SYS_setsockopt, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg,
    SYS_sendmmsg, SYS_recvmmsg,
    // The system.
    SYS_uname, SYS_sysinfo, SYS_getrandom,
];

/// Flags of `clone` that make namespaces.
const NAMESPACES: u64 = (CLONE_NEWNS
    | CLONE_NEWUTS
    | CLONE_NEWIPC
    | CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNET
    | CLONE_NEWCGROUP) as u64;
/// `UFFD_USER_MODE_ONLY` of linux/userfaultfd.h.
const USER_MODE_ONLY: u64 = 1;
/// Input that a terminal would take as typed by its user.
const TYPE_INTO_TERMINAL: u64 = 0x5412;

/// Calls that choose the NUMA node of memory. They are harmless on the host; in a VM the node is the
/// instance's partition, which it must not leave.
const PLACEMENT: &[i64] = &[SYS_set_mempolicy, SYS_mbind];

/// `AUDIT_ARCH_X86_64` of linux/audit.h.
const X86_64: u32 = 0xc000_003e;

/// Whether an instance may choose the NUMA node of its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// It may.
    Free,
    /// It may not: it stays in its partition.
    Fixed,
}

/// The filter as the kernel takes it.
pub struct Filter(BpfProgram);

impl Filter {
    /// Compiles it.
    ///
    /// # Errors
    /// None that depends on the machine.
    pub fn new(placement: Placement) -> Result<Filter, Error> {
        let placing = if placement == Placement::Free { PLACEMENT } else { &[] };
        let mut program = allow(ALLOWED.iter().chain(placing).map(|call| *call as u32).collect());
        program.extend(compiled(conditions()?)?);
        Ok(Filter(program))
    }

    /// Applies it to this process and all that it starts, irrevocably.
    ///
    /// # Errors
    /// The kernel has no seccomp, or `no_new_privs` is not set.
    pub fn apply(&self) -> Result<(), Error> {
        seccompiler::apply_filter(&self.0)
    }
}

/// Instructions that allow calls of these numbers, by their ranges, and go on behind their end with all
/// others, and with other architectures. One comparison for each call takes the kernel 0.6 ms to accept,
/// ranges 0.1.
fn allow(mut numbers: Vec<u32>) -> BpfProgram {
    const LOAD: u32 = BPF_LD | BPF_W | BPF_ABS;
    let instruction = |code: u32, k: u32, jt: u8, jf: u8| sock_filter { code: code as u16, jt, jf, k };
    numbers.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if number <= *last + 1 => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let body: BpfProgram = ranges
        .into_iter()
        .flat_map(|(first, last)| {
            [
                instruction(BPF_JMP | BPF_JGT | BPF_K, last, 2, 0),
                instruction(BPF_JMP | BPF_JGE | BPF_K, first, 0, 1),
                instruction(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0),
            ]
        })
        .collect();
    let mut program = vec![
        instruction(LOAD, std::mem::offset_of!(seccomp_data, arch) as u32, 0, 0),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, X86_64, 1, 0),
        instruction(BPF_JMP | BPF_JA, body.len() as u32 + 1, 0, 0),
        instruction(LOAD, std::mem::offset_of!(seccomp_data, nr) as u32, 0, 0),
    ];
    program.extend(body);
    program
}

/// Instructions that allow calls under these conditions, refuse all others, and kill a process of another
/// architecture.
fn compiled(rules: BTreeMap<i64, Vec<Rule>>) -> Result<BpfProgram, Error> {
    let refused = SeccompAction::Errno(ENOSYS as u32);
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, TargetArch::x86_64)?;
    Ok(filter.try_into()?)
}

fn conditions() -> Result<BTreeMap<i64, Vec<Rule>>, Error> {
    let all = [
        (SYS_clone, vec![rule(0, Length::Qword, Compare::MaskedEq(NAMESPACES), 0)?]),
        (SYS_userfaultfd, vec![rule(0, Length::Dword, Compare::MaskedEq(USER_MODE_ONLY), USER_MODE_ONLY)?]),
        (SYS_ioctl, vec![rule(1, Length::Dword, Compare::Ne, TYPE_INTO_TERMINAL)?]),
        (
            SYS_socket,
            vec![
                rule(0, Length::Dword, Compare::Eq, AF_UNIX as u64)?,
                rule(0, Length::Dword, Compare::Eq, AF_INET as u64)?,
                rule(0, Length::Dword, Compare::Eq, AF_INET6 as u64)?,
            ],
        ),
    ];
    Ok(all.into())
}

fn rule(argument: u8, length: Length, compare: Compare, value: u64) -> Result<Rule, Error> {
    Ok(Rule::new(vec![Condition::new(argument, length, compare, value)?])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel does with a call: the program's result.
    fn run(program: &[sock_filter], arch: u32, number: u32, arguments: [u64; 2]) -> u32 {
        let data = |offset: u32| match offset {
            0 => number,
            4 => arch,
            16 => arguments[0] as u32,
            20 => (arguments[0] >> 32) as u32,
            24 => arguments[1] as u32,
            28 => (arguments[1] >> 32) as u32,
            other => panic!("word {other}"),
        };
        let (mut at, mut loaded) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let branch = |taken: bool| usize::from(if taken { jt } else { jf });
            match u32::from(code) {
                code if code == BPF_LD | BPF_W | BPF_ABS => loaded = data(k),
                code if code == BPF_RET | BPF_K => return k,
                code if code == BPF_ALU | BPF_AND | BPF_K => loaded &= k,
                code if code == BPF_JMP | BPF_JA => at += k as usize,
                code if code == BPF_JMP | BPF_JEQ | BPF_K => at += branch(loaded == k),
                code if code == BPF_JMP | BPF_JGT | BPF_K => at += branch(loaded > k),
                code if code == BPF_JMP | BPF_JGE | BPF_K => at += branch(loaded >= k),
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn ranges_decide_as_one_comparison_for_each_call_does() {
        for (placement, placing) in [(Placement::Free, PLACEMENT), (Placement::Fixed, &[][..])] {
            let filter = Filter::new(placement).unwrap();
            let mut rules = conditions().unwrap();
            rules.extend(ALLOWED.iter().chain(placing).map(|call| (*call, Vec::new())));
            let each = compiled(rules).unwrap();
            assert!(filter.0.len() < each.len() / 4, "{} {}", filter.0.len(), each.len());
            const X32: u32 = 0x4000_0000;
            for number in (0..1024).chain(X32..X32 + 1024).chain([u32::MAX]) {
                for first in [0, 1, 2, 10, 16, 0x11, 0x5412, 1 << 28, 1 << 32, NAMESPACES, u64::MAX] {
                    for second in [0, TYPE_INTO_TERMINAL, TYPE_INTO_TERMINAL | 1 << 32] {
                        for arch in [X86_64, 0x4000_0003, 0] {
                            let decide = |program| run(program, arch, number, [first, second]);
                            let (ours, theirs) = (decide(&filter.0), decide(&each));
                            assert_eq!(ours, theirs, "{number} {first:#x} {second:#x} {arch:#x}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn call_is_allowed_refused_or_of_another_architecture() {
        let filter = Filter::new(Placement::Fixed).unwrap().0;
        let decide = |arch, call: i64, first| run(&filter, arch, call as u32, [first, 0]);
        let refused = SECCOMP_RET_ERRNO | ENOSYS as u32;
        assert_eq!(decide(X86_64, SYS_read, 0), SECCOMP_RET_ALLOW);
        assert_eq!(decide(X86_64, SYS_socket, AF_INET as u64), SECCOMP_RET_ALLOW);
        assert_eq!(decide(X86_64, SYS_socket, AF_NETLINK as u64), refused);
        for call in [SYS_ptrace, SYS_mount, SYS_unshare, SYS_setns, SYS_clone3, SYS_bpf, SYS_mbind, SYS_sync]
        {
            assert_eq!(decide(X86_64, call, 0), refused, "{call}");
        }
        assert_eq!(decide(0x4000_0003, SYS_read, 0), SECCOMP_RET_KILL_PROCESS);
    }
}
