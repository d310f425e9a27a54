//! The one place where those hang on who only look on: who records ([`crate::observe::trace`]), profiles
//! ([`crate::observe::profile`]), lets others attach ([`crate::observe::control`]) or keeps what was learned
//! ([`crate::lifetime::table_file`]). The slow paths tell it what happens; the fast paths know nothing of it.

use core::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::units::call::Call;

/// An object that was just allocated.
pub struct Allocation {
    /// By which call.
    pub call: Call,
    /// How high the stack was then.
    pub height: usize,
    /// By which thread, in order of first use.
    pub thread: u32,
    /// Which of the thread's allocations it is, where they are counted.
    pub sequence: u32,
    /// A multiple of this.
    pub alignment: usize,
    /// Where it lies.
    pub address: usize,
    /// It was chosen as a sample; and whether its free will be told.
    pub sampled: Option<bool>,
}

/// What somebody wants to be told.
#[derive(Clone, Copy)]
pub struct Observer {
    /// An object was allocated: each while [`observes_all`], else each sample.
    pub allocated: fn(&Allocation),
    /// An object is about to be freed, by which thread if it has a heap: each, while [`observes_all`].
    pub freed: fn(Option<u32>, usize),
    /// As above: those that may be samples, while [`observes_samples`].
    pub sample_freed: fn(Option<u32>, usize),
    /// An object that may be a sample was moved, from where and to where, while [`observes_samples`].
    pub sample_moved: fn(usize, usize),
    /// A tick of the maintenance: its number, and ms since the start.
    pub tick: fn(u32, u64),
    /// This is the child of a fork; it has no other thread yet.
    pub in_child: fn(),
    /// The process is about to abort.
    pub before_abort: fn(),
}

impl Observer {
    /// Wants nothing.
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

/// Tells an observer from now on; who hangs here already does so once.
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
        // SAFETY: null or what `hang` was given, which lives for ever.
        match unsafe { place.load(Acquire).as_ref() } {
            Some(observer) => notify(observer),
            None => return,
        }
    }
}

/// Whether somebody wants to see each call: then all of them take the slow path.
#[inline]
pub fn observes_all() -> bool {
    OBSERVES_ALL.load(Relaxed)
}

/// Somebody wants to see each call from now on, or no more.
pub fn set_observes_all(on: bool) {
    OBSERVES_ALL.store(on, Relaxed);
}

/// Whether sampled objects may be awaited.
#[inline]
pub fn observes_samples() -> bool {
    OBSERVES_SAMPLES.load(Relaxed)
}

/// Somebody awaits sampled objects from now on, or no more.
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
