//! One trust domain's pages: its segments, its index, its secret.

mod accept;

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::base::error::{Error, While};
use crate::base::fault;
use crate::base::index::{Location, MIN_LINES, Writer};
use crate::base::page::{PAGE_BYTES, PageHash, SECRET_BYTES, Secret};
use crate::base::protocol::Refusal;
use crate::base::segment::{self, MOST_OFFERED_PAGES, Use};
use crate::daemon::descriptor_store::{DescriptorStore, SavedStore, StoreRecord};
use crate::daemon::domain_metrics::DomainMetrics;
use crate::daemon::packed_segment::PackedSegment;
use crate::daemon::page_budget::{Budget, Copied};
use crate::daemon::trust_domain::TrustDomain;
use crate::daemon::turn_away::out_of_files;
use crate::daemon::upload_claims::Claims;

struct Segment {
    /// The daemon's only descriptor of it.
    file: OwnedFd,
    pages: Vec<PageHash>,
    room: u32,
    /// The client that uploaded it, if it is known.
    uploader: Option<u64>,
    /// Whether the daemon has copied its pages.
    is_copied: bool,
}

/// The limits of a store.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Pages.
    pub pages: usize,
    /// Segments: each is an open file of the daemon.
    pub segments: usize,
}

/// The result of an accepted offer.
pub struct Accepted {
    /// Pages whose contents were new.
    pub new_pages: u32,
    /// The segment that holds them, if there are any: its number, a file for the client, its capacity in
    /// pages.
    pub at: Option<(u32, OwnedFd, u32)>,
}

/// Why the store refused, and one line of explanation.
pub type Refused = (Refusal, String);

/// A domain's store.
pub struct PageStore {
    descriptors: Arc<DescriptorStore>,
    budget: Arc<Budget>,
    copied: Copied,
    claims: Claims,
    has_warned: bool,
    identity: u64,
    secret: Secret,
    index: Writer,
    segments: HashMap<u32, Segment>,
    next_segment: u32,
    packed: Option<(u32, PackedSegment)>,
    /// Pages that stay in clients' private memory, by client.
    elsewhere: HashMap<u64, Vec<PageHash>>,
    private_pages: usize,
    max_pages: usize,
    max_segments: usize,
    pages: usize,
    buffer: Vec<u8>,
}

impl PageStore {
    /// An empty store with these limits.
    pub fn new(
        domain: TrustDomain,
        limits: Limits,
        descriptors: Arc<DescriptorStore>,
        budget: Arc<Budget>,
    ) -> Result<PageStore, Error> {
        let mut secret = [0; SECRET_BYTES];
        let mut identity = [0; 8];
        for part in [&mut secret[..], &mut identity[..]] {
            let mut filled = 0;
            while filled < part.len() {
                filled += rustix::rand::getrandom(&mut part[filled..], rustix::rand::GetRandomFlags::empty())
                    .while_doing("random bytes for a store's secret")?;
            }
        }
        let record = StoreRecord { domain, identity: u64::from_le_bytes(identity), secret };
        descriptors.keep_record(&record);
        PageStore::of(&record, limits, descriptors, budget)
    }

    fn of(
        record: &StoreRecord,
        limits: Limits,
        descriptors: Arc<DescriptorStore>,
        budget: Arc<Budget>,
    ) -> Result<PageStore, Error> {
        Ok(PageStore {
            descriptors,
            budget,
            copied: Copied::default(),
            claims: Claims::default(),
            has_warned: false,
            identity: record.identity,
            secret: Secret::new(record.secret),
            index: Writer::new(MIN_LINES).while_doing("memory for a store's index")?,
            segments: HashMap::new(),
            next_segment: 1,
            packed: None,
            elsewhere: HashMap::new(),
            private_pages: 0,
            max_pages: limits.pages,
            max_segments: limits.segments,
            pages: 0,
            buffer: Vec::new(),
        })
    }

    /// A store that systemd kept while no daemon ran. Its pages are hashed again.
    pub fn restore(
        (record, files): SavedStore,
        limits: Limits,
        descriptors: Arc<DescriptorStore>,
        budget: Arc<Budget>,
    ) -> Result<PageStore, Error> {
        let mut store = PageStore::of(&record, limits, descriptors, budget)?;
        for (number, file) in files {
            store.next_segment = store.next_segment.max(number.saturating_add(1));
            if let Err((_, line)) = store.take_back(number, file) {
                tracing::warn!("segment {number} of {} is lost: {line}", record.domain);
                store.descriptors.drop_segment(record.identity, number); // else systemd keeps it for ever
            }
        }
        Ok(store)
    }

    fn take_back(&mut self, number: u32, file: OwnedFd) -> Result<(), Refused> {
        if !segment::is_unchanging(&file) {
            return Err((Refusal::Wrong, "it is not sealed".to_string()));
        }
        let about = rustix::fs::fstat(&file).map_err(cannot_add)?;
        let room = (about.st_size as usize / PAGE_BYTES).min(MOST_OFFERED_PAGES);
        // A packed segment that was not full ends where its memory ends. No process can write to it any more.
        let filled = (about.st_blocks as usize / (PAGE_BYTES / 512)).min(room);
        let hashes = self.hash_all(&file, filled)?;
        self.reserve_index(filled)?;
        if !self.budget.reserve(filled) {
            return Err(self.all_full());
        }
        for (page, &hash) in hashes.iter().enumerate() {
            if !self.has(hash) {
                self.index.put(hash, Location::Stored { segment: number, page: page as u32 });
            }
        }
        self.pages += filled;
        self.segments.insert(
            number,
            Segment { file, pages: hashes, room: room as u32, uploader: None, is_copied: false },
        );
        Ok(())
    }

    /// Fills in the store's metrics.
    pub fn count(&self, metrics: &mut DomainMetrics) {
        metrics.store_pages = self.pages as u64;
        metrics.store_limit_pages = self.max_pages as u64;
        let copied = self.segments.values().filter(|segment| segment.is_copied);
        metrics.copied_pages = copied.map(|segment| segment.pages.len() as u64).sum();
        metrics.segments = self.segments.len() as u64;
        metrics.index_entries = self.index.entries() as u64;
        metrics.index_bytes = self.index.bytes() as u64;
        metrics.private_pages = self.private_pages as u64;
    }

    /// Pages that each client has uploaded in segments of its own, so that its cgroup is charged for them.
    pub fn charged(&self) -> HashMap<u64, u64> {
        let mut charged = HashMap::new();
        for segment in self.segments.values() {
            if let Some(uploader) = segment.uploader {
                *charged.entry(uploader).or_default() += segment.pages.len() as u64;
            }
        }
        charged
    }

    /// Distinguishes it from other stores.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Hashes its pages.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The index, for clients.
    pub fn index(&self) -> BorrowedFd<'_> {
        self.index.file()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// A segment's file for a client, and its capacity in pages; None if there is no such segment.
    pub fn attach(&self, segment: u32) -> Option<rustix::io::Result<(OwnedFd, u32)>> {
        let segment = self.segments.get(&segment)?;
        Some(segment::reopen_read_only(&segment.file).map(|file| (file, segment.room)))
    }

    /// Notes pages that stay in a client's private memory.
    pub fn note_private(&mut self, client: u64, pages: &[PageHash]) -> Result<(), Refused> {
        // Pages beyond that are merely not found; the store's own pages have priority.
        let room = (self.max_pages / 4).saturating_sub(self.private_pages);
        let pages = &pages[..pages.len().min(room)];
        self.reserve_index(pages.len())?;
        let list = self.elsewhere.entry(client).or_default();
        for &page in pages {
            if self.index.find(page).is_none() && self.index.put(page, Location::Elsewhere) {
                list.push(page);
                self.private_pages += 1;
            }
        }
        Ok(())
    }

    /// Which of these pages a client is to upload; the store has the others, or another client is about to
    /// upload them.
    pub fn claim(&mut self, client: u64, pages: &[PageHash]) -> Vec<u8> {
        let PageStore { claims, index, .. } = self;
        claims.claim(client, pages, |page| matches!(index.find(page), Some(Location::Stored { .. })))
    }

    fn all_full(&self) -> Refused {
        let (most, held) = self.budget.pages();
        let line = format!(
            "the page stores of all domains are full: they hold {} of {} MiB",
            held / 256,
            most / 256
        );
        (Refusal::Full, line)
    }

    /// Removes the claims and private pages of a client.
    pub fn client_disconnected(&mut self, client: u64) {
        self.claims.release(client);

        for page in self.elsewhere.remove(&client).unwrap_or_default() {
            self.index.remove(page, Location::Elsewhere);
            self.private_pages -= 1;
        }
    }

    /// Drops the segments that no process has open or mapped; returns how many pages they held.
    pub fn sweep(&mut self) -> usize {
        let mut dead = Vec::new();
        for (&number, segment) in &self.segments {
            match segment::usage(&segment.file) {
                Use::Used => {}
                Use::Unused => dead.push(number),
                Use::Unknown if self.has_warned => {}
                Use::Unknown => {
                    self.has_warned = true;
                    tracing::error!(
                        "cannot tell which segments are in use, so none is freed: CAP_LEASE is missing"
                    );
                }
            }
        }
        let before = self.pages;
        for number in dead {
            fault::point("store.dropping");
            if self.packed.as_ref().is_some_and(|(open, _)| *open == number) {
                self.packed = None;
            }
            let Some(segment) = self.segments.remove(&number) else { continue };
            self.descriptors.drop_segment(self.identity, number);
            self.pages -= segment.pages.len();
            self.budget.release(segment.pages.len());
            if segment.is_copied {
                self.copied.free(&self.budget, number, segment.pages.len());
            }
            for (page, hash) in segment.pages.into_iter().enumerate() {
                self.index.remove(hash, Location::Stored { segment: number, page: page as u32 });
            }
        }
        before - self.pages
    }

    fn has(&self, hash: PageHash) -> bool {
        matches!(self.index.find(hash), Some(Location::Stored { .. }))
    }

    /// Makes the index large enough for so many more entries.
    fn reserve_index(&mut self, more: usize) -> Result<(), Refused> {
        if !self.index.is_full_with(more) {
            return Ok(());
        }
        let entries = self.index.entries() + more;
        let lines = Writer::lines_for(entries + entries / 4);
        let mut found: Vec<(PageHash, Location)> = Vec::with_capacity(entries);
        for (&number, segment) in &self.segments {
            for (page, &hash) in segment.pages.iter().enumerate() {
                let at = Location::Stored { segment: number, page: page as u32 };
                if self.index.find(hash) == Some(at) {
                    found.push((hash, at));
                }
            }
        }
        let elsewhere = self.elsewhere.values().flatten().map(|&hash| (hash, Location::Elsewhere));
        found.extend(elsewhere.filter(|&(hash, at)| self.index.find(hash) == Some(at)));
        if lines <= self.index.lines() {
            // Removed entries have filled it. A client that keeps former indexes mapped keeps at most twice
            // the memory of the last.
            self.index.clear();
        } else {
            let larger = Writer::new(lines).map_err(|errno| {
                let full = || (Refusal::Full, "the page store has no memory for its index".to_owned());
                out_of_files(errno).unwrap_or_else(full)
            })?;
            std::mem::replace(&mut self.index, larger).supersede();
        }
        for (hash, at) in found {
            self.index.put(hash, at);
        }
        fault::point("store.grown");
        Ok(())
    }
}

impl Drop for PageStore {
    fn drop(&mut self) {
        for segment in self.segments.values() {
            self.budget.release(segment.pages.len());
            if segment.is_copied {
                Copied::release(&self.budget, segment.pages.len());
            }
        }
        if self.segments.is_empty() {
            self.descriptors.drop_record(self.identity);
        }
    }
}

/// The refusal for an error of the store's own files.
pub fn cannot_add(errno: rustix::io::Errno) -> Refused {
    out_of_files(errno).unwrap_or_else(|| {
        let why = std::io::Error::from(errno);
        (Refusal::Full, format!("the page store cannot take another segment: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restores_sealed_files_only() {
        let limits = Limits { pages: 16, segments: 4 };
        let record = StoreRecord { domain: TrustDomain::User(0), identity: 7, secret: [1; SECRET_BYTES] };
        let file = |sealed: bool| {
            let file = segment::create().unwrap();
            rustix::io::write(&file, &[5; PAGE_BYTES]).unwrap();
            if sealed {
                segment::seal(&file).unwrap();
            }
            file
        };
        let folder = std::env::temp_dir().join(format!("mayfly-restored-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let manager = std::os::unix::net::UnixDatagram::bind(folder.join("notify")).unwrap();
        let store = PageStore::restore(
            (record, [(1, file(true)), (2, file(false))].into()),
            limits,
            Arc::new(DescriptorStore::at(&folder.join("notify"))),
            Arc::new(Budget::new(16, 16)),
        );
        let store = store.unwrap();
        assert_eq!(store.segments.keys().collect::<Vec<_>>(), [&1]);
        manager.set_nonblocking(true).unwrap();
        let mut message = [0; 256];
        let bytes = manager.recv(&mut message).unwrap();
        assert_eq!(&message[..bytes], b"FDSTOREREMOVE=1\nFDNAME=mayfly-segment-0000000000000007-2");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
