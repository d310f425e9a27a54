//! Frees of objects that lie in another thread's span.
//!
//! The freeing thread sets the cell's bit in the span's *remote bits* (one atomic instruction), and puts the
//! span into its owner's list of such spans, unless it is in a list. When the owner next needs memory, it
//! takes the list and clears the cells, of all spans or until it has found what it needs.
//!
//! The flag of the link means "in a list". It is set before the span is pushed and cleared before its bits
//! are read, so a thread that sets a bit later finds the flag clear and pushes the span again. An owner that
//! gives a span up first sets the flag to "unowned", which fails while the span is in a list: so no span in a
//! list is free. A span may change its owner while it is in a list (the owner's thread ended): a heap that
//! finds a span of another owner in its list forwards it. Threads that free in a vacant heap collect its
//! list. `heap/tests/loom_remote.rs` runs the steps of this file in every interleaving.

use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

#[cfg(loom)]
use crate::sequential::{AtomicU32, AtomicU64, AtomicUsize};

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

const WORDS: usize = if cfg!(loom) { 1 } else { 16 };

/// Cells that other threads freed and the owner has not collected.
#[derive(Default)]
pub struct RemoteBits([AtomicU64; WORDS]);

impl RemoteBits {
    /// Marks cells of a word as freed; returns those that were marked before (freed twice).
    #[inline]
    pub fn mark(&self, word: usize, cells: u64) -> u64 {
        self.0[word].fetch_or(cells, SeqCst) & cells
    }

    /// Takes all marks of a word; acquires what the freeing threads did to the objects before.
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
    /// The offset of a word of 32 bits that is not 0 while the span is in a list, for assembly.
    pub const LISTED: usize = core::mem::offset_of!(Self, listed);

    /// Claims the right to put the span into a list; `false` if it is in one or unowned.
    #[inline]
    pub fn claim(&self) -> bool {
        self.listed.load(SeqCst) == UNLISTED && self.change(UNLISTED, LISTED)
    }

    /// Marks the span as in no list; before its bits are read.
    #[inline]
    pub fn release(&self) {
        self.listed.store(UNLISTED, SeqCst);
    }

    /// Marks the span as unowned; `false` if it is in a list: it stays its owner's until that is taken.
    pub fn mark_unowned(&self) -> bool {
        self.change(UNLISTED, UNOWNED)
    }

    /// Marks the span as owned again.
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

/// The list of one owner: any thread pushes, one thread at a time takes, the owner or another on its behalf.
/// That one takes all spans by one exchange, and may collect them one by one: the others wait in a chain that
/// no other thread changes.
#[derive(Default)]
pub struct RemoteList {
    head: AtomicUsize,
    /// The first span that was taken and is not collected yet.
    taken: AtomicUsize,
}

impl RemoteList {
    /// The empty list.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { head: AtomicUsize::new(0), taken: AtomicUsize::new(0) }
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
        self.taken.load(Relaxed) == 0 && self.head.load(SeqCst) == 0
    }

    /// Takes one span; its link stays claimed.
    #[inline]
    fn take<S: RemoteSpan>(&self) -> Option<&'static S> {
        let mut address = self.taken.load(Relaxed);
        if address == 0 && self.head.load(SeqCst) != 0 {
            address = self.head.swap(0, SeqCst);
        }
        let span = span_at::<S>(address)?;
        self.taken.store(span.link().next(), Relaxed);
        Some(span)
    }

    /// Takes all spans, in two chains: the address of the first of each, the others by [`Link::next`].
    fn take_all(&self) -> [usize; 2] {
        let taken = self.taken.load(Relaxed);
        self.taken.store(0, Relaxed);
        [taken, if self.head.load(SeqCst) == 0 { 0 } else { self.head.swap(0, SeqCst) }]
    }
}

fn span_at<S: RemoteSpan>(address: usize) -> Option<&'static S> {
    // SAFETY: 0, or a span that was pushed, and its metadata is never unmapped.
    unsafe { (address as *const S).as_ref() }
}

/// Whether a running thread owns the heap; the list of a vacant heap is collected by threads that free in it.
#[derive(Default)]
pub struct Tenancy(AtomicU32);

impl Tenancy {
    /// Vacant.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sets whether a thread owns the heap.
    pub fn set(&self, taken: bool) {
        self.0.store(taken as u32, SeqCst);
    }

    /// Whether a thread owns the heap.
    #[inline]
    pub fn taken(&self) -> bool {
        self.0.load(SeqCst) != 0
    }

    /// As [`Tenancy::taken`], for statistics.
    pub fn looks_taken(&self) -> bool {
        self.0.load(Relaxed) != 0
    }
}

/// A span as the steps below need it; `heap/tests/loom_remote.rs` has a model of one.
pub trait RemoteSpan: 'static {
    /// The type of its owners.
    type Home: Home<Span = Self>;
    /// Its membership in a list.
    fn link(&self) -> &Link;
    /// Whether any cell is marked.
    fn any_marked(&self) -> bool;
    /// Its owner; `None` while it is unowned.
    fn home(&self) -> Option<&'static Self::Home>;
    /// Sets its owner, or none, visible to all threads.
    fn set_home(&self, home: Option<&'static Self::Home>);
    /// Whether no object on it lives, as far as its owner knows, and the owner does not allocate from it.
    /// Only the owner calls this.
    fn is_idle(&self) -> bool;
}

/// A heap as the steps below need it.
pub trait Home: 'static {
    /// The type of its spans.
    type Span: RemoteSpan<Home = Self>;
    /// Holds the lock until dropped.
    type Guard;
    /// Its spans in which other threads marked cells.
    fn list(&self) -> &RemoteList;
    /// Whether a thread owns it.
    fn tenancy(&self) -> &Tenancy;
    /// Whether it owns the span.
    fn owns(&self, span: &Self::Span) -> bool;
    /// Collects the marked cells of an own span, which stays where it is.
    fn collect_marked(&'static self, span: &'static Self::Span);
    /// Moves an own span whose marked cells were collected to where it belongs now.
    fn place(&'static self, span: &'static Self::Span);
    /// The lock for vacating heaps, collecting in vacant ones and adopting their spans.
    fn lock(&self) -> Self::Guard;
}

/// Puts a span with a new mark into its owner's list, unless it is in one.
pub fn list<S: RemoteSpan>(span: &'static S, locked: bool) {
    while span.link().claim() {
        // Only after the claim: before it the owner may give the span up, and another heap may take it.
        if let Some(owner) = span.home() {
            return deliver(owner, span, locked);
        }
        span.link().release();
        if !span.any_marked() {
            return; // the owner saw the mark and gave the span up
        }
    }
}

/// Puts a span with a claimed link into its owner's list, and collects if the owner is vacant.
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

/// Collects what other threads freed in a heap's spans. Its thread calls this, or a thread that holds the
/// lock (`locked`) while the heap is vacant.
pub fn collect<H: Home>(home: &'static H, locked: bool) {
    collect_until::<H, ()>(home, locked, |_| None);
}

/// As [`collect`], but one span after another, until `find` finds something in one whose cells were just
/// collected. That span was not moved, so it is not given up though it may be empty. The spans after it wait.
pub fn collect_until<H: Home, T>(
    home: &'static H,
    locked: bool,
    find: impl Fn(&'static H::Span) -> Option<T>,
) -> Option<T> {
    while let Some(span) = home.list().take::<H::Span>() {
        if !home.owns(span) {
            forward(span, locked);
            continue;
        }
        span.link().release();
        home.collect_marked(span);
        let found = find(span);
        if found.is_some() {
            return found;
        }
        home.place(span);
    }
    None
}

/// As [`collect`], for spans that `wanted` accepts; the others stay in the list. For the maintenance thread,
/// which may not touch what the heap's thread uses on its fast paths, while that thread cannot take its list.
/// `wanted` is called for own spans only.
pub fn collect_if<H: Home>(home: &'static H, locked: bool, wanted: impl Fn(&H::Span) -> bool) {
    for mut address in home.list().take_all() {
        while let Some(span) = span_at::<H::Span>(address) {
            let next = span.link().next();
            if !home.owns(span) {
                forward(span, locked);
            } else if wanted(span) {
                span.link().release();
                home.collect_marked(span);
                home.place(span);
            } else {
                home.list().push(address, span.link()); // its link stays claimed
            }
            address = next;
        }
    }
}

/// Passes on a span whose owner changed while it was in a list; its link stays claimed.
fn forward<S: RemoteSpan>(span: &'static S, locked: bool) {
    match span.home() {
        Some(owner) => deliver(owner, span, locked),
        None => {
            span.link().release();
            list(span, locked);
        }
    }
}

/// Gives up an own span if it is empty, after cells were freed; returns whether it is unowned now. A span in
/// a list stays its owner's until the list is taken, and is settled then.
pub fn settle<S: RemoteSpan>(span: &S) -> bool {
    let disowned = span.is_idle() && span.link().mark_unowned();
    if disowned {
        span.set_home(None);
    }
    disowned
}

/// Gives a prepared, unowned span an owner.
pub fn assign_owner<H: Home>(home: &'static H, span: &'static H::Span) {
    span.set_home(Some(home));
    span.link().mark_owned(); // not before: a thread that frees in it now must find the owner
}

/// Moves a span of a vacant heap to another owner. The caller holds the lock from before `find` until the
/// owner is set: the span is in none of the vacant heap's bins then, so no other thread may settle it there.
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

/// Makes the heap vacant: its thread has ended. The caller holds the lock.
pub fn vacate<H: Home>(home: &'static H) {
    home.tenancy().set(false);
    // A thread that freed before it could see the heap vacant left its span for us; one that frees later
    // collects itself.
    collect(home, true);
}
