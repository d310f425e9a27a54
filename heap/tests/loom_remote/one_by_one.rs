//! The owner collects from one span at a time, and the spans after it wait in the chain that it has taken.

use super::{Heap, Span, check, heap, join, registry};
use crate::remote::{self, RemoteSpan};
use loom::thread;

impl Heap {
    /// As a refill: opens the first of the spans with marks that has a free cell.
    fn open_one(&'static self) -> Option<&'static Span> {
        remote::collect_until(self, false, |span| {
            span.cells(|cells| {
                let has_room = cells.live != 0b111;
                cells.open |= has_room;
                has_room.then_some(span)
            })
        })
    }
}

impl Span {
    /// Allocates all its free cells, and goes back to its bin.
    fn fill_and_close(&self) {
        self.cells(|cells| (cells.live, cells.open) = (0b111, false));
    }
}

/// A heap whose two spans have one mark each; it has opened one of them, and the other waits in its chain.
fn with_one_waiting() -> (&'static Heap, &'static Span, &'static Span) {
    let a = heap(registry(), true);
    let spans = [Span::of(a, 0b111), Span::of(a, 0b111)];
    spans.iter().for_each(|span| span.free(0));
    let opened = a.open_one().expect("both have room");
    assert!(!a.list.is_empty(), "one waits");
    let waits = spans.into_iter().find(|span| !core::ptr::eq(*span, opened)).expect("the other one");
    (a, opened, waits)
}

#[test]
fn spans_that_wait_and_new_ones_are_collected_once() {
    check(|| {
        let (a, opened, waits) = with_one_waiting();
        opened.fill_and_close();
        let freers = [1, 2].map(|cell| {
            thread::spawn(move || {
                waits.free(cell);
                if cell == 1 {
                    opened.free(1);
                }
            })
        });
        let first = a.open_one().expect("one waits");
        assert!(core::ptr::eq(first, waits), "it is older than the new ones");
        a.open_one();
        join(freers);
        remote::collect(a, false);
        assert!(a.list.is_empty());
        opened.check_at_rest(2, 0b101);
        waits.check_at_rest(3, 0);
    });
}

#[test]
fn spans_that_wait_are_not_stranded_when_the_thread_moves_out() {
    check(|| {
        let (a, opened, waits) = with_one_waiting();
        let freers = [opened, waits].map(|span| thread::spawn(move || span.free(1)));
        a.move_out();
        join(freers);
        assert!(a.list.is_empty());
        opened.check_at_rest(2, 0b100);
        waits.check_at_rest(2, 0b100);
    });
}

#[test]
fn spans_that_wait_are_found_by_the_thread_that_acts_for_a_sleeper() {
    check(|| {
        let (a, opened, waits) = with_one_waiting();
        let freer = thread::spawn(move || {
            waits.free(1);
            opened.free(1);
        });
        // The owner sleeps: it is kept out of its lists meanwhile.
        remote::collect_if(a, false, |span| core::ptr::eq(span, waits));
        freer.join().unwrap();
        remote::collect_if(a, false, |span| core::ptr::eq(span, waits));
        assert_eq!(waits.cells(|cells| cells.collected), 2);
        assert_eq!(opened.cells(|cells| cells.collected), 1, "it was not wanted");
        remote::collect(a, false);
        opened.check_at_rest(2, 0b100);
        waits.check_at_rest(2, 0b100);
    });
}

#[test]
fn spans_that_wait_become_empty_and_are_given_up_late() {
    check(|| {
        let (a, opened, waits) = with_one_waiting();
        let freer = thread::spawn(move || (1..3).for_each(|cell| waits.free(cell)));
        opened.cells(|cells| (cells.live, cells.open) = (0, false));
        assert!(remote::settle(opened), "it is in no list");
        remote::collect(a, false);
        freer.join().unwrap();
        remote::collect(a, false);
        assert_eq!(waits.cells(|cells| (cells.collected, cells.live)), (3, 0));
        assert!(waits.home().is_none(), "it was given up");
    });
}
