//! Holds writers off while their pages are compared and replaced, by userfaultfd's write protection. A writer
//! waits in its page fault, and so does a system call. Once the pages are in place it is woken and writes to
//! a copy of its own (UPM §V-D). No thread serves the faults: the batch that froze the pages also thaws or
//! wakes them.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::ioctl::{self, Setter, Updater};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use crate::base::error::Error;
use crate::base::page::PAGE_BYTES;
use crate::client::address_space;
use crate::client::checked_fd::CheckedFd;
use crate::client::page_map::{Entry, PageMap};

const API_VERSION: u64 = 0xAA;
const FEATURE_WRITE_PROTECT: u64 = 1;
const FEATURE_SHARED_MEMORY: u64 = 1 << 12;
const FEATURE_UNPOPULATED: u64 = 1 << 13;
const FEATURE_MOVE: u64 = 1 << 16;
const MODE_MISSING: u64 = 1;
const MODE_WRITE_PROTECT: u64 = 2;

const API: ioctl::Opcode = 0xC018_AA3F;
const REGISTER: ioctl::Opcode = 0xC020_AA00;
const UNREGISTER: ioctl::Opcode = 0x8010_AA01;
const WAKE: ioctl::Opcode = 0x8010_AA02;
const WRITE_PROTECT: ioctl::Opcode = 0xC018_AA06;
const NEW: libc::c_ulong = 0xAA00;

/// The most that is frozen at once: writers wait for as long as that takes.
pub const MAX_BYTES: usize = 2 << 20;

#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Span {
    start: u64,
    bytes: u64,
}

#[repr(C)]
struct Register {
    span: Span,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Protect {
    span: Span,
    mode: u64,
}

fn span(range: &Range<usize>) -> Span {
    Span { start: range.start as u64, bytes: range.len() as u64 }
}

/// A userfaultfd of this process.
pub struct Freezer {
    file: CheckedFd,
    /// Whether writes by system calls wait, too. If not, they fail with EFAULT.
    pub holds_system_calls: bool,
    /// Whether the kernel moves pages (Linux 6.8).
    pub can_move: bool,
    /// For kernels before 6.4, which cannot protect a page that is not present: shows which are protected.
    page_map: Option<PageMap>,
}

fn open_full() -> Option<OwnedFd> {
    // SAFETY: a new descriptor; this module alone uses it.
    if let Ok(file) = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) } {
        return Some(file);
    }
    let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // SAFETY: the request takes flags by value and returns a new descriptor.
    unsafe {
        let file = libc::ioctl(device.as_raw_fd(), NEW as _, libc::O_CLOEXEC | libc::O_NONBLOCK);
        (file >= 0).then(|| OwnedFd::from_raw_fd(file))
    }
}

fn open_user_mode() -> Option<OwnedFd> {
    const USER_MODE_ONLY: u32 = 1;
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: as above.
    unsafe { userfaultfd(flags | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY)) }.ok()
}

/// Agrees on features; returns those of the kernel.
fn handshake(file: &OwnedFd, features: u64) -> Result<u64> {
    let mut api = Api { version: API_VERSION, features, ioctls: 0 };
    // SAFETY: `Api` is the structure of this request.
    unsafe { ioctl::ioctl(file, Updater::<API, Api>::new(&mut api))? };
    Ok(api.features)
}

impl Freezer {
    /// Opens a userfaultfd.
    ///
    /// # Errors
    /// `EPERM`, and the remedy, if none is permitted that holds all possible writers; `ENOTSUP` if the kernel
    /// is too old.
    pub fn open(system_calls_may_write: bool) -> std::result::Result<Freezer, Error> {
        let (open, holds_system_calls): (fn() -> Option<OwnedFd>, bool) = match open_full() {
            Some(_) => (open_full, true),
            None => (open_user_mode, false),
        };
        let Some(first) = open() else {
            // Any file shows whether descriptors are used up.
            if let Err(errno @ (Errno::MFILE | Errno::NFILE)) =
                rustix::fs::open("/", OFlags::PATH, Mode::empty())
            {
                return Err(Error::system("userfaultfd", errno));
            }
            return Err(Error::new(
                libc::EPERM,
                "userfaultfd is not permitted here (a container's seccomp filter, perhaps): allow the system call \
                 or give access to /dev/userfaultfd, or advise with MAYFLY_ADVISE_QUIET while no thread writes",
            ));
        };
        // In a process with one thread, that thread is inside this call, and no system call writes.
        if !holds_system_calls && system_calls_may_write && address_space::threads() > 1 {
            return Err(Error::new(
                libc::EPERM,
                "system calls cannot be held off without permission for userfaultfd: give access to \
                 /dev/userfaultfd, or set vm.unprivileged_userfaultfd=1, or advise with \
                 MAYFLY_ADVISE_NO_SYSCALLS while no system call writes into the region",
            ));
        }
        let too_old = |_| {
            Error::new(
                libc::ENOTSUP,
                "this kernel's userfaultfd cannot write-protect: Linux 5.19 or newer can",
            )
        };
        let there = handshake(&first, 0).map_err(too_old)?;
        let needed = FEATURE_WRITE_PROTECT | FEATURE_SHARED_MEMORY;
        if there & needed != needed {
            return Err(too_old(Errno::NOSYS));
        }
        // Each descriptor allows one handshake.
        let file = open().ok_or_else(|| Error::system("userfaultfd", Errno::PERM))?;
        let wanted = needed | there & (FEATURE_UNPOPULATED | FEATURE_MOVE);
        handshake(&file, wanted).map_err(too_old)?;
        let file = CheckedFd::new(file).map_err(|errno| Error::system("userfaultfd", errno))?;
        let page_map = if there & FEATURE_UNPOPULATED == 0 { Some(PageMap::open()?) } else { None };
        Ok(Freezer { file, holds_system_calls, can_move: there & FEATURE_MOVE != 0, page_map })
    }

    /// Whether it can still be used: programs close descriptors that are not their own.
    pub fn is_there(&self) -> bool {
        self.file.get().is_ok()
    }

    /// Registers a range, which lies in one mapping.
    pub fn register<'a>(&'a self, range: &Range<usize>) -> Result<Registered<'a>> {
        let file = self.file.get()?;
        register(file, range, MODE_WRITE_PROTECT)?;
        Ok(Registered { file, page_map: self.page_map.as_ref(), range: range.clone() })
    }

    /// Registers room to which pages can be moved.
    pub fn register_room(&self, room: &Range<usize>) -> Result<()> {
        // Not for pages that are absent: this thread reads the room, and would wait for itself.
        register(self.file.get()?, room, MODE_WRITE_PROTECT)
    }
}

fn register(file: BorrowedFd<'_>, range: &Range<usize>, mode: u64) -> Result<()> {
    let mut request = Register { span: span(range), mode, ioctls: 0 };
    // SAFETY: `Register` is the structure of this request, which changes no contents.
    unsafe { ioctl::ioctl(file, Updater::<REGISTER, Register>::new(&mut request)) }
}

/// A range that can be frozen. Dropping it thaws all of it.
pub struct Registered<'a> {
    file: BorrowedFd<'a>,
    page_map: Option<&'a PageMap>,
    range: Range<usize>,
}

impl Registered<'_> {
    /// From here to [`Registered::thaw`] or [`Registered::wake`] no thread can write to the piece, of at most
    /// [`MAX_BYTES`]. The caller must not either: not to the heap, not to thread-local or static variables,
    /// errno included; they might be in it.
    ///
    /// # Errors
    /// `AGAIN` if another thread has just dropped pages of it; then nothing is frozen.
    #[inline]
    pub fn freeze(&self, piece: &Range<usize>) -> Result<()> {
        self.protect(piece, MODE_PROTECT)?;
        match self.page_map {
            None => Ok(()),
            Some(page_map) => self.check_held(page_map, piece),
        }
    }

    #[cold]
    fn check_held(&self, page_map: &PageMap, piece: &Range<usize>) -> Result<()> {
        let mut entries = [Entry::default(); MAX_BYTES / PAGE_BYTES];
        let entries = &mut entries[..piece.len() / PAGE_BYTES];
        let are_held =
            page_map.read(piece.start, entries).is_ok() && entries.iter().all(|e| e.is_protected());
        if are_held {
            return Ok(());
        }
        self.thaw(piece)?;
        Err(Errno::AGAIN)
    }

    /// The userfaultfd.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file
    }

    /// From here to [`Registered::admit`] a thread that touches a page of the piece that is not there waits.
    pub fn hold_absent(&self, piece: &Range<usize>) -> Result<()> {
        register(self.file, piece, MODE_MISSING | MODE_WRITE_PROTECT)
    }

    /// Ends [`Registered::hold_absent`], and lets writers continue. The piece is no longer registered.
    pub fn admit(&self, piece: &Range<usize>) {
        // SAFETY: `Span` is the structure of this request; it changes no contents.
        let _ = unsafe { ioctl::ioctl(self.file, Setter::<UNREGISTER, Span>::new(span(piece))) };
    }

    /// Registers a piece again after [`Registered::admit`].
    pub fn register_again(&self, piece: &Range<usize>) -> Result<()> {
        register(self.file, piece, MODE_WRITE_PROTECT)
    }

    /// Lets writers continue.
    pub fn thaw(&self, piece: &Range<usize>) -> Result<()> {
        self.protect(piece, 0)
    }

    fn protect(&self, piece: &Range<usize>, mode: u64) -> Result<()> {
        debug_assert!(piece.start >= self.range.start && piece.end <= self.range.end);
        let mut request = Protect { span: span(piece), mode };
        loop {
            // SAFETY: `Protect` is the structure of this request; write protection changes no contents.
            match unsafe { ioctl::ioctl(self.file, Updater::<WRITE_PROTECT, Protect>::new(&mut request)) } {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
    }

    /// Wakes the writers that wait at a piece that has been replaced.
    #[inline]
    pub fn wake(&self, piece: &Range<usize>) {
        // SAFETY: `Span` is the structure of this request; it changes no memory.
        let _ = unsafe { ioctl::ioctl(self.file, Setter::<WAKE, Span>::new(span(piece))) };
    }
}

const MODE_PROTECT: u64 = 1;

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // Parts that have been replaced are no longer registered, which is no error.
        // SAFETY: `Span` is the structure of this request; it changes no contents.
        let _ = unsafe { ioctl::ioctl(self.file, Setter::<UNREGISTER, Span>::new(span(&self.range))) };
        self.wake(&self.range);
    }
}
