//! Sizes: regions of 16 GiB, huge pages of 2 MiB, block spans of 16 KiB, blocks of 8 KiB and lines of 128 B
//! (LLAMA §6.1). [`crate::units::window`] has their addresses.

/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// The size of the operating system's small pages.
pub const PAGE_BYTES: usize = 4096;
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
/// Regions that a heap may have.
pub const MAX_REGIONS: usize = 64;

/// Bytes of one huge page's metadata.
pub const HUGE_PAGE_METADATA_BYTES: usize = 256;
/// Bytes of one block span's metadata: a line of header, two of live bits, two of remote bits.
pub const SPAN_METADATA_BYTES: usize = 320;
/// Block span metadata of one huge page: a whole number of 4 KiB pages.
pub const SPAN_METADATA_PER_HUGE_PAGE: usize = SPANS_PER_HUGE_PAGE * SPAN_METADATA_BYTES;

/// The largest object that is a cell of a block span: above it, an object is *large*.
pub const MAX_SMALL_BYTES: usize = SPAN_BYTES;
/// As above, with spans divided by lines: the paper's limit (LLAMA §6.1).
pub const MAX_LINES_BYTES: usize = 8 << 10;
/// An object of this size or more has its own mapping: it spans so many huge pages that sharing the last one
/// saves little.
pub const MIN_DIRECT_BYTES: usize = 16 << 20;
/// The alignment of everything that malloc returns on this machine.
pub const MIN_ALIGNMENT: usize = 16;

/// The block's index in its huge page.
#[inline(always)]
pub const fn block_index(address: usize) -> usize {
    (address & (HUGE_PAGE_BYTES - 1)) / BLOCK_BYTES
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
