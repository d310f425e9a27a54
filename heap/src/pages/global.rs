//! The global allocator (LLAMA §6.1–6.5): hands out block spans and the blocks of large objects, and takes
//! them back.
//!
//! It uses free blocks of active pages before it opens a page. [`crate::pages::page_life`] has a page's
//! further life, [`crate::pages::open_page`] the pages that are being filled, [`crate::pages::large_blocks`]
//! the blocks of large objects.

use crate::pages::huge_page::State;
use crate::pages::page_life::{self, Extra, Request};
use crate::pages::{memory_pressure, open_page, pool, region};
use crate::span::cells::Span;
use crate::system::events::{self, Event};
use crate::units::bits;
use crate::units::geometry::*;
use crate::units::lifetime_class::FOREVER;

/// Acquires a block span for objects of `class` (LLAMA §6.3); `None` if memory ran out. Passes up to `more`
/// further free spans of the same page to `keep`.
pub fn acquire_spans(
    class: usize,
    more: usize,
    mut keep: impl FnMut(&'static Span),
) -> Option<&'static Span> {
    let mut keep = |address| {
        events::count(Event::SpanAcquired);
        keep(region::span(address));
    };
    let request = Request { class, blocks: SPAN_BLOCKS, alignment: SPAN_BLOCKS, span: true };
    let blocks = acquire(&request, &mut Extra { wanted: more, keep: &mut keep })?;
    events::count(Event::SpanAcquired);
    Some(region::span(blocks))
}

pub(crate) fn acquire(request: &Request, extra: &mut Extra) -> Option<usize> {
    let class = request.class;
    if memory_pressure::is_high()
        && let Some(blocks) = (0..=class).rev().find_map(|from| recycle(from, request, extra))
    {
        return Some(blocks);
    }
    let fill = page_life::fills();
    for i in 0..FOREVER - class {
        // Spans from the longest class, large objects from the next longer one (LLAMA §6.3).
        let from = if request.span { FOREVER - i } else { class + 1 + i };
        if let Some(blocks) = recycle(from, request, extra) {
            return Some(blocks);
        }
    }
    if fill && let Some(blocks) = recycle(class, request, extra) {
        return Some(blocks);
    }
    open_page::take(request, extra).or_else(|| take_anywhere(request, extra))
}

/// No page is left: takes blocks of shorter classes' pages and of any open page, before malloc fails.
#[cold]
fn take_anywhere(request: &Request, extra: &mut Extra) -> Option<usize> {
    (0..=request.class)
        .rev()
        .find_map(|from| recycle(from, request, extra))
        .or_else(|| open_page::take_from_any(request))
}

/// Takes blocks of an active page of class `from`.
fn recycle(from: usize, request: &Request, extra: &mut Extra) -> Option<usize> {
    pool::search(from, request.blocks, |id| {
        let address = region::address(id);
        let page = region::huge_page(address);
        let _guard = page.lock.try_lock()?; // another thread holds this page: the next one is as good
        if page.state() != State::Active || page.class() != from {
            return None;
        }
        let find = || bits::find_run(&page.free_blocks(), request.blocks, request.alignment);
        let Some(first) = find() else {
            pool::update(page, id, from);
            return None;
        };
        let blocks = page_life::mark(page, address, first, request, from);
        while extra.wanted > 0
            && let Some(first) = find()
        {
            extra.wanted -= 1;
            (extra.keep)(page_life::mark(page, address, first, request, from));
        }
        events::count(if from == request.class { Event::BlocksRefilled } else { Event::BlocksRecycled });
        Some(blocks)
    })
}

/// Releases a block span.
pub fn release_span(address: usize) {
    region::span(address).set_whole(false);
    let page = region::huge_page(address);
    let _guard = page.lock.lock();
    page.spans.clear(&bits::range(block_index(address), SPAN_BLOCKS));
    page_life::release_locked(page, address, SPAN_BLOCKS);
}

/// Returns all empty huge pages; whether there was one. malloc_trim calls this.
pub fn trim() -> bool {
    let mut any = open_page::close_all_empty(); // which may retain them
    while page_life::return_retained() {
        any = true;
    }
    any
}
