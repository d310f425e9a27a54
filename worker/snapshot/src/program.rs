//! The restorer's program: an ELF file in memory, which the kernel maps in the plan's window.
//!
//! ```text
//!   offset 0   headers           not mapped
//!   4096       code              r-x  at window.code()
//!   8192       slots             rw-  at window.slots()   zeros
//!   then       list              rw-  at window.list()
//!   then       data              rw-  at window.data()
//! ```

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    Advice, AtFlags, MemfdFlags, Mode, OFlags, SealFlags, StatVfsMountFlags, fcntl_add_seals, memfd_create,
};

use mappings::SNAPSHOT;

use crate::plan::Plan;
use crate::{Error, restorer};

const PAGE: u64 = 4096;
const SLOT_BYTES: usize = 8 * 1024;
/// An empty memory file that can be sealed.
///
/// # Errors
/// No descriptor is left.
pub fn memory_file() -> Result<OwnedFd, Error> {
    memfd_create(SNAPSHOT, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::EXEC)
        // Linux before 6.3 does not know the last flag, and needs none.
        .or_else(|_| memfd_create(SNAPSHOT, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING))
        .map_err(|error| Error::System("a memory file cannot be made", error.into()))
}

/// File systems whose files are memory.
const IN_MEMORY: [i64; 2] = [libc::TMPFS_MAGIC, 0x8584_58f6]; // and ramfs

/// An empty file without a name, in this folder: the kernel reads its pages from the disk when a process
/// touches them. None where that spares no memory, or where its pages may not be executed.
pub fn disk_file(folder: BorrowedFd<'_>) -> Option<OwnedFd> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let is_noexec = rustix::fs::fstatvfs(folder).ok()?.f_flag.contains(StatVfsMountFlags::NOEXEC);
    let kind = rustix::fs::fstatfs(folder).ok()?.f_type;
    if is_noexec || IN_MEMORY.contains(&kind) {
        return None;
    }
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("{SNAPSHOT}.{}.{number}", std::process::id());
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, &name, flags, Mode::RUSR | Mode::WUSR).ok()?;
    rustix::fs::unlinkat(folder, &name, AtFlags::empty()).ok()?;
    Some(file)
}

/// Ends a file of pages on the disk with a whole page, and writes it there: none of it is left in memory. No
/// process can change it, as it has no name and is open for reading alone. Returns it and its size.
///
/// # Errors
/// The disk is full or fails.
pub fn close_disk(pages: &OwnedFd) -> Result<(OwnedFd, u64), Error> {
    let failed = |error: rustix::io::Errno| Error::System("the snapshot cannot be written", error.into());
    let size = (rustix::fs::fstat(pages).map_err(failed)?.st_size as u64).next_multiple_of(PAGE);
    rustix::fs::ftruncate(pages, size).map_err(failed)?;
    rustix::fs::fdatasync(pages).map_err(failed)?;
    let path = format!("/proc/self/fd/{}", pages.as_raw_fd());
    let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    drop_unused(&opened);
    Ok((opened, size))
}

/// Has the kernel forget pages of a file on the disk that no process maps.
pub fn drop_unused(pages: &OwnedFd) {
    // If it fails, they stay.
    let _ = rustix::fs::fadvise(pages, 0, None, Advice::DontNeed);
}

/// No process can change the file any more.
///
/// # Errors
/// A process has it mapped for writing.
pub fn seal(file: &OwnedFd) -> Result<(), Error> {
    fcntl_add_seals(file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|error| Error::System("a memory file cannot be sealed", error.into()))
}

/// Ends a file of pages in memory with a whole page, and seals it; returns it and its size.
///
/// # Errors
/// A process has it mapped for writing.
pub fn close(pages: OwnedFd) -> Result<(OwnedFd, u64), Error> {
    let failed = |error: rustix::io::Errno| Error::System("a memory file cannot be ended", error.into());
    let size = (rustix::fs::fstat(&pages).map_err(failed)?.st_size as u64).next_multiple_of(PAGE);
    rustix::fs::ftruncate(&pages, size).map_err(failed)?;
    seal(&pages)?;
    Ok((pages, size))
}

/// The program for a plan, sealed.
///
/// # Errors
/// No memory or descriptor is left.
pub fn make(plan: &Plan) -> Result<OwnedFd, Error> {
    let (code, entry) = restorer::code();
    let mut code = code.to_vec();
    code[..8].copy_from_slice(&plan.window.list().to_le_bytes());
    code[8..16].copy_from_slice(&plan.window.slots().to_le_bytes());
    let (list, data) = (plan.list(), plan.data_bytes());
    let mut segments = Vec::new();
    let mut body = vec![0; PAGE as usize];
    let slots = [0; SLOT_BYTES];
    let parts: [(&[u8], u64, u32); 4] = [
        (&code, plan.window.code(), libc::PF_R | libc::PF_X),
        (&slots, plan.window.slots(), libc::PF_R | libc::PF_W),
        (&list, plan.window.list(), libc::PF_R | libc::PF_W),
        (data, plan.window.data(), libc::PF_R | libc::PF_W),
    ];
    for (bytes, address, rights) in parts {
        segments.push(Segment { offset: body.len() as u64, address, bytes: bytes.len() as u64, rights });
        body.extend_from_slice(bytes);
        body.resize(body.len().next_multiple_of(PAGE as usize), 0);
    }
    let header = header(plan.window.code() + entry as u64, &segments);
    body[..header.len()].copy_from_slice(&header);
    let file = memory_file()?;
    let mut written = 0;
    while written < body.len() {
        written += rustix::io::pwrite(&file, &body[written..], written as u64)
            .map_err(|error| Error::System("a memory file cannot be written", error.into()))?;
    }
    seal(&file)?;
    Ok(file)
}

/// A part of the file that the kernel maps.
struct Segment {
    offset: u64,
    address: u64,
    bytes: u64,
    rights: u32,
}

/// ELF's header and the headers of its segments.
fn header(entry: u64, segments: &[Segment]) -> Vec<u8> {
    const HEADER: u16 = 64;
    const OF_SEGMENT: u16 = 56;
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(2_u16.to_le_bytes()); // at a fixed place
    bytes.extend(62_u16.to_le_bytes()); // x86-64
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(entry.to_le_bytes());
    bytes.extend(u64::from(HEADER).to_le_bytes());
    bytes.extend(0_u64.to_le_bytes()); // no sections
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(HEADER.to_le_bytes());
    bytes.extend(OF_SEGMENT.to_le_bytes());
    bytes.extend((segments.len() as u16 + 1).to_le_bytes());
    bytes.extend([0; 6]);
    let mut segment = |kind: u32, rights: u32, words: [u64; 6]| {
        bytes.extend(kind.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    };
    for &Segment { offset, address, bytes, rights } in segments {
        segment(libc::PT_LOAD, rights, [offset, address, address, bytes, bytes, PAGE]);
    }
    // Without this the kernel makes every readable page executable.
    segment(libc::PT_GNU_STACK, libc::PF_R | libc::PF_W, [0; 6]);
    bytes
}
