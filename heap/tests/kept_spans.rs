//! Spans that another thread emptied stay in their owner's bin, and leave in time.

mod model_time;

use heap::entry::{allocate, free};
use heap::observe::{check, stats};
use heap::system::events::Event;
use heap::thread::current;
use heap::thread::freed_cells::MOST_KEPT;
use heap::units::call::{Call, ReturnSlot};
use heap::units::geometry::SPAN_BYTES;
use std::collections::HashSet;

const CALL: Call = Call { size: 8_000, caller: 0x1000, stack: 0x7fff_0000 };
const CELLS: usize = 2;

fn allocate(number: usize) -> Vec<usize> {
    let objects: Vec<usize> = (0..number).map(|_| allocate::allocate(CALL) as usize).collect();
    assert_eq!(objects.iter().collect::<HashSet<_>>().len(), number, "no cell is allocated twice");
    objects
}

fn free_elsewhere(objects: Vec<usize>) {
    let frees = move || objects.iter().for_each(|&object| free::free(object, ReturnSlot::NONE));
    std::thread::spawn(frees).join().expect("no panic");
}

fn acquired() -> u64 {
    current::heap().counts.of(Event::SpanAcquired as usize)
}

fn free_cells() -> usize {
    stats::census().free.cells.iter().sum()
}

#[test]
fn spans_that_another_thread_emptied_stay_for_a_while() {
    let mut pass = model_time::begin();
    for _ in 0..4 {
        free_elsewhere(allocate(CELLS * 40));
    }
    let before = acquired();
    for _ in 0..20 {
        free_elsewhere(allocate(CELLS * 40));
        check::invariants().unwrap();
    }
    assert_eq!(acquired(), before, "they are allocated from again");

    // More than it keeps, and what it keeps, once the thread has flushed its caches.
    free_elsewhere(allocate(CELLS * MOST_KEPT * 2));
    free_elsewhere(allocate(1));
    check::invariants().unwrap();
    assert!(free_cells() <= (MOST_KEPT + 4) * SPAN_BYTES, "{} B are kept", free_cells());
    pass(400);
    assert!(free_cells() < 4 * SPAN_BYTES, "{} B are left", free_cells());
    check::invariants().unwrap();

    // A span of another size takes one that is kept, rather than a new one.
    free_elsewhere(allocate(CELLS * 40));
    allocate(1);
    let before = acquired();
    allocate::allocate(Call { size: 4_000, ..CALL });
    assert_eq!(acquired(), before);
    check::invariants().unwrap();
}
