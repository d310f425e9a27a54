//! Where an instance's /tmp lies: on the host's disk, as Lambda has it. A full one is ENOSPC to the
//! function, and nothing of it is counted as memory but what the kernel caches and may drop.
//!
//! Each instance has a file system of its own, ext4 without a journal, in a file of `EphemeralStorage` MiB
//! and what ext4 needs for itself. One such file is made for each size (`mke2fs`, 25 ms); an instance gets
//! a copy, of which only 60 KiB are no hole. The copy has no name any more when it is written to, and the
//! kernel removes mount, loop device and file with the last process that has the mount: whatever is killed,
//! nothing is left.
//!
//! Copy, loop device and mount take some 10 ms, so while an instance starts, the next one's disk is made:
//! one, however many start at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use rustix::fs::{SeekFrom, copy_file_range, seek};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};

use super::syscalls;

use worker_system::lock::lock;

const KIND: &str = "ext4";
/// Bytes of the disk for each file that it can hold; as many as a tmpfs of that size is given.
const BYTES_EACH_FILE: u32 = 16 << 10;
/// It is not needed after a crash, so neither barriers nor tables that are cleared in the background.
const OPTIONS: [&str; 3] = ["nobarrier", "noinit_itable", "nodiscard"];
/// How often another process may take a free loop device first.
const TRIES: u32 = 50;

/// The disks of a worker's instances.
pub struct Disks {
    folder: PathBuf,
    spares: Mutex<Spares>,
    /// Empty file systems, by size in MiB.
    empty: Mutex<BTreeMap<u32, Arc<File>>>,
}

/// Disks that are made ahead, by size in MiB: one of each.
struct Spares<T = OwnedFd> {
    ready: BTreeMap<u32, T>,
    being_made: BTreeSet<u32>,
}

impl<T> Default for Spares<T> {
    fn default() -> Spares<T> {
        Spares { ready: BTreeMap::new(), being_made: BTreeSet::new() }
    }
}

impl<T> Spares<T> {
    /// Takes the disk that is ready, if there is one. Returns also whether the caller must make the next
    /// one.
    fn take(&mut self, mib: u32) -> (Option<T>, bool) {
        (self.ready.remove(&mib), self.being_made.insert(mib))
    }

    /// Stores the next disk, or that it could not be made.
    fn put(&mut self, mib: u32, made: Option<T>) {
        self.being_made.remove(&mib);
        self.ready.extend(made.map(|made| (mib, made)));
    }
}

impl Disks {
    /// Images are made in this folder, which is on a disk with room.
    pub fn new(folder: PathBuf) -> Disks {
        Disks { folder, spares: Mutex::default(), empty: Mutex::default() }
    }

    /// A detached mount of an empty file system of this size. The next one is made meanwhile.
    ///
    /// # Errors
    /// The host has no loop devices, no `mke2fs`, or no room.
    pub async fn take(self: &Arc<Self>, mib: u32) -> Result<OwnedFd> {
        let (made, makes_next) = lock(&self.spares).take(mib);
        let disk = match made {
            Some(disk) => Ok(disk),
            None => {
                let disks = self.clone();
                tokio::task::spawn_blocking(move || disks.make(mib))
                    .await
                    .unwrap_or_else(|error| Err(error.into()))
            }
        };
        if makes_next {
            let (disks, works) = (self.clone(), disk.is_ok());
            tokio::task::spawn_blocking(move || {
                // The next instance that needs a disk reports the error.
                let next = if works { disks.make(mib).ok() } else { None };
                lock(&disks.spares).put(mib, next);
            });
        }
        disk
    }

    fn make(&self, mib: u32) -> Result<OwnedFd> {
        let empty = self.empty(mib)?;
        let image = tempfile::tempfile_in(&self.folder)
            .with_context(|| format!("cannot make a disk in {}", self.folder.display()))?;
        copy(&empty, &image).with_context(|| format!("cannot make a disk in {}", self.folder.display()))?;
        let device = attach(&image).context("no loop device")?;
        let mount = mount(&device.path).with_context(|| format!("cannot mount {}", device.path))?;
        let root = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        std::fs::remove_dir(root.join("lost+found"))?;
        std::fs::set_permissions(&root, Permissions::from_mode(0o1777))?;
        Ok(mount)
    }

    /// The empty file system of a size, from which disks are copied; made for the first disk of that size.
    fn empty(&self, mib: u32) -> Result<Arc<File>> {
        let mut all = lock(&self.empty);
        if let Some(empty) = all.get(&mib) {
            return Ok(empty.clone());
        }
        let file = tempfile::NamedTempFile::new_in(&self.folder)
            .with_context(|| format!("cannot make a disk in {}", self.folder.display()))?;
        let bytes = u64::from(mib) << 20;
        // Inodes of 256 bytes, and a thirty-second for maps and groups.
        file.as_file().set_len(bytes + bytes / u64::from(BYTES_EACH_FILE) * 256 + bytes / 32)?;
        let done = Command::new("mke2fs")
            .args(["-q", "-F", "-t", KIND, "-m", "0", "-O", "^has_journal,^resize_inode"])
            .args(["-E", "lazy_itable_init=1,nodiscard", "-i", &BYTES_EACH_FILE.to_string()])
            .arg(file.path())
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .stdin(Stdio::null())
            .output()
            .context("cannot run mke2fs (Debian's package e2fsprogs has it)")?;
        ensure!(done.status.success(), "mke2fs: {}", String::from_utf8_lossy(&done.stderr).trim());
        let empty = Arc::new(file.into_file());
        all.insert(mib, empty.clone());
        Ok(empty)
    }
}

/// Copies the data, and leaves holes.
fn copy(from: &File, to: &File) -> io::Result<()> {
    let end = from.metadata()?.len();
    to.set_len(end)?;
    let mut at = 0;
    // Nothing but a hole follows where there is no data.
    while let Ok(data) = seek(from, SeekFrom::Data(at)) {
        let hole = seek(from, SeekFrom::Hole(data))?;
        let (mut read, mut written) = (data, data);
        while read < hole {
            let left = (hole - read) as usize;
            if copy_file_range(from, Some(&mut read), to, Some(&mut written), left)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = hole;
    }
    Ok(())
}

/// A loop device with a file in it, which the kernel releases once no process has it open or mounted.
struct Loop {
    path: String,
    /// Keeps the device until it is mounted.
    _device: File,
}

fn attach(image: &File) -> Result<Loop> {
    let control = open(Path::new("/dev/loop-control"))?;
    let mut tried = 0;
    loop {
        let path = format!("/dev/loop{}", syscalls::free_loop_device(control.as_fd())?);
        let device = open(Path::new(&path))?;
        match syscalls::configure_loop_device(device.as_fd(), image.as_fd()) {
            Ok(()) => return Ok(Loop { path, _device: device }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && tried < TRIES => tried += 1,
            Err(error) => return Err(error).context(path),
        }
    }
}

fn open(path: &Path) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).open(path).with_context(|| format!("cannot open {}", path.display()))
}

fn mount(device: &str) -> io::Result<OwnedFd> {
    let kind = fsopen(KIND, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(kind.as_fd(), "source", device)?;
    for option in OPTIONS {
        fsconfig_set_flag(kind.as_fd(), option)?;
    }
    fsconfig_create(kind.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(kind.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn of_those_that_start_at_once_one_has_the_next_disk_made() {
        let mut spares = Spares::default();
        let starts = [spares.take(512), spares.take(512), spares.take(512), spares.take(1024)];
        assert_eq!(starts, [(None, true), (None, false), (None, false), (None, true)]);
        spares.put(512, Some("first"));
        assert_eq!(spares.take(512), (Some("first"), true));
        // After a failure the next caller tries again.
        spares.put(512, None);
        assert_eq!(spares.take(512), (None, true));
    }

    #[test]
    fn a_copy_has_the_same_data_and_the_same_holes() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.set_len(64 << 20).unwrap();
        for at in [0, 5 << 20, (64 << 20) - 3] {
            from.write_all_at(b"abc", at).unwrap();
        }
        copy(&from, &to).unwrap();
        let mut read = [0; 3];
        for at in [0, 5 << 20, (64 << 20) - 3] {
            to.read_exact_at(&mut read, at).unwrap();
            assert_eq!(&read, b"abc");
        }
        use std::os::unix::fs::MetadataExt;
        assert_eq!(to.metadata().unwrap().len(), 64 << 20);
        assert!(to.metadata().unwrap().blocks() * 512 < 1 << 20, "holes stay holes");
    }
}
