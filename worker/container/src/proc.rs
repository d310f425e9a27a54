//! /proc of a sandbox: its own processes, and little of the machine. Hiding the rest takes some fifty mounts,
//! which are made while the sandbox is empty.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind, mount_change,
    move_mount, open_tree,
};
use rustix::thread::UnshareFlags;

use super::{order, syscalls};

/// The entries of /proc that programs need, beside processes. The others would reveal the machine, its
/// owner and its other guests.
const PROC: [&str; 13] = [
    "cpuinfo",
    "filesystems",
    "loadavg",
    "meminfo", // the instance's own
    "mounts",
    "net",
    "self",
    "stat",
    "sys",
    "thread-self",
    "uptime",
    "version",
    "cgroups",
];

/// /proc of this PID namespace, mounted nowhere.
pub struct Proc {
    mounts: OwnedFd,
    /// The file that its meminfo shows.
    meminfo: File,
}

impl Proc {
    /// Mounts it on a folder, in a mount namespace of its own that ends at once: the caller keeps none of the
    /// host's mounts in use. Only for a process of one thread, which has no other child.
    ///
    /// # Errors
    /// What could not be mounted, and why.
    pub fn new(folder: &Path) -> Result<Proc> {
        let (ours, theirs) = UnixStream::pair()?;
        let Some(helper) = syscalls::fork()? else {
            let made = make(folder);
            let (said, files) = match &made {
                Ok(proc) => (Ok(()), Some((proc.mounts.as_fd(), proc.meminfo.as_fd()))),
                Err(error) => (Err(format!("{error:#}")), None),
            };
            let others = files.map(|(_, meminfo)| meminfo);
            let sent = order::send(&theirs, &said, files.map(|(mounts, _)| mounts), others.as_slice());
            std::process::exit(sent.is_err().into());
        };
        drop(theirs);
        let received = order::receive::<std::result::Result<(), String>>(&ours)
            .and_then(|received| received.context("the process that mounts it has ended"));
        let proc = received.and_then(|(said, mounts)| {
            said.map_err(|error| anyhow!(error))?;
            let mounts = mounts.context("it has no descriptor")?;
            Ok(Proc { mounts, meminfo: order::receive_file(&ours)?.into() })
        });
        syscalls::wait(helper)?;
        proc.context("cannot make /proc")
    }

    /// Mounts it there, with so much memory.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub fn show(self, folder: &Path, memory_mib: u32) -> Result<()> {
        self.meminfo.write_all_at(meminfo(memory_mib).as_bytes(), 0)?;
        move_mount(self.mounts, "", CWD, folder, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .context("cannot mount /proc")
    }
}

fn make(folder: &Path) -> Result<Proc> {
    syscalls::die_with_parent()?;
    syscalls::unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .context("cannot make the mounts private")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("none", folder, "tmpfs", flags, c"size=64k,nr_inodes=8,mode=755")
        .with_context(|| format!("cannot mount a folder on {}", folder.display()))?;
    fs::create_dir(folder.join("folder"))?;
    fs::write(folder.join("file"), "")?;
    let meminfo = File::create(folder.join("meminfo"))?;
    let proc = folder.join("proc");
    fs::create_dir(&proc)?;
    mount("none", &proc, "proc", flags, c"")?;
    mask_proc(&proc, folder)?;
    // What hides cannot be written to; of the rest the kernel says so.
    let restricted = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    syscalls::restrict_mount(&proc, restricted)?;
    syscalls::allow_writing(&proc)?;
    let copied =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(Proc { mounts: open_tree(CWD, &proc, copied)?, meminfo })
}

/// Hides the machine's entries of /proc.
fn mask_proc(proc: &Path, mask: &Path) -> Result<()> {
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let is_process = name.bytes().all(|byte| byte.is_ascii_digit());
        let shown = match name {
            "meminfo" => "meminfo",
            _ if is_process || PROC.contains(&name) => continue,
            _ if entry.file_type()?.is_dir() => "folder",
            _ => "file",
        };
        mount_bind(mask.join(shown), entry.path())
            .with_context(|| format!("cannot hide {}", entry.path().display()))?;
    }
    Ok(())
}

/// The contents of /proc/meminfo on a machine of this size that has nothing else to do.
fn meminfo(memory_mib: u32) -> String {
    let all = u64::from(memory_mib) << 10;
    let line = |(name, kib): (&str, u64)| format!("{:<15} {kib:>8} kB\n", format!("{name}:"));
    let empty =
        ["Buffers", "Cached", "SwapCached", "Active", "Inactive", "SwapTotal", "SwapFree", "Shmem", "Slab"];
    let full = ["MemTotal", "MemFree", "MemAvailable"].map(|name| (name, all));
    full.into_iter().chain(empty.map(|name| (name, 0))).map(line).collect()
}
