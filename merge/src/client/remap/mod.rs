//! Replaces private pages by shared ones. An extent of the store is mapped aside and its page table filled.
//! Then, batch by batch, this thread holds writers off, compares the bytes, copies over what differs, and
//! moves the batch into place by one mremap (UPM §V-D, V-E). To hold writers off it moves the pages aside.
//! Where the kernel does not move all of them, it write-protects them first.
//!
//! While a batch is frozen this thread writes to nothing but its stack and the mapping aside: the frozen
//! pages may be the program's heap, its thread-local storage, or errno. Therefore it makes system calls
//! without the C library and blocks signals: a handler that writes to a frozen page would wait for ever.

mod private;
mod site;

use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect,
    mremap_fixed, munmap,
};

use crate::base::fault;
use crate::base::page::PAGE_BYTES;
use crate::client::connection::AttachedSegment;
use crate::client::freeze;
use crate::client::interpose;
use crate::client::move_aside::PageSet;
use crate::client::plan::{Extent, Page};
use crate::client::statistics::{Clock, Statistics};

pub use private::{drop_zeros, make_private};
use site::Verdict;
pub use site::{BlockedSignals, Devices, Site};

/// A batch ends where a page table ends, so that whole tables are moved.
const BATCH_BYTES: usize = freeze::MAX_BYTES;

fn pointer(address: usize) -> *mut libc::c_void {
    address as *mut libc::c_void
}

/// A mapping aside, whose front moves away piece by piece; dropping it unmaps the rest.
struct Aside {
    left: Range<usize>,
}

impl Aside {
    /// Unmaps the front.
    fn drop_front(&mut self, bytes: usize) -> rustix::io::Result<()> {
        let from = self.left.start;
        self.left.start += bytes;
        // SAFETY: ours, and no other code uses it.
        unsafe { munmap(pointer(from), bytes) }
    }
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
    let (mut at, mut surveyed) = (target, None::<(Range<usize>, PageSet)>);
    while at < end {
        let whole = at..((at / BATCH_BYTES + 1) * BATCH_BYTES).min(end);
        let survey = surveyed.as_ref().filter(|(range, _)| range.contains(&at)).map(|(_, busy)| busy);
        let (piece, is_busy) = match survey {
            Some(busy) => (busy.run(&whole), busy.contains(at)),
            None => (whole, false),
        };
        let outcome = if is_busy { Ok(Outcome::Busy) } else { replace_one(site, &piece, &mut aside, counts) };
        match outcome {
            Ok(Outcome::Done) => {}
            Ok(Outcome::Left) => site.end(&piece),
            Ok(Outcome::Busy) => {
                // The kernel refuses pages that a fork has shared, too: it moves them at the second attempt.
                if survey.is_none()
                    && let Some(busy) = site.survey(&piece)
                {
                    surveyed = Some((piece, busy));
                    continue;
                }
                counts.busy_pages +=
                    site.pages_of(&piece).iter().filter(|page| is_shared(page)).count() as u64;
                aside.drop_front(piece.len())?;
                site.end(&piece);
            }
            Err(errno) => {
                site.end(&(at..end));
                return Err(errno);
            }
        }
        at = piece.end;
    }
    Ok(())
}

/// The state of a piece after an attempt to replace it.
enum Outcome {
    /// The store's pages are there.
    Done,
    /// None of its pages is shared: it is as before.
    Left,
    /// A device may write to it: it is as before, and what is aside for it, too.
    Busy,
}

fn is_shared(page: &Page) -> bool {
    matches!(page, Page::Stored { .. })
}

fn replace_one(
    site: &Site<'_>,
    piece: &Range<usize>,
    aside: &mut Aside,
    counts: &mut Statistics,
) -> rustix::io::Result<Outcome> {
    let mut batch = Batch::default();
    let signals = BlockedSignals::new();
    let interposed = interpose::lock();
    // SAFETY: `aside` begins with the store's pages for this piece; the site's owner allows its pages to be
    // replaced.
    let done = unsafe { replace_batch(site, piece, site.pages_of(piece), aside, &mut batch) };
    drop(interposed);
    drop(signals);
    counts.merged_pages += batch.shared;
    counts.busy_pages += batch.busy;
    counts.freeze_ns += batch.freeze_ns;
    counts.compare_ns += batch.compare_ns;
    counts.remap_ns += batch.remap_ns;
    done
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
) -> rustix::io::Result<Outcome> {
    let mut clock = Clock::start();
    let from = aside.left.start;
    let held = match site.take_aside(batch) {
        Ok(false) => site.freeze(batch).map(|()| false),
        other => other,
    };
    let is_aside = match held {
        // Another thread has put other memory there since.
        Err(Errno::NOENT) => {
            site.thaw(batch);
            counts.busy += pages.len() as u64;
            return aside.drop_front(batch.len()).map(|()| Outcome::Left);
        }
        other => other?,
    };
    fault::point("client.frozen");
    counts.freeze_ns = clock.lap();
    let elsewhere = if is_aside { PageSet::EMPTY } else { site.mapped_elsewhere(batch) };
    let address = |i: usize| batch.start + i * PAGE_BYTES;
    let mut compare = |i: usize, old: usize| {
        let (new, is_shared) = (from + i * PAGE_BYTES, is_shared(&pages[i]));
        // SAFETY: both are whole mapped pages; no thread writes the first, and only this function uses the
        // second. The C library's memcmp and memcpy touch nothing else.
        unsafe {
            if is_shared && libc::memcmp(pointer(old), pointer(new), PAGE_BYTES) == 0 {
                counts.shared += 1;
                return;
            }
            libc::memcpy(pointer(new), pointer(old), PAGE_BYTES);
        }
        counts.busy += is_shared as u64;
        counts.copied += 1;
    };
    (0..pages.len()).filter(|&i| elsewhere.contains(address(i))).for_each(|i| compare(i, address(i)));
    // Before the others are compared: until then a device may have written to them.
    let verdict = if is_aside { Verdict::Aside } else { site.exclude_devices(batch, &elsewhere) };
    if let Verdict::Busy = verdict {
        (counts.busy, counts.shared) = (0, 0);
        return Ok(Outcome::Busy);
    }
    let is_aside = matches!(verdict, Verdict::Aside);
    (0..pages.len())
        .filter(|&i| !elsewhere.contains(address(i)))
        .for_each(|i| compare(i, site.contents(address(i), &verdict)));
    counts.compare_ns = clock.lap();
    if counts.shared == 0 {
        if is_aside {
            site.put_back(batch);
        }
        site.thaw(batch);
        return aside.drop_front(batch.len()).map(|()| Outcome::Left);
    }
    // SAFETY: moves the piece over the batch's pages, which the caller allows; contents are the same.
    let moved = unsafe { move_into_place(from, batch, site.protection) };
    if moved.is_ok() {
        aside.left.start += batch.len();
        fault::point("client.remapped");
        site.wake(batch);
        if is_aside {
            site.free_aside(batch);
        }
    } else {
        (counts.busy, counts.shared) = (0, 0);
        if is_aside {
            site.put_back(batch);
        }
        site.thaw(batch);
        site.wake(batch);
    }
    counts.remap_ns = clock.lap();
    moved.map(|()| Outcome::Done)
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
