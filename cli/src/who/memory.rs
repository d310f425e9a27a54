//! A process's memory, read where the headers of allocators may lie.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::mapping::Mapping;

pub const PAGE: u64 = 4096;
const PRESENT: u64 = 1 << 63;
/// Of a mapping, looked at together: a process can reserve more addresses than fit in this one's memory.
const PART: u64 = 1 << 30;
/// Mappings beyond this are looked at up to here.
const MOST: u64 = 16 << 30;

/// A process's memory, opened to read the headers of objects.
pub struct Memory {
    contents: File,
    pages: File,
}

impl Memory {
    /// `None` if this process may not read the other's memory.
    pub fn of_process(pid: u32) -> Option<Memory> {
        let open = |name: &str| File::open(format!("/proc/{pid}/{name}")).ok();
        Some(Memory { contents: open("mem")?, pages: open("pagemap")? })
    }

    /// Resident bytes of the parts of a mapping that `part` finds: called with an address and the mapping's
    /// end, it returns the bytes of a part that begins there.
    pub fn of_parts(&self, mapping: &Mapping, part: impl Fn(u64, u64) -> Option<u64>) -> u64 {
        let end = mapping.range.end.min(mapping.range.start + MOST);
        let there = self.there(mapping.range.start, end);
        let resident = |range: Range<u64>| {
            let pages = (range.start - mapping.range.start) / PAGE..(range.end - mapping.range.start) / PAGE;
            let part = there.get(pages.start as usize..pages.end as usize).unwrap_or_default();
            part.iter().filter(|&&is_there| is_there).count() as u64 * PAGE
        };
        let (mut at, mut found) = (mapping.range.start, 0);
        while at < end {
            // A page that is not there has no header, and reading it would map it.
            let is_there = there.get(((at - mapping.range.start) / PAGE) as usize) == Some(&true);
            match is_there.then(|| part(at, end)).flatten() {
                Some(bytes) => {
                    found += resident(at..at + bytes);
                    at += bytes;
                }
                None => at += PAGE,
            }
        }
        found
    }

    /// Resident bytes of a mapping's part; a part that reaches past it is cut.
    pub fn resident(&self, mapping: &Mapping, part: &Range<u64>) -> u64 {
        let (start, end) = (part.start.max(mapping.range.start), part.end.min(mapping.range.end));
        if start >= end {
            return 0;
        }
        let parts = (start..end).step_by(PART as usize).map(|at| self.there(at, end.min(at + PART)));
        parts.map(|there| there.iter().filter(|&&is_there| is_there).count() as u64 * PAGE).sum()
    }

    /// The words at an address.
    pub fn words<const COUNT: usize>(&self, at: u64) -> Option<[u64; COUNT]> {
        let mut bytes = [[0; 8]; COUNT];
        self.contents.read_exact_at(bytes.as_flattened_mut(), at).ok()?;
        Some(bytes.map(u64::from_le_bytes))
    }

    fn there(&self, start: u64, end: u64) -> Vec<bool> {
        let mut words = vec![0; ((end - start) / PAGE * 8) as usize];
        if self.pages.read_exact_at(&mut words, start / PAGE * 8).is_err() {
            return Vec::new();
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        words.chunks_exact(8).map(|bytes| word(bytes) & PRESENT != 0).collect()
    }
}
