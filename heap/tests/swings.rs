//! A heap that swings (LLAMA §9.6): immortal objects lie on few pages, however often the others are allocated
//! and freed, and through idle pauses.

mod model_time;

use std::collections::BTreeSet;

use heap::observe::check;
use heap::units::geometry::HUGE_PAGE_BYTES;
use heap::units::lifetime_class::FOREVER;
use model_time::{SHORT, allocate, free};

/// The objects of 8 KiB that a swing allocates beside one that stays.
const BESIDE: usize = 16;
const STAYING: usize = 300;
const SWINGS: usize = 12;
/// Between the last object of a swing and the first of the next.
const PAUSE_MS: u64 = 300;

#[test]
fn immortal_objects_lie_together_after_many_swings() {
    let mut pass = model_time::begin();
    let mut stay = Vec::new();
    for _ in 0..SWINGS {
        let mut dies = Vec::new();
        for _ in 0..STAYING {
            stay.push(allocate(64, FOREVER));
            dies.extend((0..BESIDE).map(|_| allocate(8 << 10, SHORT)));
        }
        pass(100);
        dies.iter().for_each(|&object| free(object));
        pass(PAUSE_MS);
    }
    check::invariants().unwrap();
    let pages: BTreeSet<usize> = stay.iter().map(|object| object / HUGE_PAGE_BYTES).collect();
    assert!(pages.len() <= 2, "{} KiB that stay lie on {} huge pages", stay.len() * 64 / 1024, pages.len());
    stay.iter().for_each(|&object| free(object));
}
