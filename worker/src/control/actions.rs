//! Reports to the pool what happens to instances, and carries out its decisions: starts and ends instances,
//! hands out requests, answers those that are not run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{State, Worker, stopping};
use worker_page::data::Event;

use crate::base::error::ApiError;
use crate::base::name;
use crate::function::definition::Deployment;
use crate::instance::{Instance, Scheduler};
use crate::invocation::request::{Invocation, Outcome};
use crate::sandbox::history;
use worker_pool::{Action, InstanceId, Refusal, RequestId};

/// Whether a task looks at requests that wait for busy instances.
#[derive(Default)]
pub(super) struct Releasing(bool);

impl Worker {
    /// Has the pool look every millisecond at requests that wait for busy instances, as long as there are
    /// any.
    async fn release(self: Arc<Self>) {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut state = self.lock();
            let now = self.now();
            let actions = state.pool.release(now);
            self.carry_out(&mut state, actions);
            state.releasing.0 = state.pool.holds_requests();
            if !state.releasing.0 {
                return;
            }
        }
    }

    pub(super) fn carry_out(self: &Arc<Self>, state: &mut State, actions: Vec<Action>) {
        if actions.is_empty() && !state.releasing.0 && state.pool.holds_requests() {
            state.releasing.0 = true;
            tokio::spawn(self.clone().release());
        }
        for action in actions {
            match action {
                Action::Start { instance, function } => {
                    let Some(deployment) = state.deployment(function) else { continue };
                    let started = Arc::new(Instance::new(
                        instance,
                        deployment.clone(),
                        self.clone(),
                        self.context().clone(),
                    ));
                    self.history.note(history::of_instance("start", &deployment, instance));
                    state.instances.insert(instance, started.clone());
                    tokio::spawn(started.live());
                }
                Action::Dispatch { instance, request } => {
                    let waiting = state.waiting.get_mut(&request);
                    let known = state.instances.get(&instance).cloned();
                    if let (Some(waiting), Some(known)) = (waiting, known) {
                        if known.dispatch(request, waiting.invocation.clone()) {
                            let cold = known.age() < waiting.arrived.elapsed();
                            waiting.span.iter_mut().for_each(|span| span.handed_to(instance, cold));
                            continue;
                        }
                        // It never reached the function, so another instance may have it.
                        let now = self.now();
                        let actions = state.pool.undelivered(instance, request, now);
                        self.carry_out(state, actions);
                    }
                }
                Action::Refuse { request, refusal } => {
                    if let Some(waiting) = state.waiting.remove(&request) {
                        let error = refusal_error(refusal, &waiting.invocation, state);
                        self.history.note(Event {
                            function: name::parse(&waiting.invocation.arn).ok().map(|target| target.name),
                            reason: Some(error.kind.reason().to_string()),
                            ..history::event("refuse")
                        });
                        waiting.answer(Err(error), &self.count);
                    }
                }
                Action::Lost { request, .. } => {
                    // Answered already if the runtime ended by itself; otherwise its sandbox failed.
                    if let Some(waiting) = state.waiting.remove(&request) {
                        let lost = ApiError::service("the instance ended while it ran the request");
                        waiting.answer(Err(lost), &self.count);
                    }
                }
                Action::Stop { instance } => {
                    if let Some(known) = state.instances.get(&instance) {
                        self.history.note(history::of_instance("stop", &known.deployment, instance));
                        known.stop();
                    }
                }
                Action::FailedStart { .. } => {}
            }
        }
    }
}

impl Scheduler for Worker {
    fn answer(self: Arc<Self>, instance: InstanceId, request: RequestId, outcome: Result<Outcome, ApiError>) {
        let waiting = {
            let mut state = self.lock();
            let now = self.now();
            let waiting = state.waiting.remove(&request);
            let actions = state.pool.answered(instance, request, now);
            self.carry_out(&mut state, actions);
            waiting
        };
        if let Some(waiting) = waiting {
            self.history.answered(waiting.answer(outcome, &self.count));
        }
    }

    fn ready(self: Arc<Self>, instance: InstanceId) {
        let mut state = self.lock();
        let now = self.now();
        let actions = state.pool.ready(instance, now);
        self.carry_out(&mut state, actions);
    }

    fn drain(self: Arc<Self>, instance: InstanceId) {
        let mut state = self.lock();
        let actions = state.pool.drain(instance);
        self.carry_out(&mut state, actions);
    }

    fn replace_started(self: Arc<Self>, instance: InstanceId) {
        let mut state = self.lock();
        let Some(restored) = state.instances.get(&instance).map(|it| it.deployment.clone()) else { return };
        let is_replaced = |other: &Arc<Instance>| {
            let Deployment { function, revision, .. } = &*other.deployment;
            (function, revision) == (&restored.function, &restored.revision) && !other.was_restored()
        };
        let replaced = state.instances.iter().filter(|(_, other)| is_replaced(other)).map(|(id, _)| *id);
        for other in replaced.collect::<Vec<_>>() {
            let actions = state.pool.drain(other);
            self.carry_out(&mut state, actions);
        }
    }

    fn end(self: Arc<Self>, instance: InstanceId) {
        let mut state = self.lock();
        let actions = state.pool.stop(instance);
        self.carry_out(&mut state, actions);
    }

    fn ended(self: Arc<Self>, instance: InstanceId) {
        let mut state = self.lock();
        let known = state.instances.remove(&instance);
        if let Some(known) = &known {
            self.history.note(Event {
                ms: history::ms(known.age()),
                ..history::of_instance("gone", &known.deployment, instance)
            });
            self.end_store_unless_used(&state, known.deployment.store());
        }
        let actions = state.pool.ended(instance);
        for action in &actions {
            if let (Action::FailedStart { request, .. }, Some(known)) = (action, &known)
                && let Some(waiting) = state.waiting.remove(request)
            {
                let failure = known.take_failure(&waiting.invocation);
                waiting.answer(failure, &self.count);
            }
        }
        self.carry_out(&mut state, actions);
        drop(state);
        self.instance_removed.notify_waiters();
    }
}

/// Names the limiting resource, and the option that raises it.
fn refusal_error(refusal: Refusal, invocation: &Invocation, state: &State) -> ApiError {
    let limited = |text: String| ApiError::throttled("ConcurrentInvocationLimitExceeded", text);
    let capacity = state.pool.capacity();
    match refusal {
        Refusal::Reserved => ApiError::throttled(
            "ReservedFunctionConcurrentInvocationLimitExceeded",
            "Rate Exceeded: the function has all the concurrency that is reserved for it",
        ),
        Refusal::Concurrency => limited(format!(
            "Rate Exceeded: {} instances may run at once (--concurrency), less what other functions have reserved",
            capacity.concurrency
        )),
        Refusal::Memory => limited(format!(
            "Rate Exceeded: instances hold {} of {} MiB (--memory){}, and none became free in time",
            state.pool.memory_mib(),
            capacity.memory_mib,
            most_of_it(state)
        )),
        Refusal::Starting => limited(format!(
            "Rate Exceeded: instances did not start in time, {} start at once (--burst)",
            capacity.starting
        )),
        Refusal::Queue => limited(format!(
            "Rate Exceeded: {} requests of the function wait already (--queue), and {} instances start at once (--burst)",
            capacity.queue, capacity.starting
        )),
        Refusal::Removed if state.closing => stopping(),
        Refusal::Removed => ApiError::not_found(format!("Function not found: {}", invocation.arn)),
    }
}

/// The function that holds most of the memory, as part of a sentence.
fn most_of_it(state: &State) -> String {
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    for instance in state.instances.values() {
        let deployment = &instance.deployment;
        *held.entry(&deployment.name).or_default() += u64::from(deployment.settings.memory_mib);
    }
    let most = held.into_iter().max_by_key(|(_, mib)| *mib);
    most.map_or_else(String::new, |(name, mib)| format!(", {name} {mib} of them"))
}
