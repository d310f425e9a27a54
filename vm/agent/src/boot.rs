//! From the initramfs to the root: modules, mounts, sysctls.
//!
//! The root disk is read-only and shared by all VMs on the host; what a guest writes goes to an overlay in memory.
//! The initramfs' `/mayfly` (the workloads) shows up as `/opt/mayfly`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::CWD;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_move};

use crate::root;

const DISK: &str = "/dev/vda";
const DISK_PATIENCE: Duration = Duration::from_secs(20);

/// What tools write outside of `/tmp` stays in boot memory, and is little. Instances have layers of their own ([`root`]).
const OVERLAY_OPTIONS: &str = "size=64m,mode=755,mpol=bind=static:0";

/// Boots up to the root. Whatever fails here leaves no VM: the kernel panics with the reason on the console.
pub fn boot() {
    let none = MountFlags::empty();
    must("mount /dev", mount("devtmpfs", "/dev", "devtmpfs", none, None));
    make_folders(&["/proc", "/sys", "/disk", "/writable", "/root"]);
    must("mount /proc", mount("proc", "/proc", "proc", none, None));
    must("mount /sys", mount("sysfs", "/sys", "sysfs", none, None));
    // Before the virtio-mem driver starts: plugged memory is only ever for movable pages (HotMem §2.2).
    set("/sys/devices/system/memory/auto_online_blocks", "online_movable");
    load_modules();

    let begin = Instant::now();
    while !Path::new(DISK).exists() {
        if begin.elapsed() > DISK_PATIENCE {
            panic!("{DISK} did not appear: the root disk must be the first virtio-blk device");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    must("mount the root disk", mount(DISK, "/disk", "ext4", MountFlags::RDONLY, Some(c"noload")));
    let options = std::ffi::CString::new(OVERLAY_OPTIONS).expect("no zero byte");
    must("mount the overlay's memory", mount("tmpfs", "/writable", "tmpfs", none, Some(options.as_c_str())));
    make_folders(&["/writable/upper", "/writable/work"]);
    let layers = c"lowerdir=/disk,upperdir=/writable/upper,workdir=/writable/work";
    must("mount the root", mount("overlay", "/root", "overlay", none, Some(layers)));

    make_folders(&["/root/opt/mayfly", "/root/run", "/root/tmp", "/root/dev", "/root/proc", "/root/sys"]);
    let nodev = MountFlags::NODEV | MountFlags::NOSUID;
    must("mount /run", mount("tmpfs", "/root/run", "tmpfs", nodev, Some(c"size=16m,mode=755")));
    // Instances get the disk without the overlay: nothing that is written to that is theirs to see.
    make_folders(&[&format!("/root{}", root::DISK)]);
    must("move the disk", mount_move("/disk", format!("/root{}", root::DISK)));
    must("show the workloads", mount_bind("/mayfly", "/root/opt/mayfly"));
    for folder in ["dev", "proc", "sys"] {
        must("move a mount", mount_move(format!("/{folder}"), format!("/root/{folder}")));
    }
    must("enter the root", std::env::set_current_dir("/root"));
    must("move the root", mount_move(".", "/"));
    must("change the root", rustix::process::chroot("."));
    must("enter the root", std::env::set_current_dir("/"));
    mount_rest();
    set_up_kernel();
}

fn mount_rest() {
    let (none, nodev) = (MountFlags::empty(), MountFlags::NODEV | MountFlags::NOSUID);
    make_folders(&["/dev/pts", "/dev/shm"]);
    must("mount cgroups", mount("cgroup2", "/sys/fs/cgroup", "cgroup2", none, None));
    must("mount /dev/pts", mount("devpts", "/dev/pts", "devpts", none, Some(c"mode=620,ptmxmode=666")));
    must("mount /dev/shm", mount("tmpfs", "/dev/shm", "tmpfs", nodev, Some(c"size=16m")));
    must("mount /tmp", mount("tmpfs", "/tmp", "tmpfs", nodev, Some(c"size=64m,mode=1777")));
    make_folders(&root::FOLDERS);
    // Tracing is there when the kernel was built with it.
    let _ = mount("tracefs", "/sys/kernel/tracing", "tracefs", none, None);
    let _ = mount("debugfs", "/sys/kernel/debug", "debugfs", none, None);
    // Instances get mount namespaces of their own; nothing they mount comes back here.
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    must("make mounts private", mount_change("/", private));
}

/// Nothing moves pages between nodes or blocks unless an unplug does it: migrations are what Mayfly counts.
fn set_up_kernel() {
    set("/proc/sys/kernel/numa_balancing", "0");
    set("/proc/sys/vm/compaction_proactiveness", "0");
    set("/proc/sys/kernel/hostname", "mayfly");
    // By its boot memory the kernel would allow some thousands, which a few instances have with all theirs (`cgroup`): then the
    // agent has no thread to end them. Each has its own limits, and threads are memory that is charged to it.
    set("/proc/sys/kernel/threads-max", "4194304");
    set("/proc/sys/kernel/pid_max", "4194304");
    // Each instance is a user of its own, and all of them are one tenant's: a VM is one domain of trust, so they share
    // pages as if they were one user (UPM §IV-E). Tenants that must not are in VMs of their own.
    set("/sys/kernel/mm/upm/domain", "everyone");
    // Where the kernel lies and what it reports is nobody's business but root's.
    set("/proc/sys/kernel/kptr_restrict", "2");
    set("/proc/sys/kernel/dmesg_restrict", "1");
}

/// Loads `/modules/RELEASE/order`, written by vm/image/build, in that order. Mayfly's kernel has no modules.
fn load_modules() {
    let folder = format!("/modules/{}", rustix::system::uname().release().to_string_lossy());
    let Ok(order) = fs::read_to_string(format!("{folder}/order")) else { return };
    for name in order.lines() {
        let path = format!("{folder}/{name}");
        let file = rustix::fs::openat(CWD, &path, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
        match file.and_then(|file| rustix::system::finit_module(file, c"", 0)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => panic!("{path}: cannot be loaded: {error}"),
        }
    }
}

fn make_folders(paths: &[&str]) {
    for path in paths {
        must(path, fs::create_dir_all(path));
    }
}

/// For modes with partitions: free pages that one CPU keeps for itself are lost to an instance on another, and a
/// partition is small. With the kernel's own choice a second instance overflowed a partition that it did not fill. Mayfly's
/// kernel first takes such pages back, but only after reclaim has found nothing, again and again: filling the last of a
/// partition then takes seconds.
pub fn hoard_no_pages() {
    set("/proc/sys/vm/percpu_pagelist_high_fraction", "512");
}

/// Writes a setting that not every kernel has.
fn set(path: &str, value: &str) {
    if let Err(error) = fs::write(path, value)
        && Path::new(path).exists()
    {
        eprintln!("vm-agent: {path}: cannot be set to {value}: {error}");
    }
}

fn must<T, E: std::fmt::Display>(what: &str, outcome: Result<T, E>) -> T {
    outcome.unwrap_or_else(|error| panic!("boot: {what}: {error}"))
}
