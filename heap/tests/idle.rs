//! Memory of an idle heap is reused or returned: time passes by the heap's clock, and no thread allocates.

mod model_time;

use heap::observe::{check, stats};
use heap::pages::huge_page::State;
use heap::pages::page_life::{self, Recycle};
use heap::pages::{region, retained};
use heap::units::geometry::{BLOCK_BYTES, HUGE_PAGE_BYTES};
use heap::units::lifetime_class::FOREVER;
use model_time::{SHORT, allocate, free};

fn page(object: usize) -> usize {
    object & !(HUGE_PAGE_BYTES - 1)
}

#[test]
fn idle_memory_is_reused_or_returned() {
    let mut pass = model_time::begin();

    // Enough pages for each class to open its own.
    let pages: Vec<usize> = (0..64).map(|_| allocate(HUGE_PAGE_BYTES - BLOCK_BYTES, FOREVER)).collect();
    page_life::configure(Recycle::Longest, 2);
    let stays = allocate(64, FOREVER);
    let state = || region::huge_page(page(stays)).state();
    pass(2_000);
    assert_eq!(state(), State::Open, "the paper's page is open until it is full");
    let beside = allocate(1024, FOREVER); // of another size: its own span
    page_life::configure(Recycle::Fill, 2);
    pass(500);
    assert_eq!(state(), State::Open, "long-lived objects are allocated rarely but repeatedly");
    pass(1_000);
    assert_eq!(state(), State::Active, "its class does not ask");
    let dies = allocate(64, SHORT);
    assert_eq!(page(dies), page(stays), "what is left of it serves shorter classes");
    check::invariants().unwrap();

    // A large object that is freed is cached, and then released.
    free(allocate(3 * BLOCK_BYTES, SHORT));
    assert_eq!(stats::census().free.large, 3 * BLOCK_BYTES);
    pass(200);
    assert_eq!(stats::census().free.large, 0);

    // Free pages are retained, and returned one after the other if they are not needed.
    pages[..8].iter().for_each(|&object| free(object));
    pass(200); // out of the thread's cache
    let retained_first = retained::count();
    assert!((5..=8).contains(&retained_first), "{retained_first}");
    pass(300);
    let retained_then = retained::count();
    assert!((1..retained_first).contains(&retained_then), "{retained_then} of {retained_first}");
    pass(2_000);
    assert_eq!(retained::count(), 0);
    check::invariants().unwrap();
    pages[8..].iter().chain(&[stays, beside, dies]).for_each(|&object| free(object));
}
