//! Carries out what the pool decides: starts and ends instances, hands out requests, answers those that are not run.

use std::sync::Arc;

use super::{State, Worker};
use worker_page::data::Event;

use crate::error::ApiError;
use crate::history;
use crate::instance::Instance;
use crate::invocation::Invocation;
use crate::pool::{Action, Refusal};

impl Worker {
    pub(super) fn carry_out(self: &Arc<Self>, state: &mut State, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Start { instance, function } => {
                    let Some(deployment) = state.deployments.get(&function) else { continue };
                    let started = Arc::new(Instance::new(instance, deployment.clone(), self.clone()));
                    self.history.note(history::of_instance("start", deployment, instance));
                    state.instances.insert(instance, started.clone());
                    tokio::spawn(started.live());
                }
                Action::Dispatch { instance, request } => {
                    let invocation = state.waiting.get(&request).map(|waiting| waiting.invocation.clone());
                    let known = state.instances.get(&instance).cloned();
                    if let (Some(invocation), Some(known)) = (invocation, known)
                        && !known.dispatch(request, invocation)
                    {
                        // It never reached the function, so another instance may have it.
                        let now = self.now();
                        let actions = state.pool.undelivered(instance, now);
                        self.carry_out(state, actions);
                    }
                }
                Action::Refuse { request, refusal } => {
                    if let Some(waiting) = state.waiting.remove(&request) {
                        let error = refusal_error(refusal, &waiting.invocation);
                        self.history.note(Event {
                            function: waiting.invocation.arn.rsplit(':').next().map(str::to_string),
                            reason: Some(error.reason.unwrap_or(error.name).to_string()),
                            ..history::event("refuse")
                        });
                        let refused = Err(error);
                        self.count.answered(&refused, waiting.arrived.elapsed());
                        let _ = waiting.reply.send(refused);
                    }
                }
                Action::Lost { request, .. } => {
                    // Answered already if the runtime ended by itself; otherwise its sandbox failed.
                    if let Some(waiting) = state.waiting.remove(&request) {
                        let lost = Err(ApiError::service("the instance ended while it ran the request"));
                        self.count.answered(&lost, waiting.arrived.elapsed());
                        let _ = waiting.reply.send(lost);
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

fn refusal_error(refusal: Refusal, invocation: &Invocation) -> ApiError {
    match refusal {
        Refusal::Reserved => {
            ApiError::throttled("ReservedFunctionConcurrentInvocationLimitExceeded", "Rate Exceeded.")
        }
        Refusal::Capacity => ApiError::throttled("ConcurrentInvocationLimitExceeded", "Rate Exceeded."),
        Refusal::Removed => ApiError::not_found(format!("Function not found: {}", invocation.arn)),
    }
}
