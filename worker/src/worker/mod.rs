//! The worker: functions, their pool, and the requests on their way. Carries out what the pool decides.

mod actions;
mod functions;
mod layers;
mod versions;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::{Notify, oneshot};

use crate::count::Count;
use crate::error::ApiError;
use crate::function::{Deployment, Function};
use crate::history::{self, History};
use crate::instance::Instance;
use crate::invocation::{Invocation, Outcome};
use crate::logs::Logs;
use crate::machine::Machine;
use crate::name::Target;
use crate::network::Network;
use crate::ownership::{self, Owned};
use crate::pool::{Action, Capacity, Census, FunctionId, InstanceId, Pool, RequestId, Time};
use crate::runtime_files;
use crate::sampler::Readings;
use crate::sandbox::{Hierarchy, Spawner, worker_is_root};
use crate::sigv4::Credentials;
use crate::store::Stores;
use worker_page::data::Event;

/// How the worker is set up.
#[derive(Debug)]
pub struct Options {
    /// Where the Lambda API listens.
    pub address: SocketAddr,
    /// What the instances may use.
    pub capacity: Capacity,
    /// Requests must be signed with these, if given.
    pub credentials: Option<Credentials>,
    /// What instances are given to save memory.
    pub layers: Layers,
    /// The folder with `awslambdaric`, needed for functions in Python.
    pub python_client: Option<PathBuf>,
    /// `mayfly` itself, which becomes the keeper of each sandbox.
    pub program: PathBuf,
    /// Where unpacked code lies while the worker runs.
    pub cache: PathBuf,
    /// Folders below which callers may name code.
    pub code_folders: Vec<PathBuf>,
    /// Whether functions that say nothing of it reach the outside world.
    pub outside: bool,
    /// Where events that were accepted are kept, so that they survive the worker; otherwise in memory.
    pub state: Option<PathBuf>,
}

/// Mayfly's libraries for instances; what is absent is left out.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// `libmayfly_heap.so`, preloaded.
    pub heap: Option<PathBuf>,
    /// `libmayfly_merge.so`: instances of a function share pages.
    pub merge: Option<PathBuf>,
    /// `libmayfly_rest.so`, which makes use of both while an instance is idle.
    pub rest: Option<PathBuf>,
    /// What an idle instance advises to merge.
    pub advise: Advise,
}

/// What an idle instance advises to merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advise {
    /// All its anonymous memory.
    #[default]
    Whole,
    /// What its heap has placed in the longest lifetime class.
    Class,
}

/// The worker.
pub struct Worker {
    /// How it is set up.
    pub options: Options,
    /// What has happened so far.
    pub count: Count,
    /// What has happened, and how memory has developed.
    pub history: History,
    /// What functions have printed lately.
    pub(crate) logs: Arc<Logs>,
    pub(crate) readings: Readings,
    pub(crate) stores: Stores,
    /// Where instances live, if not as processes of this host.
    pub(crate) machine: OnceLock<Arc<Machine>>,
    /// Goes after the stores.
    store_folder: Folder,
    /// Made with the first instance that reaches the outside world.
    network: tokio::sync::OnceCell<Arc<Network>>,
    pub(crate) cgroups: Arc<Hierarchy>,
    pub(crate) spawner: Spawner,
    folder: Folder,
    began: Instant,
    state: Mutex<State>,
    next_request: AtomicU64,
    /// Told whenever an instance is gone.
    emptier: Notify,
}

struct State {
    pool: Pool,
    functions: BTreeMap<String, Function>,
    deployments: HashMap<FunctionId, Arc<Deployment>>,
    waiting: HashMap<RequestId, Waiting>,
    instances: BTreeMap<InstanceId, Arc<Instance>>,
    published: crate::layers::Layers,
    next_function: FunctionId,
    closing: bool,
}

struct Waiting {
    invocation: Arc<Invocation>,
    arrived: Instant,
    reply: oneshot::Sender<Result<Outcome, ApiError>>,
}

/// Takes a request back if its caller goes away while it still waits for an instance.
struct Withdrawal<'a>(&'a Arc<Worker>, RequestId);

impl Drop for Withdrawal<'_> {
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
        // Stores are users of their own where the worker is root, whose cache is closed to others.
        let stores = Folder::new(if worker_is_root() { Path::new("/run") } else { &options.cache })?;
        let state = State {
            pool: Pool::new(options.capacity.clone()),
            functions: BTreeMap::new(),
            deployments: HashMap::new(),
            waiting: HashMap::new(),
            instances: BTreeMap::new(),
            published: crate::layers::Layers::default(),
            next_function: 1,
            closing: false,
        };
        runtime_files::write(&folder.path)?;
        let spawner = Spawner::new(options.program.clone())?;
        let began = Instant::now();
        let (program, memory_mib) = (options.program.clone(), options.capacity.memory_mib);
        let cgroups = Arc::new(Hierarchy::new()?);
        Ok(Arc::new(Worker {
            stores: Stores::new(program, spawner.clone(), cgroups.clone(), stores.path.clone(), memory_mib),
            store_folder: stores,
            network: tokio::sync::OnceCell::new(),
            cgroups,
            machine: OnceLock::new(),
            spawner,
            options,
            count: Count::default(),
            history: History::new(began),
            logs: Arc::default(),
            readings: Readings::default(),
            folder,
            began,
            state: Mutex::new(state),
            next_request: AtomicU64::new(1),
            emptier: Notify::new(),
        }))
    }

    /// A folder of the worker's own, gone when it is.
    pub fn folder(&self) -> &Path {
        &self.folder.path
    }

    /// The way to the outside world.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) async fn network(&self) -> Result<Arc<Network>> {
        let owner = self.store_folder.path.clone();
        let make =
            || async move { tokio::task::spawn_blocking(move || Network::new(&owner)).await?.map(Arc::new) };
        self.network.get_or_try_init(make).await.cloned()
    }

    /// Since it began.
    pub fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    fn now(&self) -> Time {
        self.began.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- requests ----

    /// Runs a function, waiting for an instance if there is none.
    ///
    /// # Errors
    /// It was not run; the error says why.
    pub async fn invoke(
        self: &Arc<Self>,
        target: &Target,
        invocation: Invocation,
    ) -> Result<Outcome, ApiError> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        {
            let mut state = self.lock();
            let id = state.function(&target.name)?.qualified(target.qualifier.as_deref())?.function;
            if state.closing {
                return Err(ApiError::new(503, "ServiceException", "the worker is being stopped"));
            }
            let waiting = Waiting { invocation: Arc::new(invocation), arrived: Instant::now(), reply };
            state.waiting.insert(request, waiting);
            let now = self.now();
            let actions = state.pool.request(id, request, now);
            self.carry_out(&mut state, actions);
        }
        let _withdrawal = Withdrawal(self, request);
        answer.await.unwrap_or_else(|_| Err(ApiError::service("the request was lost")))
    }

    /// Answers a request that the instance has run, once.
    pub(crate) fn answer(
        &self,
        instance: InstanceId,
        request: RequestId,
        outcome: Result<Outcome, ApiError>,
    ) {
        let waiting = {
            let mut state = self.lock();
            let now = self.now();
            state.pool.answered(instance, now);
            state.waiting.remove(&request)
        };
        if let Some(waiting) = waiting {
            let latency = waiting.arrived.elapsed();
            self.count.answered(&outcome, latency);
            self.history.answered(latency);
            // The caller may have gone away.
            let _ = waiting.reply.send(outcome);
        }
    }

    // ---- instances ----

    pub(crate) fn ready(self: &Arc<Self>, instance: InstanceId) {
        let mut state = self.lock();
        let now = self.now();
        let actions = state.pool.ready(instance, now);
        self.carry_out(&mut state, actions);
    }

    pub(crate) fn end(self: &Arc<Self>, instance: InstanceId) {
        let mut state = self.lock();
        let actions = state.pool.stop(instance);
        self.carry_out(&mut state, actions);
    }

    pub(crate) fn gone(self: &Arc<Self>, instance: InstanceId) {
        let mut state = self.lock();
        let known = state.instances.remove(&instance);
        if let Some(known) = &known {
            self.history.note(Event {
                ms: history::ms(known.age()),
                ..history::of_instance("gone", &known.deployment, instance)
            });
            self.end_store_unless_used(&state, known.deployment.whole);
        }
        let actions = state.pool.gone(instance);
        for action in &actions {
            if let (Action::FailedStart { request, .. }, Some(known)) = (action, &known)
                && let Some(waiting) = state.waiting.remove(request)
            {
                let outcome = known.take_failure();
                self.count.answered(&outcome, waiting.arrived.elapsed());
                let _ = waiting.reply.send(outcome);
            }
        }
        self.carry_out(&mut state, actions);
        drop(state);
        self.emptier.notify_waiters();
    }

    /// Lets time pass; call it a few times a second.
    pub fn tick(self: &Arc<Self>) {
        let mut state = self.lock();
        let now = self.now();
        let actions = state.pool.tick(now);
        self.carry_out(&mut state, actions);
    }

    /// How many instances are in which phase.
    pub fn census(&self) -> Census {
        self.lock().pool.census(None)
    }

    /// How many instances of a function and its versions are in which phase.
    pub fn census_of(&self, function: &Function) -> Census {
        let state = self.lock();
        let each = function.deployments().map(|deployment| state.pool.census(Some(deployment.function)));
        each.fold(Census::default(), Census::and)
    }

    /// What an instance is doing: `starting`, `idle`, `busy` or `stopping`.
    pub fn phase(&self, instance: InstanceId) -> &'static str {
        self.lock().pool.phase(instance)
    }

    /// All instances that are not gone.
    pub fn instances(&self) -> Vec<Arc<Instance>> {
        self.lock().instances.values().cloned().collect()
    }

    /// Whether it takes no new requests any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.lock().closing
    }

    /// Takes no new requests, gives those that run some time, then ends all instances and waits until they are gone.
    pub async fn close(self: &Arc<Self>, grace: Duration) {
        self.lock().closing = true;
        let deadline = Instant::now() + grace;
        while !self.lock().waiting.is_empty() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let names: Vec<String> = self.lock().functions.keys().cloned().collect();
        for name in names {
            let _ = self.delete(&name);
        }
        let left: Vec<InstanceId> = self.lock().instances.keys().copied().collect();
        for instance in left {
            self.end(instance);
        }
        loop {
            let emptier = self.emptier.notified();
            if self.lock().instances.is_empty() {
                return;
            }
            // A limit, should a notification come between the two lines above.
            let _ = tokio::time::timeout(Duration::from_millis(100), emptier).await;
        }
    }
}

impl State {
    fn new_function_id(&mut self) -> FunctionId {
        let id = self.next_function;
        self.next_function += 1;
        id
    }

    fn function(&self, name: &str) -> Result<&Function, ApiError> {
        self.functions.get(name).ok_or_else(|| ApiError::no_such_function(name))
    }
}

const FOLDER_PREFIX: &str = "mayfly-worker-";

/// A folder that is gone when the worker is. Others may pass through, to what is theirs.
struct Folder {
    path: PathBuf,
    _owned: Owned,
}

fn remove_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::remove_dir_all(folder)
}

impl Folder {
    fn new(place: &Path) -> Result<Folder> {
        ownership::remove_left_behind(place, FOLDER_PREFIX, remove_folder);
        let (path, owned) = ownership::make(place, FOLDER_PREFIX)
            .with_context(|| format!("cannot make a folder in {}", place.display()))?;
        let folder = Folder { path, _owned: owned };
        std::fs::set_permissions(&folder.path, std::fs::Permissions::from_mode(0o711))?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}
