//! One chunk through the store: the state of its pages, and the mapping of extents.

use std::ops::Range;

use mappings::Area;

use super::refusals::{cannot_replace, place};
use super::{Engine, HASHES_AHEAD, Kind, Work};
use crate::base::error::{Error, While};
use crate::base::fault;
use crate::base::index::Location;
use crate::base::page::{PAGE_BYTES, PageHash};
use crate::client::connection::AttachedSegment;
use crate::client::page_map::Entry;
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
        let read =
            self.page_map.as_ref().ok_or(rustix::io::Errno::BADF).and_then(|map| map.read(start, entries));
        read.while_doing("/proc/self/pagemap")?;
        exclude_unreadable(start, entries);
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
        for i in 0..count {
            let unchanged = is_candidate(&work.entries[i]) && work.pages[i] == Page::Same;
            counts.unchanged_pages += unchanged as u64;
            if let Page::Stored { segment, .. } = work.pages[i]
                && !self.connection.segments.contains_key(&segment)
                && !self.connection.attach(segment)?
            {
                // Dropped since: no client had it mapped any more.
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
fn exclude_unreadable(start: usize, entries: &mut [Entry]) {
    entries.iter_mut().filter(|entry| entry.is_guard()).for_each(|entry| *entry = Entry::EXCLUDED);
    let mut waiting: Vec<_> = entry_runs(entries, Entry::is_not_present).collect();
    // What is in swap is read here, and else would be by its hash.
    while let Some(piece) = waiting.pop() {
        if remap::populate(start + piece.start * PAGE_BYTES, piece.len() * PAGE_BYTES).is_ok() {
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
