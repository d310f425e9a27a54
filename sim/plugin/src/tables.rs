//! The guest's page tables, for a machine that walks them later than the guest has used them.
//!
//! QEMU's thread walks the tables itself for each page that the guest accesses, when it has not done so
//! before ([`Seen`]). The tables on the way are copied, and each later store to one of them is passed on, in
//! its place between accesses. So the machine's copies ([`Tables`]) are what the guest's memory was then.

use crate::guest::GuestMemory;
use sim::memory::tlb::PageTables;

/// Pages whose way is known, by the lowest bits of their number.
const KNOWN: usize = 2048;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The machine's view of page tables.
#[derive(Default)]
pub enum Tables {
    /// Not known yet.
    #[default]
    None,
    /// The guest's memory itself.
    Memory(GuestMemory),
    /// Copies of the guest's page tables, by page.
    Copies(Vec<Option<Box<[u64; 512]>>>),
}

impl Tables {
    /// None of the tables is known so far.
    pub fn copies() -> Tables {
        Tables::Copies(Vec::new())
    }

    /// A page is a table.
    pub fn set_page(&mut self, page: u64, content: Box<[u64; 512]>) {
        let Tables::Copies(all) = self else { return };
        let page = page as usize;
        if all.len() <= page {
            all.resize_with(page + 1, || None);
        }
        all[page] = Some(content);
    }

    /// A word of a table has another value.
    pub fn set_word(&mut self, address: u64, value: u64) {
        let Tables::Copies(all) = self else { return };
        if let Some(Some(table)) = all.get_mut((address >> 12) as usize) {
            table[(address >> 3 & 511) as usize] = value;
        }
    }
}

impl PageTables for Tables {
    fn entry(&self, physical: u64) -> u64 {
        match self {
            Tables::None => 0,
            Tables::Memory(memory) => memory.entry(physical),
            Tables::Copies(all) => {
                let table = all.get((physical >> 12) as usize).and_then(Option::as_ref);
                table.map_or(0, |table| table[(physical >> 3 & 511) as usize])
            }
        }
    }
}

/// The page tables that the machine has copies of.
pub struct Seen {
    root: u64,
    /// Numbers of pages whose tables are copied, with the generation in the upper bits.
    known: Box<[u64; KNOWN]>,
    generation: u64,
    /// By page: 0, or one more than the level of the table that it is.
    levels: Vec<u8>,
}

impl Seen {
    /// None, of a guest with so much memory.
    pub fn new(bytes: u64) -> Seen {
        let levels = vec![0; (bytes >> 12) as usize];
        Seen { root: 0, known: Box::new([0; KNOWN]), generation: 1, levels }
    }

    /// Another page table.
    pub fn set_root(&mut self, cr3: u64) {
        self.root = cr3 & ADDRESS;
        self.forget();
    }

    fn forget(&mut self) {
        self.generation += 1;
        if self.generation >> 28 != 0 {
            self.generation = 1;
            self.known.fill(0);
        }
    }

    /// Whether the tables for this address are copied already.
    #[inline(always)]
    pub fn knows(&self, address: u64) -> bool {
        self.known[(address >> 12) as usize % KNOWN] == self.tag(address)
    }

    #[inline(always)]
    fn tag(&self, address: u64) -> u64 {
        (address >> 12 & 0xf_ffff_ffff) | self.generation << 36
    }

    /// The tables on the way to this address that are not copied yet: page and content, by `copy`.
    #[inline(never)]
    pub fn see(&mut self, address: u64, memory: &GuestMemory, mut copy: impl FnMut(u64, Box<[u64; 512]>)) {
        self.known[(address >> 12) as usize % KNOWN] = self.tag(address);
        let mut table = self.root;
        for level in (0..4_u8).rev() {
            let Some(its) = self.levels.get_mut((table >> 12) as usize) else { return };
            if *its == 0 {
                copy(
                    table >> 12,
                    Box::new(std::array::from_fn(|index| memory.entry(table + 8 * index as u64))),
                );
            }
            *its = (*its).max(level + 1);
            let entry = memory.entry(table + 8 * (address >> (12 + 9 * u32::from(level)) & 511));
            if entry & 1 == 0 || level > 0 && entry & 0x80 != 0 {
                return;
            }
            table = entry & ADDRESS;
        }
    }

    /// Whether a word at this address is one of a table that is copied.
    #[inline(always)]
    pub fn is_table(&self, physical: u64) -> bool {
        self.levels.get((physical >> 12) as usize).is_some_and(|level| *level != 0)
    }

    /// A word of a table was written: the ways through it may be others.
    pub fn written(&mut self, physical: u64) {
        // Where the last level changes, the way to it does not.
        if self.levels.get((physical >> 12) as usize).is_some_and(|level| *level > 1) {
            self.forget();
        }
    }
}
