//! QEMU's confinement on the host, besides its seccomp filter ([`super::command_line`]). If the supervisor is
//! root, a guest that has broken out through a device's emulation is still confined:
//!
//! - It runs as a user that owns nothing, a different one for each VM.
//! - Its root has programs, libraries and the VM's own files, and nothing else.
//! - It has no network, and not the host's mounts.
//!
//! If the supervisor is not root, QEMU runs as the user that started the VM, who has no privileges either.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use rustix::thread::UnshareFlags;

use crate::base::error::Error;
use crate::base::settings::Settings;
use crate::hypervisor::accelerator::Accelerator;

/// QEMU's user is this plus its process id, so no other process has that user while QEMU runs. systemd and
/// containers do not use these numbers.
const FIRST_USER: u32 = 0x7000_0000;

/// The new root is mounted on this folder, which every host has. Other processes do not see the mount.
const NEW_ROOT: &str = "/tmp";

/// What QEMU reads: programs and their libraries, firmware. Paths that a host does not have are left out.
const SYSTEM: [&str; 6] = ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"];
const DEVICES: [&str; 2] = ["/dev/null", "/dev/urandom"];
/// Settings that QEMU reads before it allocates memory: overcommit, and the size of huge pages.
const SETTINGS: [&str; 2] =
    ["/proc/sys/vm/overcommit_memory", "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"];
const KVM: &str = "/dev/kvm";

/// Capabilities that the confinement needs: SETGID, SETUID, SYS_CHROOT, SYS_ADMIN.
const NEEDED: u64 = 1 << 6 | 1 << 7 | 1 << 18 | 1 << 21;

/// The files of a VM, with the paths at which QEMU finds them.
pub(super) struct Files {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub disk: Option<PathBuf>,
    pub code: Option<PathBuf>,
}

impl Files {
    /// With their paths on the host.
    fn of(settings: &Settings) -> Files {
        Files {
            kernel: settings.image.kernel.clone(),
            initrd: settings.image.initrd.clone(),
            disk: settings.image.disk.clone(),
            code: settings.code.clone(),
        }
    }
}

/// How QEMU's process is confined.
pub(super) struct Confinement {
    /// Its only group; the user's own by default.
    pub group: Option<u32>,
    /// What is mounted in its root: source on the host, and target.
    mounts: Vec<(PathBuf, PathBuf)>,
}

/// How QEMU is confined, and the paths at which it finds its files. No confinement if the supervisor has no
/// privileges to drop.
///
/// # Errors
/// QEMU's user could not read a file.
pub(super) fn plan(
    settings: &Settings,
    program: &Path,
    accelerator: Accelerator,
) -> Result<(Option<Confinement>, Files), Error> {
    let host = Files::of(settings);
    if effective_capabilities() & NEEDED != NEEDED {
        return Ok((None, host));
    }
    let mut mounts: Vec<(PathBuf, PathBuf)> =
        SYSTEM.iter().chain(&DEVICES).chain(&SETTINGS).map(|path| (path.into(), path.into())).collect();
    if let (false, Some(folder)) = (program.starts_with("/usr"), program.parent()) {
        mounts.push((folder.into(), folder.into()));
    }
    let mut group = None;
    if accelerator == Accelerator::Kvm {
        mounts.push((KVM.into(), KVM.into()));
        group = fs::metadata(KVM).ok().map(|about| about.gid());
    }
    let mut place = |path: &Path, name: &str| {
        if !fs::metadata(path).is_ok_and(|about| about.mode() & 0o004 != 0) {
            let path = path.display();
            let line = format!("QEMU runs as a user of its own, which may not read {path}: chmod a+r {path}");
            return Err(Error::Missing(line));
        }
        let target = Path::new("/").join(name);
        mounts.push((path.into(), target.clone()));
        Ok(target)
    };
    let files = Files {
        kernel: place(&host.kernel, "kernel")?,
        initrd: place(&host.initrd, "initrd")?,
        disk: host.disk.as_deref().map(|path| place(path, "disk")).transpose()?,
        code: host.code.as_deref().map(|path| place(path, "code")).transpose()?,
    };
    mounts.retain(|(source, _)| source.exists());
    Ok((Some(Confinement { group, mounts }), files))
}

/// Gives this process a user of its own, with one group. Called between fork and exec: makes only system
/// calls.
pub(super) fn become_user(group: Option<u32>) -> io::Result<()> {
    let user = FIRST_USER + std::process::id();
    let group = group.unwrap_or(user);
    // SAFETY: an empty list of groups is passed as a null pointer with length 0; then only numbers.
    let done = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(group, group, group) == 0
            && libc::setresuid(user, user, user) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn effective_capabilities() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
}

/// Says what the kernel's EINVAL means where the root folder is not a mount of its own, as in a plain chroot.
fn in_a_chroot(error: rustix::io::Errno) -> io::Error {
    if error != rustix::io::Errno::INVAL {
        return error.into();
    }
    io::Error::other(
        "/ is not a mount point here (a chroot?): mount the chroot's folder onto itself before entering",
    )
}

impl Confinement {
    /// Confines the calling thread, and the processes that it starts from then on.
    pub(super) fn enter(&self) -> io::Result<()> {
        let namespaces = UnshareFlags::FS
            | UnshareFlags::NEWNS
            | UnshareFlags::NEWNET
            | UnshareFlags::NEWIPC
            | UnshareFlags::NEWUTS;
        // SAFETY: this thread stops sharing its root, working directory and umask; no other thread relies on
        // sharing them with it.
        unsafe { rustix::thread::unshare_unsafe(namespaces) }?;
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
            .map_err(in_a_chroot)?;
        // Before the mount on NEW_ROOT, which may hide some of these paths.
        let open = |source: &PathBuf| rustix::fs::open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let sources =
            self.mounts.iter().map(|(source, _)| open(source)).collect::<Result<Vec<OwnedFd>, _>>()?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", NEW_ROOT, "tmpfs", flags, Some(c"mode=755,size=1m"))?;
        for (source, (_, target)) in sources.iter().zip(&self.mounts) {
            let target = Path::new(NEW_ROOT).join(target.strip_prefix("/").unwrap_or(target));
            fs::create_dir_all(target.parent().unwrap_or(&target))?;
            let source = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
            match source.is_dir() {
                true => fs::create_dir_all(&target)?,
                false => drop(fs::File::create(&target)?),
            }
            mount_bind(source, target)?;
        }
        drop(sources);
        std::env::set_current_dir(NEW_ROOT)?;
        rustix::process::pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
        std::env::set_current_dir("/")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn each_process_has_its_own_user() {
        if effective_capabilities() & NEEDED != NEEDED {
            return;
        }
        let user = || -> u32 {
            let mut command = Command::new("id");
            // SAFETY: only system calls are made between fork and exec.
            unsafe { command.arg("-u").pre_exec(|| become_user(None)) };
            let output = command.output().unwrap();
            String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
        };
        let (one, other) = (user(), user());
        assert!(one > FIRST_USER && other > FIRST_USER && one != other, "{one} and {other}");
    }
}
