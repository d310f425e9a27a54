//! A thread that finds nothing in vacant heaps does not search them at each refill, and does not wait for
//! other searching threads; what becomes free there is still found.

use heap::entry::{allocate, free, start};
use heap::system::clock;
use heap::system::events::Event;
use heap::thread::local::Heap;
use heap::thread::registry;
use heap::units::call::{Call, ReturnSlot};
use heap::units::geometry::SPAN_BYTES;
use heap::units::lifetime_class::FOREVER;

const OBJECTS_A_SPAN: usize = 2;
const CALL: Call = Call { size: SPAN_BYTES / OBJECTS_A_SPAN, caller: 0x1000, stack: 0x7fff_0000 };

/// Allocates objects that fill this many spans.
fn fill_spans(spans: usize) -> Vec<usize> {
    let objects = spans * OBJECTS_A_SPAN;
    (0..objects).map(|_| allocate::allocate_with_class(CALL, FOREVER) as usize).collect()
}

fn searches(heap: &Heap) -> u64 {
    heap.counts.of(Event::VacantSearched as usize)
}

#[test]
fn searches_of_vacant_heaps_back_off_after_misses() {
    clock::set(1_000_000_000);
    let heap = start::visit(&CALL).expect("memory").heap;
    // A heap that is as full as this one.
    let left_behind = std::thread::spawn(|| fill_spans(40)).join().unwrap();
    assert_eq!(registry::in_use(), 1, "the thread has moved out");

    fill_spans(1_000);
    let misses = searches(heap);
    assert!((1..=40).contains(&misses), "{misses} searches in 1,000 refills");

    // Another thread holds the registry: this one must not wait for it.
    registry::lock().hold();
    fill_spans(1_000);
    registry::lock().release();
    assert_eq!(searches(heap), misses);

    // Frees one object of each span there.
    let dead: Vec<usize> = left_behind.iter().copied().step_by(OBJECTS_A_SPAN).collect();
    dead.iter().for_each(|&object| free::free(object, ReturnSlot::NONE));
    heap.remote_free_buffer.flush(false);
    let new = fill_spans(200);
    assert!(dead.iter().all(|object| new.contains(object)), "every place that became free is used again");
}
