//! Large objects, above 16 KiB (8 KiB with spans divided by lines): contiguous blocks from the global
//! allocator (LLAMA §6.1), or their own mapping above 16 MiB.
//!
//! The paper calls the short reach of its fast path a weakness (§9.5). So a thread caches freed objects, four
//! of each power of two, and reuses them for requests of the same class that need as many blocks or slightly
//! fewer. All threads together cache at most an eighth of the heap, or a huge page, or 128 KiB each,
//! whichever is most; in a small heap each caches at most 128 KiB. To their page, cached objects are live;
//! [`crate::entry::maintenance`] releases them after 20 or 100 ms.

use core::cell::Cell;
use core::ops::Range;

use crate::pages::{decay, direct, large_blocks, region};
use crate::span::large_object::LargeObject;
use crate::system::events::{self, Event};
use crate::system::observers;
use crate::system::text::misuse;
use crate::units::geometry::*;

/// Objects of more blocks are not cached.
const MOST_BLOCKS: usize = BLOCKS_PER_HUGE_PAGE;
/// A thread caches up to its share of this part of all memory, or of a huge page.
const ONE_IN: usize = 8;
/// A thread's share has at least and at most this many blocks, whatever the number of threads.
const LEAST_SHARE: usize = 16;
const MOST_SHARE: usize = 4 * BLOCKS_PER_HUGE_PAGE;
/// The cache is set-associative: the logarithm of the number of blocks chooses the set, which has this many
/// entries.
const WAYS: usize = 4;
const ENTRIES: usize = WAYS * (MOST_BLOCKS.ilog2() as usize + 1);
/// A reused object exceeds the request by at most this part.
const SPARE: usize = 4;

/// A thread's cache of freed objects. All zeros is an empty one.
pub struct LargeCache {
    /// Address and number of blocks, which fits below a block's alignment; 0 for none.
    entries: [Cell<usize>; ENTRIES],
    /// The longest class that may reuse each.
    classes: [Cell<u8>; ENTRIES],
    /// The next entry to evict.
    next: Cell<u8>,
    /// The blocks of all entries.
    blocks: Cell<u16>,
    /// The blocks that it may hold beyond [`LEAST_SHARE`].
    share: Cell<u16>,
}

const COUNT: usize = BLOCK_BYTES - 1;

/// Whether an object of `blocks` is suitable for a request of `wanted`.
pub fn fits(blocks: usize, wanted: usize) -> bool {
    (wanted..=wanted + wanted / SPARE).contains(&blocks)
}

/// The set of objects of this many blocks.
#[inline]
fn alike(blocks: usize) -> Range<usize> {
    let first = WAYS * blocks.ilog2() as usize;
    first..first + WAYS
}

impl Default for LargeCache {
    fn default() -> Self {
        Self::new()
    }
}

impl LargeCache {
    /// An empty cache.
    pub const fn new() -> Self {
        Self {
            entries: [const { Cell::new(0) }; ENTRIES],
            classes: [const { Cell::new(0) }; ENTRIES],
            next: Cell::new(0),
            blocks: Cell::new(0),
            share: Cell::new(0),
        }
    }

    /// Sets the share of one of this many threads.
    pub fn share(&self, threads: usize) {
        let all = (events::pages() * BLOCKS_PER_HUGE_PAGE / ONE_IN).max(BLOCKS_PER_HUGE_PAGE);
        let most = if decay::heap_is_small() { LEAST_SHARE } else { MOST_SHARE };
        let share = (all / threads.max(1)).clamp(LEAST_SHARE, most);
        self.share.set((share - LEAST_SHARE) as u16);
    }

    /// The blocks that it may hold.
    fn most(&self) -> usize {
        usize::from(self.share.get()) + LEAST_SHARE
    }

    /// Whether it caches objects of this many blocks.
    #[inline]
    pub fn keeps(&self, blocks: usize) -> bool {
        blocks <= self.most().min(MOST_BLOCKS)
    }

    /// Takes an object of so many blocks or slightly more: its address and its blocks.
    fn take(&self, heap: u32, class: usize, blocks: usize) -> Option<(usize, usize)> {
        let most = (blocks + blocks / SPARE).min(MOST_BLOCKS);
        let mut places = alike(blocks.min(MOST_BLOCKS)).start..alike(most).end;
        let i = places.find(|&i| {
            fits(self.entries[i].get() & COUNT, blocks) && self.classes[i].get() as usize >= class
        })?;
        let (address, blocks) = self.remove(i);
        take_back(heap, address);
        Some((address, blocks))
    }

    fn remove(&self, i: usize) -> (usize, usize) {
        let entry = self.entries[i].replace(0);
        self.blocks.set(self.blocks.get() - (entry & COUNT) as u16);
        (entry & !COUNT, entry & COUNT)
    }

    /// Caches an object; evicts others if necessary.
    #[inline]
    fn keep(&self, heap: u32, address: usize, blocks: usize, class: usize) {
        let turn = || usize::from(self.next.replace(self.next.get().wrapping_add(1)));
        let i = alike(blocks).find(|&i| self.entries[i].get() == 0).unwrap_or_else(|| {
            let i = alike(blocks).start + turn() % WAYS;
            self.give_back(heap, i);
            i
        });
        while usize::from(self.blocks.get()) + blocks > self.most() {
            self.give_back(heap, turn() % ENTRIES);
        }
        self.entries[i].set(address | blocks);
        self.classes[i].set(class as u8);
        self.blocks.set(self.blocks.get() + blocks as u16);
    }

    /// The cached objects, and their blocks.
    pub fn kept(&self) -> impl Iterator<Item = (usize, usize)> {
        let entries = self.entries.iter().map(Cell::get).filter(|&entry| entry != 0);
        entries.map(|entry| (entry & !COUNT, entry & COUNT))
    }

    /// Releases all; `heap` is the number of the heap that owns the cache.
    pub fn flush(&self, heap: u32) {
        (0..ENTRIES).for_each(|i| self.give_back(heap, i));
    }

    #[inline(never)]
    fn give_back(&self, heap: u32, i: usize) {
        if self.entries[i].get() != 0 {
            let (address, blocks) = self.remove(i);
            take_back(heap, address);
            release(address, blocks, 0);
        }
    }
}

/// Allocates a cached object.
pub fn allocate_cached(cache: &LargeCache, heap: u32, class: usize, size: usize) -> Option<usize> {
    let (address, blocks) = cache.take(heap, class, size.div_ceil(BLOCK_BYTES))?;
    events::count(Event::LargeFromCache);
    events::add(Event::LargeBytes, (blocks * BLOCK_BYTES) as u64);
    Some(address)
}

/// Allocates a large object, from the cache of heap number `heap` if possible; `None` if memory ran out.
pub fn allocate(cache: &LargeCache, heap: u32, class: usize, size: usize, alignment: usize) -> Option<usize> {
    if size > isize::MAX as usize {
        return None;
    }
    events::count(Event::LargeAllocated);
    if size >= MIN_DIRECT_BYTES || alignment > HUGE_PAGE_BYTES {
        return direct::allocate(class, size, alignment);
    }
    let blocks = size.div_ceil(BLOCK_BYTES).max(1);
    if alignment <= BLOCK_BYTES
        && let Some((address, _)) = cache.take(heap, class, blocks)
    {
        return Some(address);
    }
    large_blocks::acquire(class, blocks, alignment.div_ceil(BLOCK_BYTES).max(1))
}

/// The number of blocks of the live large object at `address`; `None` if there is none.
#[inline]
pub fn blocks(address: usize) -> Option<usize> {
    large_blocks::object_at(address)?.live_blocks()
}

/// Takes the object out of the cache of `heap`.
fn take_back(heap: u32, address: usize) {
    if !region::large_object(address).leave_cache(heap) {
        misuse("double free, by two threads at once", address, 0, 0);
    }
}

/// Frees the large object of `blocks` blocks at `address`.
pub fn free(cache: &LargeCache, heap: u32, address: usize, blocks: usize, caller: usize) {
    if cache.keeps(blocks) && heap != 0 && !observers::observes_all() {
        return keep(cache, heap, region::large_object(address), address, blocks);
    }
    release(address, blocks, caller);
}

/// Releases an object to its page.
fn release(address: usize, blocks: usize, caller: usize) {
    if !large_blocks::release(address, blocks) {
        misuse("double free", address, blocks * BLOCK_BYTES, caller);
    }
}

/// Frees a large object into the cache of `heap`.
#[inline]
pub fn keep(cache: &LargeCache, heap: u32, object: &LargeObject, address: usize, blocks: usize) {
    let page = region::huge_page(address);
    object.enter_cache(heap);
    // Blocks that are not residual serve shorter classes than the page's. Demoting the page makes them
    // residual.
    let residual = page.residual.get(block_index(address));
    let longest = page.class().saturating_sub(!residual as usize);
    cache.keep(heap, address, blocks, longest);
}

/// Reports a pointer at which no live large object begins.
#[cold]
pub fn not_live(address: usize, caller: usize) -> ! {
    let within = large_blocks::around(address);
    match within {
        Some((first, blocks)) if first == address => {
            misuse("double free", address, blocks * BLOCK_BYTES, caller)
        }
        Some((_, blocks)) => {
            misuse("invalid pointer, inside an object", address, blocks * BLOCK_BYTES, caller)
        }
        None => misuse("invalid pointer, no live object is here (double free?)", address, 0, caller),
    }
}
