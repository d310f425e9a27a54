//! Every interleaving (up to four preemptions) of the steps by which other threads free in a span, and by
//! which spans and heaps change their owners. The code is that of `heap/src/span/remote.rs`, over models of a
//! span and a heap.
//!
//! Each cell is collected exactly once and no mark is lost. What only the owner may touch is in loom's cells,
//! which detect a data race. Run by `make test`:
//! `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p mayfly_heap_core --release
//! --test loom_remote --test loom_available`

#![cfg(loom)]

#[path = "loom_remote/one_by_one.rs"]
mod one_by_one;
#[allow(dead_code)]
#[path = "../src/span/remote.rs"]
mod remote;
mod sequential;

use loom::cell::UnsafeCell;
use loom::sync::{Mutex, MutexGuard};
use loom::thread;
use remote::{Home, Link, RemoteBits, RemoteList, RemoteSpan, Tenancy};
use sequential::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

/// The data that only a span's owner touches.
#[derive(Default)]
struct Cells {
    live: u64,
    /// All cells collected so far.
    collected: u32,
    /// The owner allocates from it, so it stays though it is empty.
    open: bool,
    /// It is in none of its owner's bins, on its way to another.
    taken_out: bool,
}

struct Span {
    /// Address of the owner, 0 for none.
    owner: AtomicUsize,
    link: Link,
    marks: RemoteBits,
    cells: UnsafeCell<Cells>,
}

struct Heap {
    list: RemoteList,
    tenancy: Tenancy,
    registry: &'static Mutex<()>,
}

impl RemoteSpan for Span {
    type Home = Heap;
    fn link(&self) -> &Link {
        &self.link
    }
    fn any_marked(&self) -> bool {
        self.marks.any()
    }
    fn home(&self) -> Option<&'static Heap> {
        // SAFETY: 0, or the address of a leaked heap.
        unsafe { (self.owner.load(Acquire) as *const Heap).as_ref() }
    }
    fn set_home(&self, home: Option<&'static Heap>) {
        self.owner.store(home.map_or(0, Heap::address), SeqCst);
    }
    fn is_idle(&self) -> bool {
        self.cells(|cells| cells.live == 0 && !cells.open)
    }
}

impl Home for Heap {
    type Span = Span;
    type Guard = MutexGuard<'static, ()>;
    fn list(&self) -> &RemoteList {
        &self.list
    }
    fn tenancy(&self) -> &Tenancy {
        &self.tenancy
    }
    fn owns(&self, span: &Span) -> bool {
        span.owner.load(Acquire) == core::ptr::from_ref(self) as usize
    }
    fn collect_marked(&'static self, span: &'static Span) {
        span.cells(|cells| {
            let marked = span.marks.take(0);
            assert_eq!(marked & !cells.live, 0, "a mark was seen twice");
            cells.live &= !marked;
            cells.collected += marked.count_ones();
            assert!(!cells.taken_out, "it is in no bin, from which it could go");
        });
    }
    fn place(&'static self, span: &'static Span) {
        remote::settle(span);
    }
    fn lock(&self) -> MutexGuard<'static, ()> {
        self.registry.lock().unwrap()
    }
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn registry() -> &'static Mutex<()> {
    leak(Mutex::new(()))
}

fn heap(registry: &'static Mutex<()>, taken: bool) -> &'static Heap {
    let heap = leak(Heap { list: RemoteList::default(), tenancy: Tenancy::default(), registry });
    heap.tenancy.set(taken);
    heap
}

impl Heap {
    fn address(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    /// Adopts a span, if it is still the vacant heap's.
    fn adopt(&'static self, vacant: &'static Heap, span: &'static Span) -> bool {
        let adopted = {
            let guard = self.lock();
            if vacant.tenancy.taken() {
                return false;
            }
            remote::adopt(self, vacant, &guard, || {
                let found = vacant.owns(span).then_some(span);
                found.inspect(|span| span.cells(|cells| cells.taken_out = true))
            })
        };
        if let Some(span) = adopted {
            span.cells(|cells| (cells.taken_out, cells.open) = (false, true));
        }
        adopted.is_some()
    }

    /// As `registry::move_out`.
    fn move_out(&'static self) {
        let _guard = self.lock();
        remote::vacate(self);
    }
}

impl Span {
    /// A span of `heap` with these cells live.
    fn of(heap: &'static Heap, live: u64) -> &'static Span {
        leak(Span {
            owner: AtomicUsize::new(heap.address()),
            link: Link::default(),
            marks: RemoteBits::default(),
            cells: UnsafeCell::new(Cells { live, ..Cells::default() }),
        })
    }

    fn cells<T>(&self, f: impl FnOnce(&mut Cells) -> T) -> T {
        // SAFETY: loom reports it if another thread does.
        self.cells.with_mut(|cells| f(unsafe { &mut *cells }))
    }

    /// As `free::free_cell`, by a thread other than the owner's.
    fn free(&'static self, cell: usize) {
        assert!(self.marks.mark(cell / 64, 1 << (cell % 64)) == 0, "no cell is freed twice here");
        remote::list(self, false);
    }

    /// Divides it for a heap, with some of the cells live.
    fn assign_owner(&'static self, heap: &'static Heap, live: u64) {
        self.cells(|cells| *cells = Cells { live, collected: cells.collected, open: true, taken_out: false });
        remote::assign_owner(heap, self);
    }

    /// Nothing is in progress, and every free was collected.
    fn check_at_rest(&self, collected: u32, live: u64) {
        assert!(!self.any_marked(), "a mark was left behind");
        assert_eq!(self.cells(|cells| (cells.collected, cells.live)), (collected, live));
        let free_to_claim = self.link.claim();
        assert_eq!(free_to_claim, self.home().is_some(), "at rest a span can be listed if it is owned");
    }
}

fn join<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
    for thread in threads {
        thread.join().unwrap();
    }
}

fn check(steps: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(steps);
}

#[test]
fn every_mark_is_collected_once() {
    check(|| {
        let a = heap(registry(), true);
        let span = Span::of(a, 0b111);
        let freers = [0, 1].map(|cell| thread::spawn(move || span.free(cell)));
        remote::collect(a, false);
        remote::collect(a, false);
        join(freers);
        remote::collect(a, false);
        span.check_at_rest(2, 0b100);
    });
}

#[test]
fn marks_in_several_spans_are_collected_once() {
    check(|| {
        let a = heap(registry(), true);
        let spans = [Span::of(a, 0b111), Span::of(a, 0b111)];
        let freers = [0, 1].map(|i| {
            thread::spawn(move || {
                spans[i].free(0);
                spans[1 - i].free(1);
            })
        });
        remote::collect(a, false);
        join(freers);
        remote::collect(a, false);
        for span in spans {
            span.check_at_rest(2, 0b100);
        }
    });
}

/// Another thread's listing delivers a freer's mark to the owner. The owner gives the span up, another heap
/// takes it, and only then does the freer try to list it. `discarded`: meanwhile the page was returned, and
/// the metadata reads as zero.
fn disowned_and_reused(discarded: bool) {
    check(move || {
        let registry = registry();
        let (a, b) = (heap(registry, true), heap(registry, true));
        let span = Span::of(a, 0b11);
        span.free(0);
        let late = thread::spawn(move || span.free(1));
        remote::collect(a, false);
        if span.home().is_none() {
            if discarded {
                span.link.release();
            }
            span.assign_owner(b, 0b1100);
            let other = thread::spawn(move || span.free(2));
            remote::collect(b, false);
            other.join().unwrap();
            late.join().unwrap();
            remote::collect(b, false);
            span.check_at_rest(3, 0b1000);
        } else {
            late.join().unwrap();
            remote::collect(a, false);
            span.check_at_rest(2, 0);
        }
    });
}

#[test]
fn a_span_disowned_and_reused_by_another_heap_keeps_its_marks() {
    disowned_and_reused(false);
}

#[test]
fn a_span_keeps_its_marks_when_its_page_is_returned_in_between() {
    disowned_and_reused(true);
}

#[test]
fn an_adopted_span_is_forwarded_to_its_new_owner() {
    check(|| {
        let registry = registry();
        let (a, b) = (heap(registry, false), heap(registry, true));
        let span = Span::of(a, 0b111);
        let freers = [0, 1].map(|cell| thread::spawn(move || span.free(cell)));
        assert!(b.adopt(a, span));
        remote::collect(b, false);
        join(freers);
        remote::collect(b, false);
        assert!(a.list.is_empty(), "a vacant heap's list is empty");
        span.check_at_rest(2, 0b100);
    });
}

#[test]
fn an_adopted_span_in_the_list_of_a_heap_with_a_new_thread_is_forwarded() {
    check(|| {
        let registry = registry();
        let (a, b) = (heap(registry, false), heap(registry, true));
        let span = Span::of(a, 0b11);
        let freer = thread::spawn(move || span.free(0));
        let newcomer = thread::spawn(move || {
            {
                let _guard = a.lock();
                a.tenancy.set(true);
            }
            remote::collect(a, false);
        });
        let adopted = b.adopt(a, span);
        remote::collect(b, false);
        newcomer.join().unwrap();
        freer.join().unwrap();
        remote::collect(a, false);
        if adopted {
            remote::collect(b, false);
        }
        span.check_at_rest(1, 0b10);
    });
}

#[test]
fn a_thread_that_moves_in_has_the_heap_to_itself() {
    check(|| {
        let a = heap(registry(), false);
        let span = Span::of(a, 0b11);
        let freer = thread::spawn(move || span.free(0));
        {
            let _guard = a.lock();
            a.tenancy.set(true);
        }
        span.cells(|cells| cells.live |= 0b100);
        remote::collect(a, false);
        span.cells(|cells| cells.live |= 0b1000);
        freer.join().unwrap();
        remote::collect(a, false);
        span.check_at_rest(1, 0b1110);
    });
}

#[test]
fn nothing_is_stranded_when_a_thread_moves_out() {
    check(|| {
        let a = heap(registry(), true);
        let span = Span::of(a, 0b111);
        let freers = [0, 1].map(|cell| thread::spawn(move || span.free(cell)));
        remote::collect(a, false);
        a.move_out();
        join(freers);
        assert!(a.list.is_empty());
        span.check_at_rest(2, 0b100);
    });
}

#[test]
fn nothing_is_stranded_when_a_thread_moves_out_and_another_adopts() {
    check(|| {
        let registry = registry();
        let (a, b) = (heap(registry, true), heap(registry, true));
        let span = Span::of(a, 0b11);
        let freer = thread::spawn(move || span.free(0));
        let leaver = thread::spawn(move || a.move_out());
        b.adopt(a, span);
        remote::collect(b, false);
        leaver.join().unwrap();
        freer.join().unwrap();
        remote::collect(b, false);
        assert!(a.list.is_empty());
        span.check_at_rest(1, 0b10);
    });
}

#[test]
fn the_last_free_in_a_vacant_heap_disowns_the_span() {
    check(|| {
        let a = heap(registry(), true);
        let span = Span::of(a, 0b11);
        let freers = [0, 1].map(|cell| thread::spawn(move || span.free(cell)));
        a.move_out();
        join(freers);
        assert!(a.list.is_empty());
        assert_eq!(span.cells(|cells| (cells.collected, cells.live)), (2, 0));
    });
}
