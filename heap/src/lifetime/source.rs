//! The source of lifetimes that is in use.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::units::lifetime_class::FOREVER;

/// A source of lifetimes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LifetimeSource {
    /// Every object has this class.
    Fixed(usize),
    /// Sampled allocations teach each call site its class while the program runs.
    Online,
    /// A trained model predicts the class of each call site from its context.
    Model {
        /// Sampled allocations correct it.
        online: bool,
    },
    /// A table of the class of each thread's n-th allocation.
    Oracle,
}

const ONLINE: u8 = u8::MAX;
const ORACLE: u8 = u8::MAX - 1;
const MODEL: u8 = u8::MAX - 2;
const MODEL_AND_ONLINE: u8 = u8::MAX - 3;
static SOURCE: AtomicU8 = AtomicU8::new(ONLINE);

/// Chooses the source.
pub fn choose(source: LifetimeSource) {
    let code = match source {
        LifetimeSource::Fixed(class) => class.min(FOREVER) as u8,
        LifetimeSource::Online => ONLINE,
        LifetimeSource::Oracle => ORACLE,
        LifetimeSource::Model { online: false } => MODEL,
        LifetimeSource::Model { online: true } => MODEL_AND_ONLINE,
    };
    SOURCE.store(code, Relaxed);
}

/// The source in use.
pub fn in_use() -> LifetimeSource {
    match SOURCE.load(Relaxed) {
        ONLINE => LifetimeSource::Online,
        ORACLE => LifetimeSource::Oracle,
        MODEL => LifetimeSource::Model { online: false },
        MODEL_AND_ONLINE => LifetimeSource::Model { online: true },
        class => LifetimeSource::Fixed(class as usize),
    }
}
