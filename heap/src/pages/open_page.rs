//! Open pages (LLAMA §6.2): for each class the huge page that is filled for the first time, and when a class gets one.
//!
//! The paper opens a page for each class that is asked for. Each may be nearly empty, so here a small heap lets classes
//! share a page at first: see [`page_to_share`].

use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::pages::huge_page::State;
use crate::pages::page_life::{Extra, Request};
use crate::pages::{page_life, region};
use crate::system::events;
use crate::system::lock::Lock;
use crate::units::bits;
use crate::units::geometry::*;
use crate::units::lifetime_class::CLASSES;

/// The page that is being filled, of each class.
struct OpenPage {
    /// Held by who opens one.
    lock: Lock,
    /// The page's address, or 0. It becomes 0 with the page's own lock held.
    address: AtomicUsize,
    /// The class has had a page of its own.
    opened_before: AtomicBool,
}

/// For each class one that is filled with spans, and behind those one for each class that is filled with large objects.
static OPEN: [OpenPage; 2 * CLASSES] = [const {
    OpenPage { lock: Lock::new(), address: AtomicUsize::new(0), opened_before: AtomicBool::new(false) }
}; 2 * CLASSES];

/// The open pages' addresses.
pub fn addresses() -> impl Iterator<Item = usize> {
    OPEN.iter().map(|open| open.address.load(Acquire)).filter(|&address| address != 0)
}

/// Blocks from an open page, behind those that were taken before; the page becomes active when it is full. One of small pages gives
/// the first that are free: what was freed is in memory, what lies behind is not yet.
pub(crate) fn take(request: &Request, extra: &mut Extra) -> Option<usize> {
    let which = if page_life::fills() { page_to_share(request) } else { request.class };
    let (open, from) = (&OPEN[which], which % CLASSES);
    loop {
        if let Some(blocks) = take_from(open, from, request, extra) {
            return Some(blocks);
        }
        let _open = open.lock.lock();
        if open.address.load(Relaxed) == 0 {
            open.address.store(begin(from, open)?, Release);
        }
    }
}

/// Blocks of any open page, of whatever class: there is no other.
#[cold]
pub(crate) fn take_from_any(request: &Request) -> Option<usize> {
    OPEN.iter().enumerate().find_map(|(which, open)| {
        take_from(open, which % CLASSES, request, &mut Extra { wanted: 0, keep: &mut |_| {} })
    })
}

/// Blocks of this open page; `None` if none is open, or it is full now.
fn take_from(open: &OpenPage, from: usize, request: &Request, extra: &mut Extra) -> Option<usize> {
    loop {
        let address = open.address.load(Acquire);
        if address == 0 {
            return None;
        }
        let page = region::huge_page(address);
        let _page = page.lock.lock();
        if open.address.load(Relaxed) != address {
            continue; // another thread filled it meanwhile
        }
        let bump = || {
            let frontier = page.frontier.load(Relaxed) as usize;
            let first = if page.small.load(Relaxed) != 0 && page_life::fills() {
                bits::find_run(&page.free_blocks(), request.blocks, request.alignment)?
            } else {
                frontier.next_multiple_of(request.alignment)
            };
            let beyond = first + request.blocks;
            (beyond <= BLOCKS_PER_HUGE_PAGE).then(|| {
                page.frontier.store(beyond.max(frontier) as u16, Relaxed);
                page_life::mark(page, address, first, request, from)
            })
        };
        let blocks = bump();
        while extra.wanted > 0
            && let Some(more) = bump()
        {
            extra.wanted -= 1;
            (extra.keep)(more);
        }
        if blocks.is_none() || page.frontier.load(Relaxed) as usize == BLOCKS_PER_HUGE_PAGE {
            open.address.store(0, Relaxed);
            page_life::activate(page, region::id(address));
        }
        return blocks;
    }
}

/// Which open page to fill. Each may be nearly empty, so a class opens its first one when the heap has eight pages for
/// each that is open. Before, it shares the open page of the next longer class that has one, in non-residual blocks;
/// when that one is full it opens its own, so that what stays is spread over one page and not over all. A heap with that
/// many pages also keeps large objects apart: many of them are buffers that come and go together, and what was
/// allocated between them would keep their pages.
fn page_to_share(request: &Request) -> usize {
    let class = request.class;
    let is_open = |which: &usize| OPEN[*which].address.load(Relaxed) != 0;
    let opened = (0..OPEN.len()).filter(is_open).count();
    let may_open = (opened + 1) * PAGES_TO_OPEN <= events::pages();
    let large = CLASSES + class;
    if !request.span && (is_open(&large) || may_open) {
        return large;
    }
    if is_open(&class) || OPEN[class].opened_before.load(Relaxed) || may_open {
        return class;
    }
    (class + 1..CLASSES).find(is_open).unwrap_or(class)
}

/// Huge pages in use for each one that is open.
const PAGES_TO_OPEN: usize = 8;

fn begin(class: usize, open: &OpenPage) -> Option<usize> {
    let address = page_life::take_pages(class, 1)?;
    let page = region::huge_page(address);
    let _guard = page.lock.lock();
    page.set_class(class);
    page.set_state(State::Open);
    open.opened_before.store(true, Relaxed);
    Some(address)
}

/// Returns an open page on which nothing lives; with `hesitate`, only if that was so a tick ago already.
fn close_if_empty(open: &OpenPage, hesitate: bool) -> bool {
    let address = open.address.load(Acquire);
    if address == 0 {
        return false;
    }
    let page = region::huge_page(address);
    let _page = page.lock.lock();
    if open.address.load(Relaxed) != address {
        return false;
    }
    if !bits::is_none(&page.live.load()) {
        page.empty_since_tick.store(0, Relaxed);
        return false;
    }
    if hesitate && page.empty_since_tick.swap(1, Relaxed) == 0 {
        return false;
    }
    open.address.store(0, Relaxed);
    page_life::free_page(page, address, page.class());
    true
}

/// Returns open pages that stay empty, and has others that nobody fills any more serve shorter classes; called now and then by one
/// thread.
pub fn close_idle(now_ms: u64) {
    for open in &OPEN {
        if open.address.load(Relaxed) != 0 && !close_if_empty(open, true) && page_life::fills() {
            activate_if_idle(open, now_ms);
        }
    }
}

/// What is yet to be filled of a page from which nothing was taken for a while is of use to nobody but its class, which may need
/// it late or never. So it becomes active before it is full: its own class and shorter ones take what is free.
fn activate_if_idle(open: &OpenPage, now_ms: u64) {
    let address = open.address.load(Acquire);
    if address == 0 {
        return;
    }
    let page = region::huge_page(address);
    let _page = page.lock.lock();
    let idle_ms = if page.class() >= LONG { LONG_IDLE_MS } else { IDLE_MS };
    let is_idle = now_ms.saturating_sub(page.taken_ms.load(Relaxed)) >= idle_ms;
    if open.address.load(Relaxed) == address && is_idle && !bits::is_none(&page.live.load()) {
        open.address.store(0, Relaxed);
        page_life::activate(page, region::id(address));
    }
}

/// So long nothing was taken of an open page that is idle, of classes that live within a second and of longer ones. Those are asked
/// for seldom, but time and again: whenever shorter-lived objects had filled the rest of their page in a pause, they would open another,
/// and leave a little on each (LLAMA §9.6 ended with 126 MiB in place of 20).
const IDLE_MS: u64 = 100;
const LONG_IDLE_MS: u64 = 1000;
const LONG: usize = 3;

/// Returns every open page that is empty; whether there was one.
pub fn close_all_empty() -> bool {
    OPEN.iter().fold(false, |any, open| close_if_empty(open, false) | any)
}
