//! Segments: memory files that hold pages and never change again.
//!
//! A client writes the pages that no other client has uploaded to a memory file of its own, seals it and
//! offers it. The kernel enforces the seals, so that a segment's creator cannot change what others map. The
//! memory is the client's (its cgroup pays). The store frees a segment as a whole, once no process maps it,
//! which the kernel reports ([`usage`]).

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io;

use crate::base::mapping::Mapping;
use crate::base::page::PAGE_BYTES;

/// Pages of a segment that a client's call makes, or the store packs, at most: 16 MiB.
pub const MAX_PAGES: usize = 4096;

/// Pages of the largest segment that the store accepts: 4 GiB. A snapshot's file is one segment.
pub const MOST_OFFERED_PAGES: usize = 1 << 20;

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Seals after which no process can change a file's pages, not even through an older mapping.
pub const FINAL_SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// An empty memory file for pages.
///
/// # Errors
/// No file descriptor is left.
pub fn create() -> io::Result<OwnedFd> {
    rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

/// The name of memory files with pages.
const NAME: &str = "mayfly-pages";

/// Whether the kernel's name of a mapping is that of such a file.
pub fn is_named(mapping: &[u8]) -> bool {
    mapping.strip_prefix(b"/memfd:").is_some_and(|name| name.starts_with(NAME.as_bytes()))
}

/// Bytes mapped by one entry of a page table's middle level.
pub const HUGE_BYTES: usize = 2 << 20;

/// Gives an empty file huge pages, as many as fit into so many bytes. A mapping of it at the same offset
/// within a huge page then is a huge page again. Where the system has none to give, the file has small pages,
/// which is as correct.
pub fn make_huge(file: &OwnedFd, bytes: usize) {
    const COLLAPSE: libc::c_int = 25;
    let bytes = bytes / HUGE_BYTES * HUGE_BYTES;
    if bytes == 0 || rustix::fs::ftruncate(file, bytes as u64).is_err() {
        return;
    }
    let Ok(room) = Mapping::anonymous(bytes + HUGE_BYTES) else { return };
    let start = (room.start() as usize).next_multiple_of(HUGE_BYTES);
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: inside the room, which this function owns and unmaps as a whole; the file has so many bytes.
    unsafe {
        let at = libc::mmap(start as *mut _, bytes, rights, flags, file.as_raw_fd(), 0);
        if at == libc::MAP_FAILED {
            return;
        }
        // A child that is forked by clone meanwhile would keep it, and with it the file from being sealed.
        libc::madvise(at, bytes, libc::MADV_DONTFORK);
        // The kernel collapses a huge page only if at least one of its pages is present. The contents are
        // written afterwards.
        for piece in (0..bytes).step_by(HUGE_BYTES) {
            ((start + piece) as *mut u8).write_volatile(0);
        }
        // All in one call: each call waits for every processor once.
        libc::madvise(start as *mut _, bytes, COLLAPSE);
    }
}

/// Makes the contents final.
///
/// # Errors
/// The file is mapped writable, or sealed already.
pub fn seal(file: &OwnedFd) -> io::Result<()> {
    rustix::fs::fcntl_add_seals(file, FINAL_SEALS | SealFlags::SEAL)
}

/// The same file, opened again without the right to write. Does not wait for a process that holds a lease on
/// it.
///
/// # Errors
/// No file descriptor is left, or `/proc` is not there.
pub fn reopen_read_only(file: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

/// Why an offered file is not a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Not a file in memory.
    NotMemory,
    /// A process could still change it.
    NotSealed,
    /// Not the announced number of pages, or too many.
    WrongSize,
    /// With holes: pages for them would be charged to another process.
    Holes,
}

/// Checks a file that a client offers.
///
/// # Errors
/// The first flaw that is found.
pub fn check(file: impl AsFd, pages: usize) -> Result<(), Flaw> {
    let file = file.as_fd();
    // First, because it involves no file system: a client's own file system might never answer. Only files in
    // memory have seals, and those of a mounted tmpfs cannot have these.
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| Flaw::NotMemory)?;
    if rustix::fs::fstatfs(file).map(|about| about.f_type) != Ok(TMPFS_MAGIC) {
        return Err(Flaw::NotMemory);
    }
    if !seals.contains(FINAL_SEALS) {
        return Err(Flaw::NotSealed);
    }
    let about = rustix::fs::fstat(file).map_err(|_| Flaw::NotMemory)?;
    if pages == 0 || pages > MOST_OFFERED_PAGES || about.st_size as u64 != (pages * PAGE_BYTES) as u64 {
        return Err(Flaw::WrongSize);
    }
    if (about.st_blocks as u64) < (pages * PAGE_BYTES / 512) as u64 {
        return Err(Flaw::Holes);
    }
    Ok(())
}

/// Whether no process can change a file that the daemon wrote itself. FUTURE_WRITE is enough: the older
/// mappings were the daemon's own and ended with it.
pub fn is_unchanging(file: impl AsFd) -> bool {
    let size = SealFlags::SHRINK | SealFlags::GROW;
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| {
        seals.contains(size) && seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE)
    })
}

/// Whether a file is in use, according to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Another process has it open or mapped.
    Used,
    /// No other process has.
    Unused,
    /// The kernel does not report it: the file is another user's, and the caller has no `CAP_LEASE`.
    Unknown,
}

/// Whether any process has the file open or mapped, the caller's `probe` aside. `probe` must be the caller's
/// only read-only opening of it: the kernel grants a write lease exactly if no other opening exists, and
/// every mapping keeps its opening.
pub fn usage(probe: &OwnedFd) -> Use {
    // SAFETY: plain system calls on an open descriptor.
    unsafe {
        if libc::fcntl(probe.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == -1 {
            let denied = std::io::Error::last_os_error().raw_os_error() == Some(libc::EACCES);
            return if denied { Use::Unknown } else { Use::Used };
        }
        libc::fcntl(probe.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
    }
    Use::Unused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(pages: usize) -> OwnedFd {
        let file = create().unwrap();
        let bytes = vec![7; pages * PAGE_BYTES];
        assert_eq!(rustix::io::pwrite(&file, &bytes, 0).unwrap(), bytes.len());
        file
    }

    #[test]
    fn check_accepts_sealed_memory_of_the_right_size_only() {
        let file = written(2);
        assert_eq!(check(&file, 2), Err(Flaw::NotSealed));
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW)
            .unwrap();
        assert_eq!(check(&file, 2), Err(Flaw::NotSealed));
        let file = written(2);
        seal(&file).unwrap();
        assert_eq!(check(&file, 2), Ok(()));
        assert_eq!(check(&file, 3), Err(Flaw::WrongSize));
        assert_eq!(check(&file, 0), Err(Flaw::WrongSize));
        assert_eq!(check(std::fs::File::open("/proc/self/exe").unwrap(), 2), Err(Flaw::NotMemory));
        assert_eq!(check(std::fs::File::open("/dev/zero").unwrap(), 2), Err(Flaw::NotMemory));
    }

    #[test]
    fn check_refuses_holes_and_too_many_pages() {
        let file = create().unwrap();
        rustix::fs::ftruncate(&file, PAGE_BYTES as u64).unwrap();
        seal(&file).unwrap();
        assert_eq!(check(&file, 1), Err(Flaw::Holes));
        let file = create().unwrap();
        rustix::fs::ftruncate(&file, ((MOST_OFFERED_PAGES + 1) * PAGE_BYTES) as u64).unwrap();
        seal(&file).unwrap();
        assert_eq!(check(&file, MOST_OFFERED_PAGES + 1), Err(Flaw::WrongSize));
    }

    #[test]
    fn a_huge_segment_keeps_its_contents_and_can_be_sealed() {
        let file = create().unwrap();
        make_huge(&file, HUGE_BYTES + PAGE_BYTES);
        let bytes = vec![9; HUGE_BYTES];
        assert_eq!(rustix::io::pwrite(&file, &bytes, 0).unwrap(), bytes.len());
        assert_eq!(rustix::io::pwrite(&file, &bytes[..PAGE_BYTES], HUGE_BYTES as u64).unwrap(), PAGE_BYTES);
        seal(&file).unwrap();
        assert_eq!(check(&file, HUGE_BYTES / PAGE_BYTES + 1), Ok(()));
        let mut read = vec![0; HUGE_BYTES];
        assert_eq!(rustix::io::pread(&file, &mut read, 0).unwrap(), read.len());
        assert_eq!(read, bytes);
    }

    #[test]
    fn a_writable_mapping_prevents_sealing() {
        let file = written(1);
        let map = Mapping::shared(&file, PAGE_BYTES, true).unwrap();
        assert!(seal(&file).is_err());
        drop(map);
        seal(&file).unwrap();
        assert!(Mapping::shared(&file, PAGE_BYTES, true).is_err());
    }

    #[test]
    fn usage_counts_openings_and_mappings() {
        let file = written(1);
        seal(&file).unwrap();
        let probe = reopen_read_only(&file).unwrap();
        drop(file);
        assert_eq!(usage(&probe), Use::Unused);
        let other = reopen_read_only(&probe).unwrap();
        assert_eq!(usage(&probe), Use::Used);
        let map = Mapping::shared(&other, PAGE_BYTES, false).unwrap();
        drop(other);
        assert_eq!(usage(&probe), Use::Used, "a mapping alone counts");
        drop(map);
        assert_eq!(usage(&probe), Use::Unused);
    }
}
