//! One instance: its state, and the requests that it serves. [`life`] starts and ends it, [`idle`] freezes
//! it, [`extensions`] receive its events.

mod extension_api;
mod extensions;
mod idle;
mod idle_work;
mod life;
mod metadata_api;
mod reports;
mod requests;
pub(crate) mod runtime_api;
mod shutdown;
mod state;
mod telemetry;
mod timers;

pub(crate) use extensions::{ExtensionId, Refused, Wishes};
pub(crate) use telemetry::{Subscription, SubscriptionError};

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use vm::protocol::PartitionNumber;
use worker_page::data::Event;

use crate::base::error::ApiError;
use crate::base::process_memory::Memory;
use crate::base::time::now_ms;
use crate::function::definition::Deployment;
use crate::invocation::counters::Count;
use crate::invocation::id::InvocationId;
use crate::invocation::logs::{Logs, Stream};
use crate::invocation::output::Output;
use crate::invocation::platform::{PlatformEvent, Status};
use crate::invocation::request::{Invocation, Outcome};
use crate::sandbox::history::{self, History};
use crate::sandbox::interface::{Handler, Maker, Order, Sandbox};
use requests::{Stage, Work};
use state::State;
use timers::Timers;
use worker_container::steps::now_ns;
use worker_pool::{InstanceId, RequestId};
use worker_system::lock::lock;

/// Hands out work to instances, and receives their results: the worker.
pub(crate) trait Scheduler: Send + Sync {
    /// It waits for work.
    fn ready(self: Arc<Self>, instance: InstanceId);
    /// It has run this request.
    fn answer(self: Arc<Self>, instance: InstanceId, request: RequestId, outcome: Result<Outcome, ApiError>);
    /// It is to be given no further request, and to end once it has none.
    fn drain(self: Arc<Self>, instance: InstanceId);
    /// It was restored, and serves in place of those of its deployment that were started: these are drained.
    fn replace_started(self: Arc<Self>, instance: InstanceId);
    /// It can be used no more.
    fn end(self: Arc<Self>, instance: InstanceId);
    /// Nothing of it is left.
    fn ended(self: Arc<Self>, instance: InstanceId);
}

/// Shared by all instances of a worker.
pub(crate) struct InstanceContext {
    pub maker: Arc<dyn Maker>,
    pub count: Arc<Count>,
    pub history: Arc<History>,
    pub logs: Arc<Logs>,
    /// The availability zone that instances are in, by its id.
    pub zone: String,
    /// What answers calls of Lambda's API that functions make.
    pub calls: OnceLock<Handler>,
}

/// An instance of a function.
pub struct Instance {
    /// Its number.
    pub id: InstanceId,
    /// What it was started with.
    pub deployment: Arc<Deployment>,
    /// With it, programs inside may ask for metadata.
    metadata_token: Arc<str>,
    scheduler: Arc<dyn Scheduler>,
    context: Arc<InstanceContext>,
    started: Instant,
    started_ns: u64,
    state: Mutex<State>,
    timers: Timers,
    started_in: OnceLock<Duration>,
    output: OnceLock<Output>,
    sandbox: OnceLock<Arc<dyn Sandbox>>,
    answering_ends: Notify,
    telemetry: telemetry::Telemetry,
    /// Notified when it may be time to freeze or thaw it earlier than planned.
    idle_changes: Notify,
    stop: Notify,
}

/// A request of the runtime that does not fit what it is doing.
#[derive(Debug, PartialEq, Eq)]
pub enum Misuse {
    /// It asked or answered out of turn.
    State,
    /// It answered a request that it does not have.
    RequestId,
    /// It answered a request whose answer is being received already.
    Answering,
    /// It answered a request that took longer than the function's `Timeout`.
    Overdue,
}

impl Instance {
    /// An instance that is about to start.
    pub(crate) fn new(
        id: InstanceId,
        deployment: Arc<Deployment>,
        scheduler: Arc<dyn Scheduler>,
        context: Arc<InstanceContext>,
    ) -> Instance {
        let state = Mutex::new(State::new(deployment.settings.at_once()));
        let timers = Timers::new(Duration::from_secs(deployment.settings.timeout_s.into()));
        Instance {
            id,
            deployment,
            metadata_token: uuid::Uuid::new_v4().to_string().into(),
            scheduler,
            context,
            started: Instant::now(),
            started_ns: now_ns(),
            state,
            timers,
            started_in: OnceLock::new(),
            output: OnceLock::new(),
            sandbox: OnceLock::new(),
            answering_ends: Notify::new(),
            telemetry: telemetry::Telemetry::default(),
            idle_changes: Notify::new(),
            stop: Notify::new(),
        }
    }

    /// The memory it uses now.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.sandbox.get()?.counted_bytes()
    }

    /// The most memory that it has used.
    pub fn peak_bytes(&self) -> Option<u64> {
        self.sandbox.get()?.peak_bytes()
    }

    /// Bytes of live objects in its heap and of the blocks that they are in, at its last idle work.
    pub fn heap_bytes(&self) -> (u64, u64) {
        self.state().heap
    }

    /// Its memory: private, shared, of files. Reads page tables, which takes milliseconds.
    pub fn memory(&self) -> Memory {
        self.sandbox.get().map(|sandbox| sandbox.memory()).unwrap_or_default()
    }

    /// Its log stream.
    pub(crate) fn log(&self) -> Stream {
        self.context.logs.stream(&self.deployment.log_group(), &self.deployment.log_stream(self.id))
    }

    /// Since its start.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// How long it took to start, once it has.
    pub fn start_time(&self) -> Option<Duration> {
        self.started_in.get().copied()
    }

    /// Whether it has one request at a time.
    fn is_alone(&self) -> bool {
        self.deployment.settings.at_once() == 1
    }

    /// Asks it to end.
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    /// The runtime asks for work (`GET /invocation/next`): where the work will come from. It may name
    /// after how long without any it wants to do idle work, and to do it again, and its process that asks.
    pub(crate) fn next(
        &self,
        idle_work_after: &[Duration],
        process: Option<u32>,
    ) -> Result<oneshot::Receiver<Arc<Invocation>>, Misuse> {
        let (receiver, is_first) = {
            let mut state = self.state();
            let now = Instant::now();
            let idle_work = idle_work_after.iter().map(|after| now + *after).collect();
            let asked = state.requests.ask(idle_work, process)?;
            if asked.is_again {
                return Ok(asked.receiver);
            }
            if asked.is_first {
                let init = self.started.elapsed();
                state.init = Some(init);
                let _ = self.started_in.set(init);
                let restored = self.was_restored();
                self.context.count.started(init, restored);
                let kind = if restored { "restored" } else { "ready" };
                let steps = self.steps_until_now();
                tracing::debug!("{}: {kind} in {:.1} ms: {steps:?}", self.label(), init.as_secs_f64() * 1e3);
                self.note(Event { ms: history::ms(init), steps, ..self.event(kind) });
            }
            state.extensions.runtime_waits(asked.timer);
            (asked.receiver, asked.is_first)
        };
        if is_first {
            self.publish(|| PlatformEvent::init_runtime_done(&Status::Success));
        }
        self.ready_if_all_wait();
        Ok(receiver)
    }

    /// The steps of its start, and the milliseconds that each took.
    fn steps_until_now(&self) -> Vec<(String, f64)> {
        let mut steps = self.sandbox.get().map(|sandbox| sandbox.steps()).unwrap_or_default();
        steps.done("asks for work");
        steps.since(self.started_ns)
    }

    /// Sends it a request. False if the runtime cannot have received it.
    pub(crate) fn dispatch(&self, request: RequestId, invocation: Arc<Invocation>) -> bool {
        debug_assert_eq!(self.deployment.tenant.as_deref(), invocation.tenant.as_deref(), "one for life");
        let work = |invocation| {
            let timer = self.timers.begin(request);
            Work { request, invocation, since: Instant::now(), timer, answering: false, process: None }
        };
        self.state().requests.give(invocation, work)
    }

    /// The runtime is about to receive the invocation: it runs again, and its log begins.
    pub(crate) fn begin(&self, invocation: &Invocation) {
        self.works();
        self.send_invocation(invocation);
        if let Some(output) = self.output.get() {
            output.catch_up(self.is_alone());
            if self.is_alone() {
                output.begin();
            }
        }
        self.say_start(invocation);
    }

    /// The runtime is about to send the answer to this request. The worker reads its body only once this
    /// has succeeded, and only one answer's.
    pub(crate) fn begin_answer(&self, id: InvocationId) -> Result<(), Misuse> {
        let mut state = self.state();
        let work = state.requests.of(id)?;
        match std::mem::replace(&mut work.answering, true) {
            false => Ok(()),
            true => Err(Misuse::Answering),
        }
    }

    /// The answer did not come: the runtime may try again.
    pub(crate) fn abandon_answer(&self, id: InvocationId) {
        if let Ok(work) = self.state().requests.of(id) {
            work.answering = false;
        }
        self.answering_ends.notify_waiters();
    }

    /// The runtime is done with a request that took too long.
    pub(crate) fn finish_overdue(&self, id: InvocationId) {
        let was_overdue = self.state().requests.finish_overdue(id);
        if was_overdue {
            tracing::debug!("{}: {id} is answered after its time", self.label());
        }
    }

    /// Why an answer is refused that names no request of it.
    pub(crate) fn no_such_request(&self) -> Misuse {
        self.state().requests.no_such()
    }

    /// Notified whenever an answer has been received, or did not come.
    pub(crate) fn answering_ends(&self) -> &Notify {
        &self.answering_ends
    }

    /// Whether it may still report why it cannot start.
    pub(crate) fn is_starting(&self) -> bool {
        self.state().requests.stage == Stage::Init
    }

    /// The runtime has answered (`POST /invocation/ID/response` or `/error`).
    pub(crate) fn answer(&self, id: InvocationId, payload: Bytes, failed: bool) -> Result<(), Misuse> {
        self.finish(id, Outcome::answered(payload, failed))
    }

    /// The invocation that it has, if it is this one.
    pub(crate) fn invocation(&self, id: InvocationId) -> Option<Arc<Invocation>> {
        self.state().requests.of(id).ok().map(|work| work.invocation.clone())
    }

    /// The request's result.
    pub(crate) fn finish(&self, id: InvocationId, outcome: Outcome) -> Result<(), Misuse> {
        let work = self.state().requests.finish(id)?;
        self.report(work, outcome);
        Ok(())
    }

    /// The runtime reports why it cannot start (`POST /init/error`).
    pub(crate) fn init_failed(&self, payload: Bytes) -> Result<(), Misuse> {
        let mut state = self.state();
        if state.requests.stage != Stage::Init {
            return Err(Misuse::State);
        }
        state.failure = Some(Ok(Outcome::answered(payload, true)));
        Ok(())
    }

    pub(crate) fn event(&self, kind: &str) -> Event {
        history::of_instance(kind, &self.deployment, self.id)
    }

    pub(crate) fn note(&self, event: Event) {
        self.context.history.note(event);
    }

    /// Its identity, for sandbox makers.
    fn order(&self) -> Order {
        let metadata_token = self.metadata_token.clone();
        Order { id: self.id, deployment: self.deployment.clone(), metadata_token, snap_start: false }
    }

    pub(crate) fn label(&self) -> String {
        self.order().label()
    }

    /// The partition of the VM that it lives in, once it does.
    pub fn partition(&self) -> Option<PartitionNumber> {
        self.sandbox.get()?.partition()
    }

    /// Now plus the function's timeout, in milliseconds since 1970 (`Lambda-Runtime-Deadline-Ms`).
    pub(crate) fn deadline_ms(&self) -> u64 {
        now_ms() + u64::from(self.deployment.settings.timeout_s) * 1000
    }
}
