//! Segments: memory files that hold pages and can never change again.
//!
//! A client writes the pages that it is the first to have into a memory file of its own, seals it and offers it; the
//! kernel vouches for the seals, so that whoever made a segment cannot change what others map. The memory is the
//! client's (its cgroup pays). A segment is freed as a whole, when nobody maps it: the kernel knows.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io;

use crate::base::mapping::Mapping;
use crate::base::page::PAGE_BYTES;

/// Pages in the largest segment: 16 MiB.
pub const MOST_PAGES: usize = 4096;

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Seals after which nobody can change a file's pages, not even through a mapping made before.
pub const FINAL_SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// An empty memory file for pages.
pub fn create() -> io::Result<OwnedFd> {
    rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

/// What memory files with pages are called.
const NAME: &str = "mayfly-pages";

/// Whether that is how the kernel names a mapping of one.
pub fn is_named(mapping: &[u8]) -> bool {
    mapping.strip_prefix(b"/memfd:").is_some_and(|name| name.starts_with(NAME.as_bytes()))
}

/// What one entry of a page table's middle level maps.
pub const HUGE_BYTES: usize = 2 << 20;

/// Lets an empty file be of huge pages, as many as fit into so many bytes; what is mapped from it at the same place within a huge
/// page then is a huge page again. Where the system has none to give, it is of small ones, which is as right.
pub fn make_huge(file: &OwnedFd, bytes: usize) {
    const COLLAPSE: libc::c_int = 25;
    let bytes = bytes / HUGE_BYTES * HUGE_BYTES;
    if bytes == 0 || rustix::fs::ftruncate(file, bytes as u64).is_err() {
        return;
    }
    let Ok(room) = Mapping::anonymous(bytes + HUGE_BYTES) else { return };
    let start = (room.start() as usize).next_multiple_of(HUGE_BYTES);
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: inside the room, which is ours and unmapped as a whole; the file has so many bytes.
    unsafe {
        let at = libc::mmap(start as *mut _, bytes, rights, flags, file.as_raw_fd(), 0);
        if at == libc::MAP_FAILED {
            return;
        }
        // The kernel collapses no pages of which none is there. What they hold is written afterwards.
        for piece in (0..bytes).step_by(HUGE_BYTES) {
            ((start + piece) as *mut u8).write_volatile(0);
        }
        // All by one call: each waits for every processor once.
        libc::madvise(start as *mut _, bytes, COLLAPSE);
    }
}

/// Makes what was written final.
pub fn seal(file: &OwnedFd) -> io::Result<()> {
    rustix::fs::fcntl_add_seals(file, FINAL_SEALS | SealFlags::SEAL)
}

/// The same file, opened anew without the right to write. Waits for nobody who has a lease on it.
pub fn reopen_read_only(file: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

/// Why an offered file is no segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Not a file in memory.
    NotMemory,
    /// Somebody could still change it.
    NotSealed,
    /// Not the pages that were announced, or too many.
    WrongSize,
    /// With holes, which would become somebody else's memory.
    Holes,
}

/// Checks a file that somebody hands in.
pub fn check(file: impl AsFd, pages: usize) -> Result<(), Flaw> {
    let file = file.as_fd();
    // First, because it asks no file system: one of somebody else's making might never answer. Only files in memory
    // have seals, and those of a mounted tmpfs cannot have these.
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| Flaw::NotMemory)?;
    if rustix::fs::fstatfs(file).map(|about| about.f_type) != Ok(TMPFS_MAGIC) {
        return Err(Flaw::NotMemory);
    }
    if !seals.contains(FINAL_SEALS) {
        return Err(Flaw::NotSealed);
    }
    let about = rustix::fs::fstat(file).map_err(|_| Flaw::NotMemory)?;
    if pages == 0 || pages > MOST_PAGES || about.st_size as u64 != (pages * PAGE_BYTES) as u64 {
        return Err(Flaw::WrongSize);
    }
    if (about.st_blocks as u64) < (pages * PAGE_BYTES / 512) as u64 {
        return Err(Flaw::Holes);
    }
    Ok(())
}

/// Whether nobody can change a file that the daemon wrote itself. Without the seal against mappings made before: these
/// were the daemon's own and ended with it.
pub fn is_unchanging(file: impl AsFd) -> bool {
    let size = SealFlags::SHRINK | SealFlags::GROW;
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| {
        seals.contains(size) && seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE)
    })
}

/// What the kernel says about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Somebody else has it open or mapped.
    Used,
    /// Nobody else has.
    Unused,
    /// It does not tell: the file is another user's, and the caller has no `CAP_LEASE`.
    Unknown,
}

/// Whether anybody but the caller has the file open or mapped. `probe` must be the caller's only read-only opening of
/// it: the kernel grants a write lease exactly if no other opening exists, and every mapping keeps its opening.
pub fn usage(probe: &OwnedFd) -> Use {
    // SAFETY: plain system calls on a descriptor that lives.
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
    fn only_sealed_memory_of_the_right_size_is_taken() {
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
    fn holes_and_giants_are_refused() {
        let file = create().unwrap();
        rustix::fs::ftruncate(&file, PAGE_BYTES as u64).unwrap();
        seal(&file).unwrap();
        assert_eq!(check(&file, 1), Err(Flaw::Holes));
        let file = create().unwrap();
        rustix::fs::ftruncate(&file, ((MOST_PAGES + 1) * PAGE_BYTES) as u64).unwrap();
        seal(&file).unwrap();
        assert_eq!(check(&file, MOST_PAGES + 1), Err(Flaw::WrongSize));
    }

    #[test]
    fn a_huge_segment_holds_what_is_written_and_is_sealed_as_others() {
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
    fn the_kernel_knows_who_maps_a_segment() {
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
