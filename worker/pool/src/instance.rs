//! One instance as the pool knows it.

use super::{FunctionId, RequestId, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    Serving,
    Stopping,
}

#[derive(Debug)]
pub(super) struct Instance {
    pub function: FunctionId,
    pub memory_mib: u64,
    pub phase: Phase,
    /// When it was started.
    pub since: Time,
    /// Its function has changed or was deleted, or another needs its room: it finishes its requests, and
    /// serves no other.
    pub retired: bool,
    /// The most requests that it may have.
    pub at_once: usize,
    /// The requests that it has.
    pub running: Vec<RequestId>,
    /// How many more it waits for.
    pub asks: usize,
    /// When it first asked.
    pub asked: Time,
    /// When it answered requests, after which it asks for others soon.
    pub finishing: Vec<Time>,
    /// Since when it has had no request.
    pub idle_since: Time,
}

impl Instance {
    pub fn counts(&self) -> bool {
        self.phase != Phase::Stopping
    }

    /// Whether it serves, or will serve, requests of its function.
    pub fn serves(&self) -> bool {
        self.counts() && !self.retired
    }

    /// Whether it can be given a request.
    pub fn has_place(&self) -> bool {
        self.phase == Phase::Serving && !self.retired && self.asks > 0 && self.running.len() < self.at_once
    }

    /// Since when it could have a request and has none.
    pub fn idle(&self) -> Option<Time> {
        let idle = self.phase == Phase::Serving && self.running.is_empty() && self.asks > 0;
        idle.then_some(self.idle_since)
    }

    /// It has no request any more, and is to serve no other.
    pub fn is_done(&self) -> bool {
        self.retired && self.phase == Phase::Serving && self.running.is_empty()
    }
}
