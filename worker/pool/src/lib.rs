//! Decides which instance serves which request: a state machine without side effects.
//!
//! ```text
//!   request ──► queue ──► Starting ──ready──► Busy ──ready──► Idle ──► Stopping ──ended─► (its memory is free)
//!                 │           │                 ▲                │
//!              refused     ended: the        dispatch ◄──────────┘
//!                          oldest request fails
//!
//!   An instance that has answered is Finishing until it asks for more, which is soon: a request that comes in
//!   between waits for it, and starts no other.
//! ```
//! Busy and Idle are names for what an instance that has started does. An instance of a function that serves
//! several requests at once asks for several, and has no more than its function may have; it is idle while it
//! has none. While the processors are saturated, a request may wait though an instance is idle
//! (`saturation`).
//!
//! Events come in as method calls with the time; what is to be done comes out as [`Action`]s, in order. So
//! every rule here is tested without a process or a clock. Memory counts from the start of an instance
//! until its last process has ended.

mod counts;
mod instance;
mod interface;
mod room;
mod saturation;
mod serving;

pub use counts::Counts;
pub use interface::{Action, Capacity, FunctionId, InstanceId, Refusal, RequestId, Time};

use instance::{Instance, Phase};
use saturation::Fresh;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[derive(Debug)]
struct Function {
    /// The function that it is a version of, or itself: whose reservation counts.
    parent: FunctionId,
    memory_mib: u64,
    /// The most requests of one instance.
    at_once: usize,
    reserved: Option<u32>,
    queue: VecDeque<(RequestId, Time)>,
    /// Instances that can be given a request. Most recently used last, so that those not needed grow old.
    ready: Vec<InstanceId>,
    fresh: Fresh,
}

/// The instances and queues of all functions.
#[derive(Debug)]
pub struct Pool {
    capacity: Capacity,
    functions: BTreeMap<FunctionId, Function>,
    instances: BTreeMap<InstanceId, Instance>,
    next_instance: InstanceId,
    /// The time of the latest event.
    now: Time,
    saturated: bool,
}

impl Pool {
    /// An empty pool.
    pub fn new(capacity: Capacity) -> Pool {
        Pool {
            capacity,
            functions: BTreeMap::new(),
            instances: BTreeMap::new(),
            next_instance: InstanceId(1),
            now: Time::ZERO,
            saturated: false,
        }
    }

    /// What the worker may use.
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Adds a function, or changes its memory: then the instances that it has serve no further request.
    pub fn set_function(&mut self, function: FunctionId, memory_mib: u32) -> Vec<Action> {
        self.set_function_at_once(function, memory_mib, 1)
    }

    /// The same for a function whose instances serve several requests at once.
    pub fn set_function_at_once(
        &mut self,
        function: FunctionId,
        memory_mib: u32,
        at_once: u32,
    ) -> Vec<Action> {
        self.add(function, function, memory_mib, at_once);
        let mut actions = self.retire(function);
        self.schedule(&mut actions);
        actions
    }

    /// Adds a version of a function: it has instances of its own, and the function's reservation.
    pub fn add_version(&mut self, version: FunctionId, parent: FunctionId, memory_mib: u32, at_once: u32) {
        self.add(version, parent, memory_mib, at_once);
    }

    fn add(&mut self, id: FunctionId, parent: FunctionId, memory_mib: u32, at_once: u32) {
        let (memory_mib, at_once) = (memory_mib.into(), at_once.max(1) as usize);
        match self.functions.get_mut(&id) {
            Some(known) => (known.memory_mib, known.at_once) = (memory_mib, at_once),
            None => {
                let (queue, ready) = (VecDeque::new(), Vec::new());
                let (reserved, fresh) = (None, Fresh::default());
                let new = Function { parent, memory_mib, at_once, reserved, queue, ready, fresh };
                self.functions.insert(id, new);
            }
        }
    }

    /// The reservation of a function, or of the one that it is a version of.
    fn reserved(&self, function: FunctionId) -> Option<u32> {
        self.functions.get(&self.parent(function)?)?.reserved
    }

    fn parent(&self, function: FunctionId) -> Option<FunctionId> {
        self.functions.get(&function).map(|known| known.parent)
    }

    /// Reserves concurrency for a function and its versions, at most this many instances, or ends the
    /// reservation.
    pub fn reserve(&mut self, function: FunctionId, reserved: Option<u32>) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(known) = self.functions.get_mut(&function) else { return actions };
        known.reserved = reserved;
        if reserved == Some(0) {
            for its in self.functions.values_mut().filter(|its| its.parent == function) {
                refuse_all(&mut its.queue, Refusal::Reserved, &mut actions);
            }
        }
        self.schedule(&mut actions);
        actions
    }

    /// Concurrency that no function has reserved, with `except` counted as if it had none.
    pub fn unreserved(&self, except: Option<FunctionId>) -> u32 {
        let others = self.functions.iter().filter(|(id, _)| Some(**id) != except);
        let reserved: u32 = others.filter_map(|(_, function)| function.reserved).sum();
        self.capacity.concurrency.saturating_sub(reserved)
    }

    /// Deletes a function: waiting requests are refused, running ones may finish.
    pub fn remove_function(&mut self, function: FunctionId) -> Vec<Action> {
        let mut actions = self.retire(function);
        if let Some(mut removed) = self.functions.remove(&function) {
            refuse_all(&mut removed.queue, Refusal::Removed, &mut actions);
        }
        self.schedule(&mut actions);
        actions
    }

    /// A request has arrived.
    pub fn request(&mut self, function: FunctionId, request: RequestId, now: Time) -> Vec<Action> {
        self.now = now;
        let mut actions = Vec::new();
        let refused = |refusal| vec![Action::Refuse { request, refusal }];
        if self.reserved(function) == Some(0) {
            return refused(Refusal::Reserved);
        }
        if !self.functions.contains_key(&function) {
            return refused(Refusal::Removed);
        }
        let known = self.functions.get_mut(&function).expect("known a line above");
        if known.queue.len() >= self.capacity.queue && known.ready.is_empty() {
            let limit = self.limiting_resource(function);
            return refused(if limit == Refusal::Starting { Refusal::Queue } else { limit });
        }
        known.queue.push_back((request, now));
        self.serve_queue(function, &mut actions);
        if !self.functions[&function].queue.is_empty() {
            self.schedule(&mut actions);
        }
        actions
    }

    /// Cancels a request that still waits; a dispatched one goes on. True if it waited.
    pub fn withdraw(&mut self, request: RequestId) -> bool {
        self.functions.values_mut().any(|function| {
            let before = function.queue.len();
            function.queue.retain(|(queued, _)| *queued != request);
            function.queue.len() != before
        })
    }

    /// The instance is to end in any phase; requests that it has are answered when it has ended.
    pub fn stop(&mut self, instance: InstanceId) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.end(instance) {
            actions.push(Action::Stop { instance });
        }
        self.schedule(&mut actions);
        actions
    }

    /// The instance's last process has ended.
    pub fn ended(&mut self, instance: InstanceId) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(known) = self.instances.remove(&instance) else { return actions };
        if let Some(function) = self.functions.get_mut(&known.function) {
            function.ready.retain(|ready| *ready != instance);
            function.fresh.end(instance);
            if known.phase == Phase::Starting
                && !known.retired
                && let Some((request, _)) = function.queue.pop_front()
            {
                actions.push(Action::FailedStart { instance, request });
            }
        }
        actions.extend(known.running.into_iter().map(|request| Action::Lost { instance, request }));
        self.schedule(&mut actions);
        actions
    }

    /// Sets the memory of all instances together from now on.
    pub fn set_memory(&mut self, memory_mib: u64) {
        self.capacity.memory_mib = memory_mib;
    }

    /// From now on an instance ends as soon as it has no work.
    pub fn keep_none(&mut self) {
        self.capacity.keep_alive = Duration::ZERO;
    }

    /// Time has passed: ends instances that were idle for too long, refuses requests that waited for too
    /// long.
    pub fn tick(&mut self, now: Time) -> Vec<Action> {
        self.now = now;
        let mut actions = Vec::new();
        self.serve_queues(&mut actions);
        let keep_alive = self.capacity.keep_alive;
        let old: Vec<InstanceId> = self
            .instances
            .iter()
            .filter(|(_, instance)| instance.idle().is_some_and(|since| since + keep_alive <= now))
            .map(|(id, _)| *id)
            .collect();
        for instance in old {
            self.end(instance);
            actions.push(Action::Stop { instance });
        }
        // `limiting_resource` looks at all functions, so it is called once and not for each of them.
        let has_waiting =
            |(id, function): (&FunctionId, &Function)| (!function.queue.is_empty()).then_some(*id);
        let ids: Vec<FunctionId> = self.functions.iter().filter_map(has_waiting).collect();
        for id in ids {
            let refusal = self.limiting_resource(id);
            let function = self.functions.get_mut(&id).expect("its id was just read");
            while let Some((request, since)) = function.queue.front().copied()
                && since + self.capacity.queue_wait <= now
            {
                function.queue.pop_front();
                actions.push(Action::Refuse { request, refusal });
            }
        }
        self.schedule(&mut actions);
        actions
    }

    /// The sum of `MemorySize` over all instances that have not ended.
    pub fn memory_mib(&self) -> u64 {
        self.instances.values().map(|instance| instance.memory_mib).sum()
    }

    /// No instance is left.
    pub fn is_empty(&self) -> bool {
        self.instances.is_empty()
    }

    /// Marks an instance as ending; false if it is already.
    fn end(&mut self, instance: InstanceId) -> bool {
        let Some(known) = self.instances.get_mut(&instance) else { return false };
        if let Some(function) = self.functions.get_mut(&known.function) {
            function.ready.retain(|ready| *ready != instance);
        }
        let ends = known.counts();
        known.phase = Phase::Stopping;
        ends
    }

    fn retire(&mut self, function: FunctionId) -> Vec<Action> {
        if let Some(function) = self.functions.get_mut(&function) {
            function.ready.clear();
        }
        let mut actions = Vec::new();
        for (id, instance) in self.instances.iter_mut().filter(|(_, instance)| instance.function == function)
        {
            instance.retired = true;
            if instance.phase == Phase::Starting || instance.idle().is_some() {
                instance.phase = Phase::Stopping;
                actions.push(Action::Stop { instance: *id });
            }
        }
        actions
    }
}

fn refuse_all(queue: &mut VecDeque<(RequestId, Time)>, refusal: Refusal, actions: &mut Vec<Action>) {
    actions.extend(queue.drain(..).map(|(request, _)| Action::Refuse { request, refusal }));
}
