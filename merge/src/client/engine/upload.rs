//! What the store does not have yet: which of several programs gives it, into a segment of its own, and how the others wait for it.

use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

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

/// New pages for which it is worth asking whether somebody else is about to give them.
const FEWEST_CLAIMED: usize = 128;
/// So many are spoken for by one, in the mean.
const PAGES_SPOKEN_FOR: u64 = 16;
/// How long somebody else may take to give a segment, and how long until the first look and the last before it is asked again
/// who is about to give.
const PATIENCE: Duration = Duration::from_millis(300);
const FIRST_GLANCE: Duration = Duration::from_micros(500);
const LAST_GLANCE: Duration = Duration::from_millis(4);

impl Engine {
    /// Gives the store what it does not have, and looks up where that is.
    pub(super) fn give(
        &mut self,
        start: usize,
        count: usize,
        work: &mut Work,
        counts: &mut Statistics,
        full: &mut Option<Error>,
    ) -> Result<(), Error> {
        let pages = &mut work.pages[..count];
        if !pages.contains(&Page::Given) {
            return Ok(());
        }
        let mut clock = Clock::start();
        if full.is_none() {
            self.claim(pages, &work.hashes)?;
            self.offer(start, pages, &work.hashes, &mut work.given, counts, full)?;
            if self.wait_for_others(pages, &work.hashes)? {
                self.offer(start, pages, &work.hashes, &mut work.given, counts, full)?;
            }
        }
        for (page, &hash) in pages.iter_mut().zip(&work.hashes[..count]) {
            if *page == Page::Given {
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

    /// Of several programs that have the same new pages at the same moment one gives them. What is another's becomes
    /// `Awaited`. Only some pages are asked about, and speak for those that follow them: which ones their contents say, so that
    /// it is the same ones wherever they lie.
    fn claim(&mut self, pages: &mut [Page], hashes: &[PageHash]) -> Result<(), Error> {
        let given = pages.iter().filter(|&&page| page == Page::Given).count();
        // For a few it costs more to ask than to give them twice.
        if given < FEWEST_CLAIMED || !self.is_patient {
            return Ok(());
        }
        for (group, is_ours) in self.claimed(plan::groups(pages, Page::Given, speaks(hashes)), hashes)? {
            if !is_ours {
                pages[group.pages].fill(Page::Awaited);
            }
        }
        Ok(())
    }

    /// Waits until others have given what they claimed. What they have not becomes `Given`; whether there is any.
    fn wait_for_others(&mut self, pages: &mut [Page], hashes: &[PageHash]) -> Result<bool, Error> {
        let end = Instant::now() + PATIENCE;
        let mut glance = FIRST_GLANCE;
        while let Some(first) = pages.iter().position(|&page| page == Page::Awaited) {
            std::thread::sleep(glance);
            self.connection.refresh()?;
            let is_late = Instant::now() >= end;
            // One look is enough to see that nothing has come: what was claimed at once is given at once.
            let has_come = matches!(self.connection.index.find(hashes[first]), Some(Location::Stored { .. }));
            if !has_come && !is_late && glance < LAST_GLANCE {
                glance *= 2;
                continue;
            }
            glance = FIRST_GLANCE;
            for i in first..pages.len() {
                if pages[i] == Page::Awaited
                    && let Some(Location::Stored { segment, page }) = self.connection.index.find(hashes[i])
                    && self.connection.attach(segment)?
                {
                    pages[i] = Page::Stored { segment, page };
                }
            }
            if is_late {
                // Stopped in the midst of it: one that comes late is not waited for again in this call.
                self.is_patient = false;
                pages.iter_mut().filter(|page| **page == Page::Awaited).for_each(|page| *page = Page::Given);
                break;
            }
            // What was written meanwhile, was not given, or whose giver has ended, is claimed by nobody any more.
            for (group, is_ours) in
                self.claimed(plan::groups(pages, Page::Awaited, speaks(hashes)), hashes)?
            {
                if is_ours {
                    pages[group.pages].fill(Page::Given);
                }
            }
        }
        Ok(pages.contains(&Page::Given))
    }

    /// Which groups are this process's to give.
    fn claimed(
        &mut self,
        groups: Vec<plan::Group>,
        hashes: &[PageHash],
    ) -> Result<Vec<(plan::Group, bool)>, Error> {
        let asked: Vec<PageHash> = groups.iter().map(|group| hashes[group.speaker]).collect();
        Ok(groups.into_iter().zip(self.connection.claim(&asked)?).collect())
    }

    fn offer(
        &mut self,
        start: usize,
        pages: &mut [Page],
        hashes: &[PageHash],
        given: &mut Scratch<u32>,
        counts: &mut Statistics,
        full: &mut Option<Error>,
    ) -> Result<(), Error> {
        if full.is_some() || !pages.contains(&Page::Given) {
            return Ok(());
        }
        match self.write_segment(start, pages, hashes, given)? {
            (Offered::Taken, written) => counts.inserted_pages += written as u64,
            (Offered::Full(line), _) => *full = Some(Error::new(libc::ENOSPC, line)),
        }
        self.connection.refresh()?;
        for (page, &hash) in pages.iter_mut().zip(hashes) {
            if *page == Page::Given
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
        given: &mut Scratch<u32>,
    ) -> Result<(Offered, usize), Error> {
        given.fill(0);
        let mask = given.len() - 1;
        let mut is_first = |i: usize| {
            let mut slot = hashes[i].place as usize & mask;
            while given[slot] != 0 {
                if hashes[given[slot] as usize - 1] == hashes[i] {
                    return false;
                }
                slot = (slot + 1) & mask;
            }
            given[slot] = i as u32 + 1;
            true
        };
        let most = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if most.is_some_and(|most| most < (pages.len() * PAGE_BYTES) as u64) {
            let line = "the limit of file sizes (ulimit -f) is too low for the memory files of new pages: 16 MiB will do";
            return Err(Error::new(libc::EFBIG, line));
        }
        let file = segment::create().while_doing("a memory file for new pages")?;
        let mut runs: Vec<Range<usize>> = Vec::new();
        for i in (0..pages.len()).filter(|&i| pages[i] == Page::Given) {
            if is_first(i) {
                match runs.last_mut() {
                    Some(run) if run.end == i => run.end = i + 1,
                    _ => runs.push(i..i + 1),
                }
            }
        }
        if let [whole] = &runs[..]
            && (start + whole.start * PAGE_BYTES).is_multiple_of(segment::HUGE_BYTES)
        {
            // Whole huge pages, at the places where they are in the caller's memory.
            segment::make_huge(&file, whole.len() * PAGE_BYTES);
        }
        let mut written = 0;
        for run in &runs {
            write(&file, start, run, &mut written)?;
        }
        fault::point("client.written");
        segment::seal(&file).while_doing("sealing new pages")?;
        fault::point("client.sealed");
        let pages = written / PAGE_BYTES;
        Ok((self.connection.offer(file.as_fd(), pages as u32)?, pages))
    }
}

/// Whether a page speaks for those that follow it.
fn speaks(hashes: &[PageHash]) -> impl Fn(usize) -> bool + '_ {
    |i| hashes[i].place.is_multiple_of(PAGES_SPOKEN_FOR)
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
        // SAFETY: readable pages of the caller's; the kernel copies them, whoever writes them meanwhile.
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
