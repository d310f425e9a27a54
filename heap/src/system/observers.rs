//! Registers observers: the trace ([`crate::observe::trace`]), profiles ([`crate::observe::profile`]),
//! attaching profilers ([`crate::observe::control`]) and the table across runs
//! ([`crate::lifetime::table_file`]). The slow paths notify them; the fast paths have no check for them.

use core::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::units::call::Call;

/// An object that was just allocated.
pub struct Allocation {
    /// The call.
    pub call: Call,
    /// The stack height at the call.
    pub height: usize,
    /// The thread's number, in order of first use.
    pub thread: u32,
    /// The allocation's number in its thread, while they are counted.
    pub sequence: u32,
    /// The address is a multiple of this.
    pub alignment: usize,
    /// Its address.
    pub address: usize,
    /// Set for a sample; and whether its free will be reported.
    pub sampled: Option<bool>,
}

/// Callbacks of an observer.
#[derive(Clone, Copy)]
pub struct Observer {
    /// An object was allocated: every one while [`observes_all`], else every sample.
    pub allocated: fn(&Allocation),
    /// An object is about to be freed, by this thread if it has a heap: every one, while [`observes_all`].
    pub freed: fn(Option<u32>, usize),
    /// As above: objects that may be samples, while [`observes_samples`].
    pub sample_freed: fn(Option<u32>, usize),
    /// An object that may be a sample was moved, from and to these addresses, while [`observes_samples`].
    pub sample_moved: fn(usize, usize),
    /// A maintenance tick: its number, and ms since the start.
    pub tick: fn(u32, u64),
    /// The process is the child of a fork, and has no other thread yet.
    pub in_child: fn(),
    /// The process is about to abort.
    pub before_abort: fn(),
}

impl Observer {
    /// No callbacks.
    pub const IDLE: Self = Self {
        allocated: |_| {},
        freed: |_, _| {},
        sample_freed: |_, _| {},
        sample_moved: |_, _| {},
        tick: |_, _| {},
        in_child: || {},
        before_abort: || {},
    };
}

static OBSERVERS: [AtomicPtr<Observer>; 4] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 4];
static OBSERVES_ALL: AtomicBool = AtomicBool::new(false);
static OBSERVES_SAMPLES: AtomicBool = AtomicBool::new(false);

/// Registers an observer; a second registration has no effect.
pub fn register(observer: &'static Observer) {
    let new = core::ptr::from_ref(observer).cast_mut();
    for place in &OBSERVERS {
        let is_new = |old: *mut Observer| old.is_null() || old == new;
        if place.fetch_update(Release, Acquire, |old| is_new(old).then_some(new)).is_ok() {
            return;
        }
    }
}

fn notify_all(notify: impl Fn(&Observer)) {
    for place in &OBSERVERS {
        // SAFETY: null or what `register` was given, which is never freed.
        match unsafe { place.load(Acquire).as_ref() } {
            Some(observer) => notify(observer),
            None => return,
        }
    }
}

/// Whether an observer records every call: then all of them take the slow path.
#[inline]
pub fn observes_all() -> bool {
    OBSERVES_ALL.load(Relaxed)
}

/// Sets whether an observer records every call.
pub fn set_observes_all(on: bool) {
    OBSERVES_ALL.store(on, Relaxed);
}

/// Whether an observer waits for frees of sampled objects.
#[inline]
pub fn observes_samples() -> bool {
    OBSERVES_SAMPLES.load(Relaxed)
}

/// Sets whether an observer waits for frees of sampled objects.
pub fn set_observes_samples(on: bool) {
    OBSERVES_SAMPLES.store(on, Release);
}

/// See [`Observer::allocated`].
#[cold]
pub fn allocated(born: &Allocation) {
    notify_all(|observer| (observer.allocated)(born));
}

/// See [`Observer::freed`].
#[cold]
pub fn freed(thread: Option<u32>, address: usize) {
    notify_all(|observer| (observer.freed)(thread, address));
}

/// See [`Observer::sample_freed`].
#[cold]
pub fn sample_freed(thread: Option<u32>, address: usize) {
    notify_all(|observer| (observer.sample_freed)(thread, address));
}

/// See [`Observer::sample_moved`].
#[cold]
pub fn sample_moved(from: usize, to: usize) {
    notify_all(|observer| (observer.sample_moved)(from, to));
}

/// See [`Observer::tick`].
pub fn tick(tick: u32, now_ms: u64) {
    notify_all(|observer| (observer.tick)(tick, now_ms));
}

/// See [`Observer::in_child`].
pub fn in_child() {
    notify_all(|observer| (observer.in_child)());
}

/// See [`Observer::before_abort`].
#[cold]
pub fn before_abort() {
    notify_all(|observer| (observer.before_abort)());
}
