//! What a thread must know of a large object to free it, in one word of the span's metadata where it begins.
//!
//! The paper finds an object's size in its page's bit vector of last blocks (LLAMA §8), which is kept under the page's lock
//! ([`crate::pages::large_blocks`]) and takes a hundred instructions to read. So its answer is written down here as well.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::units::geometry::{BLOCK_BYTES, MIN_DIRECT_BYTES};

/// The word of the large object that begins in a block: who has it in hand (16 bits), how many blocks it has (14), whether it was
/// never written, and whether its lifetime is being measured. 0: none begins there.
#[derive(Default)]
pub struct LargeObject(AtomicU32);

const BY: u32 = 0xFFFF;
const BLOCKS_SHIFT: u32 = 16;
const UNTOUCHED: u32 = 1 << 30;
const WATCHED: u32 = 1 << 31;
const _: () = assert!(MIN_DIRECT_BYTES / BLOCK_BYTES < 1 << (30 - BLOCKS_SHIFT), "larger ones have no word");

impl LargeObject {
    /// An object of so many blocks begins here, or has so many now; `untouched`: nothing was written there since the operating
    /// system gave the memory.
    pub fn begin(&self, blocks: usize, untouched: bool) {
        let untouched = if untouched { UNTOUCHED } else { 0 };
        self.0.store((blocks as u32) << BLOCKS_SHIFT | untouched | self.0.load(Relaxed) & WATCHED, Release);
    }

    /// Whether one begins here that reads as zero if nobody has written to it since it was allocated.
    pub fn is_untouched(&self) -> bool {
        self.0.load(Relaxed) & UNTOUCHED != 0
    }

    /// It is given back: none begins here.
    pub fn end(&self) {
        self.0.store(0, Release);
    }

    /// Whether none begins here.
    pub fn is_none(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    /// Its blocks, if one begins here; also while it is in hand.
    pub fn blocks(&self) -> Option<usize> {
        let word = self.0.load(Acquire) & !(WATCHED | UNTOUCHED);
        Some((word >> BLOCKS_SHIFT) as usize).filter(|&blocks| blocks != 0)
    }

    /// Its blocks, if one begins here that is live.
    pub fn live_blocks(&self) -> Option<usize> {
        self.blocks().filter(|_| !self.is_cached())
    }

    /// Its blocks, if one begins here that is live and has neither mark: who frees it has no more to do.
    #[inline]
    pub fn plain_blocks(&self) -> Option<usize> {
        let word = self.0.load(Relaxed);
        (word & (BY | WATCHED | UNTOUCHED) == 0 && word != 0).then_some((word >> BLOCKS_SHIFT) as usize)
    }

    /// Whether it is freed and in some thread's hand.
    pub fn is_cached(&self) -> bool {
        self.0.load(Acquire) & BY != 0
    }

    /// Freed, it is in the hand of this heap, for all threads to see: so a second free is noticed. Two threads that free it
    /// at the same instant may both write; one finds the other's mark later, see [`LargeObject::leave_cache`].
    pub fn enter_cache(&self, heap: u32) {
        self.0.store(self.0.load(Relaxed) & !(BY | UNTOUCHED) | heap, Release);
    }

    /// It leaves the hand of this heap; `false`: it was in another's.
    pub fn leave_cache(&self, heap: u32) -> bool {
        let word = self.0.load(Acquire);
        self.0.store(word & !BY, Release);
        word & BY == heap
    }

    /// Whether its lifetime is being measured.
    pub fn is_watched(&self) -> bool {
        self.0.load(Relaxed) & WATCHED != 0
    }

    /// Its lifetime is being measured, or is no more: only who has the object says so.
    pub fn set_watched(&self, watched: bool) {
        let word = self.0.load(Relaxed);
        self.0.store(if watched { word | WATCHED } else { word & !WATCHED }, Relaxed);
    }
}
