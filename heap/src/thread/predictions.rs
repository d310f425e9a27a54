//! A thread's prediction table (LLAMA §7): which bin the objects of a call go to.
//!
//! A call is known by its return address, stack pointer and size, all there already when malloc is called. Two calls share a
//! place in the table, so that two which take turns do not drive each other out.

use core::cell::Cell;

use crate::lifetime::sites::Site;
use crate::units::call::Call;
use crate::units::geometry::MAX_SMALL_BYTES;
use crate::units::size_class::GRANULE_BYTES;

/// Places: with two calls to each, so many that a server's thread finds 95% of its calls (LLAMA §9.4).
const PLACES: usize = 2048;
const CALLS: usize = 2;

/// The table. All zeros knows nothing. Calls lie anywhere among the places in use, so these are few at first: each page that is
/// touched is memory of the program's own, for every thread.
pub struct Predictions {
    /// The last place in use, as its distance from the first in bytes.
    last: Cell<u32>,
    places: [Place; PLACES],
}

type Place = [Entry; CALLS];

/// Where the last place of all lies.
const LAST: u32 = ((PLACES - 1) * size_of::<Place>()) as u32;

struct Entry {
    key: Cell<u64>,
    /// Where in the thread's heap the bin lies.
    bin: Cell<u32>,
    /// The call's site, by number plus one; 0 for none.
    site: Cell<u16>,
    class: Cell<u8>,
}

impl Entry {
    const fn new() -> Self {
        Self { key: Cell::new(0), bin: Cell::new(0), site: Cell::new(0), class: Cell::new(0) }
    }

    fn is_used(&self) -> bool {
        self.bin.get() != 0
    }

    fn forget(&self) {
        self.key.set(0);
        self.bin.set(0);
    }

    fn become_as(&self, other: &Self) {
        self.bin.set(other.bin.get());
        self.site.set(other.site.get());
        self.class.set(other.class.get());
        self.key.set(other.key.get());
    }

    /// The class that the site predicts by now is another.
    fn has_changed(&self) -> bool {
        let site = usize::from(self.site.get()).checked_sub(1).and_then(Site::numbered);
        site.is_some_and(|site| site.class() != usize::from(self.class.get()))
    }
}

impl Default for Predictions {
    fn default() -> Self {
        Self::new()
    }
}

/// The low bits of a key are the size in granules, at most 512.
const SIZE_BITS: u32 = 10;

impl Predictions {
    /// Knows nothing.
    pub const fn new() -> Self {
        Self { last: Cell::new(0), places: [const { [const { Entry::new() }; CALLS] }; PLACES] }
    }

    /// The place for a call of at most [`MAX_SMALL_BYTES`], and the key by which it knows
    /// it. The size in granules has the low ten bits to itself: so no collision can yield cells too small.
    /// Return address and stack height are mixed above it, and all bits of both choose the place.
    #[inline(always)]
    fn place(&self, call: &Call) -> (&Place, u64) {
        // The slot of the return address, below `stack`, is what the fast path has.
        let slot = call.stack.wrapping_sub(size_of::<usize>()) as u64;
        let call_site = (call.caller as u64).wrapping_add(slot << 12);
        let key = call_site << SIZE_BITS | call.size.div_ceil(GRANULE_BYTES) as u64;
        (self.place_of(key), key)
    }

    #[inline(always)]
    fn place_of(&self, key: u64) -> &Place {
        let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - LAST.ilog2() - 1);
        let distance = (mixed as u32 & self.last.get()) as usize;
        // SAFETY: `last` is one less than a power of two, times the size of a place, and at most that of the last place.
        unsafe { &*self.places.as_ptr().byte_add(distance) }
    }

    /// Takes twice as many places in use, if there are: a call's entry stays, or goes to a place that nobody was in.
    fn grow(&self) -> bool {
        let places = self.last.get() as usize / size_of::<Place>() + 1;
        if places == PLACES {
            return false;
        }
        self.last.set(((2 * places - 1) * size_of::<Place>()) as u32);
        for (place, moved) in self.places[..places].iter().zip(&self.places[places..]) {
            for (from, to) in place.iter().zip(moved) {
                if from.is_used() && !core::ptr::eq(self.place_of(from.key.get()), place) {
                    to.become_as(from);
                    from.forget();
                }
            }
        }
        true
    }

    /// Where in the heap the bin of calls like this one lies.
    #[inline(always)]
    pub fn get(&self, call: &Call) -> Option<u32> {
        let ([newer, older], key) = self.place(call);
        if newer.key.get() == key {
            Some(newer.bin.get())
        } else if older.key.get() == key {
            Some(older.bin.get())
        } else {
            None
        }
    }

    /// The site of a call whose bin is known.
    pub fn site(&self, call: &Call) -> Option<&'static Site> {
        if call.size > MAX_SMALL_BYTES {
            return None;
        }
        let (place, key) = self.place(call);
        let entry = place.iter().find(|entry| entry.key.get() == key)?;
        Site::numbered(usize::from(entry.site.get()).checked_sub(1)?)
    }

    /// Remembers the bin for calls like this one, for as long as it is of the class that the site predicts.
    pub fn remember(&self, call: &Call, bin: u32, class: usize, site: Option<&'static Site>) {
        let ([newer, older], key) = self.place(call);
        let is_others = |entry: &Entry| entry.is_used() && entry.key.get() != key;
        if is_others(newer) && is_others(older) && self.grow() {
            return self.remember(call, bin, class, site);
        }
        let entry = if older.key.get() == key { older } else { newer };
        if is_others(entry) {
            older.become_as(newer);
        }
        entry.bin.set(bin);
        entry.site.set(site.map_or(0, |site| site.number() as u16 + 1));
        entry.class.set(class as u8);
        entry.key.set(key);
    }

    /// Forgets calls whose sites predict another class now, and tells of the others their granules and class.
    pub fn forget_changed(&self, known: impl Fn(usize, u8)) {
        // Entries that were never used are not written to: their memory is not there yet.
        for entry in self.places.iter().flatten().filter(|entry| entry.is_used()) {
            if entry.has_changed() {
                entry.forget();
            } else {
                known(entry.key.get() as usize & ((1 << SIZE_BITS) - 1), entry.class.get());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn call(stack: usize) -> Call {
        Call { size: 24, caller: 0x5555_1234, stack }
    }

    #[test]
    fn two_calls_of_one_place_are_both_known_and_the_third_drives_out_the_oldest() {
        let table = Predictions::new();
        while table.grow() {}
        let first = call(0x7fff_0000);
        let alike = (1..1 << 20).map(|i| call(0x7fff_0000 + 16 * i));
        let alike = alike.filter(|c| core::ptr::eq(table.place(c).0, table.place(&first).0));
        let calls: Vec<Call> = core::iter::once(first).chain(alike.take(2)).collect();
        let bins = || -> Vec<_> { calls.iter().map(|call| table.get(call)).collect() };
        table.remember(&calls[0], 64, 0, None);
        table.remember(&calls[1], 128, 1, None);
        assert_eq!(bins(), [Some(64), Some(128), None]);
        table.remember(&calls[0], 192, 2, None); // known already: it takes nobody's place
        assert_eq!(bins(), [Some(192), Some(128), None]);
        table.remember(&calls[2], 64, 0, None);
        assert_eq!(bins(), [None, Some(128), Some(64)]);
    }

    #[test]
    fn calls_are_forgotten_whose_site_predicts_another_class() {
        let table = Predictions::new();
        let site = Site::numbered(7).filter(|site| site.class() == 0).expect("a site that is not used yet");
        table.remember(&call(16), 64, 0, Some(site));
        table.remember(&call(32), 128, 1, Some(site));
        table.remember(&call(48), 128, 1, None);
        let known = std::cell::RefCell::new(Vec::new());
        table.forget_changed(|granules, class| known.borrow_mut().push((granules, class)));
        assert_eq!(table.get(&call(16)), Some(64), "its class is still that of the bin");
        assert_eq!(table.get(&call(32)), None, "its class has changed");
        assert_eq!(table.get(&call(48)), Some(128), "its class holds for good");
        assert_eq!(table.site(&call(16)).map(Site::number), Some(7));
        assert!(table.site(&call(32)).is_none() && table.site(&call(48)).is_none());
        known.borrow_mut().sort_unstable();
        assert_eq!(known.into_inner(), [(2, 0), (2, 1)]);
    }

    #[test]
    fn the_table_grows_with_what_it_knows_and_forgets_nothing_by_that() {
        let table = Predictions::new();
        let bin = |i: usize| 64 * (1 + i as u32 % 300);
        for i in 0..400 {
            table.remember(&call(0x7fff_0000 + 16 * i), bin(i), 0, None);
        }
        assert!((table.last.get() as usize) < PLACES * size_of::<Place>() - 1);
        assert!((0..400).all(|i| table.get(&call(0x7fff_0000 + 16 * i)) == Some(bin(i))));
        (0..20_000).for_each(|i| table.remember(&call(16 * i), bin(i), 0, None));
        assert_eq!(table.last.get(), LAST);
    }

    #[test]
    fn calls_that_differ_in_one_bit_of_height_have_places_of_their_own() {
        let table = Predictions::new();
        while table.grow() {}
        let mut places: Vec<*const Place> =
            (4..20).map(|bit| &raw const *table.place(&call(1 << bit)).0).collect();
        places.sort_unstable();
        places.dedup();
        assert!(places.len() >= 15, "{} places for 16 heights", places.len());
    }
}
