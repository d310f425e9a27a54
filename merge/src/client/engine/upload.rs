//! Uploads pages that the store does not have yet. Of several clients with the same new pages, the store
//! lets one upload them, in a segment of its own; the others wait for it.

use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{Engine, Work};
use crate::base::error::{Error, While};
use crate::base::fault;
use crate::base::index::Location;
use crate::base::page::{PAGE_BYTES, PageHash};
use crate::base::segment;
use crate::client::connection::Offered;
use crate::client::plan::{self, Page};
use crate::client::scratch::Scratch;
use crate::client::statistics::{Clock, Statistics};

/// From so many new pages on it is worth asking whether another client is about to upload them.
const MIN_CLAIMED_PAGES: usize = 128;
/// Pages for which one claim decides, on average.
const PAGES_PER_CLAIM: u64 = 16;
/// How long another client may take to upload a segment. Meanwhile this client polls the index, at intervals
/// from the first to the last of these, and then asks again which pages are its own to upload.
const MAX_UPLOAD_WAIT: Duration = Duration::from_millis(300);
const FIRST_POLL: Duration = Duration::from_micros(500);
const LAST_POLL: Duration = Duration::from_millis(4);

impl Engine {
    /// Uploads the pages that the store does not have, and finds their locations.
    pub(super) fn upload(
        &mut self,
        start: usize,
        count: usize,
        work: &mut Work,
        counts: &mut Statistics,
        full: &mut Option<Error>,
    ) -> Result<(), Error> {
        let pages = &mut work.pages[..count];
        if !pages.contains(&Page::Upload) {
            return Ok(());
        }
        let mut clock = Clock::start();
        if full.is_none() {
            self.claim(pages, &work.hashes)?;
            self.offer(start, pages, &work.hashes, &mut work.uploaded, counts, full)?;
            if self.wait_for_others(pages, &work.hashes)? {
                self.offer(start, pages, &work.hashes, &mut work.uploaded, counts, full)?;
            }
        }
        for (page, &hash) in pages.iter_mut().zip(&work.hashes[..count]) {
            if *page == Page::Upload {
                *page = match self.connection.index.find(hash) {
                    Some(Location::Stored { segment, page }) if self.connection.attach(segment)? => {
                        Page::Stored { segment, page }
                    }
                    // Written between hash and copy.
                    _ if full.is_none() => {
                        counts.busy_pages += 1;
                        Page::Left
                    }
                    _ => {
                        counts.refused_pages += 1;
                        Page::Left
                    }
                };
            }
        }
        counts.insert_ns += clock.lap();
        Ok(())
    }

    /// Of several clients that have the same new pages at the same moment, one uploads them; a page that
    /// another client uploads becomes `AwaitUpload`. Only representative pages are claimed, and decide for
    /// those that follow them. The contents select them, so that they are the same pages at any address.
    fn claim(&mut self, pages: &mut [Page], hashes: &[PageHash]) -> Result<(), Error> {
        let given = pages.iter().filter(|&&page| page == Page::Upload).count();
        // For a few pages a request costs more than a second upload.
        if given < MIN_CLAIMED_PAGES || !self.may_wait_for_others {
            return Ok(());
        }
        for (group, is_ours) in
            self.claimed(plan::groups(pages, Page::Upload, is_representative(hashes)), hashes)?
        {
            if !is_ours {
                pages[group.pages].fill(Page::AwaitUpload);
            }
        }
        Ok(())
    }

    /// Waits until other clients have uploaded the pages that they claimed. Pages that they have not uploaded
    /// become `Upload`; returns whether there are any.
    fn wait_for_others(&mut self, pages: &mut [Page], hashes: &[PageHash]) -> Result<bool, Error> {
        let end = Instant::now() + MAX_UPLOAD_WAIT;
        let mut poll_interval = FIRST_POLL;
        while let Some(first) = pages.iter().position(|&page| page == Page::AwaitUpload) {
            std::thread::sleep(poll_interval);
            self.connection.refresh()?;
            let is_late = Instant::now() >= end;
            // One look is enough to see that nothing has arrived: pages claimed together are uploaded
            // together.
            let has_arrived =
                matches!(self.connection.index.find(hashes[first]), Some(Location::Stored { .. }));
            if !has_arrived && !is_late && poll_interval < LAST_POLL {
                poll_interval *= 2;
                continue;
            }
            poll_interval = FIRST_POLL;
            for i in first..pages.len() {
                if pages[i] == Page::AwaitUpload
                    && let Some(Location::Stored { segment, page }) = self.connection.index.find(hashes[i])
                    && self.connection.attach(segment)?
                {
                    pages[i] = Page::Stored { segment, page };
                }
            }
            if is_late {
                // The other client was stopped midway: this call waits for no more uploads.
                self.may_wait_for_others = false;
                pages
                    .iter_mut()
                    .filter(|page| **page == Page::AwaitUpload)
                    .for_each(|page| *page = Page::Upload);
                break;
            }
            // A page that its uploader wrote meanwhile or did not upload, or whose uploader has ended, is no
            // longer claimed: this client may claim it.
            for (group, is_ours) in
                self.claimed(plan::groups(pages, Page::AwaitUpload, is_representative(hashes)), hashes)?
            {
                if is_ours {
                    pages[group.pages].fill(Page::Upload);
                }
            }
        }
        Ok(pages.contains(&Page::Upload))
    }

    /// Which groups this process is to upload.
    fn claimed(
        &mut self,
        groups: Vec<plan::Group>,
        hashes: &[PageHash],
    ) -> Result<Vec<(plan::Group, bool)>, Error> {
        let asked: Vec<PageHash> = groups.iter().map(|group| hashes[group.representative]).collect();
        Ok(groups.into_iter().zip(self.connection.claim(&asked)?).collect())
    }

    fn offer(
        &mut self,
        start: usize,
        pages: &mut [Page],
        hashes: &[PageHash],
        uploaded: &mut Scratch<u32>,
        counts: &mut Statistics,
        full: &mut Option<Error>,
    ) -> Result<(), Error> {
        if full.is_some() || !pages.contains(&Page::Upload) {
            return Ok(());
        }
        match self.write_segment(start, pages, hashes, uploaded)? {
            (Offered::Accepted, written) => counts.inserted_pages += written as u64,
            (Offered::Full(line), _) => *full = Some(Error::new(libc::ENOSPC, line)),
        }
        self.connection.refresh()?;
        for (page, &hash) in pages.iter_mut().zip(hashes) {
            if *page == Page::Upload
                && let Some(Location::Stored { segment, page: at }) = self.connection.index.find(hash)
                && self.connection.attach(segment)?
            {
                *page = Page::Stored { segment, page: at };
            }
        }
        Ok(())
    }

    fn write_segment(
        &mut self,
        start: usize,
        pages: &[Page],
        hashes: &[PageHash],
        uploaded: &mut Scratch<u32>,
    ) -> Result<(Offered, usize), Error> {
        uploaded.fill(0);
        let mask = uploaded.len() - 1;
        let mut is_first = |i: usize| {
            let mut slot = hashes[i].place as usize & mask;
            while uploaded[slot] != 0 {
                if hashes[uploaded[slot] as usize - 1] == hashes[i] {
                    return false;
                }
                slot = (slot + 1) & mask;
            }
            uploaded[slot] = i as u32 + 1;
            true
        };
        let most = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if most.is_some_and(|most| most < (pages.len() * PAGE_BYTES) as u64) {
            let line = "the limit of file sizes (ulimit -f) is too low for the memory files of new pages: 16 MiB will do";
            return Err(Error::new(libc::EFBIG, line));
        }
        let mut runs: Vec<Range<usize>> = Vec::new();
        for i in (0..pages.len()).filter(|&i| pages[i] == Page::Upload) {
            if is_first(i) {
                match runs.last_mut() {
                    Some(run) if run.end == i => run.end = i + 1,
                    _ => runs.push(i..i + 1),
                }
            }
        }
        let mut is_huge =
            runs.len() == 1 && (start + runs[0].start * PAGE_BYTES).is_multiple_of(segment::HUGE_BYTES);
        let (file, written) = loop {
            let file = segment::create().while_doing("a memory file for new pages")?;
            if is_huge {
                // Whole huge pages, at the same offsets as in the caller's memory.
                segment::make_huge(&file, runs[0].len() * PAGE_BYTES);
            }
            let mut written = 0;
            for run in &runs {
                write(&file, start, run, &mut written)?;
            }
            fault::point("client.written");
            match segment::seal(&file) {
                // A child that another thread made by clone has a mapping by which it could still write.
                // Without huge pages the file is never mapped.
                Err(Errno::BUSY) if is_huge => is_huge = false,
                other => break (other.while_doing("sealing new pages").map(|()| file)?, written),
            }
        };
        fault::point("client.sealed");
        let pages = written / PAGE_BYTES;
        Ok((self.connection.offer(file.as_fd(), pages as u32)?, pages))
    }
}

/// Whether a page's claim decides for those that follow it.
fn is_representative(hashes: &[PageHash]) -> impl Fn(usize) -> bool + '_ {
    |i| hashes[i].place.is_multiple_of(PAGES_PER_CLAIM)
}

/// Appends a run of the caller's pages to a new segment.
fn write(
    file: &std::os::fd::OwnedFd,
    start: usize,
    run: &Range<usize>,
    written: &mut usize,
) -> Result<(), Error> {
    let bytes = run.len() * PAGE_BYTES;
    let from = start + run.start * PAGE_BYTES;
    let mut done = 0;
    while done < bytes {
        // SAFETY: readable pages of the caller's; the kernel copies them, and other threads may write them
        // meanwhile.
        let piece = unsafe { std::slice::from_raw_parts((from + done) as *const u8, bytes - done) };
        match rustix::io::pwrite(file, piece, (*written + done) as u64) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) => return Err(Error::new(libc::EIO, "copying new pages: nothing was written")),
            other => done += other.while_doing("copying new pages")?,
        }
    }
    *written += bytes;
    Ok(())
}
