//! A heap whose clock goes when a test says so.

use heap::entry::{allocate, free, maintenance, start};
use heap::units::call::{Call, ReturnSlot};

const CALL: Call = Call { size: 64, caller: 0x1000, stack: 0x7fff_0000 };
/// Of objects that die within a second.
pub const SHORT: usize = 2;

/// The heap begins; what is given lets so many milliseconds pass.
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
