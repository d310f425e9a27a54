//! A segment that the daemon fills with the pages of small offers, so that a model of many small tensors does
//! not take many files. Only the daemon's own mapping can write to it; once it is full, no process can.

use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, Mode, SealFlags};
use rustix::io;

use crate::base::mapping::Mapping;
use crate::base::page::PAGE_BYTES;
use crate::base::segment::{self, FINAL_SEALS, MAX_PAGES};

/// Bytes copied at a time.
const PIECE: usize = 256 << 10;

/// A copy of a sealed segment of so many pages, in the daemon's own memory; in huge pages where it is as long
/// as they are.
pub fn copy(from: &OwnedFd, pages: usize) -> io::Result<OwnedFd> {
    let (file, bytes) = (segment::create()?, pages * PAGE_BYTES);
    segment::make_huge(&file, bytes);
    let mut piece = vec![0; PIECE.min(bytes)];
    let mut done = 0;
    while done < bytes {
        let length = piece.len().min(bytes - done);
        let read = io::retry_on_intr(|| io::pread(from, &mut piece[..length], done as u64))?;
        let mut written = 0;
        while written < read {
            let at = (done + written) as u64;
            written += io::retry_on_intr(|| io::pwrite(&file, &piece[written..read], at))?;
        }
        if read == 0 {
            return Err(io::Errno::IO);
        }
        done += read;
    }
    segment::seal(&file)?;
    Ok(file)
}

/// An open segment.
pub struct PackedSegment {
    file: OwnedFd,
    memory: Mapping,
    filled: usize,
}

impl PackedSegment {
    /// An empty one, and a read-only descriptor of it.
    pub fn new() -> io::Result<(PackedSegment, OwnedFd)> {
        let file = segment::create()?;
        // So that no other user opens it again to write, or adds seals. (Processes of the same user may;
        // FUTURE_WRITE protects the pages.)
        rustix::fs::fchmod(&file, Mode::RUSR)?;
        let bytes = MAX_PAGES * PAGE_BYTES;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        let memory = Mapping::shared(&file, bytes, true)?;
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let read_only = segment::reopen_read_only(&file)?;
        Ok((PackedSegment { file, memory, filled: 0 }, read_only))
    }

    /// Pages that still fit.
    pub fn room(&self) -> usize {
        MAX_PAGES - self.filled
    }

    /// Allocates memory for so many pages, so that writing them cannot fail.
    pub fn reserve(&self, pages: usize) -> io::Result<()> {
        let (from, bytes) = (self.filled * PAGE_BYTES, pages * PAGE_BYTES);
        rustix::fs::fallocate(&self.file, FallocateFlags::empty(), from as u64, bytes as u64)
    }

    /// Adds a page, for which there is room and memory; returns its number.
    pub fn add(&mut self, page: &[u8; PAGE_BYTES]) -> u32 {
        assert!(self.filled < MAX_PAGES);
        // SAFETY: inside the mapping, at a page that the index does not name yet.
        unsafe {
            let at = self.memory.start().add(self.filled * PAGE_BYTES);
            std::ptr::copy_nonoverlapping(page.as_ptr(), at, PAGE_BYTES);
        }
        self.filled += 1;
        self.filled as u32 - 1
    }

    /// Seals it for good.
    pub fn finish(self) -> io::Result<()> {
        let PackedSegment { file, memory, .. } = self;
        drop(memory);
        rustix::fs::fcntl_add_seals(&file, FINAL_SEALS | SealFlags::SEAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_sealed_and_equal() {
        let pages = 512 + 3;
        let bytes: Vec<u8> = (0..pages * PAGE_BYTES).map(|i| (i / 1000) as u8).collect();
        let file = segment::create().unwrap();
        assert_eq!(rustix::io::pwrite(&file, &bytes, 0).unwrap(), bytes.len());
        segment::seal(&file).unwrap();
        let copy = copy(&file, pages).unwrap();
        assert_eq!(segment::check(&copy, pages), Ok(()));
        let mut read = vec![0; bytes.len()];
        assert_eq!(rustix::io::pread(&copy, &mut read, 0).unwrap(), bytes.len());
        assert!(read == bytes);
        assert!(super::copy(&file, pages + 1).is_err(), "there are not so many");
    }

    #[test]
    fn only_the_daemon_can_write() {
        let (mut packed, read_only) = PackedSegment::new().unwrap();
        packed.reserve(2).unwrap();
        assert_eq!(packed.add(&[5; PAGE_BYTES]), 0);
        assert_eq!(packed.add(&[6; PAGE_BYTES]), 1);
        let mut page = [0; PAGE_BYTES];
        rustix::io::pread(&read_only, &mut page, PAGE_BYTES as u64).unwrap();
        assert_eq!(page, [6; PAGE_BYTES]);
        assert!(Mapping::shared(&read_only, PAGE_BYTES, true).is_err());
        assert!(rustix::io::pwrite(&packed.file, b"x", 0).is_err());
        assert_eq!(segment::check(&read_only, MAX_PAGES), Err(segment::Flaw::NotSealed));
        packed.finish().unwrap();
        assert!(rustix::fs::fcntl_get_seals(&read_only).unwrap().contains(FINAL_SEALS));
    }
}
