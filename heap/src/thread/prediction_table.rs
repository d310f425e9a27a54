//! A thread's prediction table (LLAMA §7): maps a call to the bin of its objects.
//!
//! The key is made of return address, stack pointer and size, which are all in registers when malloc is
//! called. Each bucket of the table holds two calls, so that two calls which alternate do not evict each
//! other.
//!
//! For a site whose callers are separated by a word of the stack ([`crate::lifetime::sites`]), the entry
//! names the word and has no bin. With that word in the key, each caller has its own entry.

use core::cell::Cell;

use crate::lifetime::sites::Site;
use crate::units::call::Call;
use crate::units::geometry::MAX_SMALL_BYTES;
use crate::units::lifetime_class::CLASSES;
use crate::units::size_class::GRANULE_BYTES;

/// With two calls to each bucket, a server's thread finds 95% of its calls (LLAMA §9.4).
const BUCKETS: usize = 2048;
const CALLS: usize = 2;

/// The table. All zeros is an empty one. Calls hash to any of the buckets in use, so only few are used at
/// first: every page that a thread touches here costs the program memory.
#[repr(C, align(64))]
pub struct PredictionTable {
    /// The last bucket in use, as its distance from the first in bytes.
    last: Cell<u32>,
    _aligned: [u32; 7],
    buckets: [Bucket; BUCKETS],
}

type Bucket = [Entry; CALLS];

#[repr(C)]
struct Entry {
    key: Cell<u32>,
    /// The offset of the bin in the thread's heap.
    bin: Cell<u32>,
    /// The call's site, its number plus one; 0 for none.
    site: Cell<u16>,
    /// The call's size in granules.
    granules: Cell<u16>,
    class: Cell<u8>,
    /// The word of the stack that completes the key, in words above the return address; 0 if the key is
    /// complete.
    word: Cell<u8>,
}

/// Offsets for the fast path in assembly: the last bucket in use, the first bucket, and an entry's size, key,
/// bin and word.
pub mod layout {
    use super::{Entry, PredictionTable};
    use core::mem::offset_of;

    /// See above.
    pub const LAST: usize = offset_of!(PredictionTable, last);
    /// See above.
    pub const BUCKETS: usize = offset_of!(PredictionTable, buckets);
    /// See above.
    pub const ENTRY_BYTES: usize = size_of::<Entry>();
    /// See above.
    pub const KEY: usize = offset_of!(Entry, key);
    /// See above.
    pub const BIN: usize = offset_of!(Entry, bin);
    /// See above.
    pub const WORD: usize = offset_of!(Entry, word);
}

impl Entry {
    const fn new() -> Self {
        Self {
            key: Cell::new(0),
            bin: Cell::new(0),
            site: Cell::new(0),
            granules: Cell::new(0),
            class: Cell::new(0),
            word: Cell::new(0),
        }
    }

    fn is_used(&self) -> bool {
        self.key.get() != 0
    }

    fn forget(&self) {
        self.key.set(0);
        self.bin.set(0);
    }

    fn copy_from(&self, other: &Self) {
        self.bin.set(other.bin.get());
        self.site.set(other.site.get());
        self.granules.set(other.granules.get());
        self.class.set(other.class.get());
        self.word.set(other.word.get());
        self.key.set(other.key.get());
    }

    /// Whether the site now predicts another class, or names another word.
    fn has_changed(&self) -> bool {
        let site = usize::from(self.site.get()).checked_sub(1).and_then(Site::numbered);
        site.is_some_and(|site| {
            let word = self.word.get();
            site.word() != word || word == 0 && site.class() != usize::from(self.class.get())
        })
    }
}

/// A call's entry.
pub struct KnownCall {
    /// The offset of its bin in the thread's heap; 0 if a word completes its key.
    pub bin: u32,
    /// The word of the stack that completes the key, in words above the return address; 0 for none.
    pub word: u8,
    site: u16,
}

impl KnownCall {
    /// The call's site.
    pub fn site(&self) -> Option<&'static Site> {
        Site::numbered(usize::from(self.site).checked_sub(1)?)
    }
}

impl Default for PredictionTable {
    fn default() -> Self {
        Self::new()
    }
}

/// The factor of return addresses: 2^32 divided by the golden ratio.
pub const CALLER_FACTOR: u32 = 0x9E37_79B1;
/// The factor of sizes, which are rounded up to granules. Stack heights are multiples of 16, so sizes and
/// heights of one call map to different buckets.
pub const SIZE_FACTOR: u32 = 8;

impl PredictionTable {
    /// An empty table.
    pub const fn new() -> Self {
        Self {
            last: Cell::new(0),
            _aligned: [0; 7],
            buckets: [const { [const { Entry::new() }; CALLS] }; BUCKETS],
        }
    }

    /// The bucket and the key of a call. Two calls of any sizes may have the same key: the caller must check
    /// that the bin's cells are large enough.
    #[inline(always)]
    fn bucket(&self, call: &Call) -> (&Bucket, u32) {
        // The fast path has the slot of the return address, just below `stack`.
        let slot = call.stack.wrapping_sub(size_of::<usize>()) as u32;
        let size = call.size.wrapping_add(GRANULE_BYTES - 1) as u32 & !(GRANULE_BYTES as u32 - 1);
        let of_caller = (call.caller as u32).wrapping_mul(CALLER_FACTOR);
        let key = of_caller.wrapping_add(slot).wrapping_add(size.wrapping_mul(SIZE_FACTOR));
        (self.bucket_of(key), key)
    }

    #[inline(always)]
    fn bucket_of(&self, key: u32) -> &Bucket {
        let distance = (key & self.last.get()) as usize;
        // SAFETY: `last` is one less than a power of two, times the size of a bucket, and at most that of the
        // last bucket.
        unsafe { &*self.buckets.as_ptr().byte_add(distance) }
    }

    /// Doubles the buckets in use, if there are more: each entry stays or moves to a bucket that was not in
    /// use.
    fn grow(&self) -> bool {
        let buckets = self.last.get() as usize / size_of::<Bucket>() + 1;
        if buckets == BUCKETS {
            return false;
        }
        self.last.set(((2 * buckets - 1) * size_of::<Bucket>()) as u32);
        for (bucket, moved) in self.buckets[..buckets].iter().zip(&self.buckets[buckets..]) {
            for (from, to) in bucket.iter().zip(moved) {
                if from.is_used() && !core::ptr::eq(self.bucket_of(from.key.get()), bucket) {
                    to.copy_from(from);
                    from.forget();
                }
            }
        }
        true
    }

    /// The offset of the bin of calls like this one.
    #[inline(always)]
    pub fn get(&self, call: &Call) -> Option<u32> {
        let ([newer, older], key) = self.bucket(call);
        if newer.key.get() == key {
            Some(newer.bin.get())
        } else if older.key.get() == key {
            Some(older.bin.get())
        } else {
            None
        }
    }

    /// The entry of calls like this one.
    #[inline]
    pub fn lookup(&self, call: &Call) -> Option<KnownCall> {
        let (bucket, key) = self.bucket(call);
        let entry = bucket.iter().find(|entry| entry.key.get() == key)?;
        Some(KnownCall { bin: entry.bin.get(), word: entry.word.get(), site: entry.site.get() })
    }

    /// The site of a call whose bin is known.
    pub fn site(&self, call: &Call) -> Option<&'static Site> {
        if call.size > MAX_SMALL_BYTES {
            return None;
        }
        self.lookup(call)?.site()
    }

    /// Maps calls like this one to the bin, as long as the site predicts the bin's class.
    pub fn remember(&self, call: &Call, bin: u32, class: usize, site: Option<&'static Site>) {
        let entry = self.entry_for(call);
        entry.bin.set(bin);
        entry.site.set(site.map_or(0, |site| site.number() as u16 + 1));
        entry.class.set(class as u8);
        entry.word.set(0);
    }

    /// Records that this word, the site's, completes the key of calls like this one.
    pub fn remember_word(&self, call: &Call, word: u8, site: &'static Site) {
        let entry = self.entry_for(call);
        entry.bin.set(0);
        entry.site.set(site.number() as u16 + 1);
        entry.word.set(word);
    }

    /// The entry of calls like this one; replaces another call's if there is none.
    fn entry_for(&self, call: &Call) -> &Entry {
        let ([newer, older], key) = self.bucket(call);
        let is_others = |entry: &Entry| entry.is_used() && entry.key.get() != key;
        if is_others(newer) && is_others(older) && self.grow() {
            return self.entry_for(call);
        }
        let entry = if older.key.get() == key { older } else { newer };
        if is_others(entry) {
            older.copy_from(newer);
        }
        entry.granules.set(call.size.div_ceil(GRANULE_BYTES) as u16);
        entry.key.set(key);
        entry
    }

    /// Forgets calls whose sites now predict another class. Passes granules and class of all others to
    /// `known`; for calls that a word separates, all classes.
    pub fn forget_changed(&self, known: impl Fn(usize, u8)) {
        for entry in self.used() {
            let granules = usize::from(entry.granules.get());
            if entry.has_changed() {
                entry.forget();
            } else if entry.word.get() == 0 {
                known(granules, entry.class.get());
            } else {
                (0..CLASSES as u8).for_each(|class| known(granules, class));
            }
        }
    }

    /// The entries in use; entries beyond them are not read, which would touch their memory.
    fn used(&self) -> impl Iterator<Item = &Entry> {
        let buckets = self.last.get() as usize / size_of::<Bucket>() + 1;
        self.buckets[..buckets].iter().flatten().filter(|entry| entry.is_used())
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
    fn a_place_holds_two_calls_and_a_third_replaces_the_oldest() {
        let table = PredictionTable::new();
        while table.grow() {}
        let first = call(0x7fff_0000);
        let alike = (1..1 << 20).map(|i| call(0x7fff_0000 + 16 * i));
        let alike = alike.filter(|c| core::ptr::eq(table.bucket(c).0, table.bucket(&first).0));
        let calls: Vec<Call> = core::iter::once(first).chain(alike.take(2)).collect();
        let bins = || -> Vec<_> { calls.iter().map(|call| table.get(call)).collect() };
        table.remember(&calls[0], 64, 0, None);
        table.remember(&calls[1], 128, 1, None);
        assert_eq!(bins(), [Some(64), Some(128), None]);
        table.remember(&calls[0], 192, 2, None); // known already: it replaces no other entry
        assert_eq!(bins(), [Some(192), Some(128), None]);
        table.remember(&calls[2], 64, 0, None);
        assert_eq!(bins(), [None, Some(128), Some(64)]);
    }

    #[test]
    fn forgets_calls_after_their_site_changes_class() {
        let table = PredictionTable::new();
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
    fn growing_the_table_keeps_its_entries() {
        let table = PredictionTable::new();
        let bin = |i: usize| 64 * (1 + i as u32 % 300);
        for i in 0..400 {
            table.remember(&call(0x7fff_0000 + 16 * i), bin(i), 0, None);
        }
        assert!((table.last.get() as usize) < BUCKETS * size_of::<Bucket>() - 1);
        assert!((0..400).all(|i| table.get(&call(0x7fff_0000 + 16 * i)) == Some(bin(i))));
        (0..20_000).for_each(|i| table.remember(&call(16 * i), bin(i), 0, None));
        assert_eq!(table.last.get() as usize, (BUCKETS - 1) * size_of::<Bucket>());
    }

    #[test]
    fn calls_that_differ_in_one_bit_of_height_have_places_of_their_own() {
        let table = PredictionTable::new();
        while table.grow() {}
        let mut buckets: Vec<*const Bucket> =
            (5..16).map(|bit| &raw const *table.bucket(&call(1 << bit)).0).collect();
        buckets.sort_unstable();
        buckets.dedup();
        assert_eq!(buckets.len(), 11);
        let bins = || (4..32).map(|bit| table.get(&call(1 << bit)));
        (4..32).for_each(|bit| table.remember(&call(1 << bit), 64 * bit as u32, 0, None));
        let known = bins().zip(4..32).filter(|(bin, bit)| *bin == Some(64 * bit));
        assert!(
            known.count() >= 13,
            "those that share a bucket drive one another out, and none is taken for another"
        );
        assert!(bins().zip(4..32).all(|(bin, bit)| bin.is_none_or(|bin| bin == 64 * bit)));
    }
}
