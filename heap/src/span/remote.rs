//! How a thread frees an object that lies in another thread's span.
//!
//! It sets the cell's bit in the span's *remote bits* (one atomic instruction), and if the span is in no list yet, puts
//! it into its owner's list of such spans. The owner, when it next needs memory, takes the list and clears the cells.
//!
//! The link's flag says "in a list": it is set before the span is pushed and cleared before its bits are read,
//! so a bit set later finds the flag clear and pushes again. An owner that gives a span up sets the flag to "nobody's"
//! first, which fails while the span is in a list: so no span in a list is free. A span may change owner while it is in a
//! list (its thread ended): who finds it in its list and does not own it passes it on to who does. A heap without a thread is
//! looked after by those who free in it. `heap/tests/loom_remote.rs` runs the steps of this file in every interleaving.

use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

#[cfg(loom)]
use crate::sequential::{AtomicU32, AtomicU64, AtomicUsize};

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

const WORDS: usize = if cfg!(loom) { 1 } else { 16 };

/// Cells freed by others and not yet seen by the owner.
#[derive(Default)]
pub struct RemoteBits([AtomicU64; WORDS]);

impl RemoteBits {
    /// Marks cells of a word free; those that were marked already (freed twice).
    #[inline]
    pub fn mark(&self, word: usize, cells: u64) -> u64 {
        self.0[word].fetch_or(cells, SeqCst) & cells
    }

    /// Takes all marks of a word. Acquires what the freeing threads did to the objects before.
    #[inline]
    pub fn take(&self, word: usize) -> u64 {
        if self.0[word].load(SeqCst) == 0 { 0 } else { self.0[word].swap(0, SeqCst) }
    }

    /// Whether a cell is marked.
    #[inline]
    pub fn is_marked(&self, cell: usize) -> bool {
        self.0[cell / 64].load(Acquire) >> (cell % 64) & 1 == 1
    }

    /// The marks of a word.
    pub fn marked(&self, word: usize) -> u64 {
        self.0[word].load(Acquire)
    }

    /// Whether any cell is marked.
    pub fn any(&self) -> bool {
        self.0.iter().any(|word| word.load(SeqCst) != 0)
    }
}

/// A span's membership in a list.
#[derive(Default)]
pub struct Link {
    next: AtomicUsize,
    listed: AtomicU32,
}

const UNLISTED: u32 = 0;
const LISTED: u32 = 1;
const UNOWNED: u32 = 2;

impl Link {
    /// Claims the right to put the span into a list; `false`: it is in one, or nobody's.
    #[inline]
    pub fn claim(&self) -> bool {
        self.listed.load(SeqCst) == UNLISTED && self.change(UNLISTED, LISTED)
    }

    /// The span is in no list any more; to be called before its bits are read.
    #[inline]
    pub fn release(&self) {
        self.listed.store(UNLISTED, SeqCst);
    }

    /// The owner gives the span up; `false`: it is in a list, and its owner's until that is taken.
    pub fn mark_unowned(&self) -> bool {
        self.change(UNLISTED, UNOWNED)
    }

    /// The span has an owner again.
    pub fn mark_owned(&self) {
        self.change(UNOWNED, UNLISTED);
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.listed.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }

    /// Whether the span is in a list.
    pub fn is_listed(&self) -> bool {
        self.listed.load(Relaxed) == LISTED
    }

    /// The span after this one in a taken list.
    pub fn next(&self) -> usize {
        self.next.load(Relaxed)
    }
}

/// The list of one owner: anyone pushes, the owner takes all.
#[derive(Default)]
pub struct RemoteList {
    head: AtomicUsize,
}

impl RemoteList {
    /// The empty list.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { head: AtomicUsize::new(0) }
    }

    /// Adds a span, given as its address and its claimed link.
    pub fn push(&self, span: usize, link: &Link) {
        let mut head = self.head.load(Relaxed);
        loop {
            link.next.store(head, Relaxed);
            match self.head.compare_exchange_weak(head, span, SeqCst, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Whether there is something to take.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head.load(SeqCst) == 0
    }

    /// Takes all spans: the first one's address, the others by [`Link::next`]; 0 for none.
    pub fn take(&self) -> usize {
        self.head.swap(0, SeqCst)
    }
}

/// Who owns a list: a running thread, or nobody, in which case whoever frees looks after it.
#[derive(Default)]
pub struct Tenancy(AtomicU32);

impl Tenancy {
    /// Nobody's yet.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// A thread moves in (`true`) or has moved out (`false`).
    pub fn set(&self, taken: bool) {
        self.0.store(taken as u32, SeqCst);
    }

    /// Whether a thread lives here.
    #[inline]
    pub fn taken(&self) -> bool {
        self.0.load(SeqCst) != 0
    }

    /// As [`Tenancy::taken`], for statistics.
    pub fn looks_taken(&self) -> bool {
        self.0.load(Relaxed) != 0
    }
}

/// A span as the steps below see it; `heap/tests/loom_remote.rs` has a model of one.
pub trait RemoteSpan: 'static {
    /// What owns spans.
    type Home: Home<Span = Self>;
    /// Its membership in a list.
    fn link(&self) -> &Link;
    /// Whether any cell is marked.
    fn any_marked(&self) -> bool;
    /// Its owner; `None` while it is nobody's.
    fn home(&self) -> Option<&'static Self::Home>;
    /// Gives it an owner, or none, for all threads to see.
    fn set_home(&self, home: Option<&'static Self::Home>);
    /// Whether nothing lives on it as far as its owner knows, who does not allocate from it. Asked by the owner.
    fn is_idle(&self) -> bool;
}

/// A heap as the steps below see it.
pub trait Home: 'static {
    /// What it owns.
    type Span: RemoteSpan<Home = Self>;
    /// Holds the lock until dropped.
    type Guard;
    /// Its spans in which others marked cells.
    fn list(&self) -> &RemoteList;
    /// Whether a thread lives here.
    fn tenancy(&self) -> &Tenancy;
    /// Whether it owns the span.
    fn owns(&self, span: &Self::Span) -> bool;
    /// Takes over the marked cells of an own span, and moves the span to where it belongs now.
    fn collect_marked(&'static self, span: &'static Self::Span);
    /// The lock with which threads move out, vacant heaps are looked after and their spans adopted.
    fn lock(&self) -> Self::Guard;
}

/// Puts a span in which a cell was marked into its owner's list, unless it is in one.
pub fn list<S: RemoteSpan>(span: &'static S, locked: bool) {
    while span.link().claim() {
        // Not before the claim: until then the owner may give the span up, and another take it.
        if let Some(owner) = span.home() {
            return deliver(owner, span, locked);
        }
        span.link().release();
        if !span.any_marked() {
            return; // the mark was seen, and the span given up
        }
    }
}

/// Puts a span with a claimed link into its owner's list, and looks after it if the owner is vacant.
fn deliver<H: Home>(owner: &'static H, span: &'static H::Span, locked: bool) {
    owner.list().push(core::ptr::from_ref(span) as usize, span.link());
    if owner.tenancy().taken() {
        return;
    }
    let _guard = (!locked).then(|| owner.lock());
    if !owner.tenancy().taken() {
        collect(owner, true);
    }
}

/// Takes over what other threads freed in a heap's spans. Its thread calls this, or whoever holds the
/// lock (`locked`) while the heap is vacant.
pub fn collect<H: Home>(home: &'static H, locked: bool) {
    if home.list().is_empty() {
        return;
    }
    let mut address = home.list().take();
    while address != 0 {
        // SAFETY: only spans, whose metadata is never unmapped, are pushed.
        let span = unsafe { &*(address as *const H::Span) };
        address = span.link().next();
        if home.owns(span) {
            span.link().release();
            home.collect_marked(span);
        } else {
            forward(span, locked);
        }
    }
}

/// As [`collect`] for the spans that `wanted` says yes to; the others stay in the list. For who may not touch what the heap's
/// thread touches on its fast paths, while that thread is kept from taking its list. `wanted` is asked about own spans only.
pub fn collect_if<H: Home>(home: &'static H, locked: bool, wanted: impl Fn(&H::Span) -> bool) {
    let mut address = if home.list().is_empty() { 0 } else { home.list().take() };
    while address != 0 {
        // SAFETY: as in `collect`.
        let span = unsafe { &*(address as *const H::Span) };
        let next = span.link().next();
        if !home.owns(span) {
            forward(span, locked);
        } else if wanted(span) {
            span.link().release();
            home.collect_marked(span);
        } else {
            home.list().push(address, span.link()); // its link stays claimed
        }
        address = next;
    }
}

/// The span changed hands while it was in a list: its link stays claimed.
fn forward<S: RemoteSpan>(span: &'static S, locked: bool) {
    match span.home() {
        Some(owner) => deliver(owner, span, locked),
        None => {
            span.link().release();
            list(span, locked);
        }
    }
}

/// After cells of an own span were freed: an empty one is given up. Whether it was, and is nobody's now. One that is in a list
/// stays its owner's until that is taken, and is settled then.
pub fn settle<S: RemoteSpan>(span: &S) -> bool {
    let disowned = span.is_idle() && span.link().mark_unowned();
    if disowned {
        span.set_home(None);
    }
    disowned
}

/// A span that is nobody's and was prepared gets an owner.
pub fn assign_owner<H: Home>(home: &'static H, span: &'static H::Span) {
    span.set_home(Some(home));
    span.link().mark_owned(); // not before: who frees in it now finds the owner
}

/// A span of a heap without a thread gets another owner. The lock is held from before `find` looks for it until then: it is in
/// none of the vacant heap's bins any more, so nobody may settle it there.
pub fn adopt<H: Home>(
    home: &'static H,
    vacant: &'static H,
    _lock: &H::Guard,
    find: impl FnOnce() -> Option<&'static H::Span>,
) -> Option<&'static H::Span> {
    collect(vacant, true);
    let span = find()?;
    span.set_home(Some(home));
    Some(span)
}

/// The heap's thread has moved out; the lock is held.
pub fn vacate<H: Home>(home: &'static H) {
    home.tenancy().set(false);
    // Whoever freed before it saw the heap vacant left that for us, whoever does after will look itself.
    collect(home, true);
}
