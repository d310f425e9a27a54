//! Sizes whose calls all go to one bin: they need no prediction.
//!
//! If all calls that allocate a size in this thread have one lifetime class, the key of a call (LLAMA §7)
//! adds nothing to its size. So the fast path first looks here, by size and six bits of the return address,
//! and only then in the prediction table.
//!
//! A size gets its bin after enough slow visits in a row came from known calls of one class. Until then each
//! call uses its key, so that new calls are noticed at once. Later calls are noticed at once too if their six
//! bits match no known call: objects that are rarely allocated tend to stay, and must not be placed among
//! short-lived ones. A new call whose bits do match is noticed when the bin has no cached cell and the slow
//! path looks the call up by its key, for one word of 64 cells in 16 ([`crate::entry::allocate`]). If its
//! class differs, the size loses its bin. When the prediction table forgets a call whose class has changed,
//! so does this table.

use core::cell::Cell;

use crate::thread::bin::Bin;
use crate::units::call::Call;
use crate::units::geometry::MAX_SMALL_BYTES;
use crate::units::lifetime_class::FOREVER;
use crate::units::size_class::GRANULE_BYTES;

/// Sizes in granules, including 0.
const SIZES: usize = MAX_SMALL_BYTES / GRANULE_BYTES + 1;
/// A size finds its place without a comparison: larger sizes share places of smaller ones, whose cells are
/// too small for them.
const PLACES: usize = SIZES.next_power_of_two();
/// The size of a place.
pub const PLACE_BYTES: usize = size_of::<Agreed>();
/// The mask for a size that is rounded up to granules.
pub const PLACES_MASK: usize = (PLACES - 1) * PLACE_BYTES;
/// The offset of the bin in a place.
pub const BIN: usize = core::mem::offset_of!(Agreed, bin);
const _: () = assert!(PLACE_BYTES == GRANULE_BYTES);
const _: () = assert!(core::mem::offset_of!(Agreed, callers) == 0);

/// Up to this size, 576 B, a size needs the most visits.
const MOST_VISITS_GRANULES: usize = 36;

/// Slow visits of known calls in a row before a size gets its bin, each up to 64 calls. Larger sizes need
/// fewer, for as many bytes: programs use many of them, each rarely. For long-lived objects few are enough: a
/// new call's objects would go to the same class anyway.
const fn enough_visits(class: usize, granules: usize) -> u8 {
    match granules {
        _ if class == FOREVER => 4,
        0..=MOST_VISITS_GRANULES => u8::MAX,
        _ => (u8::MAX as usize * MOST_VISITS_GRANULES / granules) as u8,
    }
}

#[inline(always)]
fn granules(call: &Call) -> usize {
    call.size.div_ceil(GRANULE_BYTES)
}

fn bit(call: &Call) -> u64 {
    1 << (call.caller % 64)
}

/// The table, by size in granules. All zeros has no bin for any size.
#[repr(C)]
pub struct BySize {
    agreed: [Agreed; PLACES],
    /// State that the fast path does not read.
    sizes: [Size; SIZES],
}

/// What the fast path reads for a size.
#[repr(C)]
struct Agreed {
    /// The calls that go to the bin, by the low six bits of their return addresses; 0 if the size has no bin.
    callers: Cell<u64>,
    bin: Cell<*const Bin>,
}

struct Size {
    /// The known calls, by the low six bits of their return addresses.
    callers: Cell<u64>,
    /// The lifetime classes of the calls of this size in the prediction table, a bit each.
    classes: Cell<u8>,
    /// Those counted so far, see [`BySize::count`].
    counted: Cell<u8>,
    /// Slow visits of known calls since the last new one.
    visits: Cell<u8>,
}

impl Size {
    const fn new() -> Self {
        Self { callers: Cell::new(0), classes: Cell::new(0), counted: Cell::new(0), visits: Cell::new(0) }
    }
}

impl Agreed {
    const fn new() -> Self {
        Self { callers: Cell::new(0), bin: Cell::new(core::ptr::null()) }
    }
}

impl Default for BySize {
    fn default() -> Self {
        Self::new()
    }
}

impl BySize {
    /// No bin for any size.
    pub const fn new() -> Self {
        Self { agreed: [const { Agreed::new() }; PLACES], sizes: [const { Size::new() }; SIZES] }
    }

    /// The bin for this call, if all calls of its size go to one. For a call of more than [`MAX_SMALL_BYTES`]
    /// it may be the bin of a smaller size.
    #[inline(always)]
    pub fn bin(&self, call: &Call) -> Option<*const Bin> {
        let agreed = &self.agreed[call.size.wrapping_add(GRANULE_BYTES - 1) / GRANULE_BYTES % PLACES];
        (agreed.callers.get() >> (call.caller % 64) & 1 != 0).then(|| agreed.bin.get())
    }

    fn knows(&self, call: &Call) {
        let size = &self.sizes[granules(call)];
        size.callers.set(size.callers.get() | bit(call));
        let agreed = &self.agreed[granules(call)];
        if agreed.callers.get() != 0 {
            agreed.callers.set(size.callers.get());
        }
    }

    /// Records a new call that goes to a bin of this class.
    pub fn new_call(&self, call: &Call, class: usize) {
        let size = &self.sizes[granules(call)];
        let classes = size.classes.get() | 1 << class;
        size.classes.set(classes);
        if !classes.is_power_of_two() {
            self.agreed[granules(call)].callers.set(0);
        }
        self.knows(call);
        size.visits.set(0);
    }

    /// Records that calls of this size need a word of the stack to be told apart.
    pub fn no_bin(&self, call: &Call) {
        self.sizes[granules(call)].classes.set(u8::MAX);
        self.agreed[granules(call)].callers.set(0);
    }

    /// Records that a known call found no cached cell; `bin`, of this class, is its bin, which the size does
    /// not have yet.
    #[cold]
    pub fn known_call(&self, call: &Call, class: usize, bin: *const Bin) {
        self.knows(call);
        let size = &self.sizes[granules(call)];
        let visits = size.visits.get().saturating_add(1);
        size.visits.set(visits);
        if visits >= enough_visits(class, granules(call)) && size.classes.get() == 1 << class {
            let agreed = &self.agreed[granules(call)];
            agreed.bin.set(bin);
            agreed.callers.set(size.callers.get());
        }
    }

    /// Counts a call of this size and class in the prediction table; all must be counted before
    /// [`BySize::recount`].
    pub fn count(&self, granules: usize, class: u8) {
        let counted = &self.sizes[granules].counted;
        counted.set(counted.get() | 1 << class);
    }

    /// Resets the sizes whose classes in the prediction table have changed.
    pub fn recount(&self) {
        for (size, agreed) in self.sizes.iter().zip(&self.agreed) {
            let classes = size.counted.get();
            if size.classes.get() != classes {
                size.classes.set(classes);
                size.visits.set(0);
                size.callers.set(0);
                agreed.callers.set(0);
            }
            if classes != 0 {
                size.counted.set(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIN: *const Bin = core::ptr::without_provenance(640);
    const ENOUGH: u8 = enough_visits(2, 4);

    fn call(caller: usize) -> Call {
        Call { size: 64, caller, stack: 0x7fff_0000 }
    }

    fn known(table: &BySize, class: usize, times: u8) {
        (0..times).for_each(|_| table.known_call(&call(1), class, BIN));
    }

    #[test]
    fn a_size_has_a_bin_while_its_calls_agree() {
        let table = BySize::new();
        assert_eq!(table.bin(&call(1)), None);
        table.new_call(&call(1), 2);
        known(&table, 2, ENOUGH - 1);
        table.new_call(&call(2), 2);
        known(&table, 2, ENOUGH - 1);
        assert_eq!(table.bin(&call(1)), None, "a call was new a short while ago");
        known(&table, 2, 1);
        assert_eq!([1, 2, 3].map(|caller| table.bin(&call(caller))), [Some(BIN), Some(BIN), None]);
        for size in [65, 8_193, MAX_SMALL_BYTES + 1, usize::MAX] {
            assert_eq!(table.bin(&Call { size, ..call(1) }), None, "another size");
        }
        table.new_call(&call(3), 2);
        assert_eq!(table.bin(&call(3)), Some(BIN), "one more of the same class");
        table.new_call(&call(4), 6);
        assert_eq!(table.bin(&call(1)), None, "one of another class");
        known(&table, 2, ENOUGH);
        known(&table, 6, ENOUGH);
        assert_eq!(table.bin(&call(1)), None, "they still differ");
    }

    #[test]
    fn larger_sizes_need_fewer_visits() {
        let table = BySize::new();
        for (size, visits) in [(576, 255), (1_024, 143), (4_000, 36), (16_384, 8)] {
            let call = Call { size, ..call(1) };
            table.new_call(&call, 2);
            (1..visits).for_each(|_| table.known_call(&call, 2, BIN));
            assert_eq!(table.bin(&call), None, "too few for {size} B");
            table.known_call(&call, 2, BIN);
            assert_eq!(table.bin(&call), Some(BIN), "enough for {size} B");
        }
    }

    #[test]
    fn forgotten_calls_do_not_count() {
        let table = BySize::new();
        table.new_call(&call(1), 2);
        table.new_call(&call(2), 6);
        table.count(4, 6);
        table.recount();
        known(&table, 6, enough_visits(6, 4));
        assert_eq!([1, 2].map(|caller| table.bin(&call(caller))), [Some(BIN), None]);
        table.count(4, 6);
        table.recount();
        assert_eq!(table.bin(&call(1)), Some(BIN), "nothing has changed");
        table.recount();
        assert_eq!(table.bin(&call(1)), None);
    }
}
