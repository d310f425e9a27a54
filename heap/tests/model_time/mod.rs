//! A heap whose clock the test sets. Each test uses a part of this.
#![allow(dead_code)]

use heap::entry::{allocate, free, maintenance, start};
use heap::units::call::{Call, ReturnSlot};

const CALL: Call = Call { size: 64, caller: 0x1000, stack: 0x7fff_0000 };
/// The class of objects that die within a second.
pub const SHORT: usize = 2;

/// Starts the heap; the closure advances its clock by this many milliseconds.
pub fn begin() -> impl FnMut(u64) {
    let mut now_ms = 1_000;
    let mut pass = move |ms: u64| {
        for _ in 0..ms / 10 {
            now_ms += 10;
            maintenance::set_clock(now_ms * 1_000_000);
        }
    };
    pass(10);
    start::visit(&CALL).expect("memory");
    pass
}

pub fn allocate(size: usize, class: usize) -> usize {
    allocate::allocate_with_class(Call { size, ..CALL }, class) as usize
}

pub fn free(object: usize) {
    free::free(object, ReturnSlot::NONE);
}
