//! Sizes whose calls all go to one bin, whoever calls: they need no prediction.
//!
//! Where all that a thread has seen allocate a size have one lifetime class, the key of a call (LLAMA §7) tells nothing that its
//! size does not. So the fast path asks this table first, by size and six bits of the return address, and the prediction table
//! only if there is nothing here.
//!
//! A size gets its bin when slow visits in a row came from calls that were known already and all of one class; until then each
//! call of it goes by its key, so that new ones are noticed at once. So are later ones, if the six bits are not those of a known
//! call: what is allocated seldom tends to stay, and must not come to lie among what does not. The others are noticed when they
//! find no cell at hand, as one call in 64 does: who finds none is looked up by its key always ([`crate::entry::allocate`]). If a
//! new call's class is another, the size has no bin any more. What has changed its class is forgotten here when it is in the
//! prediction table.

use core::cell::Cell;

use crate::units::call::Call;
use crate::units::geometry::MAX_SMALL_BYTES;
use crate::units::lifetime_class::FOREVER;
use crate::units::size_class::GRANULE_BYTES;

/// Sizes in granules, 0 among them.
const SIZES: usize = MAX_SMALL_BYTES / GRANULE_BYTES + 1;

/// Slow visits in a row of known calls before a size gets its bin, up to 64 calls each. Of what lives long few are enough: a new
/// call's objects would lie there in any case.
const fn enough_visits(class: usize) -> u8 {
    if class == FOREVER { 4 } else { u8::MAX }
}

#[inline(always)]
fn granules(call: &Call) -> usize {
    call.size.div_ceil(GRANULE_BYTES)
}

/// The table, by size in granules. All zeros has no bin for any size.
pub struct BySize {
    /// The calls of a size that are known, by the low six bits of their return addresses.
    callers: [Cell<u64>; SIZES],
    /// Where in the thread's heap the bin lies; 0 for none.
    bins: [Cell<u32>; SIZES],
    /// What the fast path does not ask.
    sizes: [Size; SIZES],
}

struct Size {
    /// The lifetime classes of the calls of this size in the prediction table, a bit each.
    classes: Cell<u8>,
    /// Those counted so far, see [`BySize::count`].
    counted: Cell<u8>,
    /// Slow visits of known calls since the last new one.
    visits: Cell<u8>,
}

impl Size {
    const fn new() -> Self {
        Self { classes: Cell::new(0), counted: Cell::new(0), visits: Cell::new(0) }
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
        Self {
            callers: [const { Cell::new(0) }; SIZES],
            bins: [const { Cell::new(0) }; SIZES],
            sizes: [const { Size::new() }; SIZES],
        }
    }

    /// Where in the heap the bin for calls of at most [`MAX_SMALL_BYTES`] lies; 0 for none, `None` for a new caller.
    #[inline(always)]
    pub fn bin(&self, call: &Call) -> Option<u32> {
        let granules = granules(call);
        (self.callers[granules].get() >> (call.caller % 64) & 1 != 0).then(|| self.bins[granules].get())
    }

    fn knows(&self, call: &Call) {
        let callers = &self.callers[granules(call)];
        callers.set(callers.get() | 1 << (call.caller % 64));
    }

    /// A call that was not known goes to a bin of this class.
    pub fn new_call(&self, call: &Call, class: usize) {
        let size = &self.sizes[granules(call)];
        let classes = size.classes.get() | 1 << class;
        size.classes.set(classes);
        self.knows(call);
        size.visits.set(0);
        if !classes.is_power_of_two() {
            self.bins[granules(call)].set(0);
        }
    }

    /// A known call found no cell at hand; its bin, of this class, lies at `bin` in the heap.
    pub fn known_call(&self, call: &Call, class: usize, bin: u32) {
        let size = &self.sizes[granules(call)];
        self.knows(call);
        let visits = size.visits.get().saturating_add(1);
        size.visits.set(visits);
        if visits >= enough_visits(class) && size.classes.get() == 1 << class {
            self.bins[granules(call)].set(bin);
        }
    }

    /// The prediction table has a call of this size, of this class; to be told of all of them before [`BySize::recount`].
    pub fn count(&self, granules: usize, class: u8) {
        let counted = &self.sizes[granules].counted;
        counted.set(counted.get() | 1 << class);
    }

    /// Sizes of which the prediction table knows other classes than before begin anew.
    pub fn recount(&self) {
        for (granules, size) in self.sizes.iter().enumerate() {
            let classes = size.counted.get();
            if size.classes.get() != classes {
                size.classes.set(classes);
                size.visits.set(0);
                self.callers[granules].set(0);
                self.bins[granules].set(0);
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

    const BIN: u32 = 640;
    const ENOUGH: u8 = enough_visits(2);

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
        assert_eq!(table.bin(&call(1)), Some(0), "a call was new a short while ago");
        known(&table, 2, 1);
        assert_eq!([1, 2, 3].map(|caller| table.bin(&call(caller))), [Some(BIN), Some(BIN), None]);
        assert_eq!(table.bin(&Call { size: 65, ..call(1) }), None, "another size");
        table.new_call(&call(3), 2);
        assert_eq!(table.bin(&call(3)), Some(BIN), "one more of the same class");
        table.new_call(&call(4), 6);
        assert_eq!(table.bin(&call(1)), Some(0), "one of another class");
        known(&table, 2, ENOUGH);
        known(&table, 6, ENOUGH);
        assert_eq!(table.bin(&call(1)), Some(0), "they still differ");
    }

    #[test]
    fn what_is_forgotten_counts_no_more() {
        let table = BySize::new();
        table.new_call(&call(1), 2);
        table.new_call(&call(2), 6);
        table.count(4, 6);
        table.recount();
        known(&table, 6, enough_visits(6));
        assert_eq!([1, 2].map(|caller| table.bin(&call(caller))), [Some(BIN), None]);
        table.count(4, 6);
        table.recount();
        assert_eq!(table.bin(&call(1)), Some(BIN), "nothing has changed");
        table.recount();
        assert_eq!(table.bin(&call(1)), None);
    }
}
