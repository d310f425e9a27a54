//! A program on the heap: this one, and the example.

use std::alloc::{GlobalAlloc, Layout};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use mayfly_alloc::{Mayfly, holds};

#[global_allocator]
static HEAP: Mayfly = Mayfly;

#[test]
fn objects_are_the_heaps_and_keep_their_contents_across_threads() {
    let threads: Vec<_> = (0..8_u64)
        .map(|seed| {
            std::thread::spawn(move || {
                let (mut random, mut kept) = (seed + 1, vec![Vec::new(); 512]);
                for _ in 0..50_000 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let (place, size) = ((random >> 55) as usize, (random >> 33) as usize % 3000);
                    let old: &mut Vec<u8> = &mut kept[place];
                    assert!(old.iter().all(|byte| *byte == place as u8));
                    old.resize(size, place as u8);
                    old.shrink_to_fit();
                }
                assert!(kept.iter().any(|object| holds(object.as_ptr())));
                kept // freed by another thread
            })
        })
        .collect();
    for (thread, number) in threads.into_iter().zip(0..) {
        for (place, object) in thread.join().unwrap().iter().enumerate() {
            assert!(object.iter().all(|byte| *byte == place as u8), "of thread {number}");
        }
    }
}

#[test]
fn alignments_zeroes_and_sizes_are_as_asked_for() {
    for shift in 0..22 {
        for size in [1, 24, 4000, 70_000, 5 << 20] {
            let layout = Layout::from_size_align(size, 1 << shift).unwrap();
            // SAFETY: the size is not zero, and each object is used within its size until it is freed.
            unsafe {
                let object = HEAP.alloc_zeroed(layout);
                assert!(!object.is_null() && object.addr().is_multiple_of(1 << shift));
                assert!(std::slice::from_raw_parts(object, size).iter().all(|byte| *byte == 0));
                object.write_bytes(7, size);
                let grown = HEAP.realloc(object, layout, 2 * size);
                assert!(grown.addr().is_multiple_of(1 << shift));
                assert!(std::slice::from_raw_parts(grown, size).iter().all(|byte| *byte == 7));
                HEAP.dealloc(grown, Layout::from_size_align(2 * size, 1 << shift).unwrap());
            }
        }
    }
}

#[test]
fn the_example_counts_words() {
    // Tests lie in DEPS, examples in the folder beside it.
    let own = std::env::current_exe().unwrap();
    let program = own.parent().and_then(Path::parent).unwrap().join("examples/words");
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("cargo test builds it");
    child.stdin.take().unwrap().write_all(b"one two Two three three three").unwrap();
    let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["3", "three", "2", "two", "1", "one"]);
}
