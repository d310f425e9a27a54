//! Cells of 640 B and more that were freed are allocated again without a search, and each only once.

mod model_time;

use heap::entry::{allocate, free};
use heap::observe::{check, stats};
use heap::span::cells::Span;
use heap::thread::current;
use heap::units::call::{Call, ReturnSlot};
use heap::units::geometry::SPAN_BYTES;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

fn call(size: usize) -> Call {
    Call { size, caller: 0x1000, stack: 0x7fff_0000 }
}

fn allocate(size: usize) -> usize {
    allocate::allocate(call(size)) as usize
}

fn free(object: usize) {
    free::free(object, ReturnSlot::NONE);
}

/// Visits of the slow path.
fn visits() -> u32 {
    current::heap().visits.get()
}

fn free_cells() -> usize {
    stats::census().free.cells.iter().sum()
}

#[test]
fn cells_that_were_freed_are_allocated_again() {
    let mut pass = model_time::begin();
    let mut random = 1u64;
    let mut below = |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    for (size, most_visits) in
        [(700, 800), (1_000, 800), (2_000, 1_000), (4_000, 1_300), (8_000, 2_000), (16_000, 4_000)]
    {
        let mut objects: Vec<usize> = (0..1_000).map(|_| allocate(size)).collect();
        (0..4_000).for_each(|_| free(allocate(size))); // the call is known
        let before = visits();
        for _ in 0..20_000 {
            let one = below(objects.len());
            free(objects[one]);
            objects[one] = allocate(size);
        }
        let (visits, distinct) = (visits() - before, objects.iter().collect::<HashSet<_>>().len());
        assert!(visits < most_visits, "{visits} of 20,000 allocations of {size} B searched for a cell");
        assert_eq!(distinct, objects.len(), "no cell is allocated twice");
        check::invariants().unwrap();

        // A note may be outdated: its cell lives, or its span is another bin's.
        let bin = bin_of(objects[0]);
        let other = allocate(size / 4);
        for note in [objects[7], other] {
            assert!(bin.freed.note(note));
        }
        let new: Vec<usize> = (0..40).map(|_| allocate(size)).collect();
        assert!(new.iter().all(|object| !objects.contains(object) && *object != other));
        objects.extend(new);

        // Spans that are empty but for a noted cell leave in time.
        objects.drain(..).for_each(free);
        free(other);
        check::invariants().unwrap();
        pass(400);
        assert!(free_cells() < 4 * SPAN_BYTES, "{} B of {size} B are left", free_cells());
        check::invariants().unwrap();
    }
}

fn span(object: usize) -> &'static Span {
    heap::pages::region::span(object)
}

fn bin_of(object: usize) -> &'static heap::thread::bin::Bin {
    let (class, size_class) = (span(object).class.load(Relaxed), span(object).size_class.load(Relaxed));
    current::heap().bin(class.into(), size_class.into())
}
