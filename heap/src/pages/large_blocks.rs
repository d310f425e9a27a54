//! The blocks of large objects (LLAMA §6.1, §8): a run of blocks on one huge page, or whole pages and the
//! first blocks of the last one. Only the pages record where each begins and ends.

use core::sync::atomic::Ordering::Relaxed;

use crate::pages::huge_page::State;
use crate::pages::page_life::{Extra, Request};
use crate::pages::{decay, global, page_life, region};
use crate::span::large_object::LargeObject;
use crate::units::bits;
use crate::units::geometry::*;

/// Acquires `count` contiguous blocks for a large object, at a multiple of `alignment` blocks (LLAMA §6.1);
/// `None` if memory ran out.
pub fn acquire(class: usize, count: usize, alignment: usize) -> Option<usize> {
    if count > BLOCKS_PER_HUGE_PAGE {
        return acquire_pages(class, count);
    }
    let request = Request { class, blocks: count, alignment, span: false };
    global::acquire(&request, &mut Extra { wanted: 0, keep: &mut |_| {} })
}

/// Acquires whole pages and the first blocks of the last one (LLAMA §8), for an object of more than a huge
/// page. The rest of the last page is free for others at once.
fn acquire_pages(class: usize, count: usize) -> Option<usize> {
    let pages = count.div_ceil(BLOCKS_PER_HUGE_PAGE);
    let address = page_life::take_pages(class, pages, count)?;
    for i in 0..pages {
        let page_address = address + i * HUGE_PAGE_BYTES;
        let page = region::huge_page(page_address);
        let _guard = page.lock.lock();
        page.set_class(class);
        let used = (count - i * BLOCKS_PER_HUGE_PAGE).min(BLOCKS_PER_HUGE_PAGE);
        page.take(&bits::range(0, used), 0, used, true);
        decay::note_taken(page);
        if i == 0 {
            page.last_object_blocks.store(count as u32, Relaxed);
        }
        if i == pages - 1 {
            page.last.set(&bits::range(used - 1, 1));
        }
        page_life::activate(page, region::id(page_address));
    }
    region::large_object(address).begin(count, true);
    Some(address)
}

/// The metadata of the large object at `address`; `None` if none begins there.
pub fn object_at(address: usize) -> Option<&'static LargeObject> {
    let may_begin = address.is_multiple_of(BLOCK_BYTES);
    may_begin.then(|| region::large_object(address)).filter(|object| object.blocks().is_some())
}

/// The large object around `address`, its first byte and its blocks; for messages.
#[cold]
pub fn around(address: usize) -> Option<(usize, usize)> {
    let mut at = address & !(BLOCK_BYTES - 1);
    let is_large = |at: usize| {
        let block = block_index(at);
        region::holds(at) && {
            let page = region::huge_page(at);
            page.live.get(block) && !page.spans.get(block)
        }
    };
    while is_large(at) {
        if let Some(blocks) = object_at(at).and_then(LargeObject::blocks) {
            return Some((at, blocks));
        }
        at -= BLOCK_BYTES;
    }
    None
}

/// Frees the large object of `count` blocks at `address`; `false` if another thread has freed it (a double
/// free).
pub fn release(address: usize, count: usize) -> bool {
    let head = region::huge_page(address);
    {
        let _guard = head.lock.lock();
        let first = block_index(address);
        if head.object_blocks(first) != Some(count) || !head.live.get(first) {
            return false;
        }
        head.last_object_blocks.store(0, Relaxed);
        region::large_object(address).end();
        let end = first + count;
        if end <= BLOCKS_PER_HUGE_PAGE {
            head.last.clear(&bits::range(end - 1, 1));
            page_life::release_locked(head, address, count);
            return true;
        }
        page_life::release_locked(head, address, BLOCKS_PER_HUGE_PAGE);
    }
    for i in 1..count.div_ceil(BLOCKS_PER_HUGE_PAGE) {
        let at = address + i * HUGE_PAGE_BYTES;
        let used = (count - i * BLOCKS_PER_HUGE_PAGE).min(BLOCKS_PER_HUGE_PAGE);
        let page = region::huge_page(at);
        let _guard = page.lock.lock();
        page.last.clear(&bits::range(used - 1, 1));
        page_life::release_locked(page, at, used);
    }
    true
}

/// Resizes a large object in place; `false` if there is no room.
pub fn resize(address: usize, count: usize, new_count: usize) -> bool {
    let first = block_index(address);
    if first + count > BLOCKS_PER_HUGE_PAGE || first + new_count > BLOCKS_PER_HUGE_PAGE {
        return false;
    }
    let page = region::huge_page(address);
    let _guard = page.lock.lock();
    if new_count < count {
        page.last.clear(&bits::range(first + count - 1, 1));
        page.last.set(&bits::range(first + new_count - 1, 1));
        region::large_object(address).begin(new_count, false);
        page_life::release_locked(page, address + new_count * BLOCK_BYTES, count - new_count);
        return true;
    }
    let more = bits::range(first + count, new_count - count);
    let free = page.free_blocks();
    let in_reach = page.state() == State::Active || first + count == page.frontier.load(Relaxed) as usize;
    if !in_reach || (0..4).any(|i| more[i] & !free[i] != 0) {
        return false;
    }
    let residual = page.residual.get(first);
    page.last.clear(&bits::range(first + count - 1, 1));
    page.take(&more, first + count, new_count - count, residual);
    decay::note_taken(page);
    page.last.set(&bits::range(first + new_count - 1, 1));
    region::large_object(address).begin(new_count, false);
    if page.state() == State::Open {
        page.frontier.store((first + new_count) as u16, Relaxed);
    }
    true
}
