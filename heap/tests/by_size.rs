//! A size whose calls all have one class needs no key; a later call whose objects stay is still noticed.

use heap::entry::{allocate, free, start};
use heap::pages::region;
use heap::system::clock;
use heap::units::call::{Call, ReturnSlot};
use heap::units::lifetime_class::FOREVER;

fn call(size: usize, caller: usize) -> Call {
    Call { size, caller: 0x10_0000 + caller, stack: 0x7fff_0000 }
}

fn allocate(size: usize, caller: usize) -> usize {
    allocate::allocate(call(size, caller)) as usize
}

/// The class of the span that holds an object.
fn class(object: usize) -> usize {
    region::span(object).class.load(std::sync::atomic::Ordering::Relaxed).into()
}

#[test]
fn a_new_call_of_an_agreed_size_gets_its_own_class() {
    let mut now_ms = 1_000;
    let mut pass = |ms: u64| {
        now_ms += ms;
        clock::set(now_ms * 1_000_000);
    };
    pass(0);
    let heap = start::visit(&call(64, 1)).expect("memory").heap;
    let is_known = |size, caller| heap.predicted_bin(&call(size, caller)).is_some();
    let needs_no_key = |size| heap.by_size.bin(&call(size, 1)).is_some();
    // Two calls of each size, whose objects die at once, until their class is learned and older predictions
    // are forgotten.
    for _ in 0..100 {
        pass(20);
        for size in [64, 128] {
            let batch: Vec<usize> = (0..2_000).map(|i| allocate(size, 1 + i % 2)).collect();
            batch.into_iter().for_each(|object| free::free(object, ReturnSlot::NONE));
        }
    }
    for size in [64, 128] {
        assert!(class(allocate(size, 1)) < FOREVER, "what dies at once is known to");
        assert!(needs_no_key(size), "both calls have one class");
    }

    // A call whose return address has the same six bits: it uses the size's bin, and is noticed when the
    // cached cells are used up.
    let alike = 1 + 64;
    let first = allocate(64, alike);
    assert!(!is_known(64, alike) && class(first) < FOREVER, "it went by its size");
    (0..64).for_each(|_| _ = allocate(64, alike));
    assert!(is_known(64, alike), "noticed after one word of cells");

    // A call with other bits.
    assert_eq!(class(allocate(128, 3)), FOREVER, "what allocates little lives among what stays");
    assert!(is_known(128, 3), "noticed at once");

    for (size, caller) in [(64, alike), (128, 3)] {
        assert!(!needs_no_key(size), "now the size is not enough");
        assert!((0..1_000).all(|_| class(allocate(size, caller)) == FOREVER));
        assert!([1, 2].iter().all(|&caller| class(allocate(size, caller)) < FOREVER), "they are not mixed");
    }
}
