//! Two flags of a span, in the byte of its role. Only the owner calls these functions.

use core::sync::atomic::Ordering::Relaxed;

use crate::span::cells::{KEPT, Span, WHOLE};

impl Span {
    /// Whether all of its memory was in use since the global allocator handed it out.
    pub fn is_whole(&self) -> bool {
        self.role.load(Relaxed) & WHOLE != 0
    }

    /// All of its memory is in use (`true`), or it returns to the global allocator.
    pub fn set_whole(&self, whole: bool) {
        self.role.store(self.role.load(Relaxed) & !WHOLE | if whole { WHOLE } else { 0 }, Relaxed);
    }

    /// Whether its owner keeps it in its bin if it is empty, and has noted that.
    pub fn is_kept(&self) -> bool {
        self.role.load(Relaxed) & KEPT != 0
    }

    /// Sets whether its owner has noted that it keeps it.
    pub fn set_kept(&self, kept: bool) {
        self.role.store(self.role.load(Relaxed) & !KEPT | if kept { KEPT } else { 0 }, Relaxed);
    }
}
