//! Sizes of things and where they lie: one window of addresses, in it regions of 16 GiB, huge pages of 2 MiB, block spans of 16 KiB,
//! blocks of 8 KiB and lines of 128 B (LLAMA §6.1), and the arithmetic from an address to each of them.
//!
//! ```text
//! ├── 20 GiB    2^26 × 320 B   block span metadata, one entry for each 16 KiB of the window   ┐ metadata, 32 GiB,
//! ├── 128 MiB   2^19 × 256 B   huge page metadata, one entry for each 2 MiB of it             ┘ aligned
//! window (1 TiB, aligned)
//! ├── 16 GiB    a region: 8192 huge pages of objects
//! └── ...       63 more
//! ```
//! All metadata is apart from the objects and in small pages, touched only where it is used (LLAMA §6.5). One window for all
//! regions makes the way from an address to its metadata a subtraction, a comparison and a multiplication.

/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes of a block.
pub const BLOCK_BYTES: usize = 8 << 10;
/// Bytes of a line.
pub const LINE_BYTES: usize = 128;
/// Blocks of a block span: the paper's M = 2.
pub const SPAN_BLOCKS: usize = 2;
/// Bytes of a block span, which is also its alignment.
pub const SPAN_BYTES: usize = SPAN_BLOCKS * BLOCK_BYTES;
/// Lines of a block span.
pub const SPAN_LINES: usize = SPAN_BYTES / LINE_BYTES;
/// Blocks of a huge page.
pub const BLOCKS_PER_HUGE_PAGE: usize = HUGE_PAGE_BYTES / BLOCK_BYTES;
/// Block spans of a huge page.
pub const SPANS_PER_HUGE_PAGE: usize = HUGE_PAGE_BYTES / SPAN_BYTES;

/// log2 of a region's bytes.
pub const REGION_SHIFT: u32 = 34;
/// Bytes of a region.
pub const REGION_BYTES: usize = 1 << REGION_SHIFT;
/// Huge pages of a region.
pub const HUGE_PAGES_PER_REGION: usize = REGION_BYTES / HUGE_PAGE_BYTES;
/// Regions of the window.
pub const MAX_REGIONS: usize = 64;
/// Bytes of the window, which is also its alignment.
pub const WINDOW_BYTES: usize = MAX_REGIONS * REGION_BYTES;

/// Bytes of one huge page's metadata.
pub const HUGE_PAGE_METADATA_BYTES: usize = 256;
/// Bytes of one block span's metadata: a line of header, two of live bits, two of remote bits.
pub const SPAN_METADATA_BYTES: usize = 320;
/// Block span metadata of one huge page: a whole number of 4 KiB pages.
pub const SPAN_METADATA_PER_HUGE_PAGE: usize = SPANS_PER_HUGE_PAGE * SPAN_METADATA_BYTES;
/// Bytes before the window for the metadata of all that lies in it. Block spans' begins there, huge pages' ends with it.
pub const METADATA_BYTES: usize = 32 << 30;
/// Huge page metadata of the window.
const HUGE_PAGES_METADATA_BYTES: usize = WINDOW_BYTES / HUGE_PAGE_BYTES * HUGE_PAGE_METADATA_BYTES;

/// The largest object that shares a block span: above it, an object is *large* (LLAMA §6.1).
pub const MAX_SMALL_BYTES: usize = 8 << 10;
/// From here on an object has a mapping of its own: it spans so many huge pages that sharing the last one saves nothing.
pub const MIN_DIRECT_BYTES: usize = 16 << 20;
/// The alignment of everything that malloc returns on this machine.
pub const MIN_ALIGNMENT: usize = 16;

/// The window's base for an address in it.
#[inline(always)]
pub const fn window_base(address: usize) -> usize {
    address & !(WINDOW_BYTES - 1)
}

/// The huge page's index in the window.
#[inline(always)]
pub const fn huge_page_index(address: usize) -> usize {
    (address & (WINDOW_BYTES - 1)) / HUGE_PAGE_BYTES
}

/// The block's index in its huge page.
#[inline(always)]
pub const fn block_index(address: usize) -> usize {
    (address & (HUGE_PAGE_BYTES - 1)) / BLOCK_BYTES
}

/// How far from the first one's the metadata of the block span lies that is so far into the window.
#[inline(always)]
pub const fn span_metadata_at(offset: usize) -> usize {
    offset / SPAN_BYTES * SPAN_METADATA_BYTES
}

/// Where the metadata of the block span around `address` lies.
#[inline(always)]
pub const fn span_metadata_address(address: usize) -> usize {
    window_base(address) - METADATA_BYTES + span_metadata_at(address & (WINDOW_BYTES - 1))
}

/// Where the block span begins whose metadata lies at `metadata`.
#[inline]
pub const fn span_of_metadata(metadata: usize) -> usize {
    let first = metadata & !(METADATA_BYTES - 1);
    first + METADATA_BYTES + (metadata - first) / SPAN_METADATA_BYTES * SPAN_BYTES
}

/// Where the metadata of the huge page around `address` lies.
#[inline(always)]
pub const fn huge_page_metadata_address(address: usize) -> usize {
    window_base(address) - HUGE_PAGES_METADATA_BYTES + huge_page_index(address) * HUGE_PAGE_METADATA_BYTES
}

/// `value` rounded up to a multiple of `alignment`, a power of two; `None` past the end of the address space.
#[inline]
pub const fn round_up(value: usize, alignment: usize) -> Option<usize> {
    match value.checked_add(alignment - 1) {
        Some(v) => Some(v & !(alignment - 1)),
        None => None,
    }
}

const _: () = assert!(SPAN_METADATA_PER_HUGE_PAGE.is_multiple_of(4096));
const _: () = assert!(span_metadata_at(WINDOW_BYTES) + HUGE_PAGES_METADATA_BYTES <= METADATA_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_of_neighbours_does_not_overlap_and_ends_before_the_objects() {
        let first = 5 * WINDOW_BYTES;
        let last = first + WINDOW_BYTES - 1;
        assert_eq!(
            span_metadata_address(first + SPAN_BYTES) - span_metadata_address(first),
            SPAN_METADATA_BYTES
        );
        assert_eq!(span_metadata_address(first + SPAN_BYTES - 1), span_metadata_address(first));
        for address in [first, first + SPAN_BYTES, first + WINDOW_BYTES / 3 * 2, last] {
            let span = address / SPAN_BYTES * SPAN_BYTES;
            assert_eq!(span_of_metadata(span_metadata_address(address)), span);
        }
        assert!(span_metadata_address(last) + SPAN_METADATA_BYTES <= huge_page_metadata_address(first));
        assert_eq!(huge_page_metadata_address(last) + HUGE_PAGE_METADATA_BYTES, first);
    }
}
