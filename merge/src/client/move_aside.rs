//! Proves that no page of a batch is pinned for a device, by moving the pages aside (UFFDIO_MOVE, Linux 6.8).
//! The kernel refuses with EBUSY to move a page to which a device may write, and moves all others. Such pages
//! are io_uring's fixed buffers, a GPU's registered memory, and those of RDMA, VFIO, AF_XDP and direct I/O in
//! flight. A thread that touches a page that is aside waits.
//!
//! EBUSY has another cause: pages that a fork shares or has shared. Those that another process maps as well
//! cannot be pinned for writing, as the page map tells. Of the rest a write fault
//! (`MADV_POPULATE_WRITE`) makes pages of this process alone.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result};
use rustix::ioctl::{self, Opcode, Updater};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::base::page::PAGE_BYTES;
use crate::client::freeze::{MAX_BYTES, Registered};
use crate::client::page_map::{Entry, PageMap};

const MOVE: Opcode = 0xC028_AA05;
const COPY: Opcode = 0xC028_AA03;
const ALLOW_HOLES: u64 = 2;
/// How often a move is repeated that another thread's access to the page has delayed.
const ATTEMPTS: usize = 16;

/// `struct uffdio_move`, and `struct uffdio_copy`, which has the same layout.
#[repr(C)]
struct Request {
    to: u64,
    from: u64,
    bytes: u64,
    mode: u64,
    done: i64,
}

/// Why pages cannot be moved aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The page at this address may be pinned.
    Busy(usize),
    /// The kernel does not move memory of this kind; nothing has been moved.
    Unsuited,
}

/// Pages of a batch.
pub struct PageSet([u64; MAX_BYTES / PAGE_BYTES / 64]);

impl PageSet {
    /// No page.
    pub const EMPTY: PageSet = PageSet([0; MAX_BYTES / PAGE_BYTES / 64]);

    fn insert(&mut self, address: usize) {
        let page = address % MAX_BYTES / PAGE_BYTES;
        self.0[page / 64] |= 1 << (page % 64);
    }

    /// The pages at the front of a piece that are all in it, or all not.
    pub fn run(&self, piece: &Range<usize>) -> Range<usize> {
        let first = self.contains(piece.start);
        let end = piece.clone().step_by(PAGE_BYTES).find(|&at| self.contains(at) != first);
        piece.start..end.unwrap_or(piece.end)
    }

    /// Whether the page at this address is in it.
    pub fn contains(&self, address: usize) -> bool {
        let page = address % MAX_BYTES / PAGE_BYTES;
        self.0[page / 64] >> (page % 64) & 1 != 0
    }
}

/// Room for one batch, at the same offset within a page table as the batch, so that huge pages move whole.
pub struct Room {
    start: usize,
    /// Its own: while pages are aside nothing on the heap may be read.
    page_map: PageMap,
}

impl Room {
    /// Maps the room.
    pub fn new(page_map: PageMap) -> Result<Room> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free range; what is unmapped again are the ends of it.
        unsafe {
            let whole = mmap_anonymous(std::ptr::null_mut(), 2 * MAX_BYTES, rights, flags)? as usize;
            let start = whole.next_multiple_of(MAX_BYTES);
            if start > whole {
                munmap(whole as *mut _, start - whole)?;
            }
            if whole + MAX_BYTES > start {
                munmap((start + MAX_BYTES) as *mut _, whole + MAX_BYTES - start)?;
            }
            Ok(Room { start, page_map })
        }
    }

    /// Its addresses.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + MAX_BYTES
    }

    /// Where the page at this address is while it is aside.
    pub fn place(&self, address: usize) -> usize {
        self.start + address % MAX_BYTES
    }

    /// Moves a piece aside, which lies in one batch and is held, but for the pages in `stay`.
    ///
    /// # Errors
    /// The pages before the one that is busy are aside, the others are not.
    pub fn take(
        &self,
        site: &Registered<'_>,
        piece: &Range<usize>,
        stay: &PageSet,
    ) -> std::result::Result<(), Refusal> {
        let (mut at, mut attempts) = (piece.start, 0);
        while at < piece.end {
            let run = stay.run(&(at..piece.end));
            if stay.contains(at) {
                at = run.end;
                continue;
            }
            match move_pages(site.file(), at, self.place(at), run.len()) {
                (0, Errno::AGAIN | Errno::INTR) if attempts < ATTEMPTS => attempts += 1,
                (0, Errno::INVAL | Errno::NOTTY | Errno::PERM | Errno::NOSYS) if at == piece.start => {
                    return Err(Refusal::Unsuited);
                }
                (0, _) => return Err(Refusal::Busy(at)),
                (moved, _) => (at, attempts) = (at + moved, 0),
            }
        }
        Ok(())
    }

    /// Moves all pages of the piece back that are aside. Threads that wait for them continue.
    pub fn put_back(&self, site: &Registered<'_>, piece: &Range<usize>) {
        let (mut at, mut attempts) = (piece.start, 0);
        while at < piece.end {
            match move_pages(site.file(), self.place(at), at, piece.end - at) {
                // It was not moved.
                (0, Errno::EXIST) => (at, attempts) = (at + PAGE_BYTES, 0),
                // Other memory is there now, to which the contents have been copied.
                (0, Errno::INVAL | Errno::NOENT | Errno::SRCH) => return,
                // A fork that runs no handlers has shared it: the contents go back by a copy.
                (0, _) if attempts >= ATTEMPTS => {
                    let mut copy = request(self.place(at), at, PAGE_BYTES, 0);
                    // SAFETY: `Request` is the structure of this request; it fills a page that is not there.
                    match unsafe { ioctl::ioctl(site.file(), Updater::<COPY, Request>::new(&mut copy)) } {
                        Ok(()) | Err(Errno::EXIST | Errno::INVAL | Errno::NOENT | Errno::SRCH) => {
                            at += PAGE_BYTES;
                        }
                        // No memory at the moment: the page is needed.
                        // SAFETY: takes no arguments.
                        Err(_) => drop(unsafe { libc::sched_yield() }),
                    }
                }
                (0, _) => attempts += 1,
                (moved, _) => (at, attempts) = (at + moved, 0),
            }
        }
        self.clear(piece);
    }

    /// Finds the busy pages of a piece, which stays where it is.
    pub fn survey(&self, site: &Registered<'_>, piece: &Range<usize>) -> PageSet {
        let mut busy = PageSet::EMPTY;
        for at in piece.clone().step_by(PAGE_BYTES) {
            if self.take(site, &(at..at + PAGE_BYTES), &PageSet::EMPTY).is_err() {
                busy.insert(at);
            }
        }
        self.put_back(site, piece);
        busy
    }

    /// Frees what is aside of a piece.
    pub fn clear(&self, piece: &Range<usize>) {
        // SAFETY: pages of the room, which no other code uses.
        let _ = unsafe { madvise(self.place(piece.start) as *mut _, piece.len(), Advice::LinuxDontNeed) };
    }

    /// The pages of a frozen piece that another process maps as well: they are not pinned for writing.
    pub fn mapped_elsewhere(&self, piece: &Range<usize>) -> PageSet {
        let (mut found, mut entries) = (PageSet::EMPTY, [Entry::default(); MAX_BYTES / PAGE_BYTES]);
        let entries = &mut entries[..piece.len() / PAGE_BYTES];
        if self.page_map.read(piece.start, entries).is_ok() {
            for (at, entry) in piece.clone().step_by(PAGE_BYTES).zip(entries) {
                if entry.is_mapped_elsewhere() {
                    found.insert(at);
                }
            }
        }
        found
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: made by `new`; no page is in it between two batches.
        let _ = unsafe { munmap(self.start as *mut _, MAX_BYTES) };
    }
}

fn request(from: usize, to: usize, bytes: usize, mode: u64) -> Request {
    Request { to: to as u64, from: from as u64, bytes: bytes as u64, mode, done: 0 }
}

/// How many bytes were moved, and if none, why.
fn move_pages(file: BorrowedFd<'_>, from: usize, to: usize, bytes: usize) -> (usize, Errno) {
    let mut moves = request(from, to, bytes, ALLOW_HOLES);
    // SAFETY: `Request` is the structure of this request. The pages are in either place, and who touches them
    // meanwhile waits.
    match unsafe { ioctl::ioctl(file, Updater::<MOVE, Request>::new(&mut moves)) } {
        Ok(()) => (bytes, Errno::AGAIN),
        Err(_) if moves.done > 0 => (moves.done as usize, Errno::AGAIN),
        Err(errno) => (0, errno),
    }
}
