//! A thread's cache of empty spans.

use core::cell::Cell;

use crate::pages::global;
use crate::span::cells::Span;
use crate::span::queue::SpanList;
use crate::units::size_class::COUNT as SIZE_CLASSES;

/// Empty spans of one class that a thread caches; [`crate::entry::maintenance`] releases them after 20 or 100
/// ms. A thread that takes many acquires several at a time, and may cache more. All zeros is an empty cache.
pub struct SpanCache {
    spans: SpanList,
    count: Cell<u32>,
    /// Visits to the global allocator since the cache was last emptied.
    visits: Cell<u32>,
    /// Bytes that bins of the class have borrowed since then, by size class.
    pub borrowed: [Cell<u32>; SIZE_CLASSES],
}

impl Default for SpanCache {
    fn default() -> Self {
        Self::new()
    }
}

impl SpanCache {
    const BUSY_VISITS: u32 = 16;

    /// An empty cache.
    pub const fn new() -> Self {
        Self {
            spans: SpanList::new(),
            count: Cell::new(0),
            visits: Cell::new(0),
            borrowed: [const { Cell::new(0) }; SIZE_CLASSES],
        }
    }

    /// The cached spans.
    pub fn spans(&self) -> impl Iterator<Item = &'static Span> {
        self.spans.iter()
    }

    /// The number of cached spans.
    pub fn count(&self) -> usize {
        self.count.get() as usize
    }

    fn is_busy(&self) -> bool {
        self.visits.get() >= Self::BUSY_VISITS
    }

    /// Takes one of them.
    pub fn take(&self) -> Option<&'static Span> {
        let span = self.spans.pop()?;
        self.count.set(self.count.get() - 1);
        Some(span)
    }

    /// Adds a span.
    pub fn keep(&self, span: &'static Span) {
        self.count.set(self.count.get() + 1);
        self.spans.push(span);
    }

    /// Whether it has room for one more.
    pub fn has_room(&self) -> bool {
        self.count.get() < if self.is_busy() { 16 } else { 4 }
    }

    /// How many spans to acquire beyond the one that is needed.
    pub fn batch(&self) -> usize {
        self.visits.set(self.visits.get() + 1);
        if self.is_busy() { 3 } else { 0 }
    }

    /// Releases all spans.
    pub fn empty(&self) {
        self.visits.set(0);
        while let Some(span) = self.take() {
            global::release_span(span.address());
        }
    }
}
