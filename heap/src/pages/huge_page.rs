//! One huge page's metadata (LLAMA §6.2, §6.5): its state, lifetime class, deadline, and bit vectors of its
//! blocks.
//!
//! A thread that changes a page holds its lock; fields are atomics so that searches may read them without it.
//! There is no lock over all pages: where the paper's prototype has one global lock (§8), each page has its
//! own.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::system::lock::Lock;
use crate::units::bits::{self, Bits};
use crate::units::geometry::HUGE_PAGE_METADATA_BYTES;
use crate::units::lifetime_class::NEVER_MS;

/// What a huge page is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// Never used, or free and returned to the operating system.
    Free = 0,
    /// The one page of its class that is being filled for the first time.
    Open = 1,
    /// Was filled once, has a deadline; its free blocks are recycled.
    Active = 2,
    /// Free, and kept mapped for the next use.
    Retained = 3,
}

/// A bit vector that is changed under the page's lock and may be read without.
#[derive(Default)]
pub struct SharedBits([AtomicU64; 4]);

impl SharedBits {
    /// All bits.
    #[inline]
    pub fn load(&self) -> Bits {
        [self.0[0].load(Relaxed), self.0[1].load(Relaxed), self.0[2].load(Relaxed), self.0[3].load(Relaxed)]
    }

    /// Replaces all bits.
    #[inline]
    pub fn store(&self, bits: &Bits) {
        for (word, &value) in self.0.iter().zip(bits) {
            word.store(value, Relaxed);
        }
    }

    /// Sets `mask`.
    #[inline]
    pub fn set(&self, mask: &Bits) {
        for (word, &m) in self.0.iter().zip(mask) {
            word.store(word.load(Relaxed) | m, Relaxed);
        }
    }

    /// Clears `mask`.
    #[inline]
    pub fn clear(&self, mask: &Bits) {
        for (word, &m) in self.0.iter().zip(mask) {
            word.store(word.load(Relaxed) & !m, Relaxed);
        }
    }

    /// One bit.
    #[inline]
    pub fn get(&self, i: usize) -> bool {
        self.0[i / 64].load(Relaxed) >> (i % 64) & 1 == 1
    }
}

/// No bucket: the page is in no set of [`crate::pages::pool`].
pub const NO_BUCKET: u8 = u8::MAX;

/// The metadata, 256 B.
#[repr(C, align(256))]
pub struct HugePage {
    /// Held by the thread that changes the page.
    pub lock: Lock,
    state: AtomicU8,
    class: AtomicU8,
    /// Which set of partly free pages the page is in; [`NO_BUCKET`] for none.
    pub bucket: AtomicU8,
    /// Not 0 if the page was empty at the last tick: it is returned only after it has stayed empty.
    pub empty_since_tick: AtomicU8,
    /// When all objects should be dead, ms of the heap's clock.
    pub deadline_ms: AtomicU64,
    /// While open: blocks below this were taken.
    pub frontier: AtomicU16,
    /// Blocks from here on were not touched since the operating system gave the page: they read as zero.
    pub high_water: AtomicU16,
    /// Small pages within block spans that were free when they were last returned, see
    /// [`crate::pages::sparse`].
    pub given_back: AtomicU16,
    /// Not 0 if the page consists of small pages, see [`crate::pages::decay`].
    pub small: AtomicU8,
    /// The second in which the page was last examined for a change of its size, modulo 256.
    pub looked: AtomicU8,
    /// When blocks of the page were last taken, ms of the heap's clock.
    pub taken_ms: AtomicU64,
    /// Blocks of the page's last object, if it extends over the following pages (LLAMA §8); else 0.
    pub last_object_blocks: AtomicU32,
    /// Blocks with live objects.
    pub live: SharedBits,
    /// Blocks that hold objects of the page's own class.
    pub residual: SharedBits,
    /// Blocks that are the last of a large object (LLAMA §8, size look-up).
    pub last: SharedBits,
    /// Blocks taken as block spans; the other live ones hold large objects.
    pub spans: SharedBits,
    /// Free blocks that [`crate::pages::decay`] has returned since they were last taken.
    pub discarded: SharedBits,
}

const _: () = assert!(size_of::<HugePage>() == HUGE_PAGE_METADATA_BYTES);

impl HugePage {
    /// The state.
    #[inline]
    pub fn state(&self) -> State {
        match self.state.load(Relaxed) {
            1 => State::Open,
            2 => State::Active,
            3 => State::Retained,
            _ => State::Free,
        }
    }

    /// Changes the state.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u8, Relaxed);
    }

    /// The lifetime class.
    #[inline]
    pub fn class(&self) -> usize {
        self.class.load(Relaxed) as usize
    }

    /// Changes the lifetime class.
    pub fn set_class(&self, class: usize) {
        self.class.store(class as u8, Relaxed);
    }

    /// Marks `blocks` live, residual if their class is the page's own.
    #[inline]
    pub fn take(&self, blocks: &Bits, first: usize, count: usize, residual: bool) {
        self.live.set(blocks);
        self.discarded.clear(blocks);
        if residual {
            self.residual.set(blocks);
        }
        let high_water = self.high_water.load(Relaxed) as usize;
        if first + count > high_water {
            self.high_water.store((first + count) as u16, Relaxed);
        }
    }

    /// Blocks that are free.
    #[inline]
    pub fn free_blocks(&self) -> Bits {
        self.live.load().map(|word| !word)
    }

    /// Resets everything but the lock and the state on the operating system's side.
    pub fn reset(&self) {
        self.live.store(&bits::NONE);
        self.residual.store(&bits::NONE);
        self.last.store(&bits::NONE);
        self.spans.store(&bits::NONE);
        self.discarded.store(&bits::NONE);
        self.given_back.store(0, Relaxed);
        self.frontier.store(0, Relaxed);
        self.last_object_blocks.store(0, Relaxed);
        self.empty_since_tick.store(0, Relaxed);
        self.deadline_ms.store(NEVER_MS, Relaxed);
        self.bucket.store(NO_BUCKET, Relaxed);
    }

    /// Blocks of the large object that begins at block `first`: up to the next `last` bit (LLAMA §8).
    pub fn object_blocks(&self, first: usize) -> Option<usize> {
        let beyond = self.last_object_blocks.load(Relaxed) as usize;
        if beyond > 0 && first == 0 {
            return Some(beyond);
        }
        let last = self.last.load();
        let mut word = last[first / 64] & u64::MAX << (first % 64);
        let mut i = first / 64;
        while word == 0 {
            i += 1;
            word = *last.get(i)?;
        }
        Some(i * 64 + word.trailing_zeros() as usize + 1 - first)
    }
}
