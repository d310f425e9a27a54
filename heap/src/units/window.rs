//! The window: one range of addresses for the whole heap, and the way from an address to its metadata.
//!
//! ```text
//! metadata ─► 320 MiB a region   2^20 × 320 B   block span metadata, one entry for each 16 KiB of the window
//! pages ────► 2 MiB a region     8192 × 256 B   huge page metadata, one entry for each 2 MiB of it
//! base ─────► 16 GiB a region    8192 huge pages of objects
//! ```
//! All metadata is apart from the objects and in small pages, touched only where it is used (LLAMA §6.5). One
//! window for all regions makes finding it a subtraction, a comparison and a multiplication. The window has
//! 64 regions, or fewer if the process has fewer addresses.

use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, Release},
};

use crate::units::geometry::*;

/// The heap's range of addresses. All zeros is empty.
#[repr(C)]
pub struct Window {
    /// The first address, that of a huge page.
    pub base: AtomicUsize,
    /// Bytes from there on whose span metadata can be read; it stays readable.
    pub readable: AtomicUsize,
    /// The first span's metadata.
    pub metadata: AtomicUsize,
    /// The first huge page's metadata.
    pages: AtomicUsize,
}

/// The one window.
pub static WINDOW: Window = Window::new();

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

impl Window {
    const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            readable: AtomicUsize::new(0),
            metadata: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
        }
    }

    /// Bytes of a window with this many regions, metadata included.
    pub const fn bytes(regions: usize) -> usize {
        Self::lead(regions) + regions * REGION_BYTES
    }

    /// Bytes of its metadata, which lie before it.
    pub const fn lead(regions: usize) -> usize {
        span_metadata_at(regions * REGION_BYTES) + huge_page_metadata_at(regions * REGION_BYTES)
    }

    /// Sets the address of its metadata and the number of its regions.
    pub fn open(&self, metadata: usize, regions: usize) {
        self.metadata.store(metadata, Relaxed);
        self.pages.store(metadata + span_metadata_at(regions * REGION_BYTES), Relaxed);
        self.base.store(metadata + Self::lead(regions), Release);
    }

    /// The offset of an address in the window; beyond its end for an address outside.
    #[inline(always)]
    pub fn offset(&self, address: usize) -> usize {
        address.wrapping_sub(self.base.load(Relaxed))
    }

    /// The address of the metadata of the block span around an address.
    #[inline(always)]
    pub fn span_metadata(&self, address: usize) -> usize {
        self.metadata.load(Relaxed) + span_metadata_at(self.offset(address))
    }

    /// The number of the block span whose metadata lies at `metadata`.
    #[inline]
    pub fn span_number(&self, metadata: usize) -> usize {
        (metadata - self.metadata.load(Relaxed)) / SPAN_METADATA_BYTES
    }

    /// The address of the block span with this number.
    #[inline]
    pub fn span_address(&self, number: usize) -> usize {
        self.base.load(Relaxed) + number * SPAN_BYTES
    }

    /// The address of the block span whose metadata lies at `metadata`.
    #[inline]
    pub fn span_of(&self, metadata: usize) -> usize {
        self.span_address(self.span_number(metadata))
    }

    /// The address of the metadata of the huge page around an address.
    #[inline(always)]
    pub fn huge_page_metadata(&self, address: usize) -> usize {
        self.pages.load(Relaxed) + huge_page_metadata_at(self.offset(address))
    }
}

/// The offset of a block span's metadata, for an offset in the window.
#[inline(always)]
pub const fn span_metadata_at(offset: usize) -> usize {
    offset / SPAN_BYTES * SPAN_METADATA_BYTES
}

/// The offset of a huge page's metadata, for an offset in the window.
#[inline(always)]
pub const fn huge_page_metadata_at(offset: usize) -> usize {
    offset / HUGE_PAGE_BYTES * HUGE_PAGE_METADATA_BYTES
}

const _: () = assert!(Window::lead(1).is_multiple_of(HUGE_PAGE_BYTES));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_of_neighbours_does_not_overlap_and_ends_before_the_objects() {
        for regions in [1, MAX_REGIONS] {
            let window = Window::new();
            window.open(7 * HUGE_PAGE_BYTES, regions);
            let first = window.base.load(Relaxed);
            let end = 7 * HUGE_PAGE_BYTES + Window::bytes(regions);
            assert_eq!(end, first + regions * REGION_BYTES);
            let span = |address| window.span_metadata(address);
            assert_eq!(span(first), 7 * HUGE_PAGE_BYTES);
            assert_eq!(span(first + SPAN_BYTES) - span(first), SPAN_METADATA_BYTES);
            assert_eq!(span(first + SPAN_BYTES - 1), span(first));
            for address in [first, first + SPAN_BYTES, first + REGION_BYTES / 3, end - 1] {
                assert_eq!(window.span_of(span(address)), address / SPAN_BYTES * SPAN_BYTES);
            }
            assert_eq!(span(end - 1) + SPAN_METADATA_BYTES, window.huge_page_metadata(first));
            assert_eq!(window.huge_page_metadata(end - 1) + HUGE_PAGE_METADATA_BYTES, first);
        }
    }
}
