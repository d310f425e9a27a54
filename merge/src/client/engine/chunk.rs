//! One chunk through the store: the state of its pages, and the mapping of extents.

use std::ops::Range;

use mappings::Area;
use mappings::page_map::PATH;
use rustix::io::Errno;

use super::refusals::{cannot_replace, place};
use super::{Engine, HASHES_AHEAD, Kind, Work};
use crate::base::error::{Error, While};
use crate::base::fault;
use crate::base::index::Location;
use crate::base::page::{PAGE_BYTES, PageHash};
use crate::client::connection::AttachedSegment;
use crate::client::page_map::{Entry, PageMap};
use crate::client::plan::{self, Page};
use crate::client::remap::{self, Site};
use crate::client::statistics::{Clock, Statistics};

impl Engine {
    /// Determines the state of every page of a chunk.
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
        let map = self.page_map.as_ref().ok_or(Errno::BADF).while_doing(PATH)?;
        map.read(start, entries).while_doing(PATH)?;
        exclude_unreadable(start, entries, map);
        if kind == Kind::File {
            // Reading past the end of a file that has been truncated since would raise SIGBUS.
            for run in entry_runs(entries, |entry| !entry.is_excluded()) {
                remap::populate(start + run.start * PAGE_BYTES, run.len() * PAGE_BYTES).map_err(|_| {
                    let line = format!("{}: beyond the end of {}", place(&area.range), area.name);
                    Error::new(libc::ENOTSUP, line)
                })?;
            }
        }
        self.excluded.refresh_if_stale();
        for range in self.excluded.ranges() {
            let (from, to) = (range.start.max(start), range.end.min(start + count * PAGE_BYTES));
            if from < to {
                entries[(from - start) / PAGE_BYTES..(to - start) / PAGE_BYTES].fill(Entry::EXCLUDED);
            }
        }
        counts.unchanged_pages += exclude_shared_by_fork(start, entries, kind);
        let is_candidate = |entry: &Entry| match kind {
            _ if entry.is_excluded() => false,
            Kind::Anonymous => entry.is_there(),
            Kind::Store => entry.is_own(),
            Kind::File | Kind::Former => true,
        };
        counts.known_ns += clock.lap();
        for from in (0..count).step_by(HASHES_AHEAD) {
            let to = (from + HASHES_AHEAD).min(count);
            for i in from..to {
                if is_candidate(&work.entries[i]) {
                    // SAFETY: a readable page of the caller's. If another thread writes it meanwhile, the
                    // hash matches no page, or the comparison finds the difference.
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
                        _ if work.entries[i].is_excluded() => {}
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
        let mut last = None;
        for i in 0..count {
            let unchanged = is_candidate(&work.entries[i]) && work.pages[i] == Page::Same;
            counts.unchanged_pages += unchanged as u64;
            if let Page::Stored { segment, .. } = work.pages[i]
                && last.replace(segment) != Some(segment)
                && !self.connection.segments.contains_key(&segment)
                && !self.connection.attach(segment)?
            {
                // Dropped since: no client had it mapped any more.
                work.pages[i] = Page::New;
                last = None;
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
        let is_unchanged = || self.private.get(&address) == Some(&hash.tag);
        match self.connection.index.find(hash) {
            Some(Location::Stored { segment, page }) => Page::Stored { segment, page },
            Some(Location::Elsewhere) if is_unchanged() => Page::Same,
            // Another client has it privately: now that two have it, this one uploads it.
            Some(Location::Elsewhere) => Page::Upload,
            None => Page::New,
        }
    }

    pub(super) fn put_in_place(
        &mut self,
        site: &Site<'_>,
        counts: &mut Statistics,
        full: &mut Option<Error>,
    ) -> Result<(), Error> {
        for extent in plan::extents(site.pages) {
            // An extent splits the mapping that it lies in.
            self.mapping_budget -= 2;
            let held: Option<&AttachedSegment> = self.connection.segments.get(&extent.segment);
            let (Some(held), true) = (held, self.mapping_budget > 0) else {
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
            remap::replace(site, &extent, held, counts)
                .map_err(|errno| cannot_replace(place_of(site, &extent), errno))?;
        }
        for run in plan::runs(site.pages, Page::Zero) {
            remap::drop_zeros(site, run, counts).while_doing("dropping pages of zeros")?;
        }
        Ok(())
    }

    /// Updates the reversed table, and reports to the store the pages that stay private. Returns how many
    /// those are.
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
                    self.private.insert(address, hashes[i].tag);
                    private.push(hashes[i]);
                }
                Page::Same => {}
                _ if self.private.is_empty() => {}
                _ => drop(self.private.remove(&address)),
            }
        }
        self.connection.report_private(&private)?;
        Ok(private.len() as u64)
    }
}

/// Excludes pages that cannot be read: a guard or a poisoned page is a marker in the page table, which the
/// page map shows as it shows pages in swap.
fn exclude_unreadable(start: usize, entries: &mut [Entry], map: &PageMap) {
    entries.iter_mut().filter(|entry| entry.is_guard()).for_each(|entry| *entry = Entry::EXCLUDED);
    let mut waiting: Vec<_> = entry_runs(entries, Entry::is_not_present).collect();
    // What is in swap is read here, and else would be by its hash.
    while let Some(piece) = waiting.pop() {
        let at = start + piece.start * PAGE_BYTES;
        if remap::populate(at, piece.len() * PAGE_BYTES).is_ok() {
            // Another process may have them in memory, too. If that cannot be read, they are its own.
            let _ = map.read(at, &mut entries[piece]);
            continue;
        }
        if piece.len() == 1 {
            entries[piece.start] = Entry::EXCLUDED;
            continue;
        }
        let middle = piece.start + piece.len() / 2;
        waiting.extend([piece.start..middle, middle..piece.end]);
    }
}

/// Excludes pages that a fork shares: one is the page of all processes that have it, and the store's would be
/// one more while another process keeps it. A later call takes a page that this process has alone by then,
/// because it has written it or the others have ended. Pages of zeros go at once: the kernel's takes no
/// memory. Returns how many are excluded.
fn exclude_shared_by_fork(start: usize, entries: &mut [Entry], kind: Kind) -> u64 {
    static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
    let mut excluded = 0;
    for (i, entry) in entries.iter_mut().enumerate().filter(|(_, entry)| entry.is_shared_by_fork()) {
        let page = (start + i * PAGE_BYTES) as *const libc::c_void;
        // SAFETY: a readable page of the caller's, and a page of ours. If another thread writes meanwhile,
        // the page is hashed, and compared while it is frozen.
        let is_zero = || unsafe { libc::memcmp(page, ZEROS.as_ptr().cast(), PAGE_BYTES) } == 0;
        if kind != Kind::Anonymous || !is_zero() {
            *entry = Entry::EXCLUDED;
            excluded += 1;
        }
    }
    excluded
}

/// The runs of entries that satisfy a condition.
fn entry_runs(entries: &[Entry], is: fn(Entry) -> bool) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + entries[at..].iter().position(|&entry| is(entry))?;
        at = entries[start..].iter().position(|&entry| !is(entry)).map_or(entries.len(), |end| start + end);
        Some(start..at)
    })
}

fn place_of(site: &Site<'_>, extent: &plan::Extent) -> String {
    let start = site.start + extent.first * PAGE_BYTES;
    place(&(start..start + extent.bytes()))
}
