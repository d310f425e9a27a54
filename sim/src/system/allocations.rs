//! A program's requests to its software allocator, from marks round malloc and free: how large objects are
//! (Fig. 2) and how long they live (Fig. 3, Table 1). A lifetime is the number of allocations of the same
//! size class between an object's allocation and its free (§2.2). Classes are Memento's 64 up to 512 bytes,
//! and steps of 512 bytes above.

use crate::base::cause::Owner;
use std::collections::HashMap;

/// Objects up to this many bytes are small: Memento allocates them.
pub const SMALL_BYTES: u64 = 512;
/// Upper ends of the size histogram in Fig. 2's steps of 512 bytes; larger objects come last.
pub const SIZE_ENDS: [u64; 8] = [512, 1024, 1536, 2048, 2560, 3072, 3584, 4096];
/// Upper ends of a finer one; larger objects come last.
pub const SMALL_ENDS: [u64; 7] = [8, 16, 32, 64, 128, 256, 512];
/// Upper ends of the lifetime histogram, in allocations of the same class.
pub const LIFETIME_ENDS: [u64; 5] = [16, 32, 64, 128, 256];
/// Lifetimes: those ends, longer ones, and objects that are never freed.
pub const LIFETIMES: usize = LIFETIME_ENDS.len() + 2;

const CLASSES: usize = 64 + 64;

/// An object that lives.
struct Object {
    class: usize,
    /// Allocations of its class up to its own.
    birth: u64,
}

/// A process is in its allocator: a malloc that calls another is one allocation.
#[derive(Clone, Copy)]
struct Call {
    owner: Owner,
    bytes: u64,
    /// Marks of malloc and free within it that are not closed.
    deeper: u32,
    /// The stack pointer at its entry, if it was seen.
    stack: u64,
}

/// The objects of all processes since the region's start.
pub struct Allocations {
    /// By page table's root and address.
    live: HashMap<(u64, u64), Object>,
    calls: HashMap<u64, Call>,
    classes: [u64; CLASSES],
    /// Allocations.
    pub allocations: u64,
    /// Frees of objects that were seen to be allocated.
    pub frees: u64,
    /// Allocations by size; the last are larger than [`SIZE_ENDS`].
    pub sizes: [u64; SIZE_ENDS.len() + 1],
    /// Of small and of large objects: how many lived how long.
    lifetimes: [[u64; LIFETIMES]; 2],
}

impl Default for Allocations {
    fn default() -> Allocations {
        Allocations {
            live: HashMap::new(),
            calls: HashMap::new(),
            classes: [0; CLASSES],
            allocations: 0,
            frees: 0,
            sizes: [0; SIZE_ENDS.len() + 1],
            lifetimes: [[0; LIFETIMES]; 2],
        }
    }
}

fn class_of(bytes: u64) -> usize {
    let bytes = bytes.max(1);
    if bytes <= SMALL_BYTES {
        (bytes.div_ceil(8) - 1) as usize
    } else {
        (63 + (bytes - 1) / 512).min(CLASSES as u64 - 1) as usize
    }
}

impl Allocations {
    /// The process enters malloc or free; whether it was outside before. One whose stack has been unwound
    /// beyond the call that it was in has left that (an exception).
    pub fn enter(&mut self, process: u64, owner: Owner, bytes: u64, stack: u64) -> bool {
        if let Some(call) = self.calls.get_mut(&process)
            && (stack == 0 || stack < call.stack)
        {
            call.deeper += 1;
            return false;
        }
        self.calls.insert(process, Call { owner, bytes, deeper: 0, stack });
        true
    }

    /// The process leaves malloc or free; returns the bytes that it requested, if it is outside now.
    pub fn leave(&mut self, process: u64) -> Option<u64> {
        let call = self.calls.get_mut(&process)?;
        if call.deeper > 0 {
            call.deeper -= 1;
            return None;
        }
        self.calls.remove(&process).map(|call| call.bytes)
    }

    /// The process leaves all its calls: the outermost one has returned.
    pub fn leave_all(&mut self, process: u64) -> Option<u64> {
        self.calls.remove(&process).map(|call| call.bytes)
    }

    /// The owner of the process's cycles, if it is in its allocator.
    pub fn inside(&self, process: u64) -> Option<Owner> {
        self.calls.get(&process).map(|call| call.owner)
    }

    /// An object is allocated.
    pub fn allocated(&mut self, process: u64, address: u64, bytes: u64) {
        if address == 0 {
            return;
        }
        let class = class_of(bytes);
        self.allocations += 1;
        self.classes[class] += 1;
        let size = SIZE_ENDS.iter().position(|end| bytes <= *end).unwrap_or(SIZE_ENDS.len());
        self.sizes[size] += 1;
        self.live.insert((process, address), Object { class, birth: self.classes[class] });
    }

    /// Whether a live object is small; one from before the region counts as small.
    pub fn is_small(&self, process: u64, address: u64) -> bool {
        self.live.get(&(process, address)).is_none_or(|object| object.class < 64)
    }

    /// An object is freed; one from before the region is ignored.
    pub fn freed(&mut self, process: u64, address: u64) {
        let Some(object) = self.live.remove(&(process, address)) else { return };
        self.frees += 1;
        let lifetime = self.classes[object.class] - object.birth;
        let bucket = LIFETIME_ENDS.iter().position(|end| lifetime <= *end).unwrap_or(LIFETIME_ENDS.len());
        self.lifetimes[usize::from(object.class >= 64)][bucket] += 1;
    }

    /// How many small and large objects lived how long; those that live now are never freed but by the
    /// program's end.
    pub fn lifetimes(&self) -> [[u64; LIFETIMES]; 2] {
        let mut all = self.lifetimes;
        for object in self.live.values() {
            all[usize::from(object.class >= 64)][LIFETIMES - 1] += 1;
        }
        // An address that was handed out again without a free was freed unseen: it counts as never freed.
        let known: u64 = all.iter().flatten().sum();
        all[0][LIFETIMES - 1] += self.allocations - known;
        all
    }

    /// Allocations by size, as [`SMALL_ENDS`] says.
    pub fn small_sizes(&self) -> [u64; SMALL_ENDS.len() + 1] {
        let mut all = [0; SMALL_ENDS.len() + 1];
        for (class, count) in self.classes.iter().enumerate() {
            let bytes = 8 * (class as u64 + 1);
            all[SMALL_ENDS.iter().position(|end| bytes <= *end).unwrap_or(SMALL_ENDS.len())] += count;
        }
        all
    }

    /// Counts from zero, with no objects; processes in the allocator stay there.
    pub fn reset(&mut self) {
        *self = Allocations { calls: std::mem::take(&mut self.calls), ..Allocations::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_counted_in_allocations_of_the_class() {
        let mut all = Allocations::default();
        all.allocated(1, 0x100, 24);
        for other in 0..16 {
            all.allocated(1, 0x1000 + other * 0x100, 24);
        }
        // Another class does not age it.
        all.allocated(1, 0x200, 600);
        all.freed(1, 0x100);
        assert_eq!(all.lifetimes()[0][0], 1, "16 allocations of its class later");
        all.allocated(1, 0x100, 20);
        all.freed(1, 0x1000);
        assert_eq!(all.lifetimes()[0], [2, 0, 0, 0, 0, 0, 16]);
        assert_eq!(all.lifetimes()[1], [0, 0, 0, 0, 0, 0, 1]);
        all.freed(2, 0x200);
        assert_eq!(all.frees, 2, "another process's object");
        assert_eq!((all.sizes[0], all.sizes[1], all.allocations), (18, 1, 19));
        assert_eq!(all.small_sizes(), [0, 0, 18, 0, 0, 0, 0, 1], "of 20 and 24 bytes, and of 600");
    }

    #[test]
    fn the_seventeenth_is_not_short_lived() {
        let mut all = Allocations::default();
        all.allocated(1, 0x10, 512);
        for other in 1..=17 {
            all.allocated(1, other << 16, 505);
        }
        all.freed(1, 0x10);
        assert_eq!(all.lifetimes()[0][..2], [0, 1]);
    }

    #[test]
    fn a_malloc_within_a_malloc_is_one() {
        let mut all = Allocations::default();
        assert!(all.enter(1, Owner::Allocate, 100, 0));
        assert!(!all.enter(1, Owner::Free, 4096, 0));
        assert!(all.enter(2, Owner::Free, 50, 0), "another process");
        assert_eq!(all.leave(1), None);
        assert_eq!(all.inside(1), Some(Owner::Allocate));
        assert_eq!(all.leave(1), Some(100));
        assert_eq!(all.inside(1), None);
        assert_eq!(all.leave(3), None);
    }

    #[test]
    fn a_call_that_an_exception_has_left_is_over() {
        let mut all = Allocations::default();
        assert!(all.enter(1, Owner::Allocate, 100, 0x7000));
        assert!(!all.enter(1, Owner::Free, 0, 0x6f00), "called by it");
        assert!(all.enter(1, Owner::Free, 8, 0x7100), "called by its caller's caller");
        assert_eq!(all.leave_all(1), Some(8));
    }
}
