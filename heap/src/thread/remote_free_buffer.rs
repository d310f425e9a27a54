//! Buffers frees of other threads' objects in the freeing thread, so that one atomic instruction serves many
//! (as snmalloc's RemoteDeallocCache).
//!
//! Objects that a consumer frees one after another were often allocated one after another by a producer, and
//! lie in the same 64 cells of a span. The buffer keeps the marks of a few such words. It flushes a word when
//! its place is needed, and all words after some frees and whenever maintenance runs
//! ([`crate::entry::maintenance`]). Until then the objects count as live, so their span stays.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use crate::span::cells::Span;
use crate::span::remote;
use crate::system::text::misuse;

/// So many that a thread which frees another thread's objects in any order finds most of their words here.
const PLACES: usize = 128;
/// Frees after which all words are flushed.
const PATIENCE: u32 = 512;

/// A thread's buffer. All zeros is an empty one.
pub struct RemoteFreeBuffer {
    places: [Marks; PLACES],
    /// Frees since the last complete flush.
    frees: Cell<u32>,
}

impl Default for RemoteFreeBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// Marks for one word of a span. The low bits of the span's address hold the word's number.
#[derive(Default)]
struct Marks {
    key: Cell<usize>,
    bits: Cell<u64>,
}

const WORD: usize = align_of::<Span>() - 1;

impl RemoteFreeBuffer {
    /// An empty buffer.
    pub const fn new() -> Self {
        Self {
            places: [const { Marks { key: Cell::new(0), bits: Cell::new(0) } }; PLACES],
            frees: Cell::new(0),
        }
    }

    #[inline]
    fn place(&self, span: &'static Span, cell: usize) -> (&Marks, usize) {
        let key = core::ptr::from_ref(span) as usize | (cell / 64);
        (&self.places[key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (usize::BITS - PLACES.ilog2())], key)
    }

    /// The fast path: adds a free of `cell` if the buffer has its word and no flush is needed; else `false`.
    #[inline(always)]
    pub fn add_to_known_word(&self, span: &'static Span, cell: usize) -> bool {
        let (place, key) = self.place(span, cell);
        let (bits, bit) = (place.bits.get(), 1 << (cell % 64));
        let frees = self.frees.get() + 1;
        if place.key.get() != key || bits & bit != 0 || frees == PATIENCE {
            return false;
        }
        place.bits.set(bits | bit);
        self.frees.set(frees);
        true
    }

    /// Adds a free of `cell`; `false` if the buffer has it already, which is a double free.
    pub fn add(&self, span: &'static Span, cell: usize) -> bool {
        let (place, key) = self.place(span, cell);
        let bit = 1 << (cell % 64);
        if place.key.get() != key {
            place.flush(false);
            place.key.set(key);
        } else if place.bits.get() & bit != 0 {
            return false;
        }
        place.bits.set(place.bits.get() | bit);
        self.frees.set(self.frees.get() + 1);
        if self.frees.get() >= PATIENCE {
            self.flush(false);
        }
        true
    }

    /// Whether there is nothing to flush.
    pub fn is_empty(&self) -> bool {
        self.frees.get() == 0
    }

    /// Flushes all words; `locked`: the caller holds the registry's lock.
    pub fn flush(&self, locked: bool) {
        if self.frees.replace(0) != 0 {
            self.places.iter().for_each(|place| place.flush(locked));
        }
    }
}

impl Marks {
    fn flush(&self, locked: bool) {
        let (key, bits) = (self.key.replace(0), self.bits.replace(0));
        if key == 0 {
            return;
        }
        // SAFETY: the key holds a span's address, and spans are never unmapped.
        let span = unsafe { &*((key & !WORD) as *const Span) };
        let word = key & WORD;
        let twice = span.remote().mark(word, bits);
        if twice != 0 {
            let cell_bytes = span.cell_bytes.load(Relaxed) as usize;
            let cell = word * 64 + twice.trailing_zeros() as usize;
            misuse("double free, by two threads", span.address() + cell * cell_bytes, cell_bytes, 0);
        }
        remote::list(span, locked);
    }
}
