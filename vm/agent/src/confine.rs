//! What happens in an instance's process between fork and exec: it enters its control group, gets its memory from its
//! partition, and loses the means to get it from elsewhere.
//!
//! Mode `nodes` binds the process to its partition's node with a memory policy that fork, clone and exec hand on, and a
//! seccomp filter keeps it there. `MPOL_F_STATIC_NODES` matters: without it the kernel maps the policy to another
//! node while a partition is plugged or unplugged. Mode `hotmem` asks the kernel for the partition (HotMem §4, "The
//! HotMem interface"), which binds the address space itself.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Mutex;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};
use rustix::thread::{CapabilitySet, UnshareFlags};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use vm_protocol::Confinement;

/// Where an instance's memory comes from.
#[derive(Debug)]
pub enum Source {
    /// Anywhere: modes `plain` and `static`.
    Anywhere,
    /// This NUMA node only.
    Node(u32),
    /// The HotMem partition that is this node; the file is `/dev/hotmem`.
    Hotmem(OwnedFd, u32),
}

/// A function of the worker's: nobody trusts it.
pub struct Stranger {
    user: u32,
    binds: Vec<(CString, CString)>,
    cwd: CString,
    fixed_layout: bool,
}

const CODE: &str = "/run/mayfly-code";
/// What `virtio-blk` says the code disk is.
const CODE_SERIAL: &str = "mayfly-code";

impl Stranger {
    /// Finds what the function sees of the code disk, which is mounted when it is first needed.
    pub fn new(confinement: &Confinement, cwd: &str) -> io::Result<Stranger> {
        if confinement.user == 0 {
            return Err(io::Error::other("an instance cannot be the guest's root"));
        }
        static MOUNTED: Mutex<bool> = Mutex::new(false);
        let mut mounted = MOUNTED.lock().expect("not poisoned");
        if !*mounted {
            mount_code()?;
            *mounted = true;
        }
        let mut binds = Vec::new();
        for (source, target) in &confinement.binds {
            let plain = |path: &str| !path.split('/').any(|part| part == "..");
            if !plain(source) || !plain(target) || !target.starts_with("/var/") && !target.starts_with("/opt")
            {
                return Err(io::Error::other(format!("{source} at {target}: not allowed")));
            }
            let source = format!("{CODE}/{}", source.trim_start_matches('/'));
            if std::path::Path::new(&source).is_dir() {
                std::fs::create_dir_all(target)?;
            } else {
                std::fs::create_dir_all(std::path::Path::new(target).parent().unwrap_or("/".as_ref()))?;
                std::fs::File::options().create(true).append(true).open(target)?;
            }
            binds.push((CString::new(source)?, CString::new(target.as_str())?));
        }
        let (user, fixed_layout) = (confinement.user, confinement.fixed_layout);
        Ok(Stranger { user, binds, cwd: CString::new(cwd)?, fixed_layout })
    }

    /// Between fork and exec: its code, and nobody else's; no other user's processes; no privilege.
    fn enter(&self) -> io::Result<()> {
        for (source, target) in &self.binds {
            mount_bind(source.as_c_str(), target.as_c_str())?;
        }
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        mount(c"tmpfs", c"/run", c"tmpfs", flags | MountFlags::RDONLY, Some(c"size=4k"))?;
        mount(c"proc", c"/proc", c"proc", flags | MountFlags::NOEXEC, Some(c"hidepid=2"))?;
        rustix::process::chdir(self.cwd.as_c_str())?;
        let none = std::ptr::null::<libc::gid_t>();
        let user = self.user;
        // SAFETY: system calls on this process, which has one thread: an empty list and numbers.
        unsafe {
            checked(libc::syscall(libc::SYS_setgroups, 0, none))?;
            checked(libc::syscall(libc::SYS_setresgid, user, user, user))?;
            checked(libc::syscall(libc::SYS_setresuid, user, user, user))?;
            if self.fixed_layout {
                checked(libc::syscall(libc::SYS_personality, libc::ADDR_NO_RANDOMIZE))?;
            }
            checked(libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        }
    }
}

fn checked(outcome: libc::c_long) -> io::Result<()> {
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn mount_code() -> io::Result<()> {
    let is_code = |entry: &std::fs::DirEntry| {
        let serial = std::fs::read_to_string(entry.path().join("serial"));
        serial.is_ok_and(|serial| serial.trim() == CODE_SERIAL)
    };
    let disk = std::fs::read_dir("/sys/block")?.flatten().find(is_code);
    let disk = disk.ok_or_else(|| io::Error::other("this VM has no disk with functions' code"))?;
    std::fs::create_dir_all(CODE)?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
    let device = std::path::Path::new("/dev").join(disk.file_name());
    Ok(mount(device, CODE, "ext4", flags, Some(c"noload"))?)
}

/// Puts a command into a group; an instance (not a tool) also into its partition and namespaces of its own.
pub fn confine(
    command: &mut Command,
    procs: File,
    cpus: &[u32],
    source: Option<Source>,
    stranger: Option<Stranger>,
) {
    let mut cpu_set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|&cpu| cpu_set.set(cpu as usize));
    let any_cpu = cpus.is_empty();
    let filter = policy_filter();
    let child = move || {
        rustix::io::write(&procs, b"0")?;
        // The agent's own protection is not for its children.
        let score = rustix::fs::openat(CWD, c"/proc/self/oom_score_adj", OFlags::WRONLY, Mode::empty())?;
        rustix::io::write(&score, b"500")?;
        if !any_cpu {
            rustix::thread::sched_setaffinity(None, &cpu_set)?;
        }
        rustix::process::setsid()?;
        match &source {
            None => return Ok(()),
            Some(Source::Anywhere) => {}
            Some(Source::Node(node)) => bind_to_node(&[*node])?,
            Some(Source::Hotmem(device, node)) => assign(device, *node)?,
        }
        separate()?;
        if let Some(stranger) = &stranger {
            stranger.enter()?;
        }
        seccompiler::apply_filter(&filter).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
    };
    // SAFETY: between fork and exec in a program with threads, only system calls are made: the closure allocates nothing
    // and takes no lock (rustix passes C strings on as they are, the filter was compiled before, errors are numbers).
    unsafe { command.pre_exec(child) };
}

/// Namespaces and privileges: what outlives processes (tmpfs, System V shared memory) ends with the instance too, and
/// nothing of the agent's can be undone.
fn separate() -> io::Result<()> {
    // SAFETY: the process has one thread and shares no file descriptor table that these flags would split.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWIPC)? };
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    mount(c"tmpfs", c"/tmp", c"tmpfs", flags, Some(c"size=100%,mode=1777"))?;
    mount(c"tmpfs", c"/dev/shm", c"tmpfs", flags, Some(c"size=100%,mode=1777"))?;
    mount_bind(c"/sys/fs/cgroup", c"/sys/fs/cgroup")?;
    mount_remount(c"/sys/fs/cgroup", MountFlags::BIND | MountFlags::RDONLY, c"")?;
    for capability in [
        CapabilitySet::SYS_BOOT,
        CapabilitySet::SYS_MODULE,
        CapabilitySet::SYS_RAWIO,
        CapabilitySet::SYS_PTRACE,
        CapabilitySet::SYS_NICE,
    ] {
        rustix::thread::remove_capability_from_bounding_set(capability)?;
    }
    Ok(())
}

/// Refuses the calls that change where memory comes from, in every ABI.
fn policy_filter() -> BpfProgram {
    let calls = [
        libc::SYS_set_mempolicy,
        libc::SYS_mbind,
        libc::SYS_migrate_pages,
        libc::SYS_move_pages,
        libc::SYS_set_mempolicy_home_node,
    ];
    let rules: BTreeMap<i64, Vec<_>> = calls.iter().map(|&call| (call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    // Calls of another ABI end the process: seccompiler's programs check the architecture first.
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, TargetArch::x86_64);
    filter.and_then(BpfProgram::try_from).expect("a filter of five calls compiles")
}

/// Memory from these nodes only, for this thread and all that it starts.
pub fn bind_to_node(nodes: &[u32]) -> io::Result<()> {
    let mut mask = [0u64; 4];
    nodes.iter().for_each(|&node| mask[node as usize / 64] |= 1 << (node % 64));
    let mode = libc::MPOL_BIND | libc::MPOL_F_STATIC_NODES;
    // SAFETY: the mask has 256 bits, and the kernel reads one fewer than the number given; node numbers end at 128.
    let status = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), 257) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `struct hotmem_assign` of include/uapi/linux/hotmem.h.
#[repr(C)]
struct HotmemAssign {
    flags: u32,
    node: i32,
    timeout_ns: u64,
}

const HOTMEM_NONBLOCK: u32 = 1;
const HOTMEM_ASSIGN: libc::c_ulong = 0xc010_b901;

fn assign(device: &OwnedFd, node: u32) -> io::Result<()> {
    // Not waiting: the agent gives a partition to one instance only, so it is free.
    let mut request = HotmemAssign { flags: HOTMEM_NONBLOCK, node: node as i32, timeout_ns: 0 };
    // SAFETY: the structure is the one this request number takes, and it lives during the call.
    let status = unsafe { libc::ioctl(device.as_raw_fd(), HOTMEM_ASSIGN, &raw mut request) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
