//! In a process with fewer addresses than the heap wants, the heap has fewer regions, and classes share them.

use heap::entry::{allocate, free};
use heap::pages::region;
use heap::units::call::{Call, ReturnSlot};
use heap::units::lifetime_class::CLASSES;

/// Takes every hole of the address space of at least this size, down to 256 GiB.
fn fill_the_address_space() {
    for shift in (38..47).rev() {
        loop {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: its own mapping, which is not touched.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), 1 << shift, libc::PROT_NONE, flags, -1, 0) };
            if at == libc::MAP_FAILED {
                break;
            }
        }
    }
}

#[test]
fn a_heap_finds_room_in_a_small_address_space() {
    fill_the_address_space();
    let call = |size| Call { size, caller: 0x1000, stack: 0x7fff_0000 };
    let sizes = [16, 500, 8_000, 100_000, 5 << 20];
    let objects: Vec<(usize, usize)> = (0..CLASSES)
        .flat_map(|class| sizes.map(|size| (allocate::allocate_with_class(call(size), class) as usize, size)))
        .collect();
    for &(object, size) in &objects {
        assert!(object != 0 && region::holds(object), "{size} B");
        // SAFETY: the object has that many bytes.
        unsafe { (object as *mut u8).write_bytes(size as u8, size) };
    }
    for (object, size) in objects {
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(object as *const u8, size) };
        assert!(bytes.iter().all(|&byte| byte == size as u8), "{size} B");
        free::free(object, ReturnSlot::NONE);
    }
}
