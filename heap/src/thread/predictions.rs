//! A thread's prediction table (LLAMA §7): which bin the objects of a call go to.
//!
//! A call is known by its return address, stack pointer and size, all there already when malloc is called. Two calls share a
//! place in the table, so that two which take turns do not drive each other out.

use core::cell::Cell;

use crate::lifetime::sites::Site;
use crate::thread::bin::Bin;
use crate::units::call::Call;
use crate::units::geometry::MAX_SMALL_BYTES;
use crate::units::size_class::GRANULE_BYTES;

/// Places: with two calls to each, so many that a server's thread finds 95% of its calls (LLAMA §9.4).
const PLACES: usize = 2048;
const CALLS: usize = 2;

/// The table. All zeros knows nothing.
pub struct Predictions {
    places: [[Entry; CALLS]; PLACES],
    /// The sites of the calls, by number plus one, 0 for none: apart from the rest, since the fast path has no use for them.
    sites: [[Cell<u16>; CALLS]; PLACES],
}

struct Entry {
    key: Cell<u64>,
    bin: Cell<Option<&'static Bin>>,
}

impl Entry {
    const fn new() -> Self {
        Self { key: Cell::new(0), bin: Cell::new(None) }
    }

    #[inline(always)]
    fn bin(&self) -> &'static Bin {
        // SAFETY: asked only where the key is a call's. No call has the key of an entry that was never set, 0; and
        // `remember` sets both.
        unsafe { self.bin.get().unwrap_unchecked() }
    }
}

impl Default for Predictions {
    fn default() -> Self {
        Self::new()
    }
}

impl Predictions {
    /// Knows nothing.
    pub const fn new() -> Self {
        Self {
            places: [const { [const { Entry::new() }; CALLS] }; PLACES],
            sites: [const { [const { Cell::new(0) }; CALLS] }; PLACES],
        }
    }

    /// The place for a call of at most [`MAX_SMALL_BYTES`], and the key by which it knows
    /// it. The size in granules has the low ten bits to itself: so no collision can yield cells too small, and no key is 0.
    /// Return address and stack height are mixed above it, and all bits of both choose the place.
    #[inline(always)]
    fn place(call: &Call) -> (usize, u64) {
        let granules = ((call.size + 2 * GRANULE_BYTES - 1) / GRANULE_BYTES) as u64;
        let call_site = (call.caller as u64).wrapping_add((call.stack as u64) << 12);
        let key = call_site << 10 | granules;
        let place = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - PLACES.ilog2());
        (place as usize, key)
    }

    /// The bin of calls like this one.
    #[inline(always)]
    pub fn get(&self, call: &Call) -> Option<&'static Bin> {
        let (place, key) = Self::place(call);
        let [newer, older] = &self.places[place];
        if newer.key.get() == key {
            Some(newer.bin())
        } else if older.key.get() == key {
            Some(older.bin())
        } else {
            None
        }
    }

    /// The site of a call whose bin is known.
    pub fn site(&self, call: &Call) -> Option<&'static Site> {
        if call.size > MAX_SMALL_BYTES {
            return None;
        }
        let (place, key) = Self::place(call);
        let way = self.places[place].iter().position(|entry| entry.key.get() == key)?;
        Site::numbered(usize::from(self.sites[place][way].get()).checked_sub(1)?)
    }

    /// Remembers the bin for calls like this one, for as long as it is of the class that the site predicts.
    pub fn remember(&self, call: &Call, bin: &'static Bin, site: Option<&'static Site>) {
        let (place, key) = Self::place(call);
        let ([newer, older], sites) = (&self.places[place], &self.sites[place]);
        let way = usize::from(older.key.get() == key);
        if way == 0 && newer.key.get() != key {
            older.bin.set(newer.bin.get());
            older.key.set(newer.key.get());
            sites[1].set(sites[0].get());
        }
        let entry = &self.places[place][way];
        entry.bin.set(Some(bin));
        entry.key.set(key);
        sites[way].set(site.map_or(0, |site| site.number() as u16 + 1));
    }

    /// Forgets calls whose sites predict another class now.
    pub fn forget_changed(&self) {
        for (entry, site) in self.places.iter().flatten().zip(self.sites.iter().flatten()) {
            // Entries that were never used are not written to: their memory is not there yet.
            if entry.key.get() != 0
                && let Some(number) = usize::from(site.get()).checked_sub(1)
                && let Some(site) = Site::numbered(number)
                && site.class() != usize::from(entry.bin().class.get())
            {
                entry.key.set(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::local::Heap;
    use std::boxed::Box;
    use std::vec::Vec;

    fn call(stack: usize) -> Call {
        Call { size: 24, caller: 0x5555_1234, stack }
    }

    #[test]
    fn two_calls_of_one_place_are_both_known_and_the_third_drives_out_the_oldest() {
        let table = Predictions::new();
        let heap: &'static Heap = Box::leak(Box::new(Heap::new()));
        let bins = [heap.bin(0, 1), heap.bin(1, 1), heap.bin(2, 1)];
        let first = call(0x7fff_0000);
        let place = |call: &Call| Predictions::place(call).0;
        let alike = (1..1 << 20).map(|i| call(0x7fff_0000 + 16 * i)).filter(|c| place(c) == place(&first));
        let calls: Vec<Call> = core::iter::once(first).chain(alike.take(2)).collect();
        let classes =
            || -> Vec<_> { calls.iter().map(|call| table.get(call).map(|bin| bin.class.get())).collect() };
        for (call, bin) in calls.iter().zip(bins).take(2) {
            table.remember(call, bin, None);
        }
        assert_eq!(classes(), [Some(0), Some(1), None]);
        table.remember(&calls[0], bins[2], None); // known already: it takes nobody's place
        assert_eq!(classes(), [Some(2), Some(1), None]);
        table.remember(&calls[2], bins[0], None);
        assert_eq!(classes(), [None, Some(1), Some(0)]);
    }

    #[test]
    fn calls_are_forgotten_whose_site_predicts_another_class() {
        let table = Predictions::new();
        let heap: &'static Heap = Box::leak(Box::new(Heap::new()));
        let site = Site::numbered(7).filter(|site| site.class() == 0).expect("a site that is not used yet");
        table.remember(&call(16), heap.bin(0, 1), Some(site));
        table.remember(&call(32), heap.bin(1, 1), Some(site));
        table.remember(&call(48), heap.bin(1, 1), None);
        table.forget_changed();
        assert!(table.get(&call(16)).is_some(), "its class is still that of the bin");
        assert!(table.get(&call(32)).is_none(), "its class has changed");
        assert!(table.get(&call(48)).is_some(), "its class holds for good");
        assert_eq!(table.site(&call(16)).map(Site::number), Some(7));
        assert!(table.site(&call(32)).is_none() && table.site(&call(48)).is_none());
    }

    #[test]
    fn calls_that_differ_in_one_bit_of_height_have_places_of_their_own() {
        let mut places: Vec<usize> = (4..20).map(|bit| Predictions::place(&call(1 << bit)).0).collect();
        places.sort_unstable();
        places.dedup();
        assert!(places.len() >= 15, "{} places for 16 heights", places.len());
    }
}
