//! Main memory bypass (§3.3): the bypass counter of an arena in the HOT marks the lines that no object of it
//! has used yet. Such a line, when it misses every cache, is instantiated with zeros in the LLC and not read
//! from DRAM.
//!
//! Left open by the paper, taken here:
//! - Lines are counted from the arena's header, line 0, so that the very first body line can bypass. The last
//!   line of a 512-byte class's arena has number 2048, which 11 bits do not hold, and never bypasses.
//! - A free lowers the counter over the freed object's lines only where no other live object shares the line:
//!   zeros would overwrite it.
//! - Accesses reach the counter only while the arena is in the HOT. So an arena that leaves it has its
//!   counter raised to its last live object: allocated objects may have been written meanwhile.
//! - Another core's first access to a line is a coherence request, which the HOT that holds the arena sees:
//!   it raises the counter, and the access does not bypass. Without that, zeros could overwrite what a thread
//!   wrote to an object that it received.

use crate::arena::{BYPASS_COUNTER_MAX, Header, lines_of};
use crate::hot::Hot;
use crate::layout::{LINE_BYTES, REGION_BYTES, arena_bytes, lane_and_class};

/// Notes an access to `address` in a core's HOT, if that holds the arena; whether it does, and whether the
/// line is new.
#[inline]
pub fn touch(hot: &mut Hot, region_start: u64, address: u64) -> (bool, bool) {
    let offset = address.wrapping_sub(region_start);
    if offset >= REGION_BYTES {
        return (false, false);
    }
    let (_, class) = lane_and_class(offset);
    let entry = &mut hot.entries[class];
    let in_arena = address.wrapping_sub(entry.header.address);
    if !entry.valid || in_arena >= arena_bytes(class) {
        return (false, false);
    }
    let line = in_arena / LINE_BYTES;
    if line <= u64::from(entry.header.bypass_counter) || line > u64::from(BYPASS_COUNTER_MAX) {
        return (true, false);
    }
    entry.header.bypass_counter = line as u16;
    entry.dirty = true;
    (true, true)
}

/// After an object's bit has been cleared: its last lines are new again, if they were the last to be used.
#[inline]
pub fn freed(header: &mut Header, class: usize, index: usize) {
    let (first, last) = lines_of(class, index);
    for line in (first..=last).rev() {
        if line != u64::from(header.bypass_counter) || is_shared(header, class, index, line) {
            return;
        }
        header.bypass_counter -= 1;
    }
}

/// Whether a live object other than `index` has bytes in `line`. Its neighbours on a line are next to it in
/// the arena.
fn is_shared(header: &Header, class: usize, index: usize, line: u64) -> bool {
    let on_line = |other: usize| {
        let (first, last) = lines_of(class, other);
        (first..=last).contains(&line)
    };
    let before = (0..index).rev().take_while(|&other| on_line(other));
    let after = (index + 1..crate::layout::OBJECTS).take_while(|&other| on_line(other));
    before.chain(after).any(|other| header.is_allocated(other))
}

/// An arena leaves the HOT.
#[inline]
pub fn leaving(header: &mut Header, class: usize) {
    if let Some(last) = header.last_allocated() {
        let line = lines_of(class, last).1.min(u64::from(BYPASS_COUNTER_MAX));
        header.bypass_counter = header.bypass_counter.max(line as u16);
    }
}
