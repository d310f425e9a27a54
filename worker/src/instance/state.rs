//! What changes while an instance lives, under one lock.
//!
//! The worker gives an instance requests while it holds the lock of its pool. So who holds an instance's lock
//! never calls the scheduler and never waits: it changes the state, notes events, or freezes the cgroup, and
//! tells others afterwards.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::extensions::Extensions;
use super::idle::Idle;
use super::requests::Requests;
use super::{Instance, lock};
use crate::base::error::ApiError;
use crate::invocation::request::{Figures, Outcome};

pub(super) struct State {
    pub requests: Requests,
    pub extensions: Extensions,
    pub idle: Idle,
    /// How long its start took, until the first report takes it.
    pub init: Option<Duration>,
    /// Why it could not start: the answer for the request that waited for it.
    pub failure: Option<Result<Outcome, ApiError>>,
    /// The figures of that start, for the request's line of them.
    pub failed_start: Option<Figures>,
    /// When a report of idle work was last noted.
    pub noted_idle_work: Option<Instant>,
    /// Live and held bytes of its heap, as it last reported.
    pub heap: (u64, u64),
}

impl State {
    pub fn new(at_once: u32) -> State {
        State {
            requests: Requests::new(at_once),
            extensions: Extensions::default(),
            idle: Idle::default(),
            init: None,
            failure: None,
            failed_start: None,
            noted_idle_work: None,
            heap: (0, 0),
        }
    }
}

impl Instance {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
