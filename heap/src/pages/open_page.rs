//! Open pages (LLAMA §6.2): for each class the huge page that is being filled for the first time, and when a
//! class opens one.
//!
//! The paper opens a page for each class in use. Each may be nearly empty, so here the classes of a small
//! heap share a page at first: see [`page_to_share`].

use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::pages::huge_page::State;
use crate::pages::page_life::{Extra, Request};
use crate::pages::{page_life, region, shorter_pages};
use crate::system::events;
use crate::system::lock::Lock;
use crate::units::bits;
use crate::units::geometry::*;
use crate::units::lifetime_class::CLASSES;

/// A class' page that is being filled.
struct OpenPage {
    /// Held by the thread that opens a page.
    lock: Lock,
    /// The page's address, or 0. It becomes 0 only with the page's lock held.
    address: AtomicUsize,
    /// The class has opened a page before.
    opened_before: AtomicBool,
}

/// The first half is filled with spans, the second with large objects; one of each class.
static OPEN: [OpenPage; 2 * CLASSES] = [const {
    OpenPage { lock: Lock::new(), address: AtomicUsize::new(0), opened_before: AtomicBool::new(false) }
}; 2 * CLASSES];

/// The open pages' addresses.
pub fn addresses() -> impl Iterator<Item = usize> {
    OPEN.iter().map(|open| open.address.load(Acquire)).filter(|&address| address != 0)
}

/// Takes blocks of an open page, behind those taken before; a full page becomes active. Before another page
/// is opened, one of a shorter class is taken. On a small page it takes the first free blocks: freed ones are
/// resident, those behind them are not yet.
pub(crate) fn take(request: &Request, extra: &mut Extra) -> Option<usize> {
    let which = if page_life::fills() { page_to_share(request) } else { request.class };
    let (open, from) = (&OPEN[which], which % CLASSES);
    loop {
        if let Some(blocks) = take_from(open, from, request, extra) {
            return Some(blocks);
        }
        let _open = open.lock.lock();
        if open.address.load(Relaxed) == 0
            && page_life::fills()
            && let Some(blocks) = shorter_pages::take(request, extra)
        {
            return Some(blocks);
        }
        if open.address.load(Relaxed) == 0 {
            open.address.store(begin(from, open, request.blocks)?, Release);
        }
    }
}

/// Takes blocks of any open page of any class, as there are no others.
#[cold]
pub(crate) fn take_from_any(request: &Request) -> Option<usize> {
    OPEN.iter().enumerate().find_map(|(which, open)| {
        take_from(open, which % CLASSES, request, &mut Extra { wanted: 0, keep: &mut |_| {} })
    })
}

/// Takes blocks of this open page; `None` if none is open, or if it is full now.
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

/// Chooses the open page to fill. Each may be nearly empty, so a class opens its first one only once the heap
/// has eight pages for each open one. Until then it shares the open page of the next longer class that has
/// one, in non-residual blocks. When that page is full it opens its own, so that what stays is spread over
/// one page and not over all. A heap of that size also separates large objects: many of them are buffers that
/// are allocated and freed together, and objects allocated between them would hold their pages.
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

/// Huge pages in use for each open one.
const PAGES_TO_OPEN: usize = 8;

fn begin(class: usize, open: &OpenPage, blocks: usize) -> Option<usize> {
    let address = page_life::take_pages(class, 1, blocks)?;
    let page = region::huge_page(address);
    let _guard = page.lock.lock();
    page.set_class(class);
    page.set_state(State::Open);
    open.opened_before.store(true, Relaxed);
    Some(address)
}

/// Returns an open page without live blocks; with `hesitate`, only if it was empty a tick ago as well.
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

/// Returns open pages that stay empty, and lets shorter classes use idle ones; called now and then by one
/// thread.
pub fn close_idle(now_ms: u64) {
    for open in &OPEN {
        if open.address.load(Relaxed) != 0 && !close_if_empty(open, true) && page_life::fills() {
            activate_if_idle(open, now_ms);
        }
    }
}

/// Activates an idle open page before it is full. Only its own class could use the rest, and may need it late
/// or never; an active page serves its class and shorter ones.
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

/// An open page is idle after this long, for classes that live within a second and for longer ones. Longer
/// classes allocate rarely but repeatedly. Each time shorter-lived objects had filled the rest of their page
/// in a pause, they would open another one and leave a little on each: LLAMA §9.6 ended with 126 MiB in place
/// of 20.
const IDLE_MS: u64 = 100;
const LONG_IDLE_MS: u64 = 1000;
const LONG: usize = 3;

/// Returns all empty open pages; whether there was one.
pub fn close_all_empty() -> bool {
    OPEN.iter().fold(false, |any, open| close_if_empty(open, false) | any)
}
