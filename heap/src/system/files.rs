//! Files: statistics, traces, models, tables, and those of /proc.
//!
//! As in [`crate::system::os`], `errno` stays as it is.

pub use crate::system::filtered::{are_forbidden, forbid};
use crate::system::os::{address_of, advise, map_anywhere, unmap};
use crate::system::quiet::quietly;
use crate::system::raw::syscall;

/// Writes all of `bytes`; whether it succeeded. No signal comes of it.
pub fn write(fd: i32, mut bytes: &[u8]) -> bool {
    quietly(|| {
        while !bytes.is_empty() {
            // SAFETY: the slice is valid for its length.
            let written = unsafe { syscall!(SYS_write, fd, bytes.as_ptr(), bytes.len()) };
            if written > 0 {
                bytes = &bytes[written as usize..];
            } else if written != -(libc::EINTR as isize) {
                return false;
            }
        }
        true
    })
}

/// Writes pieces of memory at their places in a file; whether all succeeded.
///
/// # Safety
/// The pieces, addresses and lengths, are readable.
pub unsafe fn write_at(fd: i32, pieces: impl Iterator<Item = (usize, usize, usize)>) -> bool {
    let mut pieces = pieces;
    quietly(|| {
        pieces.all(|(mut from, mut bytes, mut at)| {
            while bytes > 0 {
                // SAFETY: the caller's pieces are readable.
                let written = unsafe { syscall!(SYS_pwrite64, fd, from, bytes, at) };
                if written > 0 {
                    let written = written as usize;
                    (from, bytes, at) = (from + written, bytes - written, at + written);
                } else if written != -(libc::EINTR as isize) {
                    return false;
                }
            }
            true
        })
    })
}

/// Reads the beginning of a file; the number of bytes.
pub fn read_head(fd: i32, out: &mut [u8]) -> usize {
    // SAFETY: `out` is valid for its length.
    unsafe { syscall!(SYS_pread64, fd, out.as_mut_ptr(), out.len(), 0usize) }.max(0) as usize
}

/// Sets a file's length; whether it succeeded. No signal comes of it.
pub fn set_length(fd: i32, bytes: usize) -> bool {
    // SAFETY: takes plain numbers.
    quietly(|| unsafe { syscall!(SYS_ftruncate, fd, bytes) == 0 })
}

/// Opens a file, whose path ends in NUL.
fn open(path_with_nul: &[u8], flags: i32) -> Option<i32> {
    try_open(path_with_nul, flags).ok()
}

/// As above, or the error's number.
pub(super) fn try_open(path_with_nul: &[u8], flags: i32) -> Result<i32, i32> {
    debug_assert_eq!(path_with_nul.last(), Some(&0));
    if are_forbidden() {
        return Err(libc::EPERM);
    }
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the path ends in NUL.
    let fd = unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path_with_nul.as_ptr(), flags, 0o600) };
    if fd < 0 { Err(-fd as i32) } else { Ok(fd as i32) }
}

/// Maps a file from its beginning.
///
/// # Safety
/// No process shortens the file while the mapping is used.
unsafe fn map(fd: i32, bytes: usize, protection: i32, flags: i32) -> Option<usize> {
    // SAFETY: the mapping is fresh.
    address_of(unsafe { syscall!(SYS_mmap, 0usize, bytes, protection, flags, fd, 0usize) })
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Creates or truncates a file, given as bytes ending in NUL.
pub fn create(path_with_nul: &[u8]) -> Option<i32> {
    open(path_with_nul, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND)
}

/// Closes a descriptor.
pub fn close(fd: i32) {
    // SAFETY: callers pass a descriptor that they opened and no longer use.
    unsafe { syscall!(SYS_close, fd) };
}

/// Device and number of an open file.
pub fn identity(fd: i32) -> Option<[u64; 2]> {
    // SAFETY: plain numbers, for which zero is a value, and which the call fills.
    unsafe {
        let mut about: libc::stat = core::mem::zeroed();
        (syscall!(SYS_fstat, fd, &raw mut about) == 0).then_some([about.st_dev, about.st_ino])
    }
}

/// Whether a path leads to a regular file, or to none.
pub fn is_regular_path(path_with_nul: &[u8]) -> bool {
    // SAFETY: plain numbers, for which zero is a value, and which the call fills; the path ends in NUL.
    unsafe {
        let mut about: libc::stat = core::mem::zeroed();
        let path = path_with_nul.as_ptr();
        syscall!(SYS_newfstatat, libc::AT_FDCWD, path, &raw mut about, 0) != 0
            || about.st_mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// Gives a descriptor the first free number from `least` on, where the process may have one.
pub fn at_high_number(fd: i32, least: usize) -> i32 {
    // SAFETY: takes plain numbers.
    let high = unsafe { syscall!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, least) };
    if high < 0 {
        return fd;
    }
    close(fd);
    high as i32
}

/// Removes a file.
pub fn remove(path_with_nul: &[u8]) {
    // SAFETY: the path ends in NUL.
    unsafe { syscall!(SYS_unlinkat, libc::AT_FDCWD, path_with_nul.as_ptr(), 0) };
}

/// Opens an existing file for writing.
pub fn open_again(path_with_nul: &[u8]) -> Option<i32> {
    open(path_with_nul, libc::O_WRONLY)
}

/// Renames a file, replacing another, or removes it; whether it was renamed. Both paths end in NUL.
pub fn rename_or_remove(from_with_nul: &[u8], to_with_nul: &[u8], wanted: bool) -> bool {
    let (from, to, here) = (from_with_nul.as_ptr(), to_with_nul.as_ptr(), libc::AT_FDCWD);
    // SAFETY: the paths end in NUL.
    unsafe {
        let renamed = wanted && syscall!(SYS_renameat, here, from, here, to) == 0;
        if !renamed {
            syscall!(SYS_unlinkat, here, from, 0);
        }
        renamed
    }
}

/// A memory file, which no file system can take away.
pub fn memory_file(name_with_nul: &[u8]) -> Option<i32> {
    debug_assert_eq!(name_with_nul.last(), Some(&0));
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends in NUL.
    let fd = unsafe { syscall!(SYS_memfd_create, name_with_nul.as_ptr(), flags) };
    i32::try_from(fd).ok().filter(|&fd| fd >= 0)
}

/// Fixes a memory file's length to `bytes` and maps it, shared; forked children do not inherit the mapping.
/// `None` if the file cannot be sealed: one that shrinks later would end the program.
pub fn map_sealed(fd: i32, bytes: usize) -> Option<usize> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: the calls take plain numbers.
    let is_sealed = set_length(fd, bytes)
        && is_backed(fd, bytes)
        && unsafe { syscall!(SYS_fcntl, fd, libc::F_ADD_SEALS, seals) == 0 };
    if !is_sealed {
        return None;
    }
    // SAFETY: the file is sealed.
    let at = unsafe { map(fd, bytes, READ_WRITE, libc::MAP_SHARED)? };
    advise(at, bytes, libc::MADV_DONTFORK);
    advise(at, bytes, libc::MADV_DONTDUMP);
    Some(at)
}

/// Whether each page of a memory file can be touched. Where the system counts every page that it promises
/// (vm.overcommit_memory=2, or not known), a page that it cannot give is SIGBUS: there all are taken now.
fn is_backed(fd: i32, bytes: usize) -> bool {
    let setting = open(b"/proc/sys/vm/overcommit_memory\0", libc::O_RDONLY);
    let mut digit = [0];
    if let Some(setting) = setting {
        read_head(setting, &mut digit);
        close(setting);
    }
    // SAFETY: takes plain numbers.
    matches!(digit, [b'0' | b'1'])
        || quietly(|| unsafe { syscall!(SYS_fallocate, fd, 0, 0usize, bytes) == 0 })
}

/// Writes the path of the running program into `out`; returns its length.
pub fn program_path(out: &mut [u8]) -> usize {
    let (path, here) = (c"/proc/self/exe".as_ptr(), libc::AT_FDCWD);
    // SAFETY: the path ends in NUL; `out` is valid for its length.
    let bytes = unsafe { syscall!(SYS_readlinkat, here, path, out.as_mut_ptr(), out.len()) };
    bytes.max(0) as usize
}

/// Drops a file's pages from this process's memory; they are read again when they are used.
pub fn forget_pages(address: usize, bytes: usize) {
    advise(address, bytes, libc::MADV_DONTNEED);
}

/// Maps a file for reading: address and length.
pub fn map_file(path_with_nul: &[u8]) -> Option<(usize, usize)> {
    let fd = open(path_with_nul, libc::O_RDONLY)?;
    // SAFETY: the call takes plain numbers; models, oracles and tables are replaced, not shortened.
    let mapped = unsafe {
        let bytes = address_of(syscall!(SYS_lseek, fd, 0usize, libc::SEEK_END)).filter(|&bytes| bytes > 0);
        bytes.and_then(|bytes| Some((map(fd, bytes, libc::PROT_READ, libc::MAP_PRIVATE)?, bytes)))
    };
    close(fd);
    mapped
}

/// Bytes of the mappings that [`read_small_file`] makes.
pub const SMALL_FILE_BYTES: usize = 1 << 20;

/// Reads a file of unknown size, such as those of /proc, up to [`SMALL_FILE_BYTES`]; returns the address of a
/// mapping of that size, and the file's length.
pub fn read_small_file(path_with_nul: &[u8]) -> Option<(usize, usize)> {
    let at = map_anywhere(SMALL_FILE_BYTES)?;
    let Some(fd) = open(path_with_nul, libc::O_RDONLY) else {
        unmap(at, SMALL_FILE_BYTES);
        return None;
    };
    let mut have = 0;
    while have < SMALL_FILE_BYTES {
        // SAFETY: reads stay within the mapping.
        let got = unsafe { syscall!(SYS_read, fd, at + have, SMALL_FILE_BYTES - have) };
        if got <= 0 {
            break;
        }
        have += got as usize;
    }
    close(fd);
    Some((at, have))
}
