//! The Memento page table (§3.2): four levels as on x86-64, rooted at MPTR instead of CR3. The page allocator
//! builds it when walks meet invalid entries, maps every page readable, writable and not executable, and
//! frees a table with its last valid entry.

use std::cell::Cell;

use crate::layout::PAGE_BYTES;

/// Entries in a table.
pub const ENTRIES: usize = 512;
/// Present, writable, user, no-execute: the one combination that Memento maps (§3.2).
pub const READ_WRITE_NO_EXECUTE: u64 = 1 << 63 | 0b111;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

struct Table {
    entries: [u64; ENTRIES],
    valid: u16,
}

/// All processes' tables, by the physical page that each lies in.
pub struct PageTables {
    first_page: u64,
    tables: Vec<Option<Box<Table>>>,
    /// The latest translations, so that asking again for a page costs no walk through the model's own
    /// structures.
    recent: [Cell<(u64, u64, u64)>; RECENT],
}

const RECENT: usize = 256;

/// Physical address of the entry that leads on from `table` towards `address`; level 0 is the leaf's.
#[inline]
pub fn entry_address(table: u64, level: u32, address: u64) -> u64 {
    table + 8 * index(level, address) as u64
}

#[inline]
fn index(level: u32, address: u64) -> usize {
    (address >> (12 + 9 * level)) as usize % ENTRIES
}

impl PageTables {
    /// None yet.
    pub fn new(pool_start: u64) -> PageTables {
        PageTables {
            first_page: pool_start / PAGE_BYTES,
            tables: Vec::new(),
            recent: std::array::from_fn(|_| Cell::new((0, u64::MAX, 0))),
        }
    }

    fn slot(&self, table: u64) -> usize {
        (table / PAGE_BYTES - self.first_page) as usize
    }

    fn table(&self, table: u64) -> &Table {
        self.tables[self.slot(table)].as_ref().expect("a page that holds a table")
    }

    fn table_mut(&mut self, table: u64) -> &mut Table {
        let slot = self.slot(table);
        self.tables[slot].as_mut().expect("a page that holds a table")
    }

    /// Makes the page at `physical` a table without valid entries.
    pub fn create(&mut self, physical: u64) {
        let slot = self.slot(physical);
        if slot >= self.tables.len() {
            self.tables.resize_with((slot + 1).next_power_of_two(), || None);
        }
        self.tables[slot] = Some(Box::new(Table { entries: [0; ENTRIES], valid: 0 }));
    }

    /// The page is not a table any more.
    pub fn destroy(&mut self, physical: u64) {
        let slot = self.slot(physical);
        self.tables[slot] = None;
    }

    /// Where an entry points to; `None` if it is invalid.
    #[inline]
    pub fn entry(&self, table: u64, level: u32, address: u64) -> Option<u64> {
        let entry = self.table(table).entries[index(level, address)];
        (entry != 0).then_some(entry & ADDRESS)
    }

    /// Makes an entry point to the page at `physical`.
    pub fn set(&mut self, table: u64, level: u32, address: u64, physical: u64) {
        let table = self.table_mut(table);
        debug_assert_eq!(table.entries[index(level, address)], 0);
        table.entries[index(level, address)] = physical | READ_WRITE_NO_EXECUTE;
        table.valid += 1;
    }

    /// Makes an entry invalid; true if it was the table's last.
    pub fn clear(&mut self, table: u64, level: u32, address: u64) -> bool {
        if level == 0 {
            self.recent[(address / PAGE_BYTES) as usize % RECENT].set((0, u64::MAX, 0));
        }
        let table = self.table_mut(table);
        debug_assert_ne!(table.entries[index(level, address)], 0);
        table.entries[index(level, address)] = 0;
        table.valid -= 1;
        table.valid == 0
    }

    /// The tables from the root (level 3) to the leaf's (level 0), as far as they exist.
    pub fn path(&self, root: u64, address: u64) -> [Option<u64>; 4] {
        let mut tables = [None; 4];
        let mut table = root;
        for level in (0..4).rev() {
            tables[level as usize] = Some(table);
            match self.entry(table, level, address) {
                Some(next) => table = next,
                None => break,
            }
        }
        tables
    }

    /// The physical address of `address`, if its page is mapped.
    #[inline]
    pub fn lookup(&self, root: u64, address: u64) -> Option<u64> {
        let page = address / PAGE_BYTES;
        let recent = &self.recent[page as usize % RECENT];
        let (its_root, its_page, physical) = recent.get();
        if (its_root, its_page) == (root, page) {
            return Some(physical + address % PAGE_BYTES);
        }
        let mut table = root;
        for level in (0..4).rev() {
            table = self.entry(table, level, address)?;
        }
        recent.set((root, page, table));
        Some(table + address % PAGE_BYTES)
    }

    /// All pages that hang from `table`: (data pages, tables below it).
    pub fn pages_below(&self, table: u64, level: u32) -> (Vec<u64>, Vec<u64>) {
        let (mut data, mut tables) = (Vec::new(), Vec::new());
        for entry in self.table(table).entries {
            match (entry, level) {
                (0, _) => {}
                (entry, 0) => data.push(entry & ADDRESS),
                (entry, _) => {
                    let (more_data, more_tables) = self.pages_below(entry & ADDRESS, level - 1);
                    tables.push(entry & ADDRESS);
                    data.extend(more_data);
                    tables.extend(more_tables);
                }
            }
        }
        (data, tables)
    }

    /// Drops a process's translations.
    pub fn forget(&mut self, root: u64) {
        for recent in &self.recent {
            if recent.get().0 == root {
                recent.set((0, u64::MAX, 0));
            }
        }
    }

    /// The entry itself, permissions and all; for tests.
    pub fn raw_entry(&self, table: u64, level: u32, address: u64) -> u64 {
        self.table(table).entries[index(level, address)]
    }
}
