//! Replaces private pages by shared ones. An extent of the store is mapped aside and its page table filled.
//! Then, batch by batch, this thread holds writers off, compares the bytes, copies over what differs, and
//! moves the batch into place by one mremap (UPM §V-D, V-E).
//!
//! While a batch is frozen this thread writes to nothing but its stack and the mapping aside: the frozen
//! pages may be the program's heap, its thread-local storage, or errno. Therefore it makes system calls
//! without the C library and blocks signals: a handler that writes to a frozen page would wait for ever.

use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect,
    mremap_fixed, munmap,
};

use crate::base::fault;
use crate::base::page::PAGE_BYTES;
use crate::client::connection::AttachedSegment;
use crate::client::freeze::{self, Registered};
use crate::client::interpose;
use crate::client::plan::{Extent, Page};
use crate::client::statistics::{Clock, Statistics};

/// A batch ends where a page table ends, so that whole tables are moved.
const BATCH_BYTES: usize = freeze::MAX_BYTES;
/// How often pages are touched, so that they are present and can be protected.
const FREEZE_ATTEMPTS: usize = 3;

fn pointer(address: usize) -> *mut libc::c_void {
    address as *mut libc::c_void
}

/// A run of pages to replace, and how writers are held off.
pub struct Site<'a> {
    /// Where the pages are.
    pub start: usize,
    /// Their states.
    pub pages: &'a [Page],
    /// The protection of the mapping.
    pub protection: ProtFlags,
    /// None if no thread writes.
    pub writers: Option<&'a Registered<'a>>,
}

impl Site<'_> {
    fn freeze(&self, piece: &Range<usize>) -> rustix::io::Result<()> {
        let Some(writers) = self.writers else { return Ok(()) };
        let mut result = writers.freeze(piece);
        for _ in 0..FREEZE_ATTEMPTS {
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

/// Signals stay blocked as long as this lives.
pub struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Blocks all signals.
    pub fn new() -> BlockedSignals {
        // SAFETY: both sets are initialised by the calls; this thread's mask only.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            BlockedSignals(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the mask from before `new`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// A mapping aside, whose front moves away piece by piece; dropping it unmaps the rest.
struct Aside {
    left: Range<usize>,
}

impl Drop for Aside {
    fn drop(&mut self) {
        if !self.left.is_empty() {
            // SAFETY: made by `map_aside` or `make_private`, and no other code uses it.
            let _ = unsafe { munmap(pointer(self.left.start), self.left.len()) };
        }
    }
}

/// Maps an extent aside, at the same offset within a page table as its target, so that whole page tables can
/// be moved.
fn map_aside(extent: &Extent, held: &AttachedSegment, target: usize) -> rustix::io::Result<Aside> {
    let (bytes, offset) = (extent.bytes(), extent.at as u64 * PAGE_BYTES as u64);
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let file = held.file.get()?;
    // SAFETY: the kernel chooses a free range; then inside that range, which is ours.
    unsafe {
        if bytes < BATCH_BYTES {
            let at = mmap(pointer(0), bytes, rights, MapFlags::PRIVATE, file, offset)? as usize;
            return Ok(Aside { left: at..at + bytes });
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let room = mmap_anonymous(pointer(0), bytes + BATCH_BYTES, ProtFlags::empty(), flags)? as usize;
        let at = room + (target.wrapping_sub(room) & (BATCH_BYTES - 1));
        let mut all = Aside { left: room..room + bytes + BATCH_BYTES };
        mmap(pointer(at), bytes, rights, MapFlags::PRIVATE | MapFlags::FIXED, file, offset)?;
        if at > room {
            munmap(pointer(room), at - room)?;
        }
        all.left.start = at;
        if at + bytes < all.left.end {
            munmap(pointer(at + bytes), all.left.end - at - bytes)?;
        }
        all.left.end = at + bytes;
        Ok(all)
    }
}

/// Reads pages into the page table.
///
/// # Errors
/// `FAULT` where reading would raise SIGBUS.
pub fn populate(start: usize, bytes: usize) -> rustix::io::Result<()> {
    // SAFETY: changes no contents.
    unsafe { madvise(pointer(start), bytes, Advice::LinuxPopulateRead) }
}

/// Counts and times of one batch.
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
/// The system's error; the pages then have their old contents, whether they are shared or not.
pub fn replace(
    site: &Site<'_>,
    extent: &Extent,
    held: &AttachedSegment,
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
        let signals = BlockedSignals::new();
        let interposed = interpose::lock();
        // SAFETY: `aside` begins with the store's pages for this batch; the site's owner allows its pages to
        // be replaced.
        let done = unsafe { replace_batch(site, &(at..next), pages, &mut aside, &mut batch) };
        drop(interposed);
        drop(signals);
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
/// `aside.left` begins with a private mapping of the pages for `batch`. Nothing outside the frozen section
/// may depend on the mapping at `batch` staying the same one.
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
            return unsafe { munmap(pointer(from), batch.len()) };
        }
        result => result?,
    }
    fault::point("client.frozen");
    counts.freeze_ns = clock.lap();
    for (i, page) in pages.iter().enumerate() {
        let (old, new) = (batch.start + i * PAGE_BYTES, from + i * PAGE_BYTES);
        let is_shared = matches!(page, Page::Stored { .. });
        // SAFETY: both are whole mapped pages; no thread writes the first, and only this function uses the
        // second. The C library's memcmp and memcpy touch nothing else.
        unsafe {
            if is_shared && libc::memcmp(pointer(old), pointer(new), PAGE_BYTES) == 0 {
                counts.shared += 1;
                continue;
            }
            libc::memcpy(pointer(new), pointer(old), PAGE_BYTES);
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
        unsafe { munmap(pointer(from), batch.len())? };
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
            mprotect(pointer(from), bytes, rights)?;
        }
        let moved = mremap_fixed(pointer(from), bytes, bytes, MremapFlags::MAYMOVE, pointer(batch.start));
        let Err(errno) = moved else { return Ok(()) };
        // The kernel unmaps the target before it moves anything. If it failed between the two, the contents
        // are in the mapping at `from`.
        if madvise(pointer(batch.start), bytes, Advice::Normal) == Err(Errno::NOMEM) {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            let room = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(pointer(batch.start), bytes, room, flags)?;
            libc::memcpy(pointer(batch.start), pointer(from), bytes);
            mprotect(pointer(batch.start), bytes, MprotectFlags::from_bits_retain(rights.bits()))?;
        }
        Err(errno)
    }
}

/// Drops pages that are all zero, in anonymous memory: reading them gives zeros as before.
pub fn drop_zeros(site: &Site<'_>, run: Range<usize>, counts: &mut Statistics) -> rustix::io::Result<()> {
    static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
    let all = site.start + run.start * PAGE_BYTES..site.start + run.end * PAGE_BYTES;
    let mut clock = Clock::start();
    for start in all.clone().step_by(BATCH_BYTES) {
        let batch = start..(start + BATCH_BYTES).min(all.end);
        let signals = BlockedSignals::new();
        let interposed = interpose::lock();
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
            // SAFETY: a mapped page that no thread writes.
            let is_zero = page < batch.end
                && unsafe { libc::memcmp(pointer(page), ZEROS.as_ptr().cast(), PAGE_BYTES) } == 0;
            if is_zero {
                continue;
            }
            if still < page && result.is_ok() {
                // SAFETY: anonymous pages of zeros become anonymous pages of zeros.
                result = unsafe { madvise(pointer(still), page - still, Advice::LinuxDontNeed) };
                dropped += (page - still) / PAGE_BYTES;
            }
            still = page + PAGE_BYTES;
        }
        site.thaw(&batch);
        drop(interposed);
        drop(signals);
        counts.busy_pages += (batch.len() / PAGE_BYTES - dropped) as u64;
        counts.zero_pages += dropped as u64;
        result?;
    }
    counts.remap_ns += clock.lap();
    Ok(())
}

/// Gives a run of pages private anonymous copies. Guards among them stay as they are.
pub fn make_private(site: &Site<'_>, range: Range<usize>) -> rustix::io::Result<()> {
    let whole = range.clone().step_by(BATCH_BYTES);
    let mut waiting: Vec<_> = whole.map(|start| start..(start + BATCH_BYTES).min(range.end)).collect();
    while let Some(batch) = waiting.pop() {
        match populate(batch.start, batch.len()) {
            Ok(()) => {}
            Err(Errno::FAULT | Errno::HWPOISON) if batch.len() > PAGE_BYTES => {
                let middle = batch.start + batch.len() / PAGE_BYTES / 2 * PAGE_BYTES;
                waiting.extend([batch.start..middle, middle..batch.end]);
                continue;
            }
            Err(Errno::FAULT | Errno::HWPOISON) => continue,
            Err(errno) => return Err(errno),
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free range.
        let copy = unsafe { mmap_anonymous(pointer(0), batch.len(), rights, MapFlags::PRIVATE)? } as usize;
        let mut aside = Aside { left: copy..copy + batch.len() };
        let signals = BlockedSignals::new();
        let interposed = interpose::lock();
        site.freeze(&batch)?;
        // SAFETY: from frozen pages to a fresh mapping of our own, which then takes their place.
        let moved = unsafe {
            libc::memcpy(pointer(copy), pointer(batch.start), batch.len());
            move_into_place(copy, &batch, site.protection)
        };
        if moved.is_ok() {
            aside.left.start = aside.left.end;
            site.wake(&batch);
        } else {
            site.thaw(&batch);
        }
        drop(interposed);
        drop(signals);
        moved?;
    }
    Ok(())
}
