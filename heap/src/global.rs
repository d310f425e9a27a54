//! The global allocator (LLAMA §6.1–6.5): huge pages, their blocks, and how they change lifetime class.
//!
//! A page of class c is *open* while it is filled for the first time, with objects of class c only: its *residual*
//! blocks. Then it is *active* and has a deadline. Blocks that become free on an active page are *recycled* for
//! shorter classes. When the deadline passes and residual blocks live on, the class was too short: the page is
//! promoted. When the last residual block dies, the class was too long: the page is demoted and the blocks that
//! live become residual. A page without live blocks is returned to the operating system.
//!
//! Beyond the paper, `Recycle::Fill` (the default) also uses free blocks of the request's own class before it
//! opens a new page: without it a heap of one class never uses a free block again.

use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::bits;
use crate::clock;
use crate::geometry::*;
use crate::huge_page::{HugePage, State};
use crate::lifetime::{self, CLASSES, FOREVER};
use crate::lines;
use crate::lock::Lock;
use crate::os;
use crate::pool;
use crate::region;
use crate::retained;
use crate::span::Span;
use crate::stats::{self, Event};

/// Where blocks for a request of class lr are taken from, before a page of class lr is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Recycle {
    /// Longer classes, then free blocks of lr itself.
    Fill = 0,
    /// The paper's: the longest class that has room for spans, lr + 1 first for large objects.
    Longest = 1,
    /// lr + 1 first for both.
    Next = 2,
}

static RECYCLE: AtomicU8 = AtomicU8::new(Recycle::Fill as u8);
static K: AtomicU32 = AtomicU32::new(2);

/// Chooses the policies; before the first allocation.
pub fn configure(recycle: Recycle, k: u32) {
    RECYCLE.store(recycle as u8, Relaxed);
    K.store(k, Relaxed);
}

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

/// A block span for objects of `class` (LLAMA §6.3); `None` when memory ran out. Up to `more` spans that are at hand
/// on the same page are passed to `keep`.
pub fn acquire_spans(
    class: usize,
    more: usize,
    mut keep: impl FnMut(&'static Span),
) -> Option<&'static Span> {
    let mut keep = |address| {
        stats::count(Event::SpanAcquired);
        keep(region::span(address));
    };
    let request = Request { class, blocks: SPAN_BLOCKS, alignment: SPAN_BLOCKS, span: true };
    let blocks = acquire(&request, &mut Extra { wanted: more, keep: &mut keep })?;
    stats::count(Event::SpanAcquired);
    Some(region::span(blocks))
}

/// What is asked for.
struct Request {
    class: usize,
    blocks: usize,
    alignment: usize,
    span: bool,
}

/// Further spans that the caller would take along.
struct Extra<'a> {
    wanted: usize,
    keep: &'a mut dyn FnMut(usize),
}

/// The open pages' addresses.
pub fn open_pages() -> impl Iterator<Item = usize> {
    OPEN.iter().map(|open| open.address.load(Acquire)).filter(|&address| address != 0)
}

/// Gives a block span back.
pub fn release_span(address: usize) {
    release(address, SPAN_BLOCKS);
}

/// `count` contiguous blocks for a large object, at a multiple of `alignment` blocks (LLAMA §6.1); `None` when memory
/// ran out.
pub fn acquire_large(class: usize, count: usize, alignment: usize) -> Option<usize> {
    if count > BLOCKS_PER_HUGE_PAGE {
        return acquire_pages(class, count);
    }
    let request = Request { class, blocks: count, alignment, span: false };
    acquire(&request, &mut Extra { wanted: 0, keep: &mut |_| {} })
}

fn acquire(request: &Request, extra: &mut Extra) -> Option<usize> {
    let class = request.class;
    let fill = RECYCLE.load(Relaxed) == Recycle::Fill as u8;
    let next_first = RECYCLE.load(Relaxed) == Recycle::Next as u8 || !request.span;
    let longer = FOREVER - class;
    for i in 0..longer {
        let from = if next_first { class + 1 + i } else { FOREVER - i };
        if let Some(blocks) = recycle(from, request, extra) {
            return Some(blocks);
        }
    }
    if fill && let Some(blocks) = recycle(class, request, extra) {
        return Some(blocks);
    }
    take_from_open(request, extra)
}

/// Takes blocks of an active page of class `from`.
fn recycle(from: usize, request: &Request, extra: &mut Extra) -> Option<usize> {
    pool::search(from, request.blocks, |id| {
        let address = region::address(id);
        let page = region::huge_page(address);
        let _guard = page.lock.try_lock()?; // a page that another thread is at: the next one is as good
        if page.state() != State::Active || page.class() != from {
            return None;
        }
        let find = || bits::find_run(&page.free_blocks(), request.blocks, request.alignment);
        let Some(first) = find() else {
            pool::update(page, id, from);
            return None;
        };
        let blocks = mark(page, address, first, request, from);
        while extra.wanted > 0
            && let Some(first) = find()
        {
            extra.wanted -= 1;
            (extra.keep)(mark(page, address, first, request, from));
        }
        stats::count(if from == request.class { Event::BlocksRefilled } else { Event::BlocksRecycled });
        Some(blocks)
    })
}

fn mark(page: &HugePage, address: usize, first: usize, request: &Request, from: usize) -> usize {
    let blocks = bits::range(first, request.blocks);
    if request.span {
        page.spans.set(&blocks);
    } else {
        page.last.set(&bits::range(first + request.blocks - 1, 1));
    }
    page.take(&blocks, first, request.blocks, from == request.class);
    address + first * BLOCK_BYTES
}

fn take_from_open(request: &Request, extra: &mut Extra) -> Option<usize> {
    let fill = RECYCLE.load(Relaxed) == Recycle::Fill as u8;
    let which = if fill { page_to_share(request) } else { request.class };
    let (open, from) = (&OPEN[which], which % CLASSES);
    loop {
        let address = open.address.load(Acquire);
        if address == 0 {
            let _open = open.lock.lock();
            if open.address.load(Relaxed) == 0 {
                open.address.store(open_page(from, open)?, Release);
            }
            continue;
        }
        let page = region::huge_page(address);
        let _page = page.lock.lock();
        if open.address.load(Relaxed) != address {
            continue; // another thread filled it meanwhile
        }
        let bump = || {
            let first = (page.frontier.load(Relaxed) as usize).next_multiple_of(request.alignment);
            let fits = first + request.blocks <= BLOCKS_PER_HUGE_PAGE;
            fits.then(|| {
                page.frontier.store((first + request.blocks) as u16, Relaxed);
                mark(page, address, first, request, from)
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
            activate(page, region::id(address));
        }
        if blocks.is_some() {
            return blocks;
        }
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
    let may_open = (opened + 1) * PAGES_TO_OPEN <= stats::pages();
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

fn open_page(class: usize, open: &OpenPage) -> Option<usize> {
    let address = take_pages(class, 1)?;
    let page = region::huge_page(address);
    let _guard = page.lock.lock();
    page.set_class(class);
    page.set_state(State::Open);
    open.opened_before.store(true, Relaxed);
    Some(address)
}

/// From open to active: the page was filled for the first time and gets its deadline (LLAMA §6.2).
fn activate(page: &HugePage, id: usize) {
    page.set_state(State::Active);
    set_deadline(page);
    if bits::is_none(&page.live.load()) {
        free_page(page, region::address(id), page.class());
    } else {
        pool::update(page, id, page.class());
    }
}

fn set_deadline(page: &HugePage) {
    let deadline = lifetime::deadline_ms(clock::now_ms(), page.class(), K.load(Relaxed));
    page.deadline_ms.store(deadline, Relaxed);
}

/// An object of more than a huge page: whole pages and the first blocks of the last one (LLAMA §8). The rest of the
/// last page is free for others at once.
fn acquire_pages(class: usize, count: usize) -> Option<usize> {
    let pages = count.div_ceil(BLOCKS_PER_HUGE_PAGE);
    let address = take_pages(class, pages)?;
    for i in 0..pages {
        let page_address = address + i * HUGE_PAGE_BYTES;
        let page = region::huge_page(page_address);
        let _guard = page.lock.lock();
        page.set_class(class);
        let used = (count - i * BLOCKS_PER_HUGE_PAGE).min(BLOCKS_PER_HUGE_PAGE);
        page.take(&bits::range(0, used), 0, used, true);
        if i == 0 {
            page.last_object_blocks.store(count as u32, Relaxed);
        } else {
            page.continues.store(1, Relaxed);
        }
        if i == pages - 1 {
            page.last.set(&bits::range(used - 1, 1));
        }
        activate(page, region::id(page_address));
    }
    Some(address)
}

/// Free pages in a row, their metadata reset; retained ones first.
fn take_pages(class: usize, count: usize) -> Option<usize> {
    if count == 1
        && let Some(address) = retained::take()
    {
        stats::pages_in_use(1);
        return Some(address);
    }
    let address = region::take(class, count)?;
    for i in 0..count {
        let page = region::huge_page(address + i * HUGE_PAGE_BYTES);
        let _guard = page.lock.lock();
        page.reset();
        page.high_water.store(0, Relaxed);
    }
    stats::pages_in_use(count as isize);
    Some(address)
}

/// How many blocks the large object at `address` has; `None` if none begins there.
pub fn large_object_blocks(address: usize) -> Option<usize> {
    let page = region::huge_page(address);
    // Without the lock, the neighbour's bits may be read while they change: an answer of no is asked for again.
    object_that_begins(page, address).or_else(|| {
        let _guard = page.lock.lock();
        object_that_begins(page, address)
    })
}

fn object_that_begins(page: &HugePage, address: usize) -> Option<usize> {
    let first = block_index(address);
    let starts_page = first == 0 && page.continues.load(Relaxed) == 0;
    let follows_another =
        |before: usize| !page.live.get(before) || page.spans.get(before) || page.last.get(before);
    let begins = address.is_multiple_of(BLOCK_BYTES)
        && page.live.get(first)
        && !page.spans.get(first)
        && (starts_page || first > 0 && follows_another(first - 1));
    begins.then(|| page.object_blocks(first)).flatten()
}

/// The large object around `address`, its first byte and its blocks; for messages.
#[cold]
pub fn large_object_around(address: usize) -> Option<(usize, usize)> {
    let mut at = address & !(BLOCK_BYTES - 1);
    let is_large = |at: usize| {
        let (page, block) = (region::huge_page(at), block_index(at));
        huge_page_index(at) >= FIRST_HUGE_PAGE && page.live.get(block) && !page.spans.get(block)
    };
    while is_large(at) {
        if let Some(blocks) = large_object_blocks(at) {
            return Some((at, blocks));
        }
        at -= BLOCK_BYTES;
    }
    None
}

/// Frees the large object of `count` blocks at `address`; `false` if another thread was faster (a double free).
pub fn release_large(address: usize, count: usize) -> bool {
    let head = region::huge_page(address);
    {
        let _guard = head.lock.lock();
        let first = block_index(address);
        if head.object_blocks(first) != Some(count) || !head.live.get(first) {
            return false;
        }
        head.last_object_blocks.store(0, Relaxed);
        let end = first + count;
        if end <= BLOCKS_PER_HUGE_PAGE {
            head.last.clear(&bits::range(end - 1, 1));
            release_locked(head, address, count);
            return true;
        }
        release_locked(head, address, BLOCKS_PER_HUGE_PAGE);
    }
    for i in 1..count.div_ceil(BLOCKS_PER_HUGE_PAGE) {
        let at = address + i * HUGE_PAGE_BYTES;
        let used = (count - i * BLOCKS_PER_HUGE_PAGE).min(BLOCKS_PER_HUGE_PAGE);
        let page = region::huge_page(at);
        let _guard = page.lock.lock();
        page.last.clear(&bits::range(used - 1, 1));
        page.continues.store(0, Relaxed);
        release_locked(page, at, used);
    }
    true
}

/// Changes the size of a large object where it lies; `false` if there is no room.
pub fn resize_large(address: usize, count: usize, new_count: usize) -> bool {
    let first = block_index(address);
    if first + count > BLOCKS_PER_HUGE_PAGE || first + new_count > BLOCKS_PER_HUGE_PAGE {
        return false;
    }
    let page = region::huge_page(address);
    let _guard = page.lock.lock();
    if new_count < count {
        page.last.clear(&bits::range(first + count - 1, 1));
        page.last.set(&bits::range(first + new_count - 1, 1));
        release_locked(page, address + new_count * BLOCK_BYTES, count - new_count);
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
    page.last.set(&bits::range(first + new_count - 1, 1));
    if page.state() == State::Open {
        page.frontier.store((first + new_count) as u16, Relaxed);
    }
    true
}

fn release(address: usize, count: usize) {
    let page = region::huge_page(address);
    let _guard = page.lock.lock();
    page.spans.clear(&bits::range(block_index(address), count));
    release_locked(page, address, count);
}

/// Clears blocks (LLAMA §6.5); the page is freed with its last live block, demoted with its last residual one.
fn release_locked(page: &HugePage, address: usize, count: usize) {
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

/// Only shorter-lived blocks are left: the next shorter class, and they are its residual ones (LLAMA §6.4).
fn demote(page: &HugePage) {
    if page.class() > 0 {
        page.set_class(page.class() - 1);
        stats::count(Event::Demoted);
    }
    page.residual.store(&page.live.load());
    set_deadline(page);
}

/// No block is live: back to the operating system at once, unless it is one of the few that are retained.
fn free_page(page: &HugePage, address: usize, class: usize) {
    page.set_state(State::Free);
    pool::update(page, region::id(address), class);
    page.reset();
    stats::pages_in_use(-1);
    if retained::has_room() {
        page.set_state(State::Retained);
        retained::keep(address);
    } else {
        hand_back(page, address);
        if retained::excess() > 0 {
            return_retained(); // the heap shrinks
        }
    }
}

fn hand_back(page: &HugePage, address: usize) {
    page.set_state(State::Free);
    page.high_water.store(0, Relaxed);
    os::discard(address, HUGE_PAGE_BYTES);
    os::discard(span_metadata_address(address), SPAN_METADATA_PER_HUGE_PAGE);
    stats::count(Event::PageReturned);
    region::give(address);
}

fn return_retained() -> bool {
    let Some(address) = retained::take() else { return false };
    let page = region::huge_page(address);
    let _guard = page.lock.lock();
    hand_back(page, address);
    true
}

/// Returns retained pages that are too many now, or have not been needed since the last time; called once a tick.
pub fn return_idle_pages() {
    (0..retained::idle()).all(|_| return_retained());
}

/// Returns every huge page that holds nothing; whether there was one. Also what malloc_trim does.
pub fn trim() -> bool {
    let mut any = false;
    for open in &OPEN {
        any |= close_if_empty(open, false); // which may retain it
    }
    while return_retained() {
        any = true;
    }
    any
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
    free_page(page, address, page.class());
    true
}

/// Looks at some active pages whose deadline may have passed (LLAMA §6.4); called once a tick by one thread.
pub fn expire_deadlines(now_ms: u32, cursor: usize, pages: usize) -> usize {
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
            expire(page, id, now_ms);
        }
    }
    next
}

fn expire(page: &HugePage, id: usize, now_ms: u32) {
    if page.state() != State::Active || page.deadline_ms.load(Relaxed) > now_ms {
        return;
    }
    let class_before = page.class();
    stats::count(Event::DeadlineExpired);
    if bits::is_none(&page.residual.load()) {
        demote(page);
    } else {
        page.set_class((class_before + 1).min(FOREVER));
        stats::count(Event::Promoted);
        set_deadline(page);
    }
    pool::update(page, id, class_before);
    if lines::chosen() {
        lines::recyclable::list(region::address(id), page.class());
    }
}

/// Returns open pages that stay empty; called once a tick by one thread.
pub fn close_empty_pages() {
    for open in &OPEN {
        if open.address.load(Relaxed) != 0 {
            close_if_empty(open, true);
        }
    }
}
