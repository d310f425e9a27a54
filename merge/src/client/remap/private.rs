//! Pages that leave: zeros are dropped, and shared pages become private again.

use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use super::site::{BlockedSignals, Site, Verdict, make_exclusive};
use super::{Aside, BATCH_BYTES, move_into_place, pointer, populate};
use crate::base::page::PAGE_BYTES;
use crate::client::interpose;
use crate::client::move_aside::PageSet;
use crate::client::statistics::{Clock, Statistics};

/// Drops pages that are all zero, in anonymous memory: reading them gives zeros as before.
pub fn drop_zeros(site: &Site<'_>, run: Range<usize>, counts: &mut Statistics) -> rustix::io::Result<()> {
    let all = site.start + run.start * PAGE_BYTES..site.start + run.end * PAGE_BYTES;
    let mut clock = Clock::start();
    let mut at = all.start;
    while at < all.end {
        let batch = at..((at / BATCH_BYTES + 1) * BATCH_BYTES).min(all.end);
        let mut dropped = drop_zeros_of(site, &batch);
        if matches!(dropped, Ok((_, true))) {
            site.end_and_register(&batch)?;
            make_exclusive(&batch);
            let more = drop_zeros_of(site, &batch);
            dropped = dropped.and_then(|(before, _)| more.map(|(now, _)| (before.max(now), false)));
        }
        site.end(&batch);
        let (dropped, _) = dropped?;
        counts.busy_pages += (batch.len() / PAGE_BYTES - dropped) as u64;
        counts.zero_pages += dropped as u64;
        at = batch.end;
    }
    counts.remap_ns += clock.lap();
    Ok(())
}

/// One batch: how many pages are dropped, and whether a device may write to one that is not. Then the batch
/// is as before.
fn drop_zeros_of(site: &Site<'_>, batch: &Range<usize>) -> rustix::io::Result<(usize, bool)> {
    static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
    let _signals = BlockedSignals::new();
    let _interposed = interpose::lock();
    match site.freeze(batch) {
        // Another thread has put other memory there since.
        Err(Errno::NOENT) => {
            site.thaw(batch);
            return Ok((0, false));
        }
        result => result?,
    }
    let elsewhere = site.mapped_elsewhere(batch);
    let (mut dropped, mut is_busy, mut result) = (0, false, Ok(()));
    let mut still = batch.start;
    // SAFETY: a mapped page that no thread writes.
    let is_zero = |at: usize| unsafe { libc::memcmp(pointer(at), ZEROS.as_ptr().cast(), PAGE_BYTES) } == 0;
    // Runs of pages that are still zero.
    for page in batch.clone().step_by(PAGE_BYTES).chain([batch.end]) {
        if page < batch.end && is_zero(page) {
            continue;
        }
        if still < page && result.is_ok() {
            let piece = still..page;
            let verdict = site.exclude_devices(&piece, &elsewhere);
            // Again: until now a device may have written to it.
            let is_still = |verdict: &Verdict| {
                let mut others = piece.clone().step_by(PAGE_BYTES).filter(|&at| !elsewhere.contains(at));
                others.all(|at| is_zero(site.contents(at, verdict)))
            };
            match verdict {
                Verdict::Busy => is_busy = true,
                Verdict::Aside if !is_still(&verdict) => site.put_back(&piece),
                Verdict::Unpinned if !is_still(&verdict) => {}
                verdict => {
                    // SAFETY: anonymous pages of zeros become anonymous pages of zeros.
                    result = unsafe { madvise(pointer(still), piece.len(), Advice::LinuxDontNeed) };
                    if let Verdict::Aside = verdict {
                        site.free_aside(&piece);
                    }
                    dropped += piece.len() / PAGE_BYTES;
                }
            }
        }
        still = page + PAGE_BYTES;
    }
    site.thaw(batch);
    result.map(|()| (dropped, is_busy))
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
        if let Verdict::Busy = site.exclude_devices(&batch, &PageSet::EMPTY) {
            drop(interposed);
            drop(signals);
            site.end(&batch);
            // Its own pages stay, and it gets the others by writing.
            make_exclusive(&batch);
            continue;
        }
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
