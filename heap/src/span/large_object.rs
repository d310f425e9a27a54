//! The data that a thread needs to free a large object, in one word of the metadata of the span where it
//! begins.
//!
//! The paper finds an object's size in its page's bit vector of last blocks (LLAMA §8). That vector is
//! changed under the page's lock ([`crate::pages::large_blocks`]) and takes a hundred instructions to read,
//! so this word repeats its answer.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::units::geometry::{BLOCK_BYTES, MIN_DIRECT_BYTES};

/// The word of the large object that begins in a block: the heap that caches it (16 bits), its number of
/// blocks (14), whether it was never written, and whether its lifetime is being measured. 0 if none begins
/// there.
#[derive(Default)]
pub struct LargeObject(AtomicU32);

const BY: u32 = 0xFFFF;
const BLOCKS_SHIFT: u32 = 16;
const UNTOUCHED: u32 = 1 << 30;
const WATCHED: u32 = 1 << 31;
const _: () = assert!(MIN_DIRECT_BYTES / BLOCK_BYTES < 1 << (30 - BLOCKS_SHIFT), "larger ones have no word");

impl LargeObject {
    /// Sets the number of blocks of an object that begins here; `untouched`: it was not written since the
    /// operating system gave the memory.
    pub fn begin(&self, blocks: usize, untouched: bool) {
        let untouched = if untouched { UNTOUCHED } else { 0 };
        self.0.store((blocks as u32) << BLOCKS_SHIFT | untouched | self.0.load(Relaxed) & WATCHED, Release);
    }

    /// Whether an object begins here that reads as zero unless the program has written to it.
    pub fn is_untouched(&self) -> bool {
        self.0.load(Relaxed) & UNTOUCHED != 0
    }

    /// The object is released: none begins here.
    pub fn end(&self) {
        self.0.store(0, Release);
    }

    /// Whether none begins here.
    pub fn is_none(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    /// Its blocks, if one begins here, cached or live.
    pub fn blocks(&self) -> Option<usize> {
        let word = self.0.load(Acquire) & !(WATCHED | UNTOUCHED);
        Some((word >> BLOCKS_SHIFT) as usize).filter(|&blocks| blocks != 0)
    }

    /// Its blocks, if one begins here that is live.
    pub fn live_blocks(&self) -> Option<usize> {
        self.blocks().filter(|_| !self.is_cached())
    }

    /// Its blocks, if a live one begins here that is neither watched nor untouched: it can be freed without
    /// further checks.
    #[inline]
    pub fn plain_blocks(&self) -> Option<usize> {
        let word = self.0.load(Relaxed);
        (word & (BY | WATCHED | UNTOUCHED) == 0 && word != 0).then_some((word >> BLOCKS_SHIFT) as usize)
    }

    /// Whether it is freed and in a thread's cache.
    pub fn is_cached(&self) -> bool {
        self.0.load(Acquire) & BY != 0
    }

    /// Marks a freed object as cached by this heap, visible to all threads, so that a second free is
    /// detected. Two threads that free it at the same instant may both write; one finds the other's mark
    /// later, see [`LargeObject::leave_cache`].
    pub fn enter_cache(&self, heap: u32) {
        self.0.store(self.0.load(Relaxed) & !(BY | UNTOUCHED) | heap, Release);
    }

    /// Removes it from the cache of this heap; `false` if another heap's mark is there.
    pub fn leave_cache(&self, heap: u32) -> bool {
        let word = self.0.load(Acquire);
        self.0.store(word & !BY, Release);
        word & BY == heap
    }

    /// Whether its lifetime is being measured.
    pub fn is_watched(&self) -> bool {
        self.0.load(Relaxed) & WATCHED != 0
    }

    /// Sets whether its lifetime is being measured; only the thread that has the object calls this.
    pub fn set_watched(&self, watched: bool) {
        let word = self.0.load(Relaxed);
        self.0.store(if watched { word | WATCHED } else { word & !WATCHED }, Relaxed);
    }
}
