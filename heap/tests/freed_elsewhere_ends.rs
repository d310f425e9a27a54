//! What other threads freed, and the owner has taken but not collected yet, is not left behind when the owner
//! ends, or is not there any more in the child of a fork.

use heap::entry::{allocate, free, start};
use heap::observe::{check, stats};
use heap::system::clock;
use heap::thread::local::Heap;
use heap::thread::{current, registry};
use heap::units::call::{Call, ReturnSlot};
use std::sync::mpsc;

const CALL: Call = Call { size: 16_000, caller: 0x1000, stack: 0x7fff_0000 };
const OBJECTS: usize = 80;

/// Status of the child: nothing is left of the thread's objects but one, in its open span.
fn child(owner: &Heap) -> i32 {
    let facts = [
        owner.remote.is_empty(),
        !owner.tenancy.taken(),
        stats::census().objects == 1,
        owner.bins().iter().all(|bin| bin.queue.first().is_none()),
    ];
    facts.iter().position(|holds| !holds).map_or(0, |at| at as i32 + 1)
}

fn status_of_child(owner: &Heap) -> i32 {
    // SAFETY: the child runs `child` and ends; no other thread holds a lock of the C library now.
    match unsafe { libc::fork() } {
        // SAFETY: ends the child at once.
        0 => unsafe { libc::_exit(child(owner)) },
        process => {
            let mut status = 0;
            // SAFETY: `status` is written.
            assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
            assert!(libc::WIFEXITED(status), "status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn frees_that_wait_in_a_heap_are_not_left_behind() {
    clock::set(1_000_000_000);
    let own = start::visit(&Call { size: 64, ..CALL }).expect("memory").heap;
    let (give, take) = mpsc::channel();
    let (proceed, wait) = mpsc::channel::<()>();
    let owner = std::thread::spawn(move || {
        let objects: Vec<usize> = (0..OBJECTS).map(|_| allocate::allocate(CALL) as usize).collect();
        give.send(objects).expect("received");
        wait.recv().expect("sent");
        give.send(vec![allocate::allocate(CALL) as usize]).expect("received");
        wait.recv().expect("sent");
        current::heap().id.get()
    });
    let objects = take.recv().expect("sent");
    objects.iter().for_each(|&object| free::free(object, ReturnSlot::NONE));
    own.remote_free_buffer.flush(false);
    proceed.send(()).expect("received");
    let last = take.recv().expect("sent")[0];
    assert!(objects.contains(&last), "a place that became free");
    let heap = registry::heaps().find(|heap| heap.id.get() != own.id.get()).expect("the thread's");
    assert!(!heap.remote.is_empty(), "it has taken one of many");

    assert_eq!(status_of_child(heap), 0, "the number of what does not hold in the child");
    assert!(!heap.remote.is_empty(), "the parent's are as before");
    check::invariants().unwrap();

    proceed.send(()).expect("received");
    assert_eq!(owner.join().expect("no panic"), heap.id.get());
    assert!(heap.remote.is_empty(), "the thread has collected all");
    assert_eq!(stats::census().objects, 1);
    free::free(last, ReturnSlot::NONE);
    own.remote_free_buffer.flush(false);
    assert_eq!(stats::census().objects, 0);
    assert!(heap.bins().iter().all(|bin| bin.queue.first().is_none()), "no span is left");
    check::invariants().unwrap();
}
