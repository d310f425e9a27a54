//! The memory of CPython's small objects among a process's anonymous mappings: its arenas are divided into
//! pools, each of which begins with a header (pycore_obmalloc.h, `struct pool_header`). Other allocators of
//! the process, in an extension, are what is left.

use super::mapping::Mapping;
use super::memory::Memory;

/// The bytes of a pool: since Python 3.10, and before.
const POOLS: [u64; 2] = [16 << 10, 4 << 10];
const HEADER: u64 = 48;
/// Objects are multiples of this.
const STEP: u64 = 16;
const LARGEST: u64 = 512;

impl Memory {
    /// Bytes of the mapping that are resident in pools.
    pub fn of_cpython(&self, mapping: &Mapping) -> u64 {
        let pool = |at: u64, end: u64| {
            let words = self.words(at)?;
            POOLS
                .into_iter()
                .find(|&pool| at.is_multiple_of(pool) && pool <= end - at && is_header(words, pool))
        };
        self.of_parts(mapping, pool)
    }
}

/// Whether these words are a pool's header: the number of its objects, the first free one, two links, the
/// arena's number and the objects' size, where the part never used begins, and where the last object can.
fn is_header(words: [u64; 6], pool: u64) -> bool {
    let (objects, size) = (words[0], ((words[4] >> 32) + 1).saturating_mul(STEP));
    let (unused, last) = (words[5] & u64::from(u32::MAX), words[5] >> 32);
    size <= LARGEST
        && last == pool - size
        && (HEADER..=pool).contains(&unused)
        && (unused - HEADER).is_multiple_of(size)
        && objects <= (pool - HEADER) / size
}

#[cfg(test)]
mod tests {
    use super::is_header;

    #[test]
    fn a_pool_has_a_header_that_fits_its_size() {
        let pool = 16 << 10;
        let header = |objects: u64, class: u64, unused: u64| {
            let size = (class + 1) * 16;
            [objects, 0x7f00_0000_1040, 0, 0, class << 32 | 3, (pool - size) << 32 | unused]
        };
        assert!(is_header(header(2, 3, 48 + 2 * 64), pool));
        assert!(is_header(header(0, 31, 48), pool));
        assert!(!is_header(header(2, 3, 48 + 65), pool), "between two objects");
        assert!(!is_header(header(1 << 20, 3, 48 + 64), pool), "more objects than it has room for");
        assert!(!is_header(header(2, 32, 48), pool), "objects above 512 bytes");
        assert!(!is_header(header(2, 3, 48 + 2 * 64), 4096), "of the other size");
        assert!(!is_header([0; 6], pool));
    }
}
