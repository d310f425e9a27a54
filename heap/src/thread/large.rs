//! Large objects, above 8 KiB: contiguous blocks straight from the global allocator (LLAMA §6.1), or a mapping of their
//! own above 16 MiB.
//!
//! The paper names the short reach of its fast path as a weakness (§9.5). So a thread keeps a few freed objects, of 2 MiB in
//! all, in hand, and gives them out again to a request of the same class and number of blocks. To the page they are
//! live; they are given back after 20 or 100 ms, by [`crate::entry::maintenance`].

use core::cell::Cell;
use core::sync::atomic::{
    AtomicU16,
    Ordering::{Acquire, Release},
};

use crate::pages::{direct, large_blocks, region};
use crate::system::events::{self, Event};
use crate::system::hook;
use crate::system::text::misuse;
use crate::units::bits;
use crate::units::geometry::*;

const IN_HAND: usize = 4;
/// Objects of more blocks are not kept, nor are several that have more together: a huge page.
const MOST_BLOCKS: usize = BLOCKS_PER_HUGE_PAGE;

/// Freed objects that a thread keeps in hand. All zeros is an empty one.
pub struct LargeCache {
    /// Address and number of blocks, which a block's alignment leaves room for; 0 for none.
    entries: [Cell<usize>; IN_HAND],
    /// The longest class that may have them.
    classes: [Cell<u8>; IN_HAND],
    /// The one that goes first, when another comes.
    next: Cell<u8>,
    /// What they have together.
    blocks: Cell<u16>,
}

const COUNT: usize = BLOCK_BYTES - 1;

impl Default for LargeCache {
    fn default() -> Self {
        Self::new()
    }
}

impl LargeCache {
    /// Nothing in hand.
    pub const fn new() -> Self {
        Self {
            entries: [const { Cell::new(0) }; IN_HAND],
            classes: [const { Cell::new(0) }; IN_HAND],
            next: Cell::new(0),
            blocks: Cell::new(0),
        }
    }

    fn take(&self, heap: u32, class: usize, blocks: usize) -> Option<usize> {
        let i = (0..IN_HAND).find(|&i| {
            let entry = self.entries[i].get();
            entry != 0 && entry & COUNT == blocks && self.classes[i].get() as usize >= class
        })?;
        let address = self.remove(i).0;
        take_back(heap, address);
        Some(address)
    }

    fn remove(&self, i: usize) -> (usize, usize) {
        let entry = self.entries[i].replace(0);
        self.blocks.set(self.blocks.get() - (entry & COUNT) as u16);
        (entry & !COUNT, entry & COUNT)
    }

    /// Keeps an object that there is room for; those that must go for it are passed to `gone`.
    fn keep(&self, address: usize, blocks: usize, class: usize, mut gone: impl FnMut(usize, usize)) {
        let free = || (0..IN_HAND).find(|&i| self.entries[i].get() == 0);
        let i = loop {
            let next = self.next.get() as usize % IN_HAND;
            match free() {
                Some(i) if usize::from(self.blocks.get()) + blocks <= MOST_BLOCKS => break i,
                _ if self.entries[next].get() != 0 => {
                    let (gone_address, gone_blocks) = self.remove(next);
                    gone(gone_address, gone_blocks);
                }
                _ => {}
            }
            self.next.set(self.next.get().wrapping_add(1));
        };
        self.entries[i].set(address | blocks);
        self.classes[i].set(class as u8);
        self.blocks.set(self.blocks.get() + blocks as u16);
    }

    /// Those in hand, and their blocks.
    pub fn kept(&self) -> impl Iterator<Item = (usize, usize)> {
        let entries = self.entries.iter().map(Cell::get).filter(|&entry| entry != 0);
        entries.map(|entry| (entry & !COUNT, entry & COUNT))
    }

    /// Gives all back; `heap`: the number of the one whose they are.
    pub fn flush(&self, heap: u32) {
        for i in (0..IN_HAND).filter(|&i| self.entries[i].get() != 0) {
            let (address, blocks) = self.remove(i);
            take_back(heap, address);
            large_blocks::release(address, blocks);
        }
    }
}

/// One that is in hand.
pub fn allocate_in_hand(hand: &LargeCache, heap: u32, class: usize, size: usize) -> Option<usize> {
    let taken = hand.take(heap, class, size.div_ceil(BLOCK_BYTES))?;
    events::count(Event::LargeInHand);
    Some(taken)
}

/// A large object, from the hand of heap number `heap` if there is one; `None` when memory ran out.
pub fn allocate(hand: &LargeCache, heap: u32, class: usize, size: usize, alignment: usize) -> Option<usize> {
    if size > isize::MAX as usize {
        return None;
    }
    events::count(Event::LargeAllocated);
    if size >= MIN_DIRECT_BYTES || alignment > HUGE_PAGE_BYTES {
        return direct::allocate(class, size, alignment);
    }
    let blocks = size.div_ceil(BLOCK_BYTES).max(1);
    if alignment <= BLOCK_BYTES
        && let Some(address) = hand.take(heap, class, blocks)
    {
        return Some(address);
    }
    large_blocks::acquire(class, blocks, alignment.div_ceil(BLOCK_BYTES).max(1))
}

/// How many blocks the live large object at `address` has; `None` if there is none.
pub fn blocks(address: usize) -> Option<usize> {
    large_blocks::blocks_at(address).filter(|_| in_hand(address).load(Acquire) == 0)
}

/// Whether the large object at `address` is freed and in some thread's hand.
pub fn is_in_hand(address: usize) -> bool {
    in_hand(address).load(Acquire) != 0
}

/// Which heap has the object in hand, for all threads to see: so a second free is noticed. Two threads that free it at the
/// same instant may both write; one finds the other's mark later ([`take_back`]).
fn in_hand(address: usize) -> &'static AtomicU16 {
    &region::span(address).in_hand[block_index(address) % SPAN_BLOCKS]
}

/// The object leaves the hand of `heap`.
fn take_back(heap: u32, address: usize) {
    let mark = in_hand(address);
    let by = mark.load(Acquire);
    mark.store(0, Release);
    if u32::from(by) != heap {
        misuse("double free, by two threads at once", address, 0, 0);
    }
}

/// Frees the large object of `blocks` blocks at `address`.
pub fn free(hand: &LargeCache, heap: u32, address: usize, blocks: usize, caller: usize) {
    let release = |address, blocks| {
        if !large_blocks::release(address, blocks) {
            misuse("double free", address, blocks * BLOCK_BYTES, caller);
        }
    };
    if blocks > MOST_BLOCKS || heap == 0 || hook::sees_all() {
        return release(address, blocks);
    }
    let page = region::huge_page(address);
    in_hand(address).store(heap as u16, Release);
    // Blocks that are not residual are for shorter classes than the page's. A page that is demoted makes them residual.
    let residual = page.residual.get(block_index(address));
    let longest = page.class().saturating_sub(!residual as usize);
    hand.keep(address, blocks, longest, |address, blocks| {
        take_back(heap, address);
        release(address, blocks);
    });
}

/// A pointer at which no live large object begins.
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

/// Whether the lifetime of the large object at `address` is being measured.
pub fn is_sampled(address: usize) -> bool {
    region::huge_page(address).sampled.get(block_index(address))
}

/// Notes whether the lifetime of the large object at `address` is being measured.
pub fn set_sampled(address: usize, sampled: bool) {
    let page = region::huge_page(address);
    let _guard = page.lock.lock();
    let block = bits::range(block_index(address), 1);
    if sampled { page.sampled.set(&block) } else { page.sampled.clear(&block) }
}
