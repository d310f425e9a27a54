//! The worker: functions, their pool, and requests in flight. Carries out the pool's decisions.

mod actions;
mod ending;
mod functions;
mod http_apis;
mod layers;
mod mappings;
pub(crate) mod memory_readings;
mod persistence;
mod processors;
pub(crate) mod sampler;
mod tenants;
mod versions;

pub(crate) use ending::stopping;
pub(crate) use persistence::Changed;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::{Notify, RwLock, oneshot, watch};

use crate::base::error::ApiError;
use crate::base::name::{self, Target};
use crate::code::Images;
use crate::code::runtime_files;
use crate::control::memory_readings::Readings;
use crate::control::processors::Processors;
use crate::function::definition::{Deployment, Function};
use crate::function::failed::Failed;
use crate::function::http_api::HttpApi;
use crate::function::queue_source::Mappings;
use crate::function::worker_options::Options;
use crate::instance::{Instance, InstanceContext};
use crate::invocation::counters::Count;
use crate::invocation::logs::Logs;
use crate::invocation::request::{Invocation, Outcome};
use crate::invocation::traces::{Span, Traces};
use crate::sandbox::history::History;
use crate::sandbox::interface::{Handler, Maker};
use crate::state::function_store::FunctionStore;
use crate::state::handover::{Accepting, HandedOver};
use worker_pool::{Capacity, Counts, FunctionId, InstanceId, Pool, RequestId, Time};
use worker_system::lock::lock;
use worker_system::owned_folder::Folder;

/// The worker.
pub struct Worker {
    /// Its options.
    pub options: Arc<Options>,
    /// Counters since it began.
    pub count: Arc<Count>,
    /// Events, and samples of memory.
    pub history: Arc<History>,
    /// The latest output of functions.
    pub(crate) logs: Arc<Logs>,
    pub(crate) readings: Readings,
    /// What instances are made with; set once, before the first.
    context: OnceLock<Arc<InstanceContext>>,
    /// Images of callers that are unpacked.
    images: Images,
    /// The store of functions and layers made by callers; set once no other worker uses it.
    function_store: OnceLock<FunctionStore>,
    traces: Option<Traces>,
    folder: Folder,
    began: Instant,
    state: Mutex<State>,
    next_request: AtomicU64,
    /// The template's HTTP APIs, by their ids in small letters.
    http_apis: Mutex<BTreeMap<String, Arc<HttpApi>>>,
    /// The queues that functions are called from.
    mappings: watch::Sender<Mappings>,
    /// Notified whenever an instance has been removed.
    instance_removed: Notify,
    /// The successor it has handed over to. A call that changes persistent state holds the read lock until
    /// the change is persisted.
    pub(crate) handed_over: RwLock<Option<HandedOver>>,
    /// Whether it accepts connections.
    pub(crate) accepting: watch::Sender<Accepting>,
    /// Whether it will end soon, and proxies are to send requests elsewhere.
    draining: AtomicBool,
}

struct State {
    pool: Pool,
    functions: BTreeMap<String, Function>,
    /// Functions of the template that cannot be served.
    failed: BTreeMap<String, Failed>,
    deployments: HashMap<FunctionId, Arc<Deployment>>,
    tenants: tenants::Tenants,
    waiting: HashMap<RequestId, Waiting>,
    instances: BTreeMap<InstanceId, Arc<Instance>>,
    published: crate::code::lambda_layers::Layers,
    next_function: FunctionId,
    releasing: actions::Releasing,
    processors: Processors,
    closing: bool,
}

struct Waiting {
    invocation: Arc<Invocation>,
    arrived: Instant,
    span: Option<Span>,
    /// Its function's.
    own: Arc<Count>,
    reply: oneshot::Sender<Result<Outcome, ApiError>>,
}

impl Waiting {
    /// Sends the outcome to the caller, which may have disconnected, and counts it. Returns how long it took.
    fn answer(self, outcome: Result<Outcome, ApiError>, count: &Count) -> Duration {
        let latency = self.arrived.elapsed();
        count.answered(&outcome, latency);
        self.own.answered(&outcome, latency);
        if let Some(span) = self.span {
            span.end(&outcome);
        }
        let _ = self.reply.send(outcome);
        latency
    }
}

/// Cancels a request if its caller disconnects while it still waits for an instance.
struct CancelOnDrop<'a>(&'a Arc<Worker>, RequestId);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if state.pool.withdraw(self.1) {
            state.waiting.remove(&self.1);
        }
    }
}

impl Worker {
    /// A worker without functions.
    ///
    /// # Errors
    /// No cgroup or folder can be made.
    pub fn new(options: Options) -> Result<Arc<Worker>> {
        std::fs::create_dir_all(&options.cache)
            .with_context(|| format!("cannot make {}", options.cache.display()))?;
        let folder = Folder::new(&options.cache)?;
        let state = State {
            pool: Pool::new(options.capacity.clone()),
            functions: BTreeMap::new(),
            failed: BTreeMap::new(),
            deployments: HashMap::new(),
            tenants: tenants::Tenants::default(),
            waiting: HashMap::new(),
            instances: BTreeMap::new(),
            published: crate::code::lambda_layers::Layers::default(),
            next_function: FunctionId(1),
            releasing: actions::Releasing::default(),
            processors: Processors::new(options.capacity.processors),
            closing: false,
        };
        runtime_files::write(folder.path())?;
        let began = Instant::now();
        Ok(Arc::new(Worker {
            options: Arc::new(options),
            count: Arc::default(),
            history: Arc::new(History::new(began)),
            logs: Arc::default(),
            readings: Readings::default(),
            context: OnceLock::new(),
            images: Images::default(),
            function_store: OnceLock::new(),
            traces: Traces::of_this_process()?,
            folder,
            began,
            state: Mutex::new(state),
            next_request: AtomicU64::new(1),
            http_apis: Mutex::default(),
            mappings: watch::Sender::default(),
            instance_removed: Notify::new(),
            handed_over: RwLock::default(),
            accepting: watch::Sender::default(),
            draining: AtomicBool::new(false),
        }))
    }

    /// Sets what instances are made with, once, before the first.
    pub(crate) fn make_with(&self, maker: Arc<dyn Maker>) {
        let (count, history, logs) = (self.count.clone(), self.history.clone(), self.logs.clone());
        let zone = name::zone_of(&self.options.account.region);
        let calls = OnceLock::new();
        let context = Arc::new(InstanceContext { maker, count, history, logs, zone, calls });
        assert!(self.context.set(context).is_ok(), "instances are made by one maker");
    }

    /// Sets what answers calls of Lambda's API that functions make, once.
    pub(crate) fn answer_functions(&self, calls: Handler) {
        assert!(self.context().calls.set(calls).is_ok(), "one API answers functions");
    }

    fn context(&self) -> &Arc<InstanceContext> {
        self.context.get().expect("the maker is set before the first function")
    }

    /// What instances are made with.
    pub(crate) fn maker(&self) -> &dyn Maker {
        &*self.context().maker
    }

    /// A folder of the worker's own, which is removed when it ends.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Since it began.
    pub fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    fn now(&self) -> Time {
        self.began.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    // ---- requests ----

    /// Runs a function, waiting for an instance if there is none.
    ///
    /// # Errors
    /// It was not run, and why.
    pub async fn invoke(
        self: &Arc<Self>,
        target: &Target,
        mut invocation: Invocation,
    ) -> Result<Outcome, ApiError> {
        let request = RequestId(self.next_request.fetch_add(1, Ordering::Relaxed));
        let (reply, answer) = oneshot::channel();
        {
            let mut state = self.lock();
            let function = state.function(&target.name)?;
            let deployment = function.qualified(target.qualifier.as_deref())?.clone();
            let own = function.count.clone();
            if state.closing {
                return Err(stopping());
            }
            let id = state.served_as(&deployment, invocation.tenant.as_deref())?;
            let span = self.traces.as_ref().map(|traces| traces.begin(target, &mut invocation));
            invocation.name_parent();
            let (invocation, arrived) = (Arc::new(invocation), Instant::now());
            let waiting = Waiting { invocation, arrived, span, own, reply };
            state.waiting.insert(request, waiting);
            let now = self.now();
            let actions = state.pool.request(id, request, now);
            self.carry_out(&mut state, actions);
        }
        let _cancel = CancelOnDrop(self, request);
        answer.await.unwrap_or_else(|_| Err(ApiError::service("the request was lost")))
    }

    /// Advances the pool's clock; call it a few times a second.
    pub fn tick(self: &Arc<Self>) {
        let mut state = self.lock();
        let now = self.now();
        let saturated = state.processors.are_saturated();
        state.pool.set_saturated(saturated);
        let actions = state.pool.tick(now);
        self.carry_out(&mut state, actions);
        self.forget_unused_tenants(&mut state);
        let counts = state.pool.counts(None);
        let is_idle = counts.starting == 0 && counts.queued == 0 && !state.closing;
        drop(state);
        if is_idle {
            self.context().maker.clone().idle();
        }
    }

    /// What the instances may use.
    pub fn capacity(&self) -> Capacity {
        self.lock().pool.capacity().clone()
    }

    /// Sets how much memory all instances together may have.
    pub(crate) fn set_memory(&self, memory_mib: u64) {
        self.lock().pool.set_memory(memory_mib);
    }

    /// How many instances are in which phase.
    pub fn counts(&self) -> Counts {
        self.lock().pool.counts(None)
    }

    /// How many instances of a function and its versions are in which phase.
    pub fn counts_of(&self, function: &Function) -> Counts {
        let state = self.lock();
        let own = function.deployments().map(|deployment| deployment.function);
        let all = own.flat_map(|id| std::iter::once(id).chain(state.tenants.of(id)));
        all.map(|id| state.pool.counts(Some(id))).fold(Counts::default(), Counts::and)
    }

    /// An instance's phase: `starting`, `idle`, `busy` or `stopping`.
    pub fn phase(&self, instance: InstanceId) -> &'static str {
        self.lock().pool.phase(instance)
    }

    /// All instances that have not ended.
    pub fn instances(&self) -> Vec<Arc<Instance>> {
        self.lock().instances.values().cloned().collect()
    }

    /// Sends the remaining traces. Blocks; not to be called on a thread of the runtime's.
    pub(crate) fn close_traces(&self) {
        if let Some(traces) = &self.traces {
            traces.close();
        }
    }

    /// From now on each instance ends as soon as it has no work.
    pub(crate) fn retire(&self) {
        self.lock().pool.keep_none();
    }
}

impl State {
    fn new_function_id(&mut self) -> FunctionId {
        let id = self.next_function;
        self.next_function.0 += 1;
        id
    }

    fn function(&self, name: &str) -> Result<&Function, ApiError> {
        self.functions.get(name).ok_or_else(|| match self.failed.get(name) {
            Some(failed) => failed.refusal(),
            // It may be one that is removed as the worker ends.
            None if self.closing => stopping(),
            None => name::no_such_function(name),
        })
    }
}

#[cfg(test)]
impl Worker {
    /// One whose files all lie in this folder. It has a function `f`, of which no instance ever starts.
    pub(crate) fn of_tests(folder: &Path) -> Arc<Worker> {
        let worker = Worker::new(Options::of_tests(folder)).unwrap();
        worker.make_with(Arc::new(crate::sandbox::interface::Never));
        let wanted = serde_json::from_str(r#"{"Runtime": "provided.al2023", "Handler": "h"}"#).unwrap();
        let settings = crate::function::settings::Settings::new(&wanted).unwrap();
        let code = crate::code::Code::from_folder(worker.folder()).unwrap();
        worker.create("f", settings, code, crate::code::lambda_layers::OptMount::default()).unwrap();
        worker
    }
}
