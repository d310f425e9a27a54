//! A thread's cache of its calls' sites: no search of the whole table, and no memory that another thread
//! writes. Sizes that share a site share an entry: large objects of one call are of many sizes.

use core::cell::Cell;

use super::{Site, eviction, size_key};
use crate::units::call::Call;

/// Entries of the cache.
const SITE_CACHE_ENTRIES: usize = 512;

/// A thread's cache of its calls' sites. All zeros is an empty one.
pub struct SiteCache {
    slots: [Cell<(u64, Option<&'static Site>)>; SITE_CACHE_ENTRIES],
    /// The generation of its entries, see [`eviction`].
    generation: Cell<u32>,
}

impl SiteCache {
    /// An empty cache.
    pub const fn new() -> Self {
        Self { slots: [const { Cell::new((0, None)) }; SITE_CACHE_ENTRIES], generation: Cell::new(0) }
    }

    /// Clears the cache if sites were evicted since the last time.
    #[inline]
    pub(super) fn refresh(&self) {
        if self.generation.replace(eviction::generation()) != eviction::generation() {
            self.slots.iter().for_each(|slot| slot.set((0, None)));
        }
    }

    #[inline]
    pub(super) fn slot(&self, call: &Call) -> (&Cell<(u64, Option<&'static Site>)>, u64) {
        let call_site = (call.caller as u64).wrapping_add((call.stack as u64) << 16).rotate_left(20);
        let key = (call_site ^ size_key(call.size)).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        (&self.slots[(key >> (u64::BITS - SITE_CACHE_ENTRIES.ilog2())) as usize], key)
    }

    pub(super) fn get(&self, call: &Call) -> Option<&'static Site> {
        let (slot, key) = self.slot(call);
        let (known, site) = slot.get();
        site.filter(|_| known == key)
    }
}

impl Default for SiteCache {
    fn default() -> Self {
        Self::new()
    }
}
