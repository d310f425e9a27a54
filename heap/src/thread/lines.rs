//! The paper's own span layout (LLAMA §6.6, §8), selectable for comparison: objects of all sizes are
//! bump-allocated in a block span, and liveness is counted by 128 B lines.
//!
//! A span has an object count, to which its owner adds one while the span is open; the thread that drops it
//! to zero releases the span. Each line counts the objects that touch it. Once a page's deadline has passed,
//! its spans with free lines may be reopened: tiny objects skip to the next free line, small ones that do not
//! fit go to an *overflow span*. As in the paper's prototype, each allocation and free updates the counts
//! atomically. Since C's free() does not pass the size, each object has a header (§8), which free checks.
//!
//! The fast path is the paper's as well: the prediction table gives the class of a call (§7), and the object
//! takes the next bytes of that class' open span. It needs no fork guard ([`crate::thread::fork_guard`]): an
//! object whose allocation a fork interrupts was never returned to the program.

use core::cell::Cell;
use core::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::pages::{global, region};
use crate::span::cells::{Role, Span};
use crate::span::queue::SpanList;
use crate::system::events::{self, Event};
use crate::system::lock::Lock;
use crate::system::text::misuse;
use crate::units::geometry::*;
use crate::units::lifetime_class::{CLASSES, FOREVER};

/// How spans are divided.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Layout {
    /// Cells of one size, see [`crate::span::cells`].
    Cells = 0,
    /// Bump allocation and lines.
    Lines = 1,
}

static LAYOUT: AtomicU8 = AtomicU8::new(Layout::Cells as u8);

/// Chooses the layout; before the first allocation.
pub fn configure(layout: Layout) {
    LAYOUT.store(layout as u8, Relaxed);
}

/// Whether spans are divided by lines.
#[inline]
pub fn chosen() -> bool {
    LAYOUT.load(Relaxed) == Layout::Lines as u8
}

/// The size of the largest small object.
#[inline]
pub fn max_small_bytes() -> usize {
    if chosen() { MAX_LINES_BYTES } else { MAX_SMALL_BYTES }
}

/// Bytes before each object: its size, and a word that distinguishes a live header from a freed or
/// overwritten one.
const HEADER_BYTES: usize = 16;
const LIVE: u64 = 0x6D61_7966_6C79_0001;
const FREED: u64 = 0x6D61_7966_6C79_0F0F;

/// A span that is being bump-allocated from: its next byte, and the end of its free run.
struct Bump {
    span: Cell<Option<&'static Span>>,
    next: Cell<usize>,
    end: Cell<usize>,
}

/// A thread's open spans of one class: one that may have been partly full when opened, and one for objects
/// that do not fit there.
pub struct OpenSpans {
    first: Bump,
    overflow: Bump,
}

impl Default for OpenSpans {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenSpans {
    /// None.
    pub const fn new() -> Self {
        Self { first: Bump::new(), overflow: Bump::new() }
    }
}

impl Bump {
    const fn new() -> Self {
        Self { span: Cell::new(None), next: Cell::new(0), end: Cell::new(0) }
    }

    /// Where an object of `size` would begin, header excluded, if the free run has room for it.
    fn fit(&self, size: usize, alignment: usize) -> Option<usize> {
        let address = (self.next.get() + HEADER_BYTES).next_multiple_of(alignment);
        (self.span.get().is_some() && address + size <= self.end.get()).then_some(address)
    }

    /// Moves to the next run of free lines; `false` if the span has none.
    fn skip_to_free_line(&self) -> bool {
        let Some(span) = self.span.get() else { return false };
        let base = span.address();
        let mut line = (self.end.get() - base) / LINE_BYTES;
        while line < SPAN_LINES && objects_on(span, line).load(Relaxed) != 0 {
            line += 1;
        }
        let start = line;
        while line < SPAN_LINES && objects_on(span, line).load(Relaxed) == 0 {
            line += 1;
        }
        self.next.set(base + start * LINE_BYTES);
        self.end.set(base + line * LINE_BYTES);
        start < SPAN_LINES
    }

    fn open(&self, span: &'static Span) {
        self.span.set(Some(span));
        self.end.set(span.address());
        self.skip_to_free_line();
    }

    /// Marks the span closed and drops the owner's count.
    fn close(&self) {
        if let Some(span) = self.span.take() {
            span.size_class.store(CLOSED, Relaxed);
            drop_count(span);
        }
        self.next.set(0);
        self.end.set(0);
    }

    fn give_to(&self, other: &Bump) {
        other.span.set(self.span.take());
        other.next.set(self.next.replace(0));
        other.end.set(self.end.replace(0));
    }
}

/// In `size_class` of a span divided by lines.
const OPENED: u8 = 1;
const CLOSED: u8 = 0;

/// The count of live objects, including the owner's share; spans of cells keep their watched cells here.
fn objects(span: &Span) -> &AtomicU32 {
    &span.watched
}

/// The count of objects that touch a line of 128 bytes; spans of cells keep their live bits here.
fn objects_on(span: &Span, line: usize) -> &AtomicU8 {
    let word = span.live_word(line / 8);
    // SAFETY: an AtomicU64 is eight bytes that may be shared; a span divided by lines is accessed only by
    // bytes.
    unsafe { &*core::ptr::from_ref(word).cast::<AtomicU8>().add(line % 8) }
}

/// Bytes that an object takes without its header; at least one, or its address could be the next span's.
fn room_for(size: usize) -> usize {
    size.max(1).next_multiple_of(MIN_ALIGNMENT)
}

/// Bytes of an object with a header that fits a line.
const TINY_BYTES: usize = LINE_BYTES - HEADER_BYTES;

/// The fast path: a small object in the current free run, if it fits.
#[inline]
pub fn allocate_in_open_run(spans: &OpenSpans, size: usize) -> Option<usize> {
    let room = room_for(size);
    let address = spans.first.fit(room, MIN_ALIGNMENT)?;
    Some(place(&spans.first, address, size, room))
}

/// Bump-allocates a small object; `None` if memory ran out.
pub fn allocate(spans: &OpenSpans, class: usize, size: usize, alignment: usize) -> Option<usize> {
    let room = room_for(size);
    loop {
        if let Some(address) = spans.first.fit(room, alignment) {
            return Some(place(&spans.first, address, size, room));
        }
        let tiny = room <= TINY_BYTES && alignment <= LINE_BYTES;
        let is_partly_used =
            spans.first.span.get().is_some() && spans.first.end.get() < span_end(&spans.first);
        if is_partly_used && !tiny {
            // Overflow allocation: do not search for several free lines in a row.
            if let Some(address) = spans.overflow.fit(room, alignment) {
                return Some(place(&spans.overflow, address, size, room));
            }
            spans.overflow.close();
            spans.overflow.open(fresh(class)?);
            events::count(Event::OverflowSpan);
        } else if !spans.first.skip_to_free_line() {
            spans.first.close();
            if spans.overflow.span.get().is_some() {
                spans.overflow.give_to(&spans.first);
            } else {
                spans.first.open(recyclable::take(class).map_or_else(|| fresh(class), Some)?);
            }
        }
    }
}

fn span_end(bump: &Bump) -> usize {
    bump.span.get().map_or(0, |span| span.address() + SPAN_BYTES)
}

fn fresh(class: usize) -> Option<&'static Span> {
    let span = global::acquire_spans(class, 0, |_| {})?;
    (0..SPAN_LINES).for_each(|line| objects_on(span, line).store(0, Relaxed));
    span.cells.store(0, Relaxed); // in no list
    objects(span).store(1, Relaxed);
    reopen(span, class);
    Some(span)
}

fn reopen(span: &Span, class: usize) {
    span.class.store(class as u8, Relaxed);
    span.size_class.store(OPENED, Relaxed);
    span.set_role(Role::Lines);
}

/// The lines that an object and its header touch.
fn lines_of(address: usize, room: usize) -> core::ops::Range<usize> {
    let start = (address - HEADER_BYTES) & (SPAN_BYTES - 1);
    start / LINE_BYTES..(start + HEADER_BYTES + room).div_ceil(LINE_BYTES)
}

fn place(bump: &Bump, address: usize, size: usize, room: usize) -> usize {
    bump.next.set(address + room);
    let span = region::span(address);
    for line in lines_of(address, room) {
        objects_on(span, line).fetch_add(1, Relaxed);
    }
    objects(span).fetch_add(1, Relaxed);
    // SAFETY: `fit` found room for header and object in a free run of the thread's own open span.
    unsafe { ((address - HEADER_BYTES) as *mut [u64; 2]).write([size as u64, LIVE ^ address as u64]) };
    address
}

/// The requested size; ends the process if the header is not that of a live object.
fn size_at(address: usize, caller: usize) -> usize {
    if !address.is_multiple_of(MIN_ALIGNMENT) || address & (SPAN_BYTES - 1) < HEADER_BYTES {
        misuse("invalid pointer, no object begins here", address, 0, caller);
    }
    // SAFETY: the header's place lies in the same span, which is mapped.
    let [size, mark] = unsafe { ((address - HEADER_BYTES) as *const [u64; 2]).read() };
    let mark = mark ^ address as u64;
    if mark == FREED {
        misuse("double free", address, size as usize, caller);
    }
    if mark != LIVE || size as usize > MAX_LINES_BYTES {
        misuse("invalid pointer or corrupted header", address, 0, caller);
    }
    size as usize
}

/// Bytes that the object may use.
pub fn usable_size(address: usize, caller: usize) -> usize {
    size_at(address, caller)
}

/// Resizes an object in place if it then takes as many bytes as now; else `false`.
pub fn resize(address: usize, size: usize, caller: usize) -> bool {
    let before = size_at(address, caller);
    let takes_as_many = size <= MAX_LINES_BYTES && room_for(size) == room_for(before);
    if takes_as_many {
        // SAFETY: as in `size_at`; no other thread uses an object that is being resized.
        unsafe { ((address - HEADER_BYTES) as *mut u64).write(size as u64) };
    }
    takes_as_many
}

/// Frees an object; `true` if it was the last of its span, which the caller must then release.
pub fn free(span: &Span, address: usize, caller: usize) -> bool {
    let size = size_at(address, caller);
    // SAFETY: as in `size_at`; the object was live.
    unsafe { ((address - HEADER_BYTES) as *mut [u64; 2]).write([size as u64, FREED ^ address as u64]) };
    for line in lines_of(address, room_for(size)) {
        objects_on(span, line).fetch_sub(1, AcqRel);
    }
    objects(span).fetch_sub(1, AcqRel) == 1
}

fn drop_count(span: &'static Span) {
    if objects(span).fetch_sub(1, AcqRel) == 1 {
        give_back(span);
    }
}

/// Releases a span; called by the thread that drops its count to zero (LLAMA §8).
pub fn give_back(span: &'static Span) {
    recyclable::forget(span);
    span.set_role(Role::None);
    global::release_span(span.address());
}

/// Adds one to the count unless it is zero, which means that another thread is releasing the span.
fn hold(span: &Span) -> bool {
    objects(span).fetch_update(AcqRel, Relaxed, |count| (count > 0).then_some(count + 1)).is_ok()
}

/// Live objects of a span and the bytes of the lines they touch.
pub fn live(span: &Span) -> (usize, usize) {
    let lines = (0..SPAN_LINES).filter(|&line| objects_on(span, line).load(Relaxed) != 0).count();
    let shares = (span.size_class.load(Relaxed) == OPENED) as usize;
    ((objects(span).load(Relaxed) as usize).saturating_sub(shares), lines * LINE_BYTES)
}

/// Whether a thread allocates from the span.
pub fn is_open(span: &Span) -> bool {
    span.size_class.load(Relaxed) == OPENED
}

/// Closes open spans.
pub fn close_all(spans: &[OpenSpans]) {
    for spans in spans {
        spans.first.close();
        spans.overflow.close();
    }
}

/// The page at `address`, now of this class, has passed its deadline: its spans may be reopened.
pub fn page_expired(address: usize, class: usize) {
    if chosen() {
        recyclable::list(address, class);
    }
}

/// Closed spans with free lines, on pages whose deadline has passed.
pub mod recyclable {
    use super::*;

    struct Lists {
        lock: Lock,
        /// By the class of their page.
        lists: [SpanList; CLASSES],
    }
    // SAFETY: the lists are used only with the lock held.
    unsafe impl Sync for Lists {}
    static LISTS: Lists = Lists { lock: Lock::new(), lists: [const { SpanList::new() }; CLASSES] };

    /// One more than the class whose list has the span, 0 for none; kept in `cells`, which spans divided by
    /// lines do not use.
    fn listed(span: &Span) -> &AtomicU16 {
        &span.cells
    }

    /// Lists the closed, partly free spans of a page whose deadline has passed (LLAMA §6.6). The caller holds
    /// the page's lock.
    pub fn list(page_address: usize, page_class: usize) {
        let page = region::huge_page(page_address);
        let _guard = LISTS.lock.lock();
        for block in (0..BLOCKS_PER_HUGE_PAGE).step_by(SPAN_BLOCKS) {
            let span = region::span(page_address + block * BLOCK_BYTES);
            let has_free_lines = || (0..SPAN_LINES).any(|line| objects_on(span, line).load(Relaxed) == 0);
            if page.spans.get(block)
                && span.role() == Role::Lines
                && span.size_class.load(Relaxed) == CLOSED
                && listed(span).load(Relaxed) == 0
                && has_free_lines()
                && objects(span).load(Acquire) > 0
            {
                listed(span).store(page_class as u16 + 1, Relaxed);
                LISTS.lists[page_class].push(span);
            }
        }
    }

    /// Takes a partly free span of a page of a longer class, the longest first, and opens it for `class`.
    pub fn take(class: usize) -> Option<&'static Span> {
        let _guard = LISTS.lock.lock();
        for longer in (class + 1..=FOREVER).rev() {
            while let Some(span) = LISTS.lists[longer].pop() {
                listed(span).store(0, Relaxed);
                if hold(span) {
                    reopen(span, class);
                    events::count(Event::SpanReopened);
                    return Some(span);
                }
            }
        }
        None
    }

    /// The span's last object was freed: removes it from its list.
    pub fn forget(span: &'static Span) {
        let _guard = LISTS.lock.lock();
        if let Some(class) = listed(span).swap(0, Relaxed).checked_sub(1) {
            LISTS.lists[class as usize].remove(span);
        }
    }
}
