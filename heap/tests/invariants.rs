//! The heap's checks find broken invariants, and the contents of pages add up to the pages.

use heap::entry::{allocate, free};
use heap::observe::check::{self, Broken};
use heap::observe::stats;
use heap::pages::region;
use heap::units::call::{Call, ReturnSlot};
use heap::units::geometry::{BLOCK_BYTES, HUGE_PAGE_BYTES, SPAN_BYTES};

const CALL: Call = Call { size: 100, caller: 0x1000, stack: 0x7fff_0000 };

fn held_bytes() -> usize {
    let census = stats::census();
    let free = census.free;
    let free_bytes: usize = free.cells.iter().chain(&free.blocks).sum();
    census.live_bytes + free_bytes + free.spans + free.large + free.open_pages + free.to_be_filled
}

#[test]
fn finds_broken_invariants() {
    let small = allocate::allocate(CALL) as usize;
    let large = allocate::allocate(Call { size: 8 * BLOCK_BYTES, ..CALL }) as usize;
    let pages = || stats::census().pages.iter().sum::<usize>();
    assert_eq!(check::invariants(), Ok(()));
    assert_eq!(held_bytes(), pages() * HUGE_PAGE_BYTES);
    assert_eq!(stats::census().free.large, 0);

    // A freed object is cached, and no longer live.
    let live = stats::census().live_bytes;
    free::free(large, ReturnSlot::NONE);
    let now = stats::census();
    assert_eq!((now.free.large, now.live_bytes), (8 * BLOCK_BYTES, live - 8 * BLOCK_BYTES));
    assert_eq!(held_bytes(), pages() * HUGE_PAGE_BYTES);
    assert_eq!(check::invariants(), Ok(()));

    // A request for as many blocks or slightly fewer reuses it; one for more, or for far fewer, does not.
    let blocks_of = |blocks| Call { size: blocks * BLOCK_BYTES, ..CALL };
    for (blocks, gets_it) in [(9, false), (6, false), (7, true), (8, true)] {
        let other = allocate::allocate(blocks_of(blocks)) as usize;
        assert_eq!(other == large, gets_it, "{blocks} blocks");
        assert_eq!(check::invariants(), Ok(()));
        if gets_it {
            free::free(other, ReturnSlot::NONE);
        }
    }

    // In a span of cells no large object begins: the fast path of freeing reads this and the divisor as one
    // word.
    let span = region::span(small);
    for object in [0, 1].map(|block| span.large(block)) {
        object.begin(1, true);
        let what = "where cells lie no large object begins";
        assert_eq!(check::invariants(), Err(Broken { what, address: small & !(SPAN_BYTES - 1) }));
        object.end();
    }
    assert_eq!(check::invariants(), Ok(()));
    free::free(small, ReturnSlot::NONE);
}
