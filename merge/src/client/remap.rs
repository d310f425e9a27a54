//! Puts shared pages in the place of private ones. An extent of the store is mapped aside, its page table is filled, and
//! then, batch by batch: writers are held off, the bytes are compared, what differs is copied over, and one mremap moves
//! the batch into place (UPM §V-D, V-E).
//!
//! While a batch is frozen this thread writes to nothing but its stack and the mapping aside: the frozen pages may be the
//! program's heap, its thread-local storage, or errno. System calls are made without the C library for that reason, and
//! signals wait, since a handler that writes to a frozen page would wait for ever.

use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect,
    mremap_fixed, munmap,
};

use crate::base::fault;
use crate::base::page::PAGE_BYTES;
use crate::client::connection::Held;
use crate::client::freeze::{self, Registered};
use crate::client::interpose;
use crate::client::plan::{Extent, Page};
use crate::client::statistics::{Clock, Statistics};

/// A batch ends where a page table ends, so that whole tables are moved.
const BATCH_BYTES: usize = freeze::MOST_BYTES;
/// Times that pages are touched, so that they are there and can be held.
const TOUCHES: usize = 3;

fn start_of(address: usize) -> *mut libc::c_void {
    address as *mut libc::c_void
}

/// What can be replaced, and how writers are held off.
pub struct Site<'a> {
    /// Where the pages are.
    pub start: usize,
    /// What is known of them.
    pub pages: &'a [Page],
    /// The rights that the mapping has.
    pub protection: ProtFlags,
    /// None if nobody writes.
    pub writers: Option<&'a Registered<'a>>,
}

impl Site<'_> {
    fn freeze(&self, piece: &Range<usize>) -> rustix::io::Result<()> {
        let Some(writers) = self.writers else { return Ok(()) };
        let mut result = writers.freeze(piece);
        for _ in 0..TOUCHES {
            if result != Err(Errno::AGAIN) {
                break;
            }
            for page in piece.clone().step_by(PAGE_BYTES) {
                // SAFETY: a readable page of the caller's.
                unsafe { (page as *const u8).read_volatile() };
            }
            result = writers.freeze(piece);
        }
        result
    }

    fn thaw(&self, piece: &Range<usize>) {
        if let Some(writers) = self.writers {
            let _ = writers.thaw(piece);
        }
    }

    fn wake(&self, piece: &Range<usize>) {
        if let Some(writers) = self.writers {
            writers.wake(piece);
        }
    }
}

/// Signals wait as long as this lives.
pub struct SignalsWait(libc::sigset_t);

impl SignalsWait {
    /// Blocks all.
    pub fn new() -> SignalsWait {
        // SAFETY: both sets are initialised by the calls; this thread's mask only.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            SignalsWait(before)
        }
    }
}

impl Drop for SignalsWait {
    fn drop(&mut self) {
        // SAFETY: the mask that `new` has found.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// A mapping aside, of which the front moves away piece by piece.
struct Aside {
    left: Range<usize>,
}

impl Drop for Aside {
    fn drop(&mut self) {
        if !self.left.is_empty() {
            // SAFETY: made by `map_aside`, and nobody else knows of it.
            let _ = unsafe { munmap(start_of(self.left.start), self.left.len()) };
        }
    }
}

/// Maps an extent somewhere, at the same place within a page table as its target, so that whole page tables can be moved.
fn map_aside(extent: &Extent, held: &Held, target: usize) -> rustix::io::Result<Aside> {
    let (bytes, offset) = (extent.bytes(), extent.at as u64 * PAGE_BYTES as u64);
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let file = held.file.get()?;
    // SAFETY: wherever there is room; then inside that room, which is ours.
    unsafe {
        if bytes < BATCH_BYTES {
            let at = mmap(start_of(0), bytes, rights, MapFlags::PRIVATE, file, offset)? as usize;
            return Ok(Aside { left: at..at + bytes });
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let room = mmap_anonymous(start_of(0), bytes + BATCH_BYTES, ProtFlags::empty(), flags)? as usize;
        let at = room + (target.wrapping_sub(room) & (BATCH_BYTES - 1));
        let mut all = Aside { left: room..room + bytes + BATCH_BYTES };
        mmap(start_of(at), bytes, rights, MapFlags::PRIVATE | MapFlags::FIXED, file, offset)?;
        if at > room {
            munmap(start_of(room), at - room)?;
        }
        all.left.start = at;
        if at + bytes < all.left.end {
            munmap(start_of(at + bytes), all.left.end - at - bytes)?;
        }
        all.left.end = at + bytes;
        Ok(all)
    }
}

/// Reads pages into the page table.
///
/// # Errors
/// `FAULT` where reading would be a SIGBUS.
pub fn populate(start: usize, bytes: usize) -> rustix::io::Result<()> {
    // SAFETY: changes no contents.
    unsafe { madvise(start_of(start), bytes, Advice::LinuxPopulateRead) }
}

/// What one batch has come to.
#[derive(Default)]
struct Batch {
    shared: u64,
    copied: u64,
    busy: u64,
    freeze_ns: u64,
    compare_ns: u64,
    remap_ns: u64,
}

/// Maps an extent of the store over the pages that it holds.
///
/// # Errors
/// What the system says; the pages then have their old contents, whether they are shared or not.
pub fn replace(
    site: &Site<'_>,
    extent: &Extent,
    held: &Held,
    counts: &mut Statistics,
) -> rustix::io::Result<()> {
    if extent.at as usize + extent.pages > held.pages as usize {
        return Err(Errno::RANGE);
    }
    let mut clock = Clock::start();
    let target = site.start + extent.first * PAGE_BYTES;
    let mut aside = map_aside(extent, held, target)?;
    populate(aside.left.start, extent.bytes())?;
    counts.mappings += 1;
    counts.map_ns += clock.lap();
    fault::point("client.mapped");
    let end = target + extent.bytes();
    let mut at = target;
    while at < end {
        let next = ((at / BATCH_BYTES + 1) * BATCH_BYTES).min(end);
        let first = (at - site.start) / PAGE_BYTES;
        let pages = &site.pages[first..first + (next - at) / PAGE_BYTES];
        let mut batch = Batch::default();
        let waiting = SignalsWait::new();
        let alone = interpose::hold();
        // SAFETY: `aside` begins with the store's pages for this batch; the site's owner says that its pages may be
        // replaced.
        let done = unsafe { replace_batch(site, &(at..next), pages, &mut aside, &mut batch) };
        drop(alone);
        drop(waiting);
        counts.merged_pages += batch.shared;
        counts.busy_pages += batch.busy;
        counts.freeze_ns += batch.freeze_ns;
        counts.compare_ns += batch.compare_ns;
        counts.remap_ns += batch.remap_ns;
        done?;
        at = next;
    }
    Ok(())
}

/// One batch, from freeze to wake.
///
/// # Safety
/// `aside.left` begins with a private mapping of what shall be at `batch`. Nothing outside the frozen section may depend
/// on the mapping at `batch` being the one that it was.
unsafe fn replace_batch(
    site: &Site<'_>,
    batch: &Range<usize>,
    pages: &[Page],
    aside: &mut Aside,
    counts: &mut Batch,
) -> rustix::io::Result<()> {
    let mut clock = Clock::start();
    let from = aside.left.start;
    match site.freeze(batch) {
        // Another thread has put other memory there since.
        Err(Errno::NOENT) => {
            site.thaw(batch);
            counts.busy += pages.len() as u64;
            aside.left.start += batch.len();
            // SAFETY: the piece just passed over, ours.
            return unsafe { munmap(start_of(from), batch.len()) };
        }
        result => result?,
    }
    fault::point("client.frozen");
    counts.freeze_ns = clock.lap();
    for (i, page) in pages.iter().enumerate() {
        let (old, new) = (batch.start + i * PAGE_BYTES, from + i * PAGE_BYTES);
        let is_shared = matches!(page, Page::Stored { .. });
        // SAFETY: both are whole mapped pages, of which nobody writes the first and nobody knows the second. The C
        // library's memcmp and memcpy touch nothing else.
        unsafe {
            if is_shared && libc::memcmp(start_of(old), start_of(new), PAGE_BYTES) == 0 {
                counts.shared += 1;
                continue;
            }
            libc::memcpy(start_of(new), start_of(old), PAGE_BYTES);
        }
        if is_shared {
            counts.busy += 1;
        }
        counts.copied += 1;
    }
    counts.compare_ns = clock.lap();
    if counts.shared == 0 {
        site.thaw(batch);
        aside.left.start += batch.len();
        // SAFETY: the piece just passed over, ours.
        unsafe { munmap(start_of(from), batch.len())? };
        return Ok(());
    }
    // SAFETY: moves the piece over the batch's pages, which the caller allows; contents are the same.
    let moved = unsafe { move_into_place(from, batch, site.protection) };
    if moved.is_ok() {
        aside.left.start += batch.len();
        fault::point("client.remapped");
        site.wake(batch);
    } else {
        counts.busy = 0;
        counts.shared = 0;
        site.thaw(batch);
        site.wake(batch);
    }
    counts.remap_ns = clock.lap();
    moved
}

/// # Safety
/// `from` is a mapping of our own with the contents that `batch` has.
unsafe fn move_into_place(from: usize, batch: &Range<usize>, rights: ProtFlags) -> rustix::io::Result<()> {
    let bytes = batch.len();
    // SAFETY: as the function's.
    unsafe {
        if rights != ProtFlags::READ | ProtFlags::WRITE {
            let rights = MprotectFlags::from_bits_retain(rights.bits());
            mprotect(start_of(from), bytes, rights)?;
        }
        let moved = mremap_fixed(start_of(from), bytes, bytes, MremapFlags::MAYMOVE, start_of(batch.start));
        let Err(errno) = moved else { return Ok(()) };
        // The kernel unmaps the target before it moves anything. If it gave up between the two, the contents are in
        // what should have been moved.
        if madvise(start_of(batch.start), bytes, Advice::Normal) == Err(Errno::NOMEM) {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            let room = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(start_of(batch.start), bytes, room, flags)?;
            libc::memcpy(start_of(batch.start), start_of(from), bytes);
            mprotect(start_of(batch.start), bytes, MprotectFlags::from_bits_retain(rights.bits()))?;
        }
        Err(errno)
    }
}

/// Gives pages that are all zero back, in anonymous memory: reading them gives zeros as before.
pub fn drop_zeros(site: &Site<'_>, run: Range<usize>, counts: &mut Statistics) -> rustix::io::Result<()> {
    static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
    let all = site.start + run.start * PAGE_BYTES..site.start + run.end * PAGE_BYTES;
    let mut clock = Clock::start();
    for start in all.clone().step_by(BATCH_BYTES) {
        let batch = start..(start + BATCH_BYTES).min(all.end);
        let waiting = SignalsWait::new();
        let alone = interpose::hold();
        match site.freeze(&batch) {
            // Another thread has put other memory there since.
            Err(Errno::NOENT) => {
                site.thaw(&batch);
                counts.busy_pages += (batch.len() / PAGE_BYTES) as u64;
                continue;
            }
            result => result?,
        }
        let mut still = batch.start;
        let mut dropped = 0;
        let mut result = Ok(());
        // Runs of pages that are still zero.
        for page in batch.clone().step_by(PAGE_BYTES).chain([batch.end]) {
            // SAFETY: a mapped page that nobody writes.
            let is_zero = page < batch.end
                && unsafe { libc::memcmp(start_of(page), ZEROS.as_ptr().cast(), PAGE_BYTES) } == 0;
            if is_zero {
                continue;
            }
            if still < page && result.is_ok() {
                // SAFETY: anonymous pages of zeros become anonymous pages of zeros.
                result = unsafe { madvise(start_of(still), page - still, Advice::LinuxDontNeed) };
                dropped += (page - still) / PAGE_BYTES;
            }
            still = page + PAGE_BYTES;
        }
        site.thaw(&batch);
        drop(alone);
        drop(waiting);
        counts.busy_pages += (batch.len() / PAGE_BYTES - dropped) as u64;
        counts.zero_pages += dropped as u64;
        result?;
    }
    counts.remap_ns += clock.lap();
    Ok(())
}

/// Gives a run of pages anonymous copies of its own.
pub fn make_private(site: &Site<'_>, range: Range<usize>) -> rustix::io::Result<()> {
    for start in range.clone().step_by(BATCH_BYTES) {
        let batch = start..(start + BATCH_BYTES).min(range.end);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: wherever there is room.
        let copy = unsafe { mmap_anonymous(start_of(0), batch.len(), rights, MapFlags::PRIVATE)? } as usize;
        let mut aside = Aside { left: copy..copy + batch.len() };
        let waiting = SignalsWait::new();
        let alone = interpose::hold();
        site.freeze(&batch)?;
        // SAFETY: from frozen pages to a fresh mapping of our own, which then takes their place.
        let moved = unsafe {
            libc::memcpy(start_of(copy), start_of(batch.start), batch.len());
            move_into_place(copy, &batch, site.protection)
        };
        if moved.is_ok() {
            aside.left.start = aside.left.end;
            site.wake(&batch);
        } else {
            site.thaw(&batch);
        }
        drop(alone);
        drop(waiting);
        moved?;
    }
    Ok(())
}
