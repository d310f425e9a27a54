//! The one place where those hang on who only look on: who records ([`crate::observe::trace`]), profiles
//! ([`crate::observe::profile`]), lets others attach ([`crate::observe::control`]) or keeps what was learned
//! ([`crate::lifetime::table_file`]). The slow paths tell it what happens; the fast paths know nothing of it.

use core::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::units::call::Call;

/// An object that was just allocated.
pub struct Born {
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
pub struct Onlooker {
    /// An object was allocated: each while [`sees_all`], else each sample.
    pub allocated: fn(&Born),
    /// An object is about to be freed, by which thread if it has a heap: each, while [`sees_all`].
    pub freed: fn(Option<u32>, usize),
    /// As above: those that may be samples, while [`awaits_samples`].
    pub sample_freed: fn(Option<u32>, usize),
    /// An object that may be a sample was moved, from where and to where, while [`awaits_samples`].
    pub sample_moved: fn(usize, usize),
    /// A tick of the maintenance: its number, and ms since the start.
    pub tick: fn(u32, u64),
    /// This is the child of a fork; it has no other thread yet.
    pub in_child: fn(),
    /// The process is about to abort.
    pub before_abort: fn(),
}

impl Onlooker {
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

static ONLOOKERS: [AtomicPtr<Onlooker>; 4] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 4];
static SEES_ALL: AtomicBool = AtomicBool::new(false);
static AWAITS_SAMPLES: AtomicBool = AtomicBool::new(false);

/// Tells an onlooker from now on; who hangs here already does so once.
pub fn hang(onlooker: &'static Onlooker) {
    let new = core::ptr::from_ref(onlooker).cast_mut();
    for place in &ONLOOKERS {
        let is_new = |old: *mut Onlooker| old.is_null() || old == new;
        if place.fetch_update(Release, Acquire, |old| is_new(old).then_some(new)).is_ok() {
            return;
        }
    }
}

fn each(tell: impl Fn(&Onlooker)) {
    for place in &ONLOOKERS {
        // SAFETY: null or what `hang` was given, which lives for ever.
        match unsafe { place.load(Acquire).as_ref() } {
            Some(onlooker) => tell(onlooker),
            None => return,
        }
    }
}

/// Whether somebody wants to see each call: then all of them take the slow path.
#[inline]
pub fn sees_all() -> bool {
    SEES_ALL.load(Relaxed)
}

/// Somebody wants to see each call from now on, or no more.
pub fn see_all(on: bool) {
    SEES_ALL.store(on, Relaxed);
}

/// Whether sampled objects may be awaited.
#[inline]
pub fn awaits_samples() -> bool {
    AWAITS_SAMPLES.load(Relaxed)
}

/// Somebody awaits sampled objects from now on, or no more.
pub fn await_samples(on: bool) {
    AWAITS_SAMPLES.store(on, Release);
}

/// See [`Onlooker::allocated`].
#[cold]
pub fn allocated(born: &Born) {
    each(|onlooker| (onlooker.allocated)(born));
}

/// See [`Onlooker::freed`].
#[cold]
pub fn freed(thread: Option<u32>, address: usize) {
    each(|onlooker| (onlooker.freed)(thread, address));
}

/// See [`Onlooker::sample_freed`].
#[cold]
pub fn sample_freed(thread: Option<u32>, address: usize) {
    each(|onlooker| (onlooker.sample_freed)(thread, address));
}

/// See [`Onlooker::sample_moved`].
#[cold]
pub fn sample_moved(from: usize, to: usize) {
    each(|onlooker| (onlooker.sample_moved)(from, to));
}

/// See [`Onlooker::tick`].
pub fn tick(tick: u32, now_ms: u64) {
    each(|onlooker| (onlooker.tick)(tick, now_ms));
}

/// See [`Onlooker::in_child`].
pub fn in_child() {
    each(|onlooker| (onlooker.in_child)());
}

/// See [`Onlooker::before_abort`].
#[cold]
pub fn before_abort() {
    each(|onlooker| (onlooker.before_abort)());
}
