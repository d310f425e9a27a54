//! Which cycles of a resource are taken, when requests do not arrive in the order of time.
//!
//! The machine walks the program in order, but instructions issue out of order: a late load may reserve cycle
//! 900 before an independent one asks for cycle 300. A single "free from" time would make the second wait for
//! the first; a calendar does not. It covers a window of cycles; what falls out of the window is forgotten,
//! and so free.

/// Counts of up to eight kinds (4 bits each, so at most 15 a cycle) for each cycle of a window.
pub struct Calendar {
    /// A slot's cycle in the upper half, counts in the lower. 32 bits of the cycle distinguish the window's
    /// turns.
    slots: Box<[u64]>,
}

const WINDOW: usize = 8192;
const COUNTS: u64 = 0xffff_ffff;

impl Calendar {
    /// An empty one.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Calendar {
        Calendar { slots: vec![u64::MAX << 32; WINDOW].into() }
    }

    /// The first cycle from `at` on in which kind `kind` and kind 0 (the total) are below their limits; takes
    /// it.
    #[inline]
    pub fn take(&mut self, at: u64, kind: u32, limit: u64, total: u64) -> u64 {
        let mut cycle = at;
        loop {
            let slot = &mut self.slots[cycle as usize & (WINDOW - 1)];
            let tag = cycle << 32;
            let counts = if *slot & !COUNTS == tag { *slot & COUNTS } else { 0 };
            if (counts >> (4 * kind)) & 15 < limit && counts & 15 < total {
                let one = if kind == 0 { 1 } else { 1 + (1 << (4 * kind)) };
                *slot = tag | (counts + one);
                return cycle;
            }
            cycle += 1;
        }
    }

    /// The first free slot from `at` on; takes it. For resources that do one thing at a time.
    #[inline]
    pub fn take_one(&mut self, at: u64) -> u64 {
        self.take(at, 0, 1, 1)
    }

    /// Whether this slot is free.
    #[inline]
    pub fn is_free(&self, at: u64) -> bool {
        let slot = self.slots[at as usize & (WINDOW - 1)];
        slot & !COUNTS != at << 32 || slot & COUNTS == 0
    }
}
