//! Takes a model file apart into its sections, so that some can be changed, and assembles it again
//! (docs/lifetime.md describes the layout).

use anyhow::{Context as _, Result, bail};
use xxhash_rust::xxh3::xxh3_64;

/// Kinds of sections.
pub mod kind {
    #![allow(missing_docs)] // docs/lifetime.md describes each
    pub const METADATA: u32 = 1;
    pub const MODULES: u32 = 3;
    pub const STARTS: u32 = 4;
    pub const RANGE_FRAMES: u32 = 5;
    pub const FRAMES: u32 = 6;
    pub const STEPS: u32 = 7;
    pub const NAMES: u32 = 1000;
    pub const SEEN: u32 = 1001;
}

const HEADER: usize = 64;
const ENTRY: usize = 32;
const ALIGNMENT: usize = 64;
const CHECKED_FROM: usize = 32;

struct Section {
    kind: u32,
    entries: u64,
    content: Vec<u8>,
}

/// The parts of a model file.
pub struct Sections {
    header: Vec<u8>,
    sections: Vec<Section>,
}

/// The checksum of model files.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let mut whole = [0; 8];
    whole[..length].copy_from_slice(&bytes[at..at + length]);
    u64::from_le_bytes(whole)
}

impl Sections {
    /// Takes a file apart that the heap accepts.
    ///
    /// # Errors
    /// A section that the heap does not read lies outside of the file.
    pub fn of(file: &[u8]) -> Result<Self> {
        let header = file.get(..HEADER).context("it ends within its header")?.to_vec();
        let count = number(&header, 12, 4) as usize;
        let mut sections = Vec::new();
        for place in 0..count {
            let at = HEADER + ENTRY * place;
            let entry = file.get(at..at + ENTRY).context("its section table lies outside of it")?;
            let (offset, length) = (number(entry, 8, 8) as usize, number(entry, 16, 8) as usize);
            let content = offset.checked_add(length).and_then(|end| file.get(offset..end));
            let content = content.context("a section lies outside of it")?.to_vec();
            sections.push(Section {
                kind: number(entry, 0, 4) as u32,
                entries: number(entry, 24, 8),
                content,
            });
        }
        Ok(Self { header, sections })
    }

    /// The rows of a network, or the functions of a table.
    pub fn rows(&self) -> usize {
        number(&self.header, 44, 4) as usize
    }

    /// The content of a section.
    pub fn get(&self, kind: u32) -> Option<&[u8]> {
        self.sections.iter().find(|section| section.kind == kind).map(|section| &*section.content)
    }

    /// Replaces a section, or adds it.
    pub fn set(&mut self, kind: u32, entries: usize, content: Vec<u8>) {
        self.sections.retain(|section| section.kind != kind);
        self.sections.push(Section { kind, entries: entries as u64, content });
        self.sections.sort_by_key(|section| section.kind);
    }

    /// The whole file.
    ///
    /// # Errors
    /// There are more sections than a file can have.
    pub fn file(&self) -> Result<Vec<u8>> {
        let mut file = self.header.clone();
        let Ok(count) = u32::try_from(self.sections.len()) else { bail!("it would have too many sections") };
        file[12..16].copy_from_slice(&count.to_le_bytes());
        file.resize(HEADER + ENTRY * self.sections.len(), 0);
        for (place, section) in self.sections.iter().enumerate() {
            file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
            let mut entry = section.kind.to_le_bytes().to_vec();
            entry.extend([0; 4]);
            for number in [file.len() as u64, section.content.len() as u64, section.entries] {
                entry.extend(number.to_le_bytes());
            }
            let at = HEADER + ENTRY * place;
            file[at..at + ENTRY].copy_from_slice(&entry);
            file.extend(&section.content);
        }
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        let length = file.len() as u64;
        file[16..24].copy_from_slice(&length.to_le_bytes());
        let checksum = checksum(&file[CHECKED_FROM..]);
        file[24..32].copy_from_slice(&checksum.to_le_bytes());
        Ok(file)
    }
}
