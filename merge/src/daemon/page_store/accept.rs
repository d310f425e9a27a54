//! Accepts a client's offer: checks the file, hashes it again, and then keeps it as it is or copies it.

use std::os::fd::OwnedFd;

use super::{Accepted, PageStore, Refused, Segment, cannot_add};
use crate::base::fault;
use crate::base::index::Location;
use crate::base::page::{PAGE_BYTES, PageHash};
use crate::base::protocol::Refusal;
use crate::base::segment::{self, Flaw, MAX_PAGES};
use crate::daemon::packed_segment::{self, PackedSegment};
use crate::daemon::page_budget::{Charge, Copied};
use crate::daemon::untrusted_fds::UntrustedFd;

/// Smaller offers are copied into a packed segment.
const PACK_BELOW: usize = 512;
/// Pages read and hashed at a time: as many as the second-level cache holds.
const PIECE_PAGES: usize = 64;

impl PageStore {
    /// Accepts a client's segment as far as its contents are new.
    pub fn offer(&mut self, client: u64, file: UntrustedFd, pages: usize) -> Result<Accepted, Refused> {
        self.claims.release(client);
        let checked = file.file().map_or(Err(Flaw::NotMemory), |file| segment::check(file, pages));
        checked.map_err(|flaw| {
            (Refusal::Wrong, format!("the offered file is not a sealed segment of {pages} pages: {flaw:?}"))
        })?;
        let file = file.into_memory().ok_or_else(|| cannot_add(rustix::io::Errno::BADF))?;
        let hashes = self.hash_all(&file, pages)?;
        fault::point("store.hashed");
        let new_pages = hashes.iter().filter(|hash| !self.has(**hash)).count();
        if new_pages == 0 {
            return Ok(Accepted { new_pages: 0, at: None });
        }
        // Small offers are copied, so that a model of many small tensors does not take many files; but only
        // up to a limit, since the daemon's cgroup pays.
        let is_small = pages < PACK_BELOW;
        let counted = if is_small { new_pages } else { pages };
        let has_room = self.segments.len() < self.max_segments / 2;
        let is_copied = (is_small || self.budget.charge == Charge::Store)
            && self.copied.reserve(&self.budget, client, counted, has_room);
        let more = if is_copied { counted } else { pages };
        let refused = if self.pages + more > self.max_pages {
            let (held, most) = (self.pages / 256, self.max_pages / 256);
            Some((Refusal::Full, format!("the page store is full: it holds {held} of {most} MiB")))
        } else if !self.budget.reserve(more) {
            Some(self.all_full())
        } else {
            None
        };
        if let Some(refused) = refused {
            if is_copied {
                Copied::release(&self.budget, counted);
            }
            return Err(refused);
        }
        let before = self.pages;
        let accepted = self.reserve_index(new_pages).and_then(|()| match (is_copied, is_small) {
            (true, true) => self.pack(&file, &hashes),
            (true, false) => {
                let copy = packed_segment::copy(&file, pages).map_err(cannot_add)?;
                self.keep(copy, hashes, None)
            }
            (false, _) => self.keep(file, hashes, Some(client)),
        });
        // Pages that occur twice were copied once.
        let added = self.pages - before;
        self.budget.release(more - added);
        match &accepted {
            Ok((segment, _)) if is_copied => {
                self.copied.record(&self.budget, client, *segment, added, counted - added);
            }
            Err(_) if is_copied => Copied::release(&self.budget, counted),
            _ => {}
        }
        let (segment, new_pages) = accepted?;
        fault::point("store.indexed");
        let opened = self.attach(segment).transpose().map_err(cannot_add)?;
        Ok(Accepted { new_pages, at: opened.map(|(file, room)| (segment, file, room)) })
    }

    /// Reads instead of mapping: a page that cannot be read is then an error, and not a signal.
    pub(super) fn hash_all(&mut self, file: &OwnedFd, pages: usize) -> Result<Vec<PageHash>, Refused> {
        let mut hashes = Vec::with_capacity(pages);
        while hashes.len() < pages {
            let piece = PIECE_PAGES.min(pages - hashes.len());
            let bytes = self.read(file, hashes.len(), piece)?;
            let secret = &self.secret;
            hashes.extend(self.buffer[..bytes].chunks_exact(PAGE_BYTES).map(|page| secret.hash(page)));
        }
        Ok(hashes)
    }

    fn read(&mut self, file: &OwnedFd, page: usize, pages: usize) -> Result<usize, Refused> {
        let bytes = pages * PAGE_BYTES;
        self.buffer.resize(PIECE_PAGES * PAGE_BYTES, 0);
        let mut filled = 0;
        while filled < bytes {
            let at = (page * PAGE_BYTES + filled) as u64;
            match rustix::io::pread(file, &mut self.buffer[filled..bytes], at) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(0) | Err(_) => return Err((Refusal::Wrong, "the offered segment cannot be read".into())),
                Ok(n) => filled += n,
            }
        }
        Ok(bytes)
    }

    /// Keeps a segment as it is: a client's, or a copy.
    fn keep(
        &mut self,
        file: OwnedFd,
        hashes: Vec<PageHash>,
        uploader: Option<u64>,
    ) -> Result<(u32, u32), Refused> {
        let file = segment::reopen_read_only(&file).map_err(cannot_add)?;
        let number = self.next_number()?;
        let mut new_pages = 0;
        for (page, &hash) in hashes.iter().enumerate() {
            if !self.has(hash) {
                let at = Location::Stored { segment: number, page: page as u32 };
                new_pages += self.index.put(hash, at) as u32;
            }
        }
        self.pages += hashes.len();
        let room = hashes.len() as u32;
        self.descriptors.keep_segment(self.identity, number, &file);
        let is_copied = uploader.is_none();
        self.segments.insert(number, Segment { file, pages: hashes, room, uploader, is_copied });
        Ok((number, new_pages))
    }

    /// Copies new pages into the open packed segment.
    fn pack(&mut self, file: &OwnedFd, hashes: &[PageHash]) -> Result<(u32, u32), Refused> {
        let number = self.open_packed(hashes.len())?;
        let mut new_pages = 0;
        for from in (0..hashes.len()).step_by(PIECE_PAGES) {
            let piece = PIECE_PAGES.min(hashes.len() - from);
            let bytes = self.read(file, from, piece)?;
            for (page, &hash) in self.buffer[..bytes].as_chunks::<PAGE_BYTES>().0.iter().zip(&hashes[from..])
            {
                let known = matches!(self.index.find(hash), Some(Location::Stored { .. }));
                let (Some((_, packed)), Some(segment)) = (&mut self.packed, self.segments.get_mut(&number))
                else {
                    continue;
                };
                if known {
                    continue;
                }
                let at = packed.add(page);
                segment.pages.push(hash);
                self.pages += 1;
                new_pages += self.index.put(hash, Location::Stored { segment: number, page: at }) as u32;
            }
        }
        Ok((number, new_pages))
    }

    /// The open packed segment, with room and memory for so many pages.
    fn open_packed(&mut self, pages: usize) -> Result<u32, Refused> {
        if self.packed.as_ref().is_some_and(|(_, packed)| packed.room() < pages)
            && let Some((_, full)) = self.packed.take()
        {
            // Clients can only read it even without the final seals, but another daemon would not accept it.
            if let Err(errno) = full.finish() {
                tracing::debug!("cannot seal a packed segment: {errno}");
            }
        }
        if self.packed.is_none() {
            let (packed, file) = PackedSegment::new().map_err(cannot_add)?;
            let number = self.next_number()?;
            self.descriptors.keep_segment(self.identity, number, &file);
            self.segments.insert(
                number,
                Segment { file, pages: Vec::new(), room: MAX_PAGES as u32, uploader: None, is_copied: true },
            );
            self.packed = Some((number, packed));
        }
        match &self.packed {
            Some((number, packed)) => packed.reserve(pages).map_err(cannot_add).map(|()| *number),
            None => Err(cannot_add(rustix::io::Errno::NOMEM)),
        }
    }

    fn next_number(&mut self) -> Result<u32, Refused> {
        if self.segments.len() >= self.max_segments {
            let most = self.max_segments;
            let line = format!(
                "the page store is full: it has {most} segments, a quarter of its limit of open files"
            );
            return Err((Refusal::Full, line));
        }
        let number = self.next_segment;
        self.next_segment = number.checked_add(1).ok_or_else(|| cannot_add(rustix::io::Errno::OVERFLOW))?;
        Ok(number)
    }
}
