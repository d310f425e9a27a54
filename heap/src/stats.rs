//! What the heap counts, and its report as JSON. Events are counted on slow paths only; sizes are found by walking
//! the metadata when someone asks.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

use crate::bits;
use crate::geometry::*;
use crate::heap::Heap;
use crate::huge_page::State;
use crate::lifetime::{CLASSES, NAMES};
use crate::region;
use crate::span::Place;
use crate::{clock, direct, model, registry, sites, thread};

/// What is counted (the paper counts these to show that its paths are exercised, §9.5).
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Event {
    /// A block span left the global allocator.
    SpanAcquired,
    /// Blocks of a longer-lived page were recycled.
    BlocksRecycled,
    /// Free blocks of an active page were used for its own class.
    BlocksRefilled,
    /// A deadline passed.
    DeadlineExpired,
    /// A page went to the next longer class.
    Promoted,
    /// A page went to the next shorter class.
    Demoted,
    /// A huge page was returned to the operating system.
    PageReturned,
    /// A word of remote frees was taken over.
    RemoteCollected,
    /// A partly free span was opened again for line recycling.
    SpanReopened,
    /// A second, overflow span was taken.
    OverflowSpan,
    /// A large object was allocated.
    LargeAllocated,
    /// A lifetime was measured to its end.
    LifetimeMeasured,
    /// A call was looked up because the prediction table did not know it.
    PredictionMissed,
    /// A prediction changed.
    PredictionChanged,
    /// Cells were taken in hand, less those that were given back unused: so many small objects were allocated.
    CellsTaken,
    /// A large object was taken from hand, for a call whose site was known.
    LargeInHand,
    /// The model was asked again for a call that it had predicted before (LLAMA §7).
    PredictionChecked,
    /// It gave another class than before.
    PredictionDisagreed,
    /// The other class was longer, and is now the prediction.
    PredictionLengthened,
    /// The model was run.
    ModelRun,
    /// Nanoseconds that it took, unwinding included.
    ModelNs,
    /// A site that an earlier run knew was called: the model is not asked.
    SiteRecalled,
}

/// How many kinds of events there are.
pub const EVENTS: usize = NAMES_OF_EVENTS.len();

const NAMES_OF_EVENTS: [&str; 22] = [
    "spans_acquired",
    "blocks_recycled",
    "blocks_refilled",
    "deadlines_expired",
    "pages_promoted",
    "pages_demoted",
    "pages_returned",
    "remote_words_collected",
    "spans_reopened",
    "overflow_spans",
    "large_objects_allocated",
    "lifetimes_measured",
    "predictions_missed",
    "predictions_changed",
    "cells_taken",
    "large_objects_in_hand",
    "predictions.checks",
    "predictions.disagreements",
    "predictions.updates",
    "predictions.model_runs",
    "predictions.model_ns",
    "predictions.recalled",
];

static PAGES: AtomicIsize = AtomicIsize::new(0);
static PEAK_PAGES: AtomicUsize = AtomicUsize::new(0);

/// Counts an event, in the calling thread's heap: no other writes there. (Threads without a heap share one, and may
/// lose a count.)
#[inline]
pub fn count(event: Event) {
    add(event, 1);
}

/// Counts several, or takes some back.
#[inline]
pub fn add(event: Event, number: u64) {
    let count = &thread::current().counts[event as usize];
    count.store(count.load(Relaxed).wrapping_add(number), Relaxed);
}

fn total(event: usize) -> u64 {
    let count = |heap: &Heap| heap.counts[event].load(Relaxed);
    registry::heaps().chain([&thread::EMPTY]).map(count).fold(0, u64::wrapping_add)
}

/// Huge pages in use.
#[inline]
pub fn pages() -> usize {
    PAGES.load(Relaxed).max(0) as usize
}

/// Huge pages came into use or went out of it.
pub fn pages_in_use(change: isize) {
    let now = PAGES.fetch_add(change, Relaxed) + change;
    PEAK_PAGES.fetch_max(now.max(0) as usize, Relaxed);
}

/// Sizes found by walking the metadata. While other threads run, they are a snapshot that may be a little off.
#[derive(Default, Clone)]
pub struct Census {
    /// Bytes of live objects, rounded up to their cells, lines or blocks.
    pub live_bytes: usize,
    /// Live objects.
    pub objects: usize,
    /// Huge pages with live blocks, by lifetime class.
    pub pages: [usize; CLASSES],
    /// Those of them that are open.
    pub open_pages: usize,
    /// Free huge pages that are kept.
    pub retained_pages: usize,
    /// Live blocks and residual ones.
    pub live_blocks: usize,
    /// As above.
    pub residual_blocks: usize,
    /// Objects with a mapping of their own, and their bytes.
    pub direct: (usize, usize),
}

/// Walks all huge pages.
pub fn census() -> Census {
    let mut census = Census { direct: direct::total(), ..Census::default() };
    let mut next = 0;
    while let Some(id) = region::next_used(next) {
        next = id + 1;
        count_page(region::address(id), &mut census);
    }
    census.live_bytes += census.direct.1;
    census.objects += census.direct.0;
    census
}

fn count_page(address: usize, census: &mut Census) {
    let page = region::huge_page(address);
    let live = page.live.load();
    match page.state() {
        State::Retained => census.retained_pages += 1,
        State::Open | State::Active => {
            census.pages[page.class().min(CLASSES - 1)] += 1;
            census.open_pages += (page.state() == State::Open) as usize;
        }
        State::Free => return,
    }
    census.live_blocks += bits::count(&live);
    census.residual_blocks += bits::count(&page.residual.load());
    let spans = page.spans.load();
    for block in 0..BLOCKS_PER_HUGE_PAGE {
        let bit = |set: &bits::Bits| set[block / 64] >> (block % 64) & 1 == 1;
        if bit(&live) && !bit(&spans) {
            census.live_bytes += BLOCK_BYTES;
            census.objects += bit(&page.last.load()) as usize;
        } else if bit(&spans) && block.is_multiple_of(SPAN_BLOCKS) {
            let span = region::span(address + block * BLOCK_BYTES);
            let (objects, bytes) = match span.place() {
                Place::Lines => crate::lines::live(span),
                Place::None => (0, 0),
                _ => (span.live_cells(), span.live_cells() * span.cell_bytes.load(Relaxed) as usize),
            };
            census.objects += objects;
            census.live_bytes += bytes;
        }
    }
}

/// Writes the report: one JSON object with flat dotted keys.
pub fn write_json(out: &mut impl Write) -> fmt::Result {
    let census = census();
    let pages: usize = census.pages.iter().sum();
    write!(out, "{{\"heap.live_bytes\":{},\"heap.objects\":{}", census.live_bytes, census.objects)?;
    write!(out, ",\"heap.huge_pages.live\":{pages}")?;
    write!(out, ",\"heap.huge_pages.peak\":{}", PEAK_PAGES.load(Relaxed))?;
    write!(out, ",\"heap.huge_pages.open\":{}", census.open_pages)?;
    write!(out, ",\"heap.huge_pages.retained\":{}", census.retained_pages)?;
    for (name, pages) in NAMES.iter().zip(census.pages) {
        write!(out, ",\"heap.huge_pages.class.{name}\":{pages}")?;
    }
    let mapped = (pages + census.retained_pages) * HUGE_PAGE_BYTES + census.direct.1;
    write!(out, ",\"heap.mapped_bytes\":{mapped}")?;
    write!(
        out,
        ",\"heap.blocks.live\":{},\"heap.blocks.residual\":{}",
        census.live_blocks, census.residual_blocks
    )?;
    write!(out, ",\"heap.direct.objects\":{},\"heap.direct.bytes\":{}", census.direct.0, census.direct.1)?;
    let threads = registry::heaps().filter(|heap: &&Heap| heap.tenancy.looks_taken()).count();
    write!(out, ",\"heap.threads\":{threads},\"heap.clock_ms\":{}", clock::now_ms())?;
    write!(out, ",\"heap.sites\":{}", sites::count())?;
    let of = |event: Event| total(event as usize);
    let (misses, asked) =
        (of(Event::PredictionMissed), of(Event::CellsTaken).wrapping_add(of(Event::LargeInHand)));
    write!(out, ",\"heap.predictions.hits\":{}", asked.saturating_sub(misses))?;
    write!(out, ",\"heap.predictions.misses\":{misses}")?;
    let tables = registry::heaps().count() * crate::heap::TABLES_BYTES;
    write!(out, ",\"heap.predictions.tables_bytes\":{tables},\"heap.model_bytes\":{}", model::bytes())?;
    for (event, name) in NAMES_OF_EVENTS.iter().enumerate() {
        write!(out, ",\"heap.{name}\":{}", total(event))?;
    }
    out.write_str("}\n")
}
