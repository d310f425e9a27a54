//! What `malloc_trim` gives back beyond whole huge pages where the heap is on small ones (`MAYFLY_HEAP_PAGES=base`): free
//! blocks of pages that still hold something. On huge pages that would split them, which LLAMA §6.2 never does.
//!
//! A program that was busy and now waits, such as a function between two requests, keeps what is live and no more; and
//! what it once held does not stand between it and its likes when pages are merged.

use core::sync::atomic::Ordering::Relaxed;

use crate::pages::huge_page::{HugePage, State};
use crate::pages::region;
use crate::system::os;
use crate::units::bits::{self, Bits};
use crate::units::geometry::*;

/// Returns all free blocks that were not returned before; whether there was one.
pub fn free_blocks() -> bool {
    let (mut any, mut next) = (false, 0);
    while let Some(id) = region::next_used(next) {
        next = id + 1;
        let address = region::address(id);
        let page = region::huge_page(address);
        let _guard = page.lock.lock();
        if matches!(page.state(), State::Open | State::Active) {
            any |= discard_free(page, address);
        }
    }
    any
}

fn discard_free(page: &HugePage, address: usize) -> bool {
    let touched = bits::range(0, page.high_water.load(Relaxed) as usize);
    let (live, discarded) = (page.live.load(), page.discarded.load());
    let idle: Bits = core::array::from_fn(|word| touched[word] & !live[word] & !discarded[word]);
    let (mut first, mut any) = (0, false);
    while first < BLOCKS_PER_HUGE_PAGE {
        let length = (first..BLOCKS_PER_HUGE_PAGE).take_while(|&block| is_set(&idle, block)).count();
        if length > 0 {
            os::discard(address + first * BLOCK_BYTES, length * BLOCK_BYTES);
            any = true;
        }
        first += length + 1;
    }
    page.discarded.set(&idle);
    any
}

fn is_set(bits: &Bits, block: usize) -> bool {
    bits[block / 64] >> (block % 64) & 1 == 1
}
