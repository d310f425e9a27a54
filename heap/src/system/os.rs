//! Calls to the operating system: address space, huge pages, time, files.
//!
//! Every function keeps `errno`: free() must not change it, and malloc() sets it itself.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use crate::units::geometry::HUGE_PAGE_BYTES;

/// The kind of huge pages.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Pages {
    /// Transparent huge pages, requested with MADV_HUGEPAGE.
    Transparent = 0,
    /// Reserved ones (MAP_HUGETLB), and transparent ones when those run out.
    Reserved = 1,
    /// Base pages: for comparison.
    Base = 2,
}

static PAGES: AtomicU8 = AtomicU8::new(Pages::Transparent as u8);
static RESERVED_RAN_OUT: AtomicBool = AtomicBool::new(false);

/// Sets the kind of huge pages; before the first region exists.
pub fn set_pages(pages: Pages) {
    PAGES.store(pages as u8, Relaxed);
}

/// Runs `f` and puts `errno` back.
pub fn keep_errno<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the C library gives every thread a valid errno.
    let errno = unsafe { *libc::__errno_location() };
    let result = f();
    set_errno(errno);
    result
}

/// Sets `errno`.
pub fn set_errno(errno: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn map(address: usize, bytes: usize, protection: i32, flags: i32) -> Option<usize> {
    // A reserved huge page must be set aside now: touching one that is not available is fatal.
    let reserve = if flags & libc::MAP_HUGETLB == 0 { libc::MAP_NORESERVE } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | reserve | flags;
    // SAFETY: callers pass either no fixed address, one that MAP_FIXED_NOREPLACE protects, or one inside
    // a reservation of this heap that holds no object; nothing else can be replaced.
    let at = keep_errno(|| unsafe { libc::mmap(address as *mut c_void, bytes, protection, flags, -1, 0) });
    (at != libc::MAP_FAILED).then_some(at as usize)
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Maps fresh zeroed memory anywhere.
pub fn map_anywhere(bytes: usize) -> Option<usize> {
    map(0, bytes, READ_WRITE, 0)
}

/// Whether this much could be mapped now.
pub fn is_room_for(bytes: usize) -> bool {
    map_anywhere(bytes).map(|probe| unmap(probe, bytes)).is_some()
}

/// Maps fresh zeroed memory at `address`; `None` if something else is mapped there.
pub fn map_at(address: usize, bytes: usize) -> Option<usize> {
    match map(address, bytes, READ_WRITE, libc::MAP_FIXED_NOREPLACE) {
        Some(at) if at != address => {
            unmap(at, bytes); // a kernel older than 4.17 takes the address as a hint
            None
        }
        other => other,
    }
}

/// Reserves aligned address space without memory, which [`commit`] makes usable.
pub fn reserve(bytes: usize, alignment: usize) -> Option<usize> {
    let whole = map(0, bytes.checked_add(alignment)?, libc::PROT_NONE, 0)?;
    let base = whole.next_multiple_of(alignment);
    unmap(whole, base - whole);
    unmap(base + bytes, whole + alignment - base);
    Some(base)
}

/// Makes reserved address space readable: untouched metadata reads as zero.
pub fn allow_reads(address: usize, bytes: usize) -> bool {
    protect(address, bytes, libc::PROT_READ)
}

/// Makes reserved address space usable.
pub fn commit(address: usize, bytes: usize) -> bool {
    protect(address, bytes, READ_WRITE)
}

fn protect(address: usize, bytes: usize, protection: i32) -> bool {
    // SAFETY: the range lies in a reservation of this heap.
    keep_errno(|| unsafe { libc::mprotect(address as *mut c_void, bytes, protection) == 0 })
}

/// Backs one huge page of a reservation with a reserved huge page where those are configured.
pub fn back_with_reserved(address: usize) {
    if PAGES.load(Relaxed) != Pages::Reserved as u8 || RESERVED_RAN_OUT.load(Relaxed) {
        return;
    }
    if map(address, HUGE_PAGE_BYTES, READ_WRITE, libc::MAP_FIXED | libc::MAP_HUGETLB).is_none() {
        RESERVED_RAN_OUT.store(true, Relaxed);
        // The kernel may have unmapped the range before it failed.
        map(address, HUGE_PAGE_BYTES, READ_WRITE, libc::MAP_FIXED);
        advise_huge(address, HUGE_PAGE_BYTES);
    }
}

/// Unmaps.
pub fn unmap(address: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: callers pass a mapping that they made and that holds no object any more.
        keep_errno(|| unsafe { libc::munmap(address as *mut c_void, bytes) });
    }
}

/// Moves or resizes a mapping and keeps its contents.
pub fn remap(address: usize, old_bytes: usize, new_bytes: usize) -> Option<usize> {
    // SAFETY: callers pass a mapping of their own.
    let at = keep_errno(|| unsafe {
        libc::mremap(address as *mut c_void, old_bytes, new_bytes, libc::MREMAP_MAYMOVE)
    });
    (at != libc::MAP_FAILED).then_some(at as usize)
}

/// Resizes a mapping where it is and keeps its contents; whether that was possible.
pub fn resize_mapping(address: usize, old_bytes: usize, new_bytes: usize) -> bool {
    // SAFETY: callers pass a mapping of their own; without a flag it does not move.
    let at = keep_errno(|| unsafe { libc::mremap(address as *mut c_void, old_bytes, new_bytes, 0) });
    at != libc::MAP_FAILED
}

/// Returns the memory of a range to the operating system; it reads as zero afterwards.
pub fn discard(address: usize, bytes: usize) {
    keep_errno(|| {
        // SAFETY: the range is the heap's and holds no object.
        let discarded = unsafe { libc::madvise(address as *mut c_void, bytes, libc::MADV_DONTNEED) } == 0;
        if !discarded {
            // Locked memory (mlock) cannot be given back: it must still read as zero.
            // SAFETY: as above, and committed.
            unsafe { core::ptr::write_bytes(address as *mut u8, 0, bytes) };
        }
    });
}

/// Asks for huge pages in a range.
pub fn advise_huge(address: usize, bytes: usize) {
    let advice =
        if PAGES.load(Relaxed) == Pages::Base as u8 { libc::MADV_NOHUGEPAGE } else { libc::MADV_HUGEPAGE };
    // SAFETY: advice changes no contents. A kernel without transparent huge pages refuses, and the heap runs
    // on.
    keep_errno(|| unsafe { libc::madvise(address as *mut c_void, bytes, advice) });
}

/// Asks for small pages in a range, whatever the system's setting is: for metadata that is touched sparsely.
pub fn advise_small(address: usize, bytes: usize) {
    // SAFETY: as in `advise_huge`.
    keep_errno(|| unsafe { libc::madvise(address as *mut c_void, bytes, libc::MADV_NOHUGEPAGE) });
}

/// The kind of huge pages.
pub fn pages() -> Pages {
    match PAGES.load(Relaxed) {
        0 => Pages::Transparent,
        1 => Pages::Reserved,
        _ => Pages::Base,
    }
}

/// Whether the heap lies on small pages.
pub fn on_base_pages() -> bool {
    PAGES.load(Relaxed) == Pages::Base as u8
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid; the clocks used exist on every Linux.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Monotonic time, a few ms coarse, without a system call.
pub fn coarse_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC_COARSE)
}

/// Monotonic time.
pub fn precise_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// The calling thread's processor time. A system call.
pub fn thread_cpu_ns() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Sleeps; a signal may end the sleep early.
pub fn sleep_ms(ms: u64) {
    let time = libc::timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 };
    // SAFETY: `time` is valid; null: the remaining time at a signal is not needed.
    keep_errno(|| unsafe { libc::nanosleep(&raw const time, core::ptr::null_mut()) });
}

/// Time of day.
pub fn unix_ns() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

/// Writes all of `bytes`; whether it succeeded.
pub fn write(fd: i32, mut bytes: &[u8]) -> bool {
    keep_errno(|| {
        while !bytes.is_empty() {
            // SAFETY: the slice is valid for its length.
            let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
            if written > 0 {
                bytes = &bytes[written as usize..];
            // SAFETY: errno is valid.
            } else if written == 0 || unsafe { *libc::__errno_location() } != libc::EINTR {
                return false;
            }
        }
        true
    })
}

/// Creates or truncates a file, given as bytes ending in NUL.
pub fn create(path_with_nul: &[u8]) -> Option<i32> {
    debug_assert_eq!(path_with_nul.last(), Some(&0));
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC | libc::O_APPEND;
    // SAFETY: the path ends in NUL.
    let fd = keep_errno(|| unsafe { libc::open(path_with_nul.as_ptr().cast(), flags, 0o600) });
    (fd >= 0).then_some(fd)
}

/// Closes a descriptor.
pub fn close(fd: i32) {
    // SAFETY: callers pass a descriptor that they opened and no longer use.
    keep_errno(|| unsafe { libc::close(fd) });
}

/// Renames a file, replacing another, or removes it; whether it was renamed. Both paths end in NUL.
pub fn rename_or_remove(from_with_nul: &[u8], to_with_nul: &[u8], wanted: bool) -> bool {
    let (from, to) = (from_with_nul.as_ptr().cast(), to_with_nul.as_ptr().cast());
    // SAFETY: the paths end in NUL.
    keep_errno(|| unsafe {
        let renamed = wanted && libc::rename(from, to) == 0;
        if !renamed {
            libc::unlink(from);
        }
        renamed
    })
}

/// Creates or truncates a file and maps `bytes` zeros of it, shared; forked children do not inherit the
/// mapping. `None` if it fails, with no file left open.
pub fn create_mapped(path_with_nul: &[u8], bytes: usize) -> Option<usize> {
    debug_assert_eq!(path_with_nul.last(), Some(&0));
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
    keep_errno(|| {
        // SAFETY: the path ends in NUL; the descriptor is closed once, after use; the mapping is fresh.
        unsafe {
            let fd = libc::open(path_with_nul.as_ptr().cast(), flags, 0o600);
            if fd < 0 {
                return None;
            }
            let at = if libc::ftruncate(fd, bytes as libc::off_t) == 0 {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                libc::mmap(core::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0)
            } else {
                libc::MAP_FAILED
            };
            libc::close(fd);
            if at == libc::MAP_FAILED {
                return None;
            }
            libc::madvise(at, bytes, libc::MADV_DONTFORK);
            Some(at as usize)
        }
    })
}

/// Fixes a memory file's length to `bytes` and maps it, shared; forked children do not inherit the mapping.
/// `None` if the file cannot be sealed: one that shrinks later would end the program.
pub fn map_sealed(fd: i32, bytes: usize) -> Option<usize> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: the calls take plain numbers; the mapping is fresh.
    keep_errno(|| unsafe {
        if libc::ftruncate(fd, bytes as libc::off_t) != 0 || libc::fcntl(fd, libc::F_ADD_SEALS, seals) != 0 {
            return None;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(core::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0);
        if at == libc::MAP_FAILED {
            return None;
        }
        libc::madvise(at, bytes, libc::MADV_DONTFORK);
        Some(at as usize)
    })
}

/// Writes the path of the running program into `out`; returns its length.
pub fn program_path(out: &mut [u8]) -> usize {
    // SAFETY: the path ends in NUL; `out` is valid for its length.
    let bytes = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), out.as_mut_ptr().cast(), out.len()) };
    bytes.max(0) as usize
}

/// The CPU that the calling thread runs on.
pub fn cpu() -> u32 {
    // SAFETY: always allowed.
    unsafe { libc::sched_getcpu() as u32 }
}

/// Drops a file's pages from this process's memory; they are read again when they are used.
pub fn forget_pages(address: usize, bytes: usize) {
    // SAFETY: the range maps a file that no process writes to, so its contents do not change.
    keep_errno(|| unsafe { libc::madvise(address as *mut c_void, bytes, libc::MADV_DONTNEED) });
}

/// Maps a file for reading: address and length.
pub fn map_file(path_with_nul: &[u8]) -> Option<(usize, usize)> {
    debug_assert_eq!(path_with_nul.last(), Some(&0));
    keep_errno(|| {
        // SAFETY: the path ends in NUL; the descriptor is closed once, after use.
        unsafe {
            let fd = libc::open(path_with_nul.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
            if fd < 0 {
                return None;
            }
            let bytes = libc::lseek(fd, 0, libc::SEEK_END);
            let at = if bytes > 0 {
                libc::mmap(core::ptr::null_mut(), bytes as usize, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0)
            } else {
                libc::MAP_FAILED
            };
            libc::close(fd);
            (at != libc::MAP_FAILED).then_some((at as usize, bytes as usize))
        }
    })
}

/// Prints to stderr and ends the process with SIGABRT.
pub fn abort(message: &[u8]) -> ! {
    write(2, message);
    // SAFETY: always allowed.
    unsafe { libc::abort() }
}

/// Whether the calling thread is the only one left: the first one has ended, and there is no third.
pub fn is_last_thread() -> bool {
    // The first thread's state and the number of threads are the 3rd and the 20th field; the 2nd may contain
    // any characters.
    let Some((at, bytes)) = read_small_file(b"/proc/self/stat\0") else { return false };
    // SAFETY: a mapping of that many bytes, until it is unmapped below.
    let line = unsafe { core::slice::from_raw_parts(at as *const u8, bytes) };
    let behind_name = line.iter().rposition(|&byte| byte == b')').map_or(&line[..0], |end| &line[end + 1..]);
    let mut fields = behind_name.split(|&byte| byte == b' ').skip(1);
    let has_ended = fields.next() == Some(b"Z");
    let threads = fields.nth(16).and_then(|field| core::str::from_utf8(field).ok()?.parse::<u32>().ok());
    unmap(at, SMALL_FILE_BYTES);
    has_ended && threads == Some(2)
}

/// The process id.
pub fn process_id() -> u32 {
    // SAFETY: always allowed.
    unsafe { libc::getpid() as u32 }
}

/// Bytes of the mappings that [`read_small_file`] makes.
pub const SMALL_FILE_BYTES: usize = 1 << 20;

/// Reads a file of unknown size, such as those of /proc, up to [`SMALL_FILE_BYTES`]; returns the address of a
/// mapping of that size, and the file's length.
pub fn read_small_file(path_with_nul: &[u8]) -> Option<(usize, usize)> {
    const MOST: usize = SMALL_FILE_BYTES;
    debug_assert_eq!(path_with_nul.last(), Some(&0));
    let at = map_anywhere(MOST)?;
    keep_errno(|| {
        // SAFETY: the path ends in NUL; reads stay within the mapping; the descriptor is closed once, after
        // use.
        unsafe {
            let fd = libc::open(path_with_nul.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
            if fd < 0 {
                libc::munmap(at as *mut c_void, MOST);
                return None;
            }
            let mut have = 0;
            while have < MOST {
                let got = libc::read(fd, (at + have) as *mut c_void, MOST - have);
                if got <= 0 {
                    break;
                }
                have += got as usize;
            }
            libc::close(fd);
            Some((at, have))
        }
    })
}

/// A command of membarrier(2).
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum Membarrier {
    /// Prepares the process for fences.
    Register = 1 << 4,
    /// Every running thread of the process executes a full fence.
    Fence = 1 << 3,
}

/// Runs the command; whether the kernel supports it.
pub fn membarrier(command: Membarrier) -> bool {
    // SAFETY: the command takes no memory.
    keep_errno(|| unsafe { libc::syscall(libc::SYS_membarrier, command as i32, 0, 0) == 0 })
}
