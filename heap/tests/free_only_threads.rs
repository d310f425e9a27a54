//! A thread that frees objects of other threads, and allocates none, gets a heap, whose remote free buffer
//! then takes its frees; when the thread ends, its heap is flushed and vacant.

use heap::entry::{allocate, free, start};
use heap::pages::region;
use heap::span::cells::Span;
use heap::system::clock;
use heap::thread::current::{self, FREES_BEFORE_HEAP};
use heap::thread::registry;
use heap::units::call::{Call, ReturnSlot};
use heap::units::lifetime_class::FOREVER;

const CALL: Call = Call { size: 64, caller: 0x1000, stack: 0x7fff_0000 };

fn objects(number: u32) -> Vec<usize> {
    (0..number).map(|_| allocate::allocate_with_class(CALL, FOREVER) as usize).collect()
}

fn is_in_use(object: usize) -> bool {
    let span: &Span = region::span(object);
    let cell = span.cell_at(object).expect("a cell");
    span.is_live(cell) && !span.remote().is_marked(cell)
}

/// Frees the objects in a new thread; returns the number of the thread's heap then, and how many of its
/// objects are in use before it ends.
fn free_elsewhere(objects: &[usize]) -> (u32, usize) {
    let objects = objects.to_vec();
    let frees = move || {
        objects.iter().for_each(|&object| free::free(object, ReturnSlot::NONE));
        (current::heap().id.get(), objects.iter().filter(|&&object| is_in_use(object)).count())
    };
    std::thread::spawn(frees).join().expect("no panic")
}

#[test]
fn thread_that_only_frees_gets_a_heap_and_leaves_it() {
    clock::set(1_000_000_000);
    start::visit(&CALL).expect("memory");
    assert_eq!(registry::in_use(), 1);
    let few = objects(FREES_BEFORE_HEAP - 1);
    assert_eq!(free_elsewhere(&few), (0, 0), "a thread of few frees needs no heap");
    let all = objects(200);
    let (id, in_use) = free_elsewhere(&all);
    assert_ne!(id, 0, "it has a heap");
    assert_eq!(in_use, all.len() + 1 - FREES_BEFORE_HEAP as usize, "the rest waits in its buffer");
    assert_eq!(registry::in_use(), 1, "its heap is vacant");
    assert!(!all.iter().any(|&object| is_in_use(object)), "it flushed its buffer");
    assert_eq!(free_elsewhere(&objects(200)).0, id, "the next thread takes over its heap");
}
