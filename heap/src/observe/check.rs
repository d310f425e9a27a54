//! Checks the invariants of the heap's metadata, those of LLAMA §6.1 and those of this implementation, by
//! walking all huge pages and all heaps. For tests, while no other thread uses the heap.
//!
//! Lifetime classes, after any promotions and demotions: a block's objects are of its page's class or a
//! shorter one (§6.1), and of a strictly shorter one in blocks that are not residual. The reason: promotion
//! only lengthens the page's class. Demotion, which shortens it by one, finds only live blocks that are not
//! residual, and makes them residual.

use core::sync::atomic::Ordering::Relaxed;

use crate::pages::huge_page::{HugePage, NO_BUCKET, State};
use crate::pages::{large_blocks, open_page, pool, region, retained};
use crate::span::cells::{Role, Span, WORDS};
use crate::span::large_object::LargeObject;
use crate::system::events;
use crate::thread::bin::Bin;
use crate::thread::local::Heap;
use crate::thread::{lines, registry};
use crate::units::bits::{self, Bits};
use crate::units::geometry::*;
use crate::units::lifetime_class::{FOREVER, NEVER_MS};
use crate::units::size_class;

/// An invariant that does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken {
    /// What does not hold.
    pub what: &'static str,
    /// Where: a page, a block, or a span's first byte; 0 for the heap as a whole.
    pub address: usize,
}

type Checked = Result<(), Broken>;

fn hold(holds: bool, what: &'static str, address: usize) -> Checked {
    if holds { Ok(()) } else { Err(Broken { what, address }) }
}

/// Counts that pages and heaps must agree on.
#[derive(Default, PartialEq, Eq)]
struct Tally {
    owned_spans: usize,
    empty_spans: usize,
    cached_large: usize,
}

/// Checks all invariants.
///
/// # Errors
/// The first invariant that does not hold, with the address.
pub fn invariants() -> Checked {
    let (mut on_pages, mut in_heaps) = (Tally::default(), Tally::default());
    let (mut live, mut kept, mut open) = (0, 0, 0);
    let (mut next, mut continues) = (0, 0);
    while let Some(id) = region::next_used(next) {
        let (page, address) = (region::huge_page(region::address(id)), region::address(id));
        hold(continues == 0 || id == next, "a large object continues where there is no page", address)?;
        next = id + 1;
        match page.state() {
            State::Free => check_free(page, address, "a free page has nothing on it").and(hold(
                region::is_freed(id),
                "a free page can be taken again",
                address,
            ))?,
            State::Retained => {
                kept += 1;
                check_free(page, address, "a retained page has nothing on it")?;
                hold(retained::holds(id), "a retained page is found", address)?;
            }
            State::Open => {
                (live, open) = (live + 1, open + 1);
                check_open(page, address)?;
            }
            State::Active => {
                live += 1;
                check_active(page, address)?;
            }
        }
        hold(!region::is_freed(id) || page.state() == State::Free, "a page in use cannot be taken", address)?;
        continues = check_blocks(page, address, continues, &mut on_pages)?;
    }
    hold(continues == 0, "a large object ends", 0)?;
    hold(kept == retained::count(), "as many pages are retained as are counted", 0)?;
    hold(live == events::pages(), "as many pages are in use as are counted", 0)?;
    let opened = open_page::addresses().count();
    hold(open == opened, "a class has one open page at most", 0)?;
    for heap in registry::heaps() {
        check_heap(heap, &mut in_heaps)?;
    }
    hold(on_pages.owned_spans == in_heaps.owned_spans, "each owned span is in one bin", 0)?;
    hold(on_pages.empty_spans == in_heaps.empty_spans, "each empty span is in one cache", 0)?;
    hold(on_pages.cached_large == in_heaps.cached_large, "each cached large object is in one cache", 0)
}

fn minus(a: &Bits, b: &Bits) -> Bits {
    [a[0] & !b[0], a[1] & !b[1], a[2] & !b[2], a[3] & !b[3]]
}

fn get(a: &Bits, i: usize) -> bool {
    a[i / 64] >> (i % 64) & 1 == 1
}

fn check_free(page: &HugePage, address: usize, what: &'static str) -> Checked {
    for set in [&page.live, &page.residual, &page.last, &page.spans] {
        hold(bits::is_none(&set.load()), what, address)?;
    }
    let in_a_set = page.bucket.load(Relaxed) != NO_BUCKET || pool::sets_with(region::id(address)) != 0;
    hold(!in_a_set, "an empty page is in no set of the pool", address)
}

fn check_open(page: &HugePage, address: usize) -> Checked {
    hold(open_page::addresses().any(|open| open == address), "an open page is one that is filled", address)?;
    let in_a_set = page.bucket.load(Relaxed) != NO_BUCKET || pool::sets_with(region::id(address)) != 0;
    hold(!in_a_set, "an open page is in no set of the pool", address)?;
    let beyond = minus(&page.live.load(), &bits::range(0, page.frontier.load(Relaxed) as usize));
    hold(bits::is_none(&beyond), "an open page has nothing beyond its frontier", address)
}

fn check_active(page: &HugePage, address: usize) -> Checked {
    hold(!bits::is_none(&page.live.load()), "an active page has something live", address)?;
    let never = page.deadline_ms.load(Relaxed) == NEVER_MS;
    hold(never || page.class() < FOREVER, "a page of the last class has no deadline", address)?;
    let (bucket, sets) = (page.bucket.load(Relaxed), pool::sets_with(region::id(address)));
    let longest = bits::log2_longest_run(&page.free_blocks());
    if bucket == NO_BUCKET {
        hold(longest.is_none(), "an active page with free blocks is in a set of the pool", address)?;
        return hold(sets == 0, "a page is in no set but the one it names", address);
    }
    let findable = longest.is_none_or(|longest| longest <= bucket as usize);
    hold(findable, "no run of free blocks is longer than the page's set implies", address)?;
    let own = pool::flag(page.class(), bucket as usize);
    hold(sets == own, "a page is in the set that it names, and in no other", address)?;
    hold(pool::nonempty() & own != 0, "searchers see that the page's set is not empty", address)
}

/// Checks what lies on a page. `continues` blocks belong to an object of an earlier page; returns how many
/// continue on the next.
fn check_blocks(
    page: &HugePage,
    address: usize,
    continues: usize,
    tally: &mut Tally,
) -> Result<usize, Broken> {
    let (live, last, spans) = (page.live.load(), page.last.load(), page.spans.load());
    let residual = page.residual.load();
    hold(bits::is_none(&minus(&residual, &live)), "residual blocks are live", address)?;
    hold(bits::is_none(&minus(&spans, &live)), "blocks of spans are live", address)?;
    let large = minus(&live, &spans);
    hold(bits::is_none(&minus(&last, &large)), "last blocks are those of large objects", address)?;
    hold(!get(&spans, 0) || continues == 0, "a large object continues over a span", address)?;
    let high_water = page.high_water.load(Relaxed) as usize;
    hold(bits::is_none(&minus(&live, &bits::range(0, high_water))), "live blocks were touched", address)?;
    let (mut block, mut left) = (0, continues);
    if page.last_object_blocks.load(Relaxed) > 0 {
        left = page.last_object_blocks.load(Relaxed) as usize;
        hold(left > BLOCKS_PER_HUGE_PAGE && continues == 0, "an object that begins here continues", address)?;
    }
    if left > 0 {
        let here = left.min(BLOCKS_PER_HUGE_PAGE);
        let object = bits::range(0, here);
        hold(bits::is_none(&minus(&object, &large)), "an object over several pages is whole", address)?;
        let ends = [0, 1, 2, 3].map(|i| last[i] & object[i]);
        let expected = if here == left { bits::range(here - 1, 1) } else { bits::NONE };
        hold(ends == expected, "an object over several pages ends once", address)?;
        (block, left) = (here, left - here);
    }
    while block < BLOCKS_PER_HUGE_PAGE {
        let at = address + block * BLOCK_BYTES;
        if get(&spans, block) {
            let aligned = block.is_multiple_of(SPAN_BLOCKS) && get(&spans, block + 1);
            hold(aligned, "a span is two blocks, aligned", at)?;
            let is_residual = get(&residual, block);
            hold(is_residual == get(&residual, block + 1), "a span is residual or is not", at)?;
            check_span(region::span(at), page.class(), is_residual, tally)?;
            block += SPAN_BLOCKS;
        } else if get(&live, block) {
            let blocks = page.object_blocks(block).unwrap_or(usize::MAX);
            hold(block + blocks.min(256) <= BLOCKS_PER_HUGE_PAGE, "a large object has a last block", at)?;
            let object = bits::range(block, blocks);
            hold(
                bits::is_none(&minus(&object, &large)),
                "large objects share no block, and have no gap",
                at,
            )?;
            let object = large_blocks::object_at(at);
            let known = object.and_then(LargeObject::blocks) == Some(blocks);
            hold(known, "a large object is found by its address", at)?;
            let residual = (block..block + blocks).filter(|&i| get(&residual, i)).count();
            hold(residual == 0 || residual == blocks, "a large object is residual or is not", at)?;
            tally.cached_large += object.is_some_and(LargeObject::is_cached) as usize;
            block += blocks;
        } else {
            block += 1;
        }
    }
    Ok(left)
}

/// Checks a span's class against its page's, see above.
fn check_class(class: usize, page_class: usize, residual: bool, at: usize) -> Checked {
    hold(class <= page_class, "a page has objects of its class or shorter ones", at)?;
    hold(residual || class < page_class, "a block that is not residual has shorter-lived objects", at)
}

fn check_span(span: &Span, page_class: usize, residual: bool, tally: &mut Tally) -> Checked {
    let at = span.address();
    // The fast path of freeing reads these and their neighbours as one word.
    let any = (0..SPAN_BLOCKS).any(|block| !span.large(block).is_none());
    hold(!any, "where cells lie no large object begins", at)?;
    match (span.owner(), span.role()) {
        (0, Role::Lines) => {
            hold(lines::chosen(), "lines are not chosen, and a span has some", at)?;
            hold(lines::live(span).0 > 0 || lines::is_open(span), "a closed span has objects", at)?;
            return check_class(span.class.load(Relaxed) as usize, page_class, residual, at);
        }
        (0, Role::None) => {
            tally.empty_spans += 1;
            return hold(!span.remote().any(), "nothing is freed in an empty span", at);
        }
        (0, _) => return hold(false, "a span in a bin has an owner", at),
        (owner, _) => hold(registry::heap(owner).is_some(), "an owner exists", at)?,
    }
    tally.owned_spans += 1;
    check_class(span.class.load(Relaxed) as usize, page_class, residual, at)?;
    let size_class = span.size_class.load(Relaxed) as usize;
    let shaped = size_class < size_class::COUNT
        && span.cell_bytes.load(Relaxed) == size_class::CELL_BYTES[size_class]
        && span.cells.load(Relaxed) as usize == size_class::cells(size_class)
        && span.reciprocal.load(Relaxed) == size_class::reciprocal(size_class);
    hold(shaped, "a span's cells are those of its size class", at)?;
    for i in 0..WORDS {
        let live = if i < span.words() { span.live_cells_of(i) } else { span.live_word(i).load(Relaxed) };
        let mask = if i < span.words() { span.mask(i) } else { 0 };
        hold(live & !mask == 0, "live bits are those of cells", at)?;
        hold(span.remote().marked(i) & !live == 0, "cells freed by others were live", at)?;
    }
    hold(!span.remote().any() || span.link.is_listed(), "a span with freed cells is in a list", at)
}

fn check_heap(heap: &'static Heap, tally: &mut Tally) -> Checked {
    let id = heap.id.get();
    for bin in heap.bins() {
        let is_open = bin.open.get().is_some();
        hold(is_open || bin.cached_cells() == 0, "pending cells are those of an open span", id as usize)?;
        hold(bin.cached_and_live() == 0, "pending cells are not live", id as usize)?;
        if let Some(span) = bin.open.get() {
            let at = span.address();
            hold(heap.tenancy.taken(), "only a running thread has open spans", at)?;
            hold(span.role() == Role::Open, "an open span is marked so", at)?;
            check_bin(heap, bin, span, tally)?;
        }
        for span in bin.queue.iter() {
            let at = span.address();
            hold(span.role() == Role::Queued, "a queued span is marked so", at)?;
            hold(tally.owned_spans < MAX_SPANS, "a queue ends", at)?;
            check_bin(heap, bin, span, tally)?;
        }
        hold(bin.queue.is_linked(), "a queue is linked both ways", id as usize)?;
    }
    for (class, cache) in heap.span_caches.iter().enumerate() {
        let mut count = 0;
        for span in cache.spans() {
            let at = span.address();
            let (page, block) = (region::huge_page(at), block_index(at));
            hold(span.owner() == 0 && span.role() == Role::None, "a cached span has no owner", at)?;
            hold(page.spans.get(block), "a cached span is one to its page", at)?;
            check_class(class, page.class(), page.residual.get(block), at)?;
            count += 1;
            hold(count <= cache.count(), "a cache has as many spans as it counts", at)?;
        }
        hold(count == cache.count(), "a cache counts as many spans as it has", 0)?;
        tally.empty_spans += count;
    }
    for (at, blocks) in heap.large.kept() {
        let is_one = |object: &LargeObject| object.is_cached() && object.blocks() == Some(blocks);
        let whole = large_blocks::object_at(at).is_some_and(is_one);
        hold(whole, "a cached large object is one to its page", at)?;
        tally.cached_large += 1;
    }
    Ok(())
}

/// More spans than any test has.
const MAX_SPANS: usize = 1 << 24;

fn check_bin(heap: &Heap, bin: &Bin, span: &Span, tally: &mut Tally) -> Checked {
    let at = span.address();
    tally.owned_spans += 1;
    hold(span.owner() == heap.id.get(), "a span in a bin is the heap's own", at)?;
    let sorted =
        span.class.load(Relaxed) == bin.class.get() && span.size_class.load(Relaxed) == bin.size_class.get();
    hold(sorted, "a span is in the bin of its classes", at)?;
    hold(region::huge_page(at).spans.get(block_index(at)), "a span in a bin is one to its page", at)
}
