//! What QEMU is on the host, beside its list of system calls ([`super::command_line`]). Whoever has broken out of a guest
//! through a device's emulation is, where the supervisor is root: a user that nothing belongs to, another one for each VM;
//! in a root with programs, libraries and the VM's own files and nothing else; without a network, and without the host's
//! mounts. Elsewhere it is the user that started the VM, who has no privileges either.

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

/// With its process id added, QEMU's user, which no other has while it runs: systemd and containers leave these numbers alone.
const FIRST_USER: u32 = 0x7000_0000;

/// The new root is built over this folder, which every host has; nobody else sees it.
const WORKSHOP: &str = "/tmp";

/// What QEMU reads: programs and what they are linked with, firmware. Those that a host has not are left out.
const SYSTEM: [&str; 6] = ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"];
const DEVICES: [&str; 2] = ["/dev/null", "/dev/urandom"];
/// What it asks the kernel before it makes memory: whether it may be more than there is, and how large huge pages are.
const SETTINGS: [&str; 2] =
    ["/proc/sys/vm/overcommit_memory", "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"];
const KVM: &str = "/dev/kvm";

/// Capabilities that all of this takes: SETGID, SETUID, SYS_CHROOT, SYS_ADMIN.
const NEEDED: u64 = 1 << 6 | 1 << 7 | 1 << 18 | 1 << 21;

/// The files of a VM, where QEMU finds them.
pub(super) struct Files {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub disk: Option<PathBuf>,
    pub code: Option<PathBuf>,
}

impl Files {
    /// Where they are on the host.
    fn of(settings: &Settings) -> Files {
        Files {
            kernel: settings.image.kernel.clone(),
            initrd: settings.image.initrd.clone(),
            disk: settings.image.disk.clone(),
            code: settings.code.clone(),
        }
    }
}

/// What QEMU's process is to be.
pub(super) struct Confinement {
    /// Its only group, if not that of its user.
    pub group: Option<u32>,
    /// What is shown in its root: on the host, and there.
    shown: Vec<(PathBuf, PathBuf)>,
}

/// What QEMU is to be, and where it finds its files; the first is `None` where the supervisor has no privileges to give
/// up.
///
/// # Errors
/// QEMU's user could not read a file.
pub(super) fn plan(
    settings: &Settings,
    program: &Path,
    accelerator: Accelerator,
) -> Result<(Option<Confinement>, Files), Error> {
    let there = Files::of(settings);
    if effective_capabilities() & NEEDED != NEEDED {
        return Ok((None, there));
    }
    let mut shown: Vec<(PathBuf, PathBuf)> =
        SYSTEM.iter().chain(&DEVICES).chain(&SETTINGS).map(|path| (path.into(), path.into())).collect();
    if let (false, Some(folder)) = (program.starts_with("/usr"), program.parent()) {
        shown.push((folder.into(), folder.into()));
    }
    let mut group = None;
    if accelerator == Accelerator::Kvm {
        shown.push((KVM.into(), KVM.into()));
        group = fs::metadata(KVM).ok().map(|about| about.gid());
    }
    let mut place = |path: &Path, name: &str| {
        if !fs::metadata(path).is_ok_and(|about| about.mode() & 0o004 != 0) {
            let path = path.display();
            let line = format!("QEMU runs as a user of its own, which may not read {path}: chmod a+r {path}");
            return Err(Error::Missing(line));
        }
        let target = Path::new("/").join(name);
        shown.push((path.into(), target.clone()));
        Ok(target)
    };
    let files = Files {
        kernel: place(&there.kernel, "kernel")?,
        initrd: place(&there.initrd, "initrd")?,
        disk: there.disk.as_deref().map(|path| place(path, "disk")).transpose()?,
        code: there.code.as_deref().map(|path| place(path, "code")).transpose()?,
    };
    shown.retain(|(source, _)| source.exists());
    Ok((Some(Confinement { group, shown }), files))
}

/// Makes this process a user of its own, with one group. It is called between fork and exec: only system calls are made.
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

impl Confinement {
    /// Puts the calling thread, and what it starts from then on, apart from the host.
    pub(super) fn enter(&self) -> io::Result<()> {
        let apart = UnshareFlags::FS
            | UnshareFlags::NEWNS
            | UnshareFlags::NEWNET
            | UnshareFlags::NEWIPC
            | UnshareFlags::NEWUTS;
        // SAFETY: what becomes this thread's own (its view of files) is nothing that other threads rely on sharing.
        unsafe { rustix::thread::unshare_unsafe(apart) }?;
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
        // Before the workshop is covered: some of it may lie below.
        let open = |source: &PathBuf| rustix::fs::open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let sources =
            self.shown.iter().map(|(source, _)| open(source)).collect::<Result<Vec<OwnedFd>, _>>()?;
        let quiet = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", WORKSHOP, "tmpfs", quiet, Some(c"mode=755,size=1m"))?;
        for (source, (_, target)) in sources.iter().zip(&self.shown) {
            let target = Path::new(WORKSHOP).join(target.strip_prefix("/").unwrap_or(target));
            fs::create_dir_all(target.parent().unwrap_or(&target))?;
            let source = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
            match source.is_dir() {
                true => fs::create_dir_all(&target)?,
                false => drop(fs::File::create(&target)?),
            }
            mount_bind(source, target)?;
        }
        drop(sources);
        std::env::set_current_dir(WORKSHOP)?;
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
    fn each_is_a_user_of_its_own() {
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
