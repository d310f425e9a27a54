//! A bin that is not used any more gives its half-empty spans to one that is; where many spans are half
//! empty, the fuller ones are filled first.

use heap::entry::{allocate, free, maintenance, start};
use heap::observe::check;
use heap::pages::region;
use heap::system::clock;
use heap::system::events::Event;
use heap::thread::local::Heap;
use heap::units::call::{Call, ReturnSlot};
use heap::units::geometry::{SPAN_BYTES, SPANS_PER_HUGE_PAGE};

const CALL: Call = Call { size: 2048, caller: 0x1000, stack: 0x7fff_0000 };
const CELLS: usize = SPAN_BYTES / CALL.size;
/// The classes of objects that die within a second and within ten.
const SHORT: usize = 2;
const LONG: usize = 3;

fn fill_spans(spans: usize, class: usize) -> Vec<usize> {
    (0..spans * CELLS).map(|_| allocate::allocate_with_class(CALL, class) as usize).collect()
}

/// Frees all but `left` objects of each span.
fn free_but(objects: &[usize], left: usize) {
    for span in objects.chunks(CELLS) {
        span[left..].iter().for_each(|&object| free::free(object, ReturnSlot::NONE));
    }
}

fn count(heap: &Heap, event: Event) -> u64 {
    heap.counts.of(event as usize)
}

#[test]
fn half_empty_spans_move_to_the_class_in_use() {
    let mut now_ms = 1_000;
    let mut pass = |heap: Option<&'static Heap>| {
        now_ms += 150;
        clock::set(now_ms * 1_000_000);
        heap.into_iter().for_each(maintenance::run);
    };
    pass(None);
    let heap = start::visit(&CALL).expect("memory").heap;
    maintenance::run(heap);
    // Fills a page with one class' objects, of which few stay, and makes as many calls for the other class.
    let left_behind = fill_spans(SPANS_PER_HUGE_PAGE, SHORT);
    free_but(&left_behind, 2);
    fill_spans(SPANS_PER_HUGE_PAGE, LONG);
    pass(Some(heap));
    assert_eq!(count(heap, Event::SpanMoved), 0, "both classes were used");

    for _ in 0..4 {
        assert_eq!(count(heap, Event::SpanMoved), 0, "it was used a while ago");
        fill_spans(1, LONG);
        pass(Some(heap));
    }
    assert_eq!(count(heap, Event::SpanMoved), 64, "as many as are examined");
    let (before, pages) = (count(heap, Event::SpanAcquired), [left_behind[0], *left_behind.last().unwrap()]);
    let new = fill_spans(64 / 2, LONG);
    assert_eq!(count(heap, Event::SpanAcquired), before, "moved spans are used");
    assert!(new.iter().all(|object| (pages[0]..pages[1]).contains(object)));
    assert_eq!(
        region::huge_page(pages[0]).class(),
        LONG,
        "so the page's objects live longer than was thought"
    );
    check::invariants().unwrap();

    // In another bin every fourth span has few objects left: the others are filled first, so these can become
    // empty.
    let smaller = Call { size: CALL.size / 4, ..CALL };
    let cells = SPAN_BYTES / smaller.size;
    let allocate = |count: usize| -> Vec<usize> {
        (0..count).map(|_| allocate::allocate_with_class(smaller, SHORT) as usize).collect()
    };
    let mixed = allocate(32 * cells);
    allocate(1); // of the span that is open now
    for (i, span) in mixed.chunks(cells).enumerate() {
        let left = if i % 4 == 0 { 2 } else { cells * 7 / 8 };
        span[left..].iter().for_each(|&object| free::free(object, ReturnSlot::NONE));
    }
    pass(Some(heap));
    allocate(cells - 1);
    let spans =
        |objects: &[usize]| -> Vec<usize> { objects.iter().map(|object| object / SPAN_BYTES).collect() };
    let emptier = spans(&mixed.iter().copied().step_by(4 * cells).collect::<Vec<_>>());
    let new = spans(&allocate(10));
    assert!(new.iter().all(|span| !emptier.contains(span)), "{new:x?}, of {emptier:x?}");
    check::invariants().unwrap();
}
