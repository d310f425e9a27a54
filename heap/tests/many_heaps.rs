//! When all heap numbers are used, further threads still allocate, and one warning is logged.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;

use heap::entry::{allocate, free, start};
use heap::pages::region;
use heap::thread::registry;
use heap::units::call::{Call, ReturnSlot};

const SIZES: [usize; 4] = [1, 100, 8_000, 3 << 20];

/// What `work` logs on stderr.
fn stderr_of(work: impl FnOnce()) -> String {
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stderr-{}", std::process::id()));
    let mut file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    // SAFETY: file descriptors of this process, which has one test.
    unsafe {
        let before = libc::dup(2);
        libc::dup2(file.as_raw_fd(), 2);
        work();
        libc::dup2(before, 2);
        libc::close(before);
    }
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

/// Allocates, writes to and frees an object of each size; returns whether they lie in the heap's pages.
fn use_memory() -> Vec<bool> {
    let objects = SIZES.map(|size| {
        let address = allocate::allocate(Call { size, caller: 0x1000, stack: 0x7fff_0000 }) as usize;
        assert_ne!(address, 0, "{size} B");
        // SAFETY: the object has that many bytes.
        unsafe { (address as *mut u8).write_bytes(7, size) };
        address
    });
    objects.map(free_one).to_vec()
}

fn free_one(object: usize) -> bool {
    let held = region::holds(object);
    free::free(object, ReturnSlot::NONE);
    held
}

#[test]
fn threads_beyond_the_last_heap_number_allocate() {
    // SAFETY: always allowed. One page of each heap is touched: they must not be huge.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    start::start();
    // Takes all heap numbers; the test needs only the heaps, not their threads.
    let mut last = None;
    for _ in 0..registry::MAX_HEAPS {
        last = Some(registry::move_in().expect("a number is left"));
    }
    let text = stderr_of(|| {
        for _ in 0..3 {
            let held = std::thread::spawn(use_memory).join().unwrap();
            assert_eq!(held, [false; SIZES.len()], "each object has a mapping of its own");
        }
    });
    let line = "mayfly-heap: more than 65535 threads allocate: each object of a further one takes a mapping of its own\n";
    assert_eq!(text, line);

    registry::move_out(last.expect("there are heaps"));
    let held = std::thread::spawn(use_memory).join().unwrap();
    assert_eq!(held, [true; SIZES.len()], "a thread has ended: the next one has its heap");
}
