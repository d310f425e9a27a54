//! One chunk through the store: what is known of its pages, what the store gets, what is put in place.

use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::{Engine, HASHES_AHEAD, Kind, Work, place};
use crate::client::connection::{Held, Offered};
use crate::client::memory::{Area, Entry};
use crate::client::plan::{self, Page};
use crate::client::remap::{self, Site};
use crate::client::scratch::Scratch;
use crate::client::statistics::{Clock, Statistics};
use crate::error::{Error, While};
use crate::fault;
use crate::index::Location;
use crate::page::{PAGE_BYTES, PageHash};
use crate::segment;

/// New pages for which it is worth asking whether somebody else is about to give them.
const FEWEST_CLAIMED: usize = 128;
/// How long somebody else may take to give a segment, and how often to look.
const PATIENCE: Duration = Duration::from_millis(300);
const GLANCE: Duration = Duration::from_micros(500);
/// After so many it is asked again who is about to give.
const GLANCES: u32 = 6;

impl Engine {
    /// Finds out about every page of a chunk.
    pub(super) fn look_up(
        &mut self,
        area: &Area,
        start: usize,
        count: usize,
        work: &mut Work,
        counts: &mut Statistics,
    ) -> Result<(), Error> {
        let mut clock = Clock::start();
        let kind = self.kind(area);
        counts.pages += count as u64;
        self.connection.refresh()?;
        counts.search_ns += clock.lap();
        let entries = &mut work.entries[..count];
        let read =
            self.page_map.as_ref().ok_or(rustix::io::Errno::BADF).and_then(|map| map.read(start, entries));
        read.while_doing("/proc/self/pagemap")?;
        if kind == Kind::File {
            // Where the file has ended since it was mapped, reading would be a SIGBUS.
            remap::populate(start, count * PAGE_BYTES).map_err(|_| {
                let line = format!("{}: beyond the end of {}", place(&area.range), area.name);
                Error::new(libc::ENOTSUP, line)
            })?;
        }
        self.kept_out.look_again();
        for range in self.kept_out.ranges() {
            let (from, to) = (range.start.max(start), range.end.min(start + count * PAGE_BYTES));
            if from < to {
                entries[(from - start) / PAGE_BYTES..(to - start) / PAGE_BYTES].fill(Entry::KEPT_OUT);
            }
        }
        let is_candidate = |entry: &Entry| match kind {
            _ if entry.is_kept_out() => false,
            Kind::Anonymous => entry.is_there(),
            Kind::Store => entry.is_own(),
            Kind::File | Kind::Former => true,
        };
        counts.known_ns += clock.lap();
        for from in (0..count).step_by(HASHES_AHEAD) {
            let to = (from + HASHES_AHEAD).min(count);
            for i in from..to {
                if is_candidate(&work.entries[i]) {
                    // SAFETY: a readable page of the caller's. Another thread may write it meanwhile: then the hash is
                    // of no page, and the comparison tells.
                    let page = unsafe {
                        std::slice::from_raw_parts((start + i * PAGE_BYTES) as *const u8, PAGE_BYTES)
                    };
                    work.hashes[i] = self.connection.secret.hash(page);
                    self.connection.index.prefetch(work.hashes[i]);
                }
            }
            counts.hash_ns += clock.lap();
            for i in from..to {
                let page = if is_candidate(&work.entries[i]) {
                    self.classify(start + i * PAGE_BYTES, work.hashes[i], kind)
                } else {
                    match kind {
                        _ if work.entries[i].is_kept_out() => {}
                        Kind::Anonymous => counts.zero_pages += 1,
                        _ => counts.unchanged_pages += 1,
                    }
                    Page::Same
                };
                work.pages[i] = page;
            }
            counts.search_ns += clock.lap();
        }
        fault::point("client.hashed");
        for i in 0..count {
            let unchanged = is_candidate(&work.entries[i]) && work.pages[i] == Page::Same;
            counts.unchanged_pages += unchanged as u64;
            if let Page::Stored { segment, .. } = work.pages[i]
                && !self.connection.segments.contains_key(&segment)
                && !self.connection.attach(segment)?
            {
                // Dropped since: nobody has it any more.
                work.pages[i] = Page::New;
            }
        }
        plan::decide(&mut work.pages[..count], kind == Kind::Store);
        counts.search_ns += clock.lap();
        Ok(())
    }

    fn classify(&self, address: usize, hash: PageHash, kind: Kind) -> Page {
        if hash == self.zero && kind == Kind::Anonymous {
            return Page::Zero;
        }
        let is_kept_as_it_is = || self.kept.get(&address) == Some(&hash.tag);
        match self.connection.index.find(hash) {
            Some(Location::Stored { segment, page }) => Page::Stored { segment, page },
            Some(Location::Elsewhere) if is_kept_as_it_is() => Page::Same,
            // Somebody has it privately: now that there are two, it goes to the store.
            Some(Location::Elsewhere) => Page::Given,
            None => Page::New,
        }
    }

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
    /// `Awaited`.
    fn claim(&mut self, pages: &mut [Page], hashes: &[PageHash]) -> Result<(), Error> {
        let given: Vec<usize> = (0..pages.len()).filter(|&i| pages[i] == Page::Given).collect();
        // For a few it costs more to ask than to give them twice.
        if given.len() < FEWEST_CLAIMED || !self.is_patient {
            return Ok(());
        }
        let asked: Vec<PageHash> = given.iter().map(|&i| hashes[i]).collect();
        for (&i, is_ours) in given.iter().zip(self.connection.claim(&asked)?) {
            if !is_ours {
                pages[i] = Page::Awaited;
            }
        }
        Ok(())
    }

    /// Waits until others have given what they claimed. What they have not becomes `Given`; whether there is any.
    fn wait_for_others(&mut self, pages: &mut [Page], hashes: &[PageHash]) -> Result<bool, Error> {
        let end = Instant::now() + PATIENCE;
        for glance in 1u32.. {
            self.connection.refresh()?;
            let mut awaited = Vec::new();
            for i in (0..pages.len()).filter(|&i| pages[i] == Page::Awaited).collect::<Vec<_>>() {
                match self.connection.index.find(hashes[i]) {
                    Some(Location::Stored { segment, page }) if self.connection.attach(segment)? => {
                        pages[i] = Page::Stored { segment, page };
                    }
                    _ => awaited.push(i),
                }
            }
            if awaited.is_empty() {
                break;
            }
            if Instant::now() >= end {
                // Stopped in the midst of it: one that comes late is not waited for again in this call.
                self.is_patient = false;
                awaited.iter().for_each(|&i| pages[i] = Page::Given);
            } else if glance % GLANCES == 0 {
                // What was written meanwhile, was not given, or whose giver has ended, is claimed by nobody any more.
                let asked: Vec<PageHash> = awaited.iter().map(|&i| hashes[i]).collect();
                for (&i, is_ours) in awaited.iter().zip(self.connection.claim(&asked)?) {
                    if is_ours {
                        pages[i] = Page::Given;
                    }
                }
            } else {
                std::thread::sleep(GLANCE);
            }
        }
        Ok(pages.contains(&Page::Given))
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

    pub(super) fn put_in_place(
        &mut self,
        site: &Site<'_>,
        counts: &mut Statistics,
        full: &mut Option<Error>,
    ) -> Result<(), Error> {
        for extent in plan::extents(site.pages) {
            // An extent splits the mapping that it lies in.
            self.room_for_mappings -= 2;
            let held: Option<&Held> = self.connection.segments.get(&extent.segment);
            let (Some(held), true) = (held, self.room_for_mappings > 0) else {
                counts.refused_pages += extent.pages as u64;
                full.get_or_insert_with(|| {
                    Error::new(
                        libc::ENOMEM,
                        format!(
                            "{}: too many mappings to share every page (vm.max_map_count)",
                            place_of(site, &extent)
                        ),
                    )
                });
                continue;
            };
            self.mappings += 1;
            remap::replace(site, &extent, held, counts).map_err(|errno| {
                Error::system(format!("{}: mapping shared pages", place_of(site, &extent)), errno)
            })?;
        }
        for run in plan::runs(site.pages, Page::Zero) {
            remap::drop_zeros(site, run, counts).while_doing("dropping pages of zeros")?;
        }
        Ok(())
    }

    /// Keeps the reversed table right, and tells the store of what stays private.
    /// Returns how many those are.
    pub(super) fn remember(
        &mut self,
        start: usize,
        pages: &[Page],
        hashes: &[PageHash],
    ) -> Result<u64, Error> {
        let mut private = Vec::new();
        for (i, page) in pages.iter().enumerate() {
            let address = start + i * PAGE_BYTES;
            match page {
                Page::Kept => {
                    self.kept.insert(address, hashes[i].tag);
                    private.push(hashes[i]);
                }
                Page::Same => {}
                _ if self.kept.is_empty() => {}
                _ => drop(self.kept.remove(&address)),
            }
        }
        self.connection.tell_private(&private)?;
        Ok(private.len() as u64)
    }
}

fn place_of(site: &Site<'_>, extent: &plan::Extent) -> String {
    let start = site.start + extent.first * PAGE_BYTES;
    place(&(start..start + extent.bytes()))
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
