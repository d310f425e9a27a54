//! A list of spans, linked through their metadata: it allocates nothing.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use crate::span::cells::Span;

/// A queue of spans, linked through their metadata, for its owner only. All zeros is an empty one.
///
/// First in, first out: a span that just got its first free cell waits, and has more of them when its turn
/// comes.
#[derive(Default)]
pub struct SpanList {
    first: Cell<u64>,
    last: Cell<u64>,
}

fn at(address: u64) -> Option<&'static Span> {
    // SAFETY: only addresses of spans, which are never unmapped, are put into lists.
    (address != 0).then(|| unsafe { &*(address as *const Span) })
}

fn address_of(span: &Span) -> u64 {
    core::ptr::from_ref(span) as u64
}

impl SpanList {
    /// The empty list.
    pub const fn new() -> Self {
        Self { first: Cell::new(0), last: Cell::new(0) }
    }

    /// The first span.
    pub fn first(&self) -> Option<&'static Span> {
        at(self.first.get())
    }

    /// The last span.
    pub fn last(&self) -> Option<&'static Span> {
        at(self.last.get())
    }

    /// Adds a span that is in no list, at the end.
    pub fn push(&self, span: &'static Span) {
        let last = self.last.replace(address_of(span));
        span.previous.store(last, Relaxed);
        span.next.store(0, Relaxed);
        match at(last) {
            Some(last) => last.next.store(address_of(span), Relaxed),
            None => self.first.set(address_of(span)),
        }
    }

    /// Adds a span that is in no list, at the front.
    pub fn push_first(&self, span: &'static Span) {
        let first = self.first.replace(address_of(span));
        span.next.store(first, Relaxed);
        span.previous.store(0, Relaxed);
        match at(first) {
            Some(first) => first.previous.store(address_of(span), Relaxed),
            None => self.last.set(address_of(span)),
        }
    }

    /// Removes a span that is in this list.
    pub fn remove(&self, span: &'static Span) {
        let (next, previous) = (span.next.load(Relaxed), span.previous.load(Relaxed));
        match at(previous) {
            Some(before) => before.next.store(next, Relaxed),
            None => self.first.set(next),
        }
        match at(next) {
            Some(after) => after.previous.store(previous, Relaxed),
            None => self.last.set(previous),
        }
    }

    /// The span after one of this list.
    #[inline]
    pub fn after(span: &Span) -> Option<&'static Span> {
        at(span.next.load(Relaxed))
    }

    /// Moves the spans before one of this list to the end.
    #[inline]
    pub fn begin_with(&self, span: &'static Span) {
        let before = span.previous.load(Relaxed);
        let (Some(before), Some(first), Some(last)) = (at(before), self.first(), self.last()) else { return };
        before.next.store(0, Relaxed);
        last.next.store(address_of(first), Relaxed);
        first.previous.store(address_of(last), Relaxed);
        span.previous.store(0, Relaxed);
        self.first.set(address_of(span));
        self.last.set(address_of(before));
    }

    /// The spans, first to last.
    pub fn iter(&self) -> impl Iterator<Item = &'static Span> {
        core::iter::successors(at(self.first.get()), |span| at(span.next.load(Relaxed)))
    }

    /// Whether the links backwards agree with those forwards.
    pub fn is_linked(&self) -> bool {
        let mut before = 0;
        let agree = self
            .iter()
            .all(|span| span.previous.load(Relaxed) == core::mem::replace(&mut before, address_of(span)));
        agree && before == self.last.get()
    }

    /// Removes and returns the first span.
    #[inline]
    pub fn pop(&self) -> Option<&'static Span> {
        let first = at(self.first.get())?;
        self.remove(first);
        Some(first)
    }
}
