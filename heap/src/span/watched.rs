//! The cells of a span whose lifetime is being measured, two at most. Only the owner calls these functions.

use core::sync::atomic::Ordering::Relaxed;

use crate::span::cells::Span;

impl Span {
    /// Whether a cell is watched already.
    pub fn any_watched(&self) -> bool {
        self.watched.load(Relaxed) != 0
    }

    /// Watches a live cell; `false` if there is no room. It clears the cell's live bit, so the fast path of
    /// freeing need not check for watches: it takes the cell for one that is not live, and leaves it to the
    /// slow path, which checks. Only the owner calls this and the functions below.
    pub fn watch(&self, cell: usize) -> bool {
        let watched = self.watched.load(Relaxed);
        let shift = if watched & 0xFFFF == 0 { 0 } else { 16 };
        if watched >> shift & 0xFFFF != 0 {
            return false;
        }
        self.watched.store(watched | (cell as u32 + 1) << shift, Relaxed);
        let word = &self.live.0[cell / 64];
        word.store(word.load(Relaxed) & !(1 << (cell % 64)), Relaxed);
        true
    }

    /// Whether this cell is watched.
    pub fn is_watched(&self, cell: usize) -> bool {
        self.watched_cells_of(cell / 64) >> (cell % 64) & 1 == 1
    }

    /// Ends a watch: the cell is live like any other.
    pub fn unwatch(&self, cell: usize) {
        self.forget_watch(cell);
        let word = &self.live.0[cell / 64];
        word.store(word.load(Relaxed) | 1 << (cell % 64), Relaxed);
    }

    /// Forgets a watched cell; its live bit stays clear.
    pub fn forget_watch(&self, cell: usize) {
        let watched = self.watched.load(Relaxed);
        if watched & 0xFFFF == cell as u32 + 1 {
            self.watched.store(watched & !0xFFFF, Relaxed);
        } else if watched >> 16 == cell as u32 + 1 {
            self.watched.store(watched & 0xFFFF, Relaxed);
        }
    }
}
