//! The engine: takes a range through the store, chunk by chunk (UPM §IV-C, Fig. 3). The page table shows
//! which pages were advised before, and a table by address the pages that stayed private (the reversed table
//! of §V-B).

mod admission;
mod chunk;
mod refusals;
mod upload;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use mappings::Area;

use self::admission::is_movable;
use self::refusals::{cannot_hold, check_devices, check_properties, place};
use crate::base::error::{Error, While};
use crate::base::fault;
use crate::base::page::{PAGE_BYTES, PageHash};
use crate::base::protocol::Report;
use crate::base::segment;
use crate::client::address_space;
use crate::client::connection::Connection;
use crate::client::excluded_ranges::ExcludedRanges;
use crate::client::flags::Flags;
use crate::client::freeze::Freezer;
use crate::client::interpose;
use crate::client::interpose::advised_ranges::Noted;
use crate::client::move_aside::Room;
use crate::client::page_map::{Entry, PageMap};
use crate::client::plan::{self, Page};
use crate::client::remap::{self, Devices, Site};
use crate::client::scratch::Scratch;
use crate::client::statistics::Statistics;

/// Pages handled at a time: as many as one segment holds.
const CHUNK_PAGES: usize = segment::MAX_PAGES;
/// Chunks end here, so that batches of whole page tables fit into them.
const CHUNK_ALIGNMENT: usize = 2 << 20;
/// Pages hashed before the index is searched for them; by then their lines are in the cache.
const HASHES_AHEAD: usize = 64;
/// Segments that are not mapped any more are detached at least so often, while there are calls.
const DETACH_INTERVAL: Duration = Duration::from_secs(1);

/// The kind of memory of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Anonymous.
    Anonymous,
    /// Mapped from the store by an earlier call.
    Store,
    /// Mapped from a store that has ended or has dropped the segment: today's store may not have these pages.
    Former,
    /// A private mapping of some file.
    File,
}

/// A process's engine.
pub struct Engine {
    connection: Connection,
    freezer: Option<Freezer>,
    page_map: Option<PageMap>,
    /// When unused segments were last detached, and how many segments were left.
    last_detach: (Instant, usize),
    /// The tags of pages that stayed private, by address.
    private: HashMap<usize, u64>,
    /// The hash of a page of zeros.
    zero: PageHash,
    /// Mappings that this process may still make.
    mapping_budget: i64,
    /// Stacks, and what lies at their ends.
    excluded: ExcludedRanges,
    /// Whether this call still waits for other clients' uploads.
    may_wait_for_others: bool,
    /// Mappings of segments: those counted last and those made since.
    mappings: u64,
}

struct Work {
    entries: Scratch<Entry>,
    hashes: Scratch<PageHash>,
    pages: Scratch<Page>,
    /// Pages of this chunk that are to be uploaded, by hash: contents that occur twice in a chunk are
    /// uploaded once.
    uploaded: Scratch<u32>,
    /// Where pages are moved that are to be replaced.
    room: Option<Room>,
}

impl Engine {
    /// Connects to the store.
    pub fn new() -> Result<Engine, Error> {
        let connection = Connection::open()?;
        let zero = connection.secret.hash(&[0; PAGE_BYTES]);
        Ok(Engine {
            connection,
            freezer: None,
            page_map: None,
            last_detach: (Instant::now(), 0),
            private: HashMap::new(),
            zero,
            mapping_budget: 0,
            excluded: ExcludedRanges::default(),
            may_wait_for_others: true,
            mappings: 0,
        })
    }

    /// Adapts the engine in a forked child: the mappings stay shared, and the child gets a connection and
    /// descriptors of its own on demand. Those of the parent act on the parent's memory.
    pub fn has_forked(&mut self) {
        self.connection.disconnect();
        self.freezer = None;
        self.page_map = None;
    }

    /// Merges ranges, all by one call: the queries that the engine makes once per call are most of the cost
    /// of a small range.
    pub fn advise(
        &mut self,
        ranges: &[Range<usize>],
        flags: Flags,
        counts: &mut Statistics,
    ) -> Result<(), Error> {
        self.excluded.refresh();
        let mut areas = self.areas(ranges, flags)?;
        check_properties(&self.unchecked(&areas))?;
        while self.interpose_anonymous(&areas)? {
            // Other threads have now finished the calls that they had begun on this memory, which may have
            // changed its mappings.
            interpose::active_calls::wait_for_earlier();
            areas = self.areas(ranges, flags)?;
        }
        if !self.connection.is_alive() {
            self.reconnect()?;
        }
        if !flags.quiet && areas.iter().any(|area| self.kind(area) != Kind::File || area.writable) {
            self.open_freezer(flags)?;
        }
        if !self.page_map.as_ref().is_some_and(PageMap::is_there) {
            self.page_map = Some(PageMap::open()?);
        }
        let room = if flags.quiet { None } else { self.room()? };
        if !flags.quiet {
            check_devices(
                areas.iter().filter(|area| {
                    self.kind(area) == Kind::Anonymous && (room.is_none() || !is_movable(area))
                }),
            )?;
        }
        self.count_mappings()?;
        self.may_wait_for_others = true;
        let mut work = Work {
            entries: Scratch::new(CHUNK_PAGES).while_doing("working memory")?,
            hashes: Scratch::new(CHUNK_PAGES).while_doing("working memory")?,
            pages: Scratch::new(CHUNK_PAGES).while_doing("working memory")?,
            uploaded: Scratch::new(2 * CHUNK_PAGES).while_doing("working memory")?,
            room,
        };
        let mut full = None;
        for area in &areas {
            self.advise_area(area, flags, &mut work, counts, &mut full)?;
        }
        let (when, left) = self.last_detach;
        let replaced = areas.iter().any(|area| matches!(self.kind(area), Kind::Store | Kind::Former));
        if replaced || self.connection.segments.len() > 2 * left + 8 || when.elapsed() > DETACH_INTERVAL {
            self.detach_unused_segments()?;
        }
        self.report(counts);
        fault::point("client.done");
        full.map_or(Ok(()), Err)
    }

    /// Reports to the store what the calls have done. If that fails, the next call reconnects.
    fn report(&mut self, counts: &Statistics) {
        let passed_by = counts.unchanged_pages + counts.zero_pages;
        let report = Report {
            looked_up_pages: counts.pages.saturating_sub(passed_by),
            found_pages: counts.merged_pages,
            mappings: self.mappings,
        };
        let _ = self.connection.report(report);
    }

    /// Makes MADV_DONTNEED, mremap and realloc keep anonymous semantics on these areas. True if some of them
    /// were not in the table before.
    fn interpose_anonymous(&self, areas: &[Area]) -> Result<bool, Error> {
        let mut is_new = false;
        for area in areas {
            let noted = match self.kind(area) {
                Kind::Anonymous => {
                    interpose::install()?;
                    interpose::advised_ranges::note(&area.range)
                }
                // After MADV_DONTNEED it reads from its file again.
                Kind::File if !interpose::advised_ranges::forget(&area.range) => Noted::TableFull,
                Kind::File | Kind::Store | Kind::Former => Noted::Already,
            };
            is_new |= noted == Noted::Added;
            if noted == Noted::TableFull {
                let line = format!("{}: too many separate regions are advised", place(&area.range));
                return Err(Error::new(libc::ENOMEM, line));
            }
        }
        Ok(is_new)
    }

    /// Gives a range private copies.
    pub fn unadvise(&mut self, range: Range<usize>, counts: &mut Statistics) -> Result<(), Error> {
        let areas = address_space::areas(&range)?;
        let ours: Vec<_> =
            areas.iter().filter(|area| matches!(self.kind(area), Kind::Store | Kind::Former)).collect();
        // The caller promised nothing for this call: the engine holds writers off as well as it can.
        let best = Flags { no_system_calls: true, quiet: false };
        match if ours.is_empty() { Ok(()) } else { self.open_freezer(best) } {
            Err(error) if error.errno == libc::EPERM && address_space::threads() == 1 => {}
            result => result?,
        }
        for area in ours {
            let writers = self.freezer.as_ref().map(|freezer| freezer.register(&area.range)).transpose();
            let writers = writers.map_err(|errno| cannot_hold(area, errno))?;
            let site = Site {
                start: area.range.start,
                pages: &[],
                protection: address_space::protection(area),
                writers: writers.as_ref(),
                devices: Devices::ByDescriptors,
            };
            remap::make_private(&site, area.range.clone()).while_doing(place(&area.range))?;
            counts.unadvised_pages += (area.range.len() / PAGE_BYTES) as u64;
        }
        self.private.retain(|address, _| !range.contains(address));
        self.detach_unused_segments()?;
        self.report(counts);
        Ok(())
    }

    /// Closes segments that are not mapped any more, so that the store can free them.
    fn detach_unused_segments(&mut self) -> Result<(), Error> {
        let all = address_space::all()?;
        let is_of_store = |area: &&Area| matches!(self.kind(area), Kind::Store | Kind::Former);
        self.mappings = all.iter().filter(is_of_store).count() as u64;
        let used: HashSet<_> = all.iter().filter_map(|area| area.file).collect();
        self.connection.detach_except(&used);
        self.last_detach = (Instant::now(), self.connection.segments.len());
        Ok(())
    }

    fn reconnect(&mut self) -> Result<(), Error> {
        // Opened before the old one is given up: while no store answers, the engine keeps its state.
        let mut fresh = Connection::open()?;
        std::mem::swap(&mut fresh, &mut self.connection);
        self.connection.inherit(fresh);
        self.zero = self.connection.secret.hash(&[0; PAGE_BYTES]);
        Ok(())
    }

    fn open_freezer(&mut self, flags: Flags) -> Result<(), Error> {
        let suffices = self
            .freezer
            .as_ref()
            .is_some_and(|f| f.is_there() && (f.holds_system_calls || flags.no_system_calls));
        if !suffices {
            self.freezer = Some(Freezer::open(!flags.no_system_calls)?);
        }
        Ok(())
    }

    fn kind(&self, area: &Area) -> Kind {
        match area.file {
            None => Kind::Anonymous,
            Some(file) if self.connection.files.contains(&file) => Kind::Store,
            Some(file) if self.connection.former_files.contains(&file) => Kind::Former,
            // The store has a snapshot's file as a segment: what is unchanged is shared already.
            Some(_) if mappings::is_of_snapshot(area.name.as_bytes()) => Kind::Store,
            Some(_) => Kind::File,
        }
    }

    fn count_mappings(&mut self) -> Result<(), Error> {
        // Counting all mappings takes a while, and the process makes its own, too.
        if self.mapping_budget < 4096 {
            let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
            let most: i64 = most.trim().parse().unwrap_or(65530);
            // The other quarter is the program's.
            self.mapping_budget = most / 4 * 3 - address_space::all()?.len() as i64;
        }
        Ok(())
    }

    fn advise_area(
        &mut self,
        area: &Area,
        flags: Flags,
        work: &mut Work,
        counts: &mut Statistics,
        full: &mut Option<Error>,
    ) -> Result<(), Error> {
        let freezer = self.freezer.take();
        let result = (|| {
            let must_hold = !flags.quiet && (area.writable || self.kind(area) != Kind::File);
            let writers = match &freezer {
                Some(freezer) if must_hold => {
                    Some(freezer.register(&area.range).map_err(|errno| cannot_hold(area, errno))?)
                }
                _ => None,
            };
            let mut start = area.range.start;
            while start < area.range.end {
                let is_small = area.range.len() < CHUNK_PAGES * PAGE_BYTES;
                let end = if is_small || start.is_multiple_of(CHUNK_ALIGNMENT) {
                    start + CHUNK_PAGES * PAGE_BYTES
                } else {
                    // The next chunk begins at a huge page, here and in its segment.
                    start.next_multiple_of(CHUNK_ALIGNMENT)
                };
                let end = end.min(area.range.end);
                let count = (end - start) / PAGE_BYTES;
                let inserted_before = counts.inserted_pages;
                self.look_up(area, start, count, work, counts)?;
                self.upload(start, count, work, counts, full)?;
                let room = usize::try_from(self.mapping_budget).unwrap_or(0) / 64;
                counts.refused_pages +=
                    plan::economise(&mut work.pages[..count], plan::max_extents(count).min(room)) as u64;
                let site = Site {
                    start,
                    pages: &work.pages[..count],
                    protection: address_space::protection(area),
                    writers: writers.as_ref(),
                    devices: self.devices(area, work.room.as_ref(), &work.entries[..count]),
                };
                self.put_in_place(&site, counts, full)?;
                // An uploaded page has been merged with no other yet.
                let inserted = counts.inserted_pages - inserted_before;
                counts.merged_pages = counts.merged_pages.saturating_sub(inserted);
                counts.private_pages += self.remember(start, &work.pages[..count], &work.hashes[..count])?;
                start = end;
            }
            Ok(())
        })();
        self.freezer = freezer;
        result
    }
}
