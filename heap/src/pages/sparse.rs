//! Returns small pages without live cells within block spans, on huge pages that are mostly empty by that
//! measure.
//!
//! Deleting objects at random leaves a few in most spans, so hardly a block becomes free, while most 4 KiB
//! pages are empty. If they make up half of the huge page or more, those of spans that were not allocated
//! from for a while are returned.
//!
//! The owner may allocate a free cell at any moment, and no thread may discard its memory meanwhile. But the
//! owner allocates from a queued span only after a slow-path visit, which opens the span. So [`give_back`]
//! runs when no thread is on a slow path ([`crate::entry::maintenance_thread`]), and touches only queued
//! spans. [`find`], the check before it, does not stop other threads.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::pages::decay;
use crate::pages::huge_page::{HugePage, State};
use crate::pages::region;
use crate::span::cells::{Role, Span};
use crate::system::events::{self, Event};
use crate::system::os;
use crate::units::bits;
use crate::units::geometry::*;

const PAGES_A_SPAN: usize = SPAN_BYTES / PAGE_BYTES;
const PAGES: usize = HUGE_PAGE_BYTES / PAGE_BYTES;
/// A huge page returns its free small pages once it has this many.
const ENOUGH_FREE: usize = PAGES / 2;
/// How many more than the last time must be free before they are returned again.
const WORTH_A_CALL: usize = PAGES / 16;
/// Huge pages checked in one call.
const A_LOOK: usize = 64;

static CURSOR: AtomicUsize = AtomicUsize::new(0);
/// When the next round over all pages may begin: a span that two rounds find unused is idle.
static NEXT_ROUND_MS: AtomicU64 = AtomicU64::new(0);

/// Checks some pages; returns the address of one that has something to return. One thread at a time calls it;
/// the result may be outdated, since other threads continue.
pub fn find(now_ms: u64) -> Option<usize> {
    if !decay::is_on() || CURSOR.load(Relaxed) == 0 && now_ms < NEXT_ROUND_MS.load(Relaxed) {
        return None;
    }
    if CURSOR.load(Relaxed) == 0 {
        NEXT_ROUND_MS.store(now_ms.saturating_add(decay::after_ms()), Relaxed);
    }
    for _ in 0..A_LOOK {
        let Some(id) = region::next_used(CURSOR.load(Relaxed)) else {
            CURSOR.store(0, Relaxed);
            return None;
        };
        CURSOR.store(id + 1, Relaxed);
        let (page, address) = (region::huge_page(region::address(id)), region::address(id));
        if is_worth_it(page, address, true) {
            return Some(address);
        }
    }
    None
}

/// Returns what the page has to return. No thread is on a slow path of allocating or freeing.
pub fn give_back(address: usize) {
    let page = region::huge_page(address);
    let _guard = page.lock.lock();
    if !is_worth_it(page, address, false) || !decay::may_be_small(page) {
        return;
    }
    decay::discard_free(page, address);
    let mut free = 0;
    for span in idle_spans(page, address) {
        let mut first = 0;
        while first < PAGES_A_SPAN {
            let count = (first..PAGES_A_SPAN).take_while(|&i| is_free(span, i)).count();
            if count > 0 {
                os::discard(span.address() + first * PAGE_BYTES, count * PAGE_BYTES);
            }
            free += count;
            first += count + 1;
        }
    }
    events::add(Event::BlocksDiscarded, (free * PAGE_BYTES / BLOCK_BYTES) as u64);
    page.given_back.store(free as u16, Relaxed);
}

/// Queued spans of the page that were not opened since the last check.
fn idle_spans(page: &'static HugePage, address: usize) -> impl Iterator<Item = &'static Span> {
    waiting_spans(page, address).filter(|span| span.waits())
}

fn waiting_spans(page: &'static HugePage, address: usize) -> impl Iterator<Item = &'static Span> {
    let spans = page.spans.load();
    (0..BLOCKS_PER_HUGE_PAGE)
        .step_by(SPAN_BLOCKS)
        .filter(move |&block| bits::get(&spans, block))
        .map(move |block| region::span(address + block * BLOCK_BYTES))
        .filter(|span| span.role() == Role::Queued)
}

/// Whether the page has enough to return. With `look`, queued spans count as idle from the next check on.
fn is_worth_it(page: &'static HugePage, address: usize, look: bool) -> bool {
    if !matches!(page.state(), State::Open | State::Active) {
        return false;
    }
    let in_spans: usize = idle_spans(page, address).map(free_pages).sum();
    if look {
        waiting_spans(page, address).for_each(Span::note_waiting);
    }
    let given_back = page.given_back.load(Relaxed) as usize;
    if in_spans < given_back {
        page.given_back.store(in_spans as u16, Relaxed); // some are in use again
    }
    let free_blocks = BLOCKS_PER_HUGE_PAGE - bits::count(&page.live.load());
    in_spans >= given_back + WORTH_A_CALL
        && in_spans + free_blocks * (BLOCK_BYTES / PAGE_BYTES) >= ENOUGH_FREE
}

fn free_pages(span: &'static Span) -> usize {
    (0..PAGES_A_SPAN).filter(|&i| is_free(span, i)).count()
}

/// Whether no cell lives on the span's page `i`, as far as its owner knows.
fn is_free(span: &Span, i: usize) -> bool {
    let (cell_bytes, cells) =
        (span.cell_bytes.load(Relaxed).max(1) as usize, span.cells.load(Relaxed) as usize);
    let first = i * PAGE_BYTES / cell_bytes;
    let beyond = ((i + 1) * PAGE_BYTES).div_ceil(cell_bytes).min(cells);
    (first..beyond).all(|cell| !span.is_live(cell))
}
