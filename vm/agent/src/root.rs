//! An instance's root file system: Debian's disk or a container image, under a writable layer of its own that
//! is discarded when the instance ends. The instance owns every file there and none elsewhere. Of the guest's
//! devices, settings and counters it sees what programs need, and nothing about other instances.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind, mount_remount, move_mount,
    open_tree, unmount,
};

use crate::plan::Plan;

/// Where [`crate::boot`] leaves the root disk.
pub const DISK: &str = "/run/mayfly/disk";
/// Mount points in each instance's own mount namespace: the writable layer, the disk with mapped owners, and
/// the overlay of both.
const LAYER: &str = "/run/mayfly/layer";
const LOWER: &str = "/run/mayfly/lower";
const ROOT: &str = "/run/mayfly/root";
/// Folders that [`enter`] needs.
pub const FOLDERS: [&str; 3] = [LAYER, LOWER, ROOT];

/// Folders that are the instance's own also in a container image.
const OWN: [&str; 4] = ["/dev", "/proc", "/sys", "/tmp"];
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Files in /proc that show what other instances do, or act on the whole guest.
const HIDDEN: [&str; 19] = [
    "acpi",
    "buddyinfo",
    "bus",
    "diskstats",
    "driver",
    "interrupts",
    "irq",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "pagetypeinfo",
    "pressure",
    "schedstat",
    "scsi",
    "slabinfo",
    "sysrq-trigger",
    "timer_list",
    "zoneinfo",
];

/// Parts of /sys that language runtimes read.
const SHOWN: [&str; 3] = ["devices/system/cpu", "kernel/mm/transparent_hugepage", "kernel/mm/upm"];

/// Mounts the root and moves into it. Runs as process 1 of the instance, in namespaces of its own, as the
/// guest's root user.
pub fn enter(plan: &Plan) -> io::Result<()> {
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    tmpfs(LAYER, flags, &format!("size={},mode=755", plan.layer_bytes))?;
    let owner = plan.identity.owner;
    for (name, mode) in [("upper", 0o755), ("work", 0o755), ("tmp", 0o1777), ("shm", 0o1777)] {
        let path = Path::new(LAYER).join(name);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        chown(&path, Some(owner), Some(owner))?;
    }
    mount_with_owner(plan.users, plan.root.as_deref().unwrap_or(DISK))?;
    let layers = format!("lowerdir={LOWER},upperdir={LAYER}/upper,workdir={LAYER}/work");
    mount("overlay", ROOT, "overlay", flags, Some(CString::new(layers)?.as_c_str()))?;
    match plan.root {
        Some(_) => make_image_folders(plan)?,
        None => bind(Path::new("/opt/mayfly"), &inside("/opt/mayfly"), true)?,
    }
    if plan.root.is_none() {
        // The disk, which all instances share, has none of these.
        for (name, text) in [
            ("hosts", hosts(&plan.host())),
            ("hostname", format!("{}\n", plan.host())),
            ("resolv.conf", plan.resolvers.clone().unwrap_or_default()),
        ] {
            let path = inside("/etc").join(name);
            fs::write(&path, text)?;
            chown(&path, Some(owner), Some(owner))?;
        }
    }
    bind(&Path::new(LAYER).join("tmp"), &inside("/tmp"), false)?;
    devices()?;
    process_files()?;
    system_files()?;
    for (source, target) in &plan.binds {
        bind(Path::new(source), &inside(target), true)?;
    }
    std::env::set_current_dir(ROOT)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}

/// Content of `/etc/hosts`: programs look up `localhost` and the machine's own name there, and Lambda's
/// extensions the name of the sandbox.
pub fn hosts(host: &str) -> String {
    format!("127.0.0.1 localhost sandbox.localdomain sandbox\n127.0.1.1 {host}\n")
}

fn inside(path: &str) -> std::path::PathBuf {
    Path::new(ROOT).join(path.trim_start_matches('/'))
}

fn tmpfs(target: impl rustix::path::Arg, flags: MountFlags, options: &str) -> io::Result<()> {
    Ok(mount("tmpfs", target, "tmpfs", flags, Some(CString::new(options)?.as_c_str()))?)
}

/// Mounts a folder of a disk at [`LOWER`], with the owner of every file mapped to this user namespace's root.
fn mount_with_owner(users: RawFd, folder: &str) -> io::Result<()> {
    let tree = open_tree(CWD, folder, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    map_users(&tree, users)?;
    Ok(move_mount(tree, "", CWD, LOWER, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Makes the instance's own folders in a container image's root, replacing whatever the image has there. A
/// symbolic link of the image would lead outside, because this process has not moved into the root yet.
fn make_image_folders(plan: &Plan) -> io::Result<()> {
    for name in OWN {
        let path = inside(name);
        match fs::symlink_metadata(&path) {
            Ok(there) if there.is_dir() => continue,
            Ok(_) => fs::remove_file(&path)?,
            Err(_) => {}
        }
        fs::create_dir(&path)?;
    }
    let etc = inside("/etc");
    if fs::symlink_metadata(&etc).is_ok_and(|there| there.is_dir()) {
        let resolvers = plan.resolvers.clone().unwrap_or_default();
        for (name, text) in [("hosts", hosts(&plan.host())), ("resolv.conf", resolvers)] {
            let path = etc.join(name);
            if fs::symlink_metadata(&path).is_ok_and(|there| there.is_file()) {
                fs::remove_file(&path)?;
                fs::write(&path, text)?;
            }
        }
    }
    Ok(())
}

/// `struct mount_attr` of linux/mount.h.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    users: u64,
}

const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

fn map_users(tree: &OwnedFd, users: RawFd) -> io::Result<()> {
    let attributes = MountAttributes { set: MOUNT_ATTR_IDMAP, clear: 0, propagation: 0, users: users as u64 };
    // SAFETY: the structure is the one that this call reads, of the size given, and the path is an empty
    // string.
    let status = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bind-mounts a file or folder; makes the target if it does not exist.
fn bind(source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    if source.is_dir() {
        fs::create_dir_all(target)?;
    } else if !target.exists() {
        fs::create_dir_all(target.parent().unwrap_or(Path::new("/")))?;
        fs::File::create(target)?;
    }
    mount_bind(source, target)?;
    if read_only {
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount_remount(target, flags, c"")?;
    }
    Ok(())
}

fn devices() -> io::Result<()> {
    let folder = inside("/dev");
    tmpfs(&folder, MountFlags::NOSUID | MountFlags::NOEXEC, "size=64k,mode=755")?;
    for name in DEVICES {
        bind(&Path::new("/dev").join(name), &folder.join(name), false)?;
    }
    bind(&Path::new(LAYER).join("shm"), &folder.join("shm"), false)?;
    fs::create_dir(folder.join("pts"))?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("devpts", folder.join("pts"), "devpts", flags, Some(c"newinstance,ptmxmode=666,mode=620"))?;
    symlink("pts/ptmx", folder.join("ptmx"))?;
    symlink("/proc/self/fd", folder.join("fd"))?;
    for (number, name) in ["stdin", "stdout", "stderr"].iter().enumerate() {
        symlink(format!("/proc/self/fd/{number}"), folder.join(name))?;
    }
    Ok(())
}

/// Mounts a `/proc` with the instance's own processes only, read-only settings, and empty files in place of
/// [`HIDDEN`].
fn process_files() -> io::Result<()> {
    let folder = inside("/proc");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", &folder, "proc", flags, None)?;
    for name in HIDDEN {
        let path = folder.join(name);
        if path.is_dir() {
            tmpfs(&path, flags | MountFlags::RDONLY, "size=4k")?;
        } else if path.exists() {
            mount_bind("/dev/null", &path)?;
        }
    }
    bind(&folder.join("sys"), &folder.join("sys"), true)
}

/// Mounts a minimal read-only `/sys`, with the instance's own control group.
fn system_files() -> io::Result<()> {
    let folder = inside("/sys");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    tmpfs(&folder, flags, "size=64k,mode=755")?;
    for name in SHOWN {
        let source = Path::new("/sys").join(name);
        if source.exists() {
            bind(&source, &folder.join(name), true)?;
        }
    }
    let groups = folder.join("fs/cgroup");
    fs::create_dir_all(&groups)?;
    mount("cgroup2", &groups, "cgroup2", flags | MountFlags::RDONLY, None)?;
    Ok(mount_remount(&folder, flags | MountFlags::RDONLY, c"")?)
}
