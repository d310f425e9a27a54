//! Cells of 640 B and more that another thread freed are allocated again, in place of new spans, however many
//! they are, and what the thread does not need of them is given up in time.

mod model_time;

use heap::entry::{allocate, free};
use heap::observe::{check, stats};
use heap::pages::region;
use heap::system::events::Event;
use heap::thread::current;
use heap::thread::freed_cells::MOST_KEPT;
use heap::units::call::{Call, ReturnSlot};
use std::collections::HashSet;

/// More than a thread keeps.
const SPANS: usize = MOST_KEPT * 3;

fn allocate(size: usize, number: usize) -> Vec<usize> {
    let call = Call { size, caller: 0x1000, stack: 0x7fff_0000 };
    (0..number).map(|_| allocate::allocate(call) as usize).collect()
}

fn free_elsewhere(objects: &[usize]) {
    let objects = objects.to_vec();
    let frees = move || objects.iter().for_each(|&object| free::free(object, ReturnSlot::NONE));
    std::thread::spawn(frees).join().expect("no panic");
}

fn acquired() -> u64 {
    current::heap().counts.of(Event::SpanAcquired as usize)
}

fn shuffle(objects: &mut [usize], random: &mut u64) {
    for n in (1..objects.len()).rev() {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        objects.swap(n, (*random >> 33) as usize % (n + 1));
    }
}

#[test]
fn cells_that_another_thread_freed_are_allocated_again() {
    let mut pass = model_time::begin();
    let mut random = 1;
    for (size, cells) in [(1_024, 16), (2_048, 8), (4_000, 4), (8_000, 2), (16_000, 1)] {
        // All of them are freed; then any half: of the first size a span with one free cell is not worth a
        // visit, so only all.
        for part in if cells == 16 { 1..2 } else { 1..3 } {
            let mut objects = allocate(size, cells * SPANS);
            let mut before = 0;
            for round in 0..24 {
                if round == 4 {
                    before = acquired();
                }
                shuffle(&mut objects, &mut random);
                let rest = objects.split_off(objects.len() / part);
                free_elsewhere(&objects);
                objects = rest;
                objects.extend(allocate(size, cells * SPANS - objects.len()));
                let distinct = objects.iter().collect::<HashSet<_>>().len();
                assert_eq!(distinct, objects.len(), "no cell is allocated twice");
                check::invariants().unwrap();
            }
            let new = acquired() - before;
            assert_eq!(new, 0, "spans acquired in 20 rounds; 1/{part} of the objects of {size} B are freed");

            // The thread needs one of them, and then no more.
            free_elsewhere(&objects);
            objects = allocate(size, 1);
            assert!(!current::heap().remote.is_empty(), "it has not collected from the others");
            check::invariants().unwrap();
            assert!(owned_spans() > SPANS / 2, "they are still in the bin");
            pass(110);
            assert!(current::heap().remote.is_empty(), "maintenance collects them");
            assert!(owned_spans() < 4, "{} spans are left of {size} B", owned_spans());
            check::invariants().unwrap();
            objects.iter().for_each(|&object| free::free(object, ReturnSlot::NONE));
        }
    }

    // Another size takes a span that became empty, rather than a new one.
    free_elsewhere(&allocate(8_000, 2 * SPANS));
    allocate(8_000, 1);
    let before = acquired();
    allocate(4_000, 4);
    assert_eq!(acquired(), before);
    check::invariants().unwrap();
    assert!(stats::census().objects < 10);
}

/// The thread's spans, empty ones included.
fn owned_spans() -> usize {
    let heap = current::heap();
    let queued = heap.bins().iter().flat_map(|bin| bin.queue.iter());
    let spans = queued.chain(heap.bins().iter().filter_map(|bin| bin.open.get()));
    spans.inspect(|span| assert_eq!(region::span(span.address()).owner(), heap.id.get())).count()
}
