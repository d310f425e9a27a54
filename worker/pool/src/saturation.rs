//! While the processors are saturated, a request waits for one of its function's busy instances, though
//! others are idle or could start.
//!
//! One instance more then makes no call faster: it is a process whose caches are cold, a switch to it and
//! back, and its memory. So a request waits while instances of its function, two for each processor, have
//! only just been given theirs: less than [`FRESH`] ago. Where calls are short, one of them is about to
//! answer. A long call counts no more after that time, so it delays none for longer; and no request waits
//! for longer than [`PATIENCE`].

use std::time::Duration;

use super::{Action, Function, FunctionId, InstanceId, Pool, Time};

/// For how long an instance that was given a request keeps others waiting.
const FRESH: Duration = Duration::from_millis(2);
/// How long a request waits at most.
const PATIENCE: Duration = Duration::from_millis(50);

/// Instances of a function that were given a request lately, and when.
#[derive(Debug, Default)]
pub(super) struct Fresh(Vec<(InstanceId, Time)>);

impl Fresh {
    pub fn begin(&mut self, instance: InstanceId, now: Time) {
        self.0.retain(|(_, since)| now < *since + FRESH);
        self.0.push((instance, now));
    }

    /// The instance has answered, or has ended.
    pub fn end(&mut self, instance: InstanceId) {
        self.0.retain(|(fresh, _)| *fresh != instance);
    }

    fn count(&self, now: Time) -> usize {
        self.0.iter().filter(|(_, since)| now < *since + FRESH).count()
    }
}

impl Pool {
    /// Whether the processors have been busy for nearly all of the time lately. The caller calls
    /// [`Pool::tick`] next, which serves those that wait no more.
    pub fn set_saturated(&mut self, saturated: bool) {
        self.saturated = saturated;
    }

    /// Gives waiting requests of the function to its idle instances, but for those that wait for a busy
    /// one.
    pub(super) fn serve_queue(&mut self, function: FunctionId, actions: &mut Vec<Action>) {
        while self.unheld(function) > 0
            && let Some(instance) = self.ready_instance(function)
            && let Some(known) = self.functions.get_mut(&function)
            && let Some((request, _)) = known.queue.pop_front()
        {
            self.dispatch(instance, request, actions);
        }
    }

    pub(super) fn serve_queues(&mut self, actions: &mut Vec<Action>) {
        let waiting = self.functions.iter().filter(|(_, known)| !known.queue.is_empty());
        let waiting: Vec<FunctionId> = waiting.map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|id| self.serve_queue(id, actions));
    }

    /// How many requests of the function wait, but not for a busy instance. They are the oldest.
    pub(super) fn unheld(&self, function: FunctionId) -> usize {
        let Some(known) = self.functions.get(&function) else { return 0 };
        let queued = known.queue.len();
        if queued == 0 || !self.saturated || !self.has_enough(known) {
            return queued;
        }
        let impatient = known.queue.iter().take_while(|(_, since)| *since + PATIENCE <= self.now).count();
        // A held request takes no other's place in the queue.
        impatient.max(queued.saturating_sub(self.capacity.queue))
    }

    /// Whether enough instances have just begun a call for the processors to be busy with these.
    fn has_enough(&self, function: &Function) -> bool {
        function.at_once == 1 && function.fresh.count(self.now) >= 2 * self.capacity.processors
    }

    /// Whether requests wait for a busy instance, or did and can be given to an idle one now: then
    /// [`Pool::release`] is to be called a millisecond later.
    pub fn holds_requests(&self) -> bool {
        // Asked after every answer, and there may be thousands of functions.
        self.saturated
            && self.functions.iter().any(|(id, known)| {
                let queued = known.queue.len();
                queued > 0 && (!known.ready.is_empty() || self.unheld(*id) < queued)
            })
    }

    /// Time has passed: requests that have waited too long for a busy instance are served as others are.
    pub fn release(&mut self, now: Time) -> Vec<Action> {
        self.now = now;
        let mut actions = Vec::new();
        self.serve_queues(&mut actions);
        self.schedule(&mut actions);
        actions
    }
}
