//! Boots from the initramfs into the root: modules, mounts, sysctls.
//!
//! The root disk is read-only and shared by all VMs on the host; writes go to an overlay in memory. `/mayfly`
//! of the initramfs (the workloads) is mounted at `/opt/mayfly`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::CWD;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_move};

use crate::root;

const DISK: &str = "/dev/vda";
const DISK_PATIENCE: Duration = Duration::from_secs(20);

/// The guest's name.
const HOST: &str = "mayfly";

/// Files that tools write outside of `/tmp` stay in boot memory, and are small. Instances have layers of
/// their own ([`root`]).
const OVERLAY_OPTIONS: &str = "size=64m,mode=755,mpol=bind=static:0";

/// Mounts the root and moves into it. On any failure the kernel panics, with the reason on the console.
pub fn boot() {
    let none = MountFlags::empty();
    must("mount /dev", mount("devtmpfs", "/dev", "devtmpfs", none, None));
    make_folders(&["/proc", "/sys", "/disk", "/writable", "/root"]);
    must("mount /proc", mount("proc", "/proc", "proc", none, None));
    must("mount /sys", mount("sysfs", "/sys", "sysfs", none, None));
    // Before the virtio-mem driver starts, so that all plugged memory is only for movable pages (HotMem
    // §2.2).
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
    // Instances get the disk without this overlay, so they do not see what is written to it.
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
    // These fail on a kernel without tracing, which is fine.
    let _ = mount("tracefs", "/sys/kernel/tracing", "tracefs", none, None);
    let _ = mount("debugfs", "/sys/kernel/debug", "debugfs", none, None);
    // Mounts in instances' mount namespaces must not propagate here.
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    must("make mounts private", mount_change("/", private));
}

/// Sets kernel parameters. Pages are moved between nodes or blocks only by an unplug, because Mayfly counts
/// migrations.
fn set_up_kernel() {
    set("/proc/sys/kernel/numa_balancing", "0");
    set("/proc/sys/vm/compaction_proactiveness", "0");
    set("/proc/sys/kernel/hostname", HOST);
    // For tools; instances have a root and a network of their own.
    must("write /etc/hosts", fs::write("/etc/hosts", root::hosts(HOST)));
    must("bring up the loopback device", vm_sandbox::network::loopback_up());
    // The kernel's defaults, from boot memory, are some thousands, which a few instances can use up within
    // their own limits (`cgroup`); then the agent could start no thread to stop them. Each instance is
    // limited, and charged for its threads.
    set("/proc/sys/kernel/threads-max", "4194304");
    set("/proc/sys/kernel/pid_max", "4194304");
    // Each instance is a user of its own, but a VM is one trust domain: all its instances belong to one
    // tenant, and share pages as if they were one user (UPM §IV-E). Tenants that must not share have VMs of
    // their own.
    set("/sys/kernel/mm/upm/domain", "everyone");
    // Only root may see kernel addresses and the kernel log.
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

/// Limits per-CPU free page lists, in modes where a partition is a node. Pages in one CPU's list are not
/// available to an instance on another CPU, and a partition is small: with the kernel's default size a second
/// instance overflowed a partition that it did not fill. Mayfly's kernel drains these lists before it kills a
/// process of a full partition, but only after reclaim has failed many times, so filling the last pages of a
/// partition would take seconds.
pub fn limit_cpu_page_lists() {
    set("/proc/sys/vm/percpu_pagelist_high_fraction", "512");
}

/// Writes a kernel parameter, if the kernel has it.
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
