//! The life of a huge page (LLAMA §6.2–6.5), and how its lifetime class changes.
//!
//! A page of class c is *open* while it is filled for the first time, with objects of class c only: its
//! *residual* blocks. Then it is *active* and has a deadline. Blocks that become free on an active page are
//! *recycled* for shorter classes. If residual blocks are live at the deadline, the class was too short: the
//! page is promoted. When the last residual block dies, the class was too long: the page is demoted, and its
//! live blocks become residual. A page without live blocks is returned to the operating system.
//!
//! Beyond the paper, `Recycle::Fill` (the default) also uses free blocks of the request's own class before it
//! opens a new page: otherwise a heap of one class would never reuse a free block. It also gives a page of a
//! shorter class the request's, in place of a new page ([`crate::pages::shorter_pages`]).

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use crate::pages::huge_page::{HugePage, State};
use crate::pages::{decay, pool, region, retained};
use crate::system::events::{self, Event};
use crate::system::{clock, os};
use crate::units::bits;
use crate::units::geometry::*;
use crate::units::lifetime_class::{self, FOREVER};
use crate::units::window::WINDOW;

/// Where blocks for a request of class lr are taken from, before a page of class lr is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Recycle {
    /// Longer classes, then free blocks of lr itself, then pages of shorter classes with much room.
    Fill = 0,
    /// The paper's: the longest class that has room for spans, lr + 1 first for large objects.
    Longest = 1,
}

static RECYCLE: AtomicU8 = AtomicU8::new(Recycle::Fill as u8);
static DEADLINE_FACTOR: AtomicU32 = AtomicU32::new(2);

/// Chooses the policies; before the first allocation.
pub fn configure(recycle: Recycle, deadline_factor: u32) {
    RECYCLE.store(recycle as u8, Relaxed);
    DEADLINE_FACTOR.store(deadline_factor, Relaxed);
}

/// A page's deadline is its lifetime class times this factor.
pub fn deadline_factor() -> u32 {
    DEADLINE_FACTOR.load(Relaxed)
}

/// A request for blocks.
pub(crate) struct Request {
    pub class: usize,
    pub blocks: usize,
    pub alignment: usize,
    pub span: bool,
}

/// Further spans that the caller would cache.
pub(crate) struct Extra<'a> {
    pub wanted: usize,
    pub keep: &'a mut dyn FnMut(usize),
}

/// Takes free blocks of a page of class `from`; returns their address.
pub(crate) fn mark(page: &HugePage, address: usize, first: usize, request: &Request, from: usize) -> usize {
    let blocks = bits::range(first, request.blocks);
    if request.span {
        page.spans.set(&blocks);
    } else {
        page.last.set(&bits::range(first + request.blocks - 1, 1));
        let untouched = first >= page.high_water.load(Relaxed) as usize;
        region::large_object(address + first * BLOCK_BYTES).begin(request.blocks, untouched);
    }
    page.take(&blocks, first, request.blocks, from == request.class);
    decay::note_taken(page);
    address + first * BLOCK_BYTES
}

/// Activates a page that was filled for the first time: it gets its deadline (LLAMA §6.2).
pub(crate) fn activate(page: &HugePage, id: usize) {
    page.set_state(State::Active);
    set_deadline(page);
    if bits::is_none(&page.live.load()) {
        free_page(page, region::address(id), page.class());
    } else {
        pool::update(page, id, page.class());
    }
}

/// Whether free blocks of a request's own class are used.
pub(crate) fn fills() -> bool {
    RECYCLE.load(Relaxed) == Recycle::Fill as u8
}

fn set_deadline(page: &HugePage) {
    let deadline = lifetime_class::deadline_ms(clock::now_ms(), page.class(), deadline_factor());
    page.deadline_ms.store(deadline, Relaxed);
}

/// Takes free adjacent pages for an object of so many blocks, or for a span, and resets their metadata;
/// retained ones first.
pub(crate) fn take_pages(class: usize, count: usize, blocks: usize) -> Option<usize> {
    if count == 1
        && let Some(address) = retained::take()
    {
        decay::begin(region::huge_page(address), address, blocks, true);
        events::pages_in_use(1);
        return Some(address);
    }
    let address = region::take(class, count)?;
    for i in 0..count {
        let page = region::huge_page(address + i * HUGE_PAGE_BYTES);
        let _guard = page.lock.lock();
        page.reset();
        page.high_water.store(0, Relaxed);
        decay::begin(page, address + i * HUGE_PAGE_BYTES, blocks, false);
    }
    events::pages_in_use(count as isize);
    Some(address)
}

/// Releases blocks (LLAMA §6.5); frees the page with its last live block, demotes it with its last residual
/// one.
pub(crate) fn release_locked(page: &HugePage, address: usize, count: usize) {
    let blocks = bits::range(block_index(address), count);
    page.live.clear(&blocks);
    page.residual.clear(&blocks);
    let page_address = address & !(HUGE_PAGE_BYTES - 1);
    let empty = bits::is_none(&page.live.load());
    match page.state() {
        State::Open if empty => page.frontier.store(0, Relaxed),
        State::Active if empty => free_page(page, page_address, page.class()),
        State::Active => {
            let class_before = page.class();
            if bits::is_none(&page.residual.load()) {
                demote(page);
            }
            pool::update_if_roomier(page, region::id(page_address), class_before);
        }
        _ => {}
    }
}

/// Prepares a page for a block span of objects of `class`. If `class` is the next longer one, the page is
/// promoted as if its deadline had passed (LLAMA §6.4), and the span's blocks become residual; else `false`.
pub fn lengthen(span_address: usize, class: usize) -> bool {
    let page = region::huge_page(span_address);
    let Some(_guard) = page.lock.try_lock() else { return false };
    let may = page.state() == State::Active && page.class() + 1 == class;
    if may {
        promote(page, region::id(span_address));
        page.residual.set(&bits::range(block_index(span_address), SPAN_BLOCKS));
    }
    may
}

fn promote(page: &HugePage, id: usize) {
    let class_before = page.class();
    page.set_class((class_before + 1).min(FOREVER));
    events::count(Event::Promoted);
    set_deadline(page);
    pool::update(page, id, class_before);
}

/// Gives an active page a longer class, for objects of which it has room. The caller holds its lock.
pub(crate) fn lengthen_to(page: &HugePage, id: usize, class: usize) {
    let class_before = page.class();
    page.set_class(class);
    set_deadline(page);
    pool::update(page, id, class_before);
}

/// Demotes a page that has only shorter-lived blocks: they become its residual ones (LLAMA §6.4).
fn demote(page: &HugePage) {
    if page.class() > 0 {
        page.set_class(page.class() - 1);
        events::count(Event::Demoted);
    }
    page.residual.store(&page.live.load());
    set_deadline(page);
}

/// Frees a page without live blocks: returns it to the operating system, or retains it if there is room.
pub(crate) fn free_page(page: &HugePage, address: usize, class: usize) {
    page.set_state(State::Free);
    pool::update(page, region::id(address), class);
    page.reset();
    events::pages_in_use(-1);
    if retained::has_room() {
        page.set_state(State::Retained);
        retained::keep(address);
    } else {
        return_to_os(page, address);
        if retained::excess() > 0 {
            return_retained(); // the heap is shrinking
        }
    }
}

fn return_to_os(page: &HugePage, address: usize) {
    page.set_state(State::Free);
    page.high_water.store(0, Relaxed);
    os::discard(address, HUGE_PAGE_BYTES);
    os::discard(WINDOW.span_metadata(address), SPAN_METADATA_PER_HUGE_PAGE);
    events::count(Event::PageReturned);
    region::give(address);
}

pub(crate) fn return_retained() -> bool {
    let Some(address) = retained::take() else { return false };
    let page = region::huge_page(address);
    let _guard = page.lock.lock();
    return_to_os(page, address);
    true
}

/// Returns retained pages that are too many, or were not needed since the last call; called once a tick.
pub fn return_idle_pages() {
    (0..retained::idle()).all(|_| return_retained());
}

/// Checks some pages whose deadline may have passed (LLAMA §6.4) or which may be cold ([`decay`]); called
/// once a tick by one thread. Calls `expired` with each page that expired and its new class.
pub fn expire_deadlines(now_ms: u64, cursor: usize, pages: usize, expired: impl Fn(usize, usize)) -> usize {
    let mut next = cursor;
    for _ in 0..pages {
        let Some(id) = region::next_used(next) else {
            next = 0;
            break;
        };
        next = id + 1;
        let page = region::huge_page(region::address(id));
        if page.state() == State::Active && page.deadline_ms.load(Relaxed) <= now_ms {
            let _guard = page.lock.lock();
            expire(page, id, now_ms, &expired);
        }
        decay::consider(page, region::address(id), now_ms);
    }
    next
}

fn expire(page: &HugePage, id: usize, now_ms: u64, expired: &impl Fn(usize, usize)) {
    if page.state() != State::Active || page.deadline_ms.load(Relaxed) > now_ms {
        return;
    }
    let class_before = page.class();
    events::count(Event::DeadlineExpired);
    if bits::is_none(&page.residual.load()) {
        demote(page);
        pool::update(page, id, class_before);
    } else {
        promote(page, id);
    }
    expired(region::address(id), page.class());
}
