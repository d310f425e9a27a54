//! Where the blocks of a lifetime class lie. What is in class ∞ is expected to stay as it is for as long as the process lives,
//! so it is what page merging is worth naming to (UPM §IV-B); what is recycled for shorter classes on the same pages is not.
//!
//! A block's class is that of its huge page while it is residual there, so promotions and demotions count (LLAMA §6.4). It is
//! a look at what is there now: nothing is held up, and nothing is remembered.

use core::ops::Range;

use crate::pages::huge_page::State;
use crate::pages::{direct, region};
use crate::thread::{current, gate};
use crate::units::bits::Bits;
use crate::units::geometry::*;

/// Tells `found` of each run of blocks of `class`, and of the objects with a mapping of their own that were placed with it.
/// It must neither allocate nor free.
pub fn each_run(class: usize, mut found: impl FnMut(Range<usize>)) {
    let _pass = gate::pass(current::heap());
    let (mut run, mut next) = (0..0, 0);
    while let Some(id) = region::next_used(next) {
        next = id + 1;
        let address = region::address(id);
        let page = region::huge_page(address);
        if !matches!(page.state(), State::Open | State::Active) || page.class() != class {
            continue;
        }
        let residual = page.residual.load();
        for block in (0..BLOCKS_PER_HUGE_PAGE).filter(|&block| is_set(&residual, block)) {
            let start = address + block * BLOCK_BYTES;
            if run.end != start {
                report(&run, &mut found);
                run.start = start;
            }
            run.end = start + BLOCK_BYTES;
        }
    }
    report(&run, &mut found);
    direct::each(class, |range| report(&range, &mut found));
}

fn report(run: &Range<usize>, found: &mut impl FnMut(Range<usize>)) {
    if !run.is_empty() {
        found(run.clone());
    }
}

fn is_set(bits: &Bits, block: usize) -> bool {
    bits[block / 64] >> (block % 64) & 1 == 1
}
