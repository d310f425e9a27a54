//! The report as JSON: counters, and sizes that are found by walking the metadata when it is requested.

use core::fmt::{self, Write};
use core::sync::atomic::Ordering::Relaxed;

use crate::lifetime::{model, sites};
use crate::pages::huge_page::State;
use crate::pages::large_blocks;
use crate::pages::{decay, direct, region};
use crate::span::cells::{Role, Span};
use crate::system::events::{self, Event, NAMES_OF_EVENTS};
use crate::system::{clock, process};
use crate::thread::local::{Heap, TABLES_BYTES};
use crate::thread::{lines, registry};
use crate::units::bits;
use crate::units::geometry::*;
use crate::units::lifetime_class::{CLASSES, NAMES};
use crate::units::size_class;

/// Sizes found by walking the metadata. While other threads run, they are an inexact snapshot.
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
    /// Free huge pages that are retained.
    pub retained_pages: usize,
    /// Live blocks, and residual ones.
    pub live_blocks: usize,
    /// As above.
    pub residual_blocks: usize,
    /// Bytes of live objects in spans.
    pub small_bytes: usize,
    /// Live objects and spans by size class.
    pub size_classes: SizeClasses,
    /// Bytes of huge pages that may be resident: touched, and not returned since.
    pub resident_bytes: usize,
    /// Objects with their own mapping, and their bytes.
    pub direct: (usize, usize),
    /// Bytes of these that are not resident.
    pub untouched_bytes: usize,
    /// The pages' contents other than live objects.
    pub free: Free,
}

/// Numbers by size class.
#[derive(Clone)]
pub struct SizeClasses {
    /// Live objects.
    pub objects: [usize; size_class::COUNT],
    /// Spans with live objects.
    pub spans: [usize; size_class::COUNT],
}

impl Default for SizeClasses {
    fn default() -> Self {
        Self { objects: [0; size_class::COUNT], spans: [0; size_class::COUNT] }
    }
}

impl Census {
    /// Bytes of spans and blocks with live objects.
    pub fn active_bytes(&self) -> usize {
        self.live_bytes + self.free.cells.iter().sum::<usize>()
    }

    /// Bytes that are resident, objects that the program has not touched yet left out.
    pub fn touched_bytes(&self) -> usize {
        self.resident_bytes.max(self.active_bytes()).saturating_sub(self.untouched_bytes)
    }

    /// Bytes that are mapped for objects.
    pub fn mapped_bytes(&self) -> usize {
        (self.pages.iter().sum::<usize>() + self.retained_pages) * HUGE_PAGE_BYTES + self.direct.1
    }
}

/// Bytes without live objects in huge pages in use.
#[derive(Default, Clone)]
pub struct Free {
    /// In spans that have objects, by the page's lifetime class.
    pub cells: [usize; CLASSES],
    /// In spans without objects, open or cached.
    pub spans: usize,
    /// In cached large objects.
    pub large: usize,
    /// In blocks of open pages that were filled and are free again.
    pub open_pages: usize,
    /// In blocks of open pages that were never filled.
    pub to_be_filled: usize,
    /// In free blocks of active pages, by lifetime class.
    pub blocks: [usize; CLASSES],
}

/// Walks all huge pages.
pub fn census() -> Census {
    let (direct, untouched_bytes) = (direct::total(), direct::untouched_bytes());
    let mut census = Census { direct, untouched_bytes, ..Census::default() };
    let mut next = 0;
    while let Some(id) = region::next_used(next) {
        next = id + 1;
        count_page(region::address(id), &mut census);
    }
    census.live_bytes += census.direct.1;
    census.resident_bytes += census.direct.1;
    census.objects += census.direct.0;
    census
}

fn count_page(address: usize, census: &mut Census) {
    let page = region::huge_page(address);
    let live = page.live.load();
    let class = page.class().min(CLASSES - 1);
    let free_bytes = (BLOCKS_PER_HUGE_PAGE - bits::count(&live)) * BLOCK_BYTES;
    match page.state() {
        State::Retained => census.retained_pages += 1,
        State::Open => {
            census.pages[class] += 1;
            census.open_pages += 1;
            let to_be_filled = BLOCKS_PER_HUGE_PAGE - page.frontier.load(Relaxed) as usize;
            census.free.to_be_filled += to_be_filled * BLOCK_BYTES;
            census.free.open_pages += free_bytes.saturating_sub(to_be_filled * BLOCK_BYTES);
        }
        State::Active => {
            census.pages[class] += 1;
            census.free.blocks[class] += free_bytes;
        }
        State::Free => return,
    }
    census.live_blocks += bits::count(&live);
    census.resident_bytes += decay::resident_bytes(page);
    census.residual_blocks += bits::count(&page.residual.load());
    let spans = page.spans.load();
    let mut cached = false;
    for block in 0..BLOCKS_PER_HUGE_PAGE {
        let at = address + block * BLOCK_BYTES;
        if bits::get(&spans, block) {
            if !block.is_multiple_of(SPAN_BLOCKS) {
                continue;
            }
            let (objects, bytes) = objects_of(region::span(at));
            census.objects += objects;
            census.live_bytes += bytes;
            census.small_bytes += bytes;
            count_span(region::span(at), objects, &mut census.size_classes);
            let free = if objects == 0 { &mut census.free.spans } else { &mut census.free.cells[class] };
            *free += SPAN_BYTES - bytes;
        } else if bits::get(&live, block) {
            if let Some(object) = large_blocks::object_at(at) {
                cached = object.is_cached();
                census.objects += !cached as usize;
            }
            *(if cached { &mut census.free.large } else { &mut census.live_bytes }) += BLOCK_BYTES;
        }
    }
}

fn count_span(span: &Span, objects: usize, of: &mut SizeClasses) {
    let size_class = span.size_class.load(Relaxed) as usize;
    if objects > 0 && span.role() != Role::Lines && size_class < size_class::COUNT {
        of.objects[size_class] += objects;
        of.spans[size_class] += 1;
    }
}

/// How many objects a span has, and their bytes.
fn objects_of(span: &Span) -> (usize, usize) {
    match span.role() {
        Role::Lines => lines::live(span),
        Role::None => (0, 0),
        _ => {
            let cells = span.cells_in_use();
            (cells, cells * span.cell_bytes.load(Relaxed) as usize)
        }
    }
}

/// The number of huge pages that were ever used, whose addresses and metadata are mapped.
pub fn used_huge_pages() -> usize {
    let next = |&id: &usize| region::next_used(id + 1);
    core::iter::successors(region::next_used(0), next).count()
}

/// The number of threads that have a heap.
pub fn threads() -> usize {
    registry::heaps().filter(|heap: &&Heap| heap.tenancy.looks_taken()).count()
}

/// How often an event happened, in all threads.
pub fn total(event: usize) -> u64 {
    let heaps = registry::heaps().map(|heap| &heap.counts);
    heaps.chain([events::of_the_heapless()]).map(|counts| counts.of(event)).fold(0, u64::wrapping_add)
}

/// Writes the report: one JSON object with flat dotted keys.
///
/// # Errors
/// `out` refuses what is written.
pub fn write_json(out: &mut impl Write) -> fmt::Result {
    let census = census();
    let pages: usize = census.pages.iter().sum();
    write!(out, "{{\"heap.live_bytes\":{},\"heap.objects\":{}", census.live_bytes, census.objects)?;
    write!(out, ",\"heap.huge_pages.live\":{pages}")?;
    write!(out, ",\"heap.huge_pages.peak\":{}", events::peak_pages())?;
    write!(out, ",\"heap.huge_pages.open\":{}", census.open_pages)?;
    write!(out, ",\"heap.huge_pages.retained\":{}", census.retained_pages)?;
    for (name, pages) in NAMES.iter().zip(census.pages) {
        write!(out, ",\"heap.huge_pages.class.{name}\":{pages}")?;
    }
    write!(out, ",\"heap.mapped_bytes\":{}", census.mapped_bytes())?;
    write!(out, ",\"heap.resident_bytes\":{}", census.touched_bytes())?;
    write!(out, ",\"process.resident_bytes\":{}", process::resident_bytes().unwrap_or(0))?;
    write!(
        out,
        ",\"heap.blocks.live\":{},\"heap.blocks.residual\":{}",
        census.live_blocks, census.residual_blocks
    )?;
    let free = &census.free;
    for (name, (cells, blocks)) in NAMES.iter().zip(free.cells.iter().zip(&free.blocks)) {
        write!(out, ",\"heap.free.cells.{name}_bytes\":{cells},\"heap.free.blocks.{name}_bytes\":{blocks}")?;
    }
    write!(out, ",\"heap.free.spans_bytes\":{},\"heap.free.large_bytes\":{}", free.spans, free.large)?;
    write!(out, ",\"heap.free.open_pages_bytes\":{}", free.open_pages)?;
    write!(out, ",\"heap.free.to_be_filled_bytes\":{}", free.to_be_filled)?;
    write!(out, ",\"heap.direct.objects\":{},\"heap.direct.bytes\":{}", census.direct.0, census.direct.1)?;
    write!(out, ",\"heap.threads\":{},\"heap.clock_ms\":{}", threads(), clock::now_ms())?;
    write!(out, ",\"heap.sites\":{}", sites::count())?;
    let of = |event: Event| total(event as usize);
    let (misses, lookups) =
        (of(Event::PredictionMissed), of(Event::CellsTaken).wrapping_add(of(Event::LargeFromCache)));
    write!(out, ",\"heap.predictions.hits\":{}", lookups.saturating_sub(misses))?;
    write!(out, ",\"heap.predictions.misses\":{misses}")?;
    let tables = registry::heaps().count() * TABLES_BYTES;
    write!(out, ",\"heap.predictions.tables_bytes\":{tables},\"heap.model_bytes\":{}", model::bytes())?;
    for (event, name) in NAMES_OF_EVENTS.iter().enumerate() {
        write!(out, ",\"heap.{name}\":{}", total(event))?;
    }
    out.write_str("}\n")
}
