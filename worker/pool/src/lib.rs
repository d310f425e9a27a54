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
//! Events come in as method calls with the time; what is to be done comes out as [`Action`]s, in order. So
//! every rule here is tested without a process or a clock. Memory counts from the start of an instance
//! until its last process has ended.

mod counts;
mod interface;
mod room;

pub use counts::Counts;
pub use interface::{Action, Capacity, FunctionId, InstanceId, Refusal, RequestId, Time};

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting,
    Idle(Time),
    Busy(RequestId),
    Finishing(Time),
    Stopping,
}

#[derive(Debug)]
struct Instance {
    function: FunctionId,
    memory_mib: u64,
    phase: Phase,
    /// When it was started.
    since: Time,
    /// Its function has changed or was deleted, or another needs its room: it finishes its request, and
    /// serves no other.
    retired: bool,
}

impl Instance {
    fn counts(&self) -> bool {
        self.phase != Phase::Stopping
    }

    /// Whether it serves, or will serve, requests of its function.
    fn serves(&self) -> bool {
        self.counts() && !self.retired
    }
}

#[derive(Debug)]
struct Function {
    /// The function that it is a version of, or itself: whose reservation counts.
    parent: FunctionId,
    memory_mib: u64,
    reserved: Option<u32>,
    queue: VecDeque<(RequestId, Time)>,
    /// Most recently used last, so that those not needed grow old.
    idle: Vec<InstanceId>,
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
}

impl Pool {
    /// An empty pool.
    pub fn new(capacity: Capacity) -> Pool {
        Pool {
            capacity,
            functions: BTreeMap::new(),
            instances: BTreeMap::new(),
            next_instance: 1,
            now: Time::ZERO,
        }
    }

    /// What the worker may use.
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Adds a function, or changes its memory: then the instances that it has serve no further request.
    pub fn set_function(&mut self, function: FunctionId, memory_mib: u32) -> Vec<Action> {
        match self.functions.get_mut(&function) {
            Some(known) => known.memory_mib = memory_mib.into(),
            None => self.add(function, function, memory_mib),
        }
        let mut actions = self.retire(function);
        self.schedule(&mut actions);
        actions
    }

    /// Adds a version of a function: it has instances of its own, and the function's reservation.
    pub fn add_version(&mut self, version: FunctionId, parent: FunctionId, memory_mib: u32) {
        self.add(version, parent, memory_mib);
    }

    fn add(&mut self, id: FunctionId, parent: FunctionId, memory_mib: u32) {
        let (queue, idle) = (VecDeque::new(), Vec::new());
        let new = Function { parent, memory_mib: memory_mib.into(), reserved: None, queue, idle };
        self.functions.insert(id, new);
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
        let Some(known) = self.functions.get_mut(&function) else { return refused(Refusal::Removed) };
        if let Some(instance) = known.idle.pop() {
            self.dispatch(instance, request, &mut actions);
            return actions;
        }
        if known.queue.len() >= self.capacity.queue {
            return refused(self.limiting_resource(function));
        }
        known.queue.push_back((request, now));
        self.schedule(&mut actions);
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

    /// The instance's request has been answered; it may still be busy with the rest.
    pub fn answered(&mut self, instance: InstanceId, now: Time) {
        if let Some(known) = self.instances.get_mut(&instance)
            && matches!(known.phase, Phase::Busy(_))
        {
            known.phase = Phase::Finishing(now);
        }
    }

    /// The instance asks for work: it has started, or has served its request.
    pub fn ready(&mut self, instance: InstanceId, now: Time) -> Vec<Action> {
        self.now = now;
        let mut actions = Vec::new();
        let Some(known) = self.instances.get_mut(&instance) else { return actions };
        match known.phase {
            Phase::Stopping | Phase::Idle(_) => return actions,
            Phase::Starting | Phase::Busy(_) | Phase::Finishing(_) if known.retired => {
                known.phase = Phase::Stopping;
                actions.push(Action::Stop { instance });
            }
            Phase::Starting | Phase::Busy(_) | Phase::Finishing(_) => {
                let function = self.functions.get_mut(&known.function).expect("removed functions' retire");
                known.phase = Phase::Idle(now);
                match function.queue.pop_front() {
                    Some((request, _)) => self.dispatch(instance, request, &mut actions),
                    None => function.idle.push(instance),
                }
            }
        }
        self.schedule(&mut actions);
        actions
    }

    /// A dispatched request never reached its instance, which is about to end: it waits again, as the
    /// oldest.
    pub fn undelivered(&mut self, instance: InstanceId, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(known) = self.instances.get_mut(&instance) else { return actions };
        let Phase::Busy(request) = known.phase else { return actions };
        known.phase = Phase::Stopping;
        actions.push(Action::Stop { instance });
        let owner = known.function;
        let may_not_run = self.reserved(owner) == Some(0);
        match self.functions.get_mut(&owner) {
            Some(function) => match function.idle.pop() {
                Some(other) => self.dispatch(other, request, &mut actions),
                None if may_not_run => {
                    actions.push(Action::Refuse { request, refusal: Refusal::Reserved });
                }
                None => function.queue.push_front((request, now)),
            },
            None => actions.push(Action::Refuse { request, refusal: Refusal::Removed }),
        }
        self.schedule(&mut actions);
        actions
    }

    /// The instance is to end in any phase; its request, if any, has been answered.
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
        let function = self.functions.get_mut(&known.function);
        match known.phase {
            Phase::Busy(request) => actions.push(Action::Lost { instance, request }),
            Phase::Starting if !known.retired => {
                if let Some((request, _)) = function.and_then(|function| function.queue.pop_front()) {
                    actions.push(Action::FailedStart { instance, request });
                }
            }
            Phase::Idle(_) => {
                if let Some(function) = function {
                    function.idle.retain(|idle| *idle != instance);
                }
            }
            Phase::Starting | Phase::Finishing(_) | Phase::Stopping => {}
        }
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
        let keep_alive = self.capacity.keep_alive;
        let old: Vec<InstanceId> = self
            .instances
            .iter()
            .filter(|(_, instance)| matches!(instance.phase, Phase::Idle(since) if since + keep_alive <= now))
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

    fn dispatch(&mut self, instance: InstanceId, request: RequestId, actions: &mut Vec<Action>) {
        self.instances.get_mut(&instance).expect("idle instances are known").phase = Phase::Busy(request);
        actions.push(Action::Dispatch { instance, request });
    }

    /// Marks an instance as ending; false if it is already.
    fn end(&mut self, instance: InstanceId) -> bool {
        let Some(known) = self.instances.get_mut(&instance) else { return false };
        if let Some(function) = self.functions.get_mut(&known.function) {
            function.idle.retain(|idle| *idle != instance);
        }
        let ends = known.counts();
        known.phase = Phase::Stopping;
        ends
    }

    fn retire(&mut self, function: FunctionId) -> Vec<Action> {
        if let Some(function) = self.functions.get_mut(&function) {
            function.idle.clear();
        }
        let mut actions = Vec::new();
        for (id, instance) in self.instances.iter_mut().filter(|(_, instance)| instance.function == function)
        {
            instance.retired = true;
            if matches!(instance.phase, Phase::Idle(_) | Phase::Starting) {
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
