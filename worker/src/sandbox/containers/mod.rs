//! Starts instances as containers: a cgroup, the page store's socket, a network if wanted, the processes.

mod preparing;
mod ready;
mod restored;
mod taking;

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once};

use anyhow::Result;
use ready::{Prepared, Ready};
use tokio::sync::watch;
use worker_page::data;

use crate::base::limits;
use crate::code::runtime::Runtime;
use crate::function::definition::Deployment;
use crate::function::worker_options::Options;
use crate::http::heads::LongHeads;
use crate::sandbox::container::Instance;
use crate::sandbox::environment::{self, ProgramSpec, Sharing};
use crate::sandbox::interface::{BoxFuture, Kind, Maker, Order, Overall, SPARE, Sandbox, SnapshotState};
use crate::sandbox::line::Line;
use crate::sandbox::network::{self, Outside};
use crate::sandbox::reach;
use crate::sandbox::restoring;
use crate::sandbox::saved_snapshots::SavedSnapshots;
use crate::sandbox::snapshots::{self, Snapshots};
use worker_container::cgroup::{Hierarchy, Limits};
use worker_container::disk::Disks;
use worker_container::page_store::{Endpoint, PageStores};
use worker_container::rights::{run_folder, worker_is_root};
use worker_container::spawn::{Container, Empty, Network, Spawner};
use worker_container::steps::Steps;
use worker_container::{Beginning, Spec};
use worker_pool::FunctionId;
use worker_snapshot::Snapshot;
use worker_system::owned_folder::Folder;

/// Programs of the host that belong to no package.
const LOCAL: &str = "/usr/local";
/// Python packages of the host, which a function shall not depend on.
const HOST_PACKAGES: &str = "dist-packages";

/// Makes instances that are processes of this host.
pub(crate) struct Containers {
    options: Arc<Options>,
    /// The worker's own.
    folder: PathBuf,
    /// The same, for files that instances map: they see no path of the worker's there.
    disk_folder: Option<Arc<OwnedFd>>,
    stores: Arc<PageStores>,
    /// Removed after the stores.
    _store_folder: Folder,
    outside: Outside,
    cgroups: Arc<Hierarchy>,
    spawner: Spawner,
    /// None if the worker is not root.
    disks: Option<Arc<Disks>>,
    /// Has the worker log only once that a disk is missing, and that it may take no snapshot.
    no_disk: Once,
    no_snapshot: Once,
    long_heads: Arc<LongHeads>,
    snapshots: Snapshots,
    saved: Option<SavedSnapshots>,
    ready: Ready,
    /// Whether the worker ends.
    closing: watch::Sender<bool>,
}

/// How an instance begins.
enum Start {
    /// Its runtime starts.
    Fresh,
    /// It starts, and waits to be taken.
    Taken,
    /// It is restored.
    Restored(Arc<Snapshot>),
}

impl Containers {
    /// None yet. `folder` is the worker's own.
    ///
    /// # Errors
    /// No cgroup or folder can be made.
    pub fn new(options: Arc<Options>, folder: &Path) -> Result<Containers> {
        // Stores are users of their own where the worker is root, whose cache is closed to others.
        let run = run_folder();
        let store_folder = Folder::new(if worker_is_root() { &run } else { &options.cache })?;
        let spawner = Spawner::new(options.program.clone())?;
        let cgroups = Arc::new(Hierarchy::new()?);
        let place = store_folder.path().to_path_buf();
        let stores =
            Arc::new(PageStores::new(spawner.clone(), cgroups.clone(), place, options.capacity.memory_mib));
        let disk_folder = snapshots::disk_folder(folder).map(Arc::new);
        let folder = folder.to_path_buf();
        let disks = worker_is_root().then(|| Arc::new(Disks::new(folder.clone())));
        // Together as much as one function's store at most.
        let most_bytes = (options.capacity.memory_mib << 20) / 4;
        let snapshots = Snapshots::new(most_bytes);
        let opened = options.state.as_ref().map(|state| SavedSnapshots::open(state, most_bytes));
        let saved = opened.transpose()?.flatten();
        let ready = Ready::new(options.libraries.ready, options.capacity.starting);
        Ok(Containers {
            options,
            folder,
            disk_folder,
            stores,
            _store_folder: store_folder,
            outside: Outside::default(),
            cgroups,
            spawner,
            disks,
            no_disk: Once::new(),
            no_snapshot: Once::new(),
            long_heads: Arc::default(),
            snapshots,
            saved,
            ready,
            closing: watch::Sender::new(false),
        })
    }

    /// The disk for /tmp; none where /tmp is memory.
    async fn disk(&self, mib: u32) -> Option<OwnedFd> {
        let disk = self.disks.as_ref()?.take(mib).await;
        let complain = |error| {
            self.no_disk
                .call_once(|| tracing::warn!("/tmp is the function's memory, as there is no disk: {error:#}"))
        };
        disk.map_err(complain).ok()
    }

    async fn make(&self, order: &Order, start: Start) -> Result<(Instance, Option<Line>)> {
        let settings = &order.deployment.settings;
        let limits = Limits {
            memory_mib: settings.memory_mib,
            share_of_mib: settings.memory_mib,
            processes: limits::PROCESSES,
            processors: settings.processors,
            may_swap: settings.page_out_after_s.is_some(),
        };
        let restored = match &start {
            Start::Restored(snapshot) => Some(snapshot.clone()),
            Start::Fresh | Start::Taken => None,
        };
        let endpoint = match self.shares(order) {
            true => Some(self.stores.prepare(order.deployment.store())?),
            false => None,
        };
        let mut spec = self.spec(order, endpoint.as_ref());
        let disk = self.disk(spec.tmp_mib).await;
        let mut steps = Steps::default();
        steps.done("disk");
        // One that serves no request leaves those that are ready to others.
        let ready = if order.id == SPARE { None } else { self.ready.take() };
        let prepared = match ready {
            Some(prepared) => {
                steps.done("ready sandbox");
                prepared
            }
            None => self.empty(&format!("instance-{}", order.id)).await?,
        };
        let Prepared { empty, mut cgroup, mount_point } = prepared;
        let begun = match cgroup.limit(limits) {
            Ok(()) => {
                if order.id == SPARE {
                    cgroup.give_way(true);
                }
                steps.done("limits");
                self.begin(order, empty, &mut spec, disk, start).await
            }
            Err(error) => {
                empty.end().await;
                Err(error)
            }
        };
        match begun {
            Ok((mut container, listener, mut line)) => {
                steps.append(&container.steps.to_text());
                let store = self.shares(order).then(|| (self.stores.clone(), order.deployment.store()));
                let output = Mutex::new(Some(container.take_output()));
                let of_extensions = Mutex::new(container.take_extensions_output());
                let extensions = std::mem::take(&mut container.extensions);
                let commands = container.commands();
                let services = reach::listened(&self.options.reach).into_iter().map(|(_, service)| service);
                let reached: Vec<_> =
                    std::mem::take(&mut container.listening).into_iter().zip(services).collect();
                let user = worker_is_root().then_some(container.user);
                let container = tokio::sync::Mutex::new(Some(container));
                let mut instance = Instance {
                    label: order.label(),
                    container,
                    commands,
                    listener,
                    output,
                    of_extensions,
                    cgroup,
                    user,
                    mount_point,
                    extensions,
                    long_heads: self.long_heads.clone(),
                    relays: Mutex::new(reach::serve(&reached, &order.label())),
                    store,
                    restored: restored.is_some(),
                    steps,
                    connections: order.connections(),
                };
                if let (Some(snapshot), Some(line)) = (restored, &mut line) {
                    // One on trial yields to others.
                    let limit = if order.id == SPARE { snapshots::START } else { snapshots::RESTORE };
                    let begins = match snapshot.reads_its_line() {
                        true => line.begin(&spec.environment, limit).await,
                        false => line.until_it_runs(limit).await,
                    };
                    if let Err(error) = begins {
                        instance.end().await;
                        return Err(error);
                    }
                    instance.steps.done("restored");
                }
                Ok((instance, line))
            }
            Err(error) => {
                ready::remove(&cgroup, &mount_point).await;
                Err(error)
            }
        }
    }

    /// Starts the runtime in an empty sandbox, or begins to restore it; the sandbox has ended if this fails.
    async fn begin(
        &self,
        order: &Order,
        empty: Empty,
        spec: &mut Spec,
        disk: Option<OwnedFd>,
        start: Start,
    ) -> Result<(Container, TcpListener, Option<Line>)> {
        let connect = async |monitor| {
            let network = self.outside.network().await?;
            let pair = tokio::task::spawn_blocking(move || network.connect(monitor)).await??;
            anyhow::Ok(Box::new(pair) as Network)
        };
        let (line, theirs) = match start {
            Start::Fresh => {
                let (container, listener) = empty.begin(spec, disk, &[], connect).await?;
                return Ok((container, listener, None));
            }
            Start::Taken | Start::Restored(_) => match Line::pair() {
                Ok(pair) => pair,
                Err(error) => {
                    empty.end().await;
                    return Err(error);
                }
            },
        };
        let Start::Restored(snapshot) = start else {
            spec.beginning = Beginning::Taken;
            let is_primed = order.deployment.settings.primed_by.is_some();
            // Who gives an event does not say that what it leaves behind may be alike in all copies.
            let is_asked = snapshots::is_asked_for(&order.deployment) && !is_primed;
            let why = if is_asked { snapshots::ASKED } else { snapshots::BY_DEFAULT };
            if self.shares(order) {
                spec.environment.push((snapshots::VARIABLE.into(), why.into()));
                if is_primed {
                    spec.environment.push((snapshots::PRIMED.into(), "1".into()));
                }
            }
            let handed = [theirs.as_fd()];
            let (container, listener) = empty.begin(spec, disk, &handed, connect).await?;
            return Ok((container, listener, Some(line)));
        };
        spec.beginning =
            Beginning::Restored { files: snapshot.files().to_vec(), entries: snapshot.entries().to_vec() };
        let handed = [snapshot.program(), snapshot.pages(), theirs.as_fd()];
        let (container, listener) = empty.begin(spec, disk, &handed, connect).await?;
        Ok((container, listener, Some(line)))
    }

    /// Whether the instance shares pages by its function's store.
    fn shares(&self, order: &Order) -> bool {
        self.options.libraries.merge.is_some() && environment::may_share(order)
    }

    /// The order to process 1.
    fn spec(&self, order: &Order, store: Option<&Endpoint>) -> Spec {
        let settings = &order.deployment.settings;
        let sharing = store.map_or(Sharing::No, Sharing::Store);
        let ProgramSpec { binds, command, environment, user, root, system, folder, fixed_layout } =
            environment::program_spec(order, &self.options, &self.folder, sharing);
        let mut hidden = Vec::new();
        let mut needs_local = false;
        if let Some(program) = settings.runtime.program() {
            needs_local = program.starts_with(LOCAL);
        }
        if let Runtime::Python(_, name) = &settings.runtime {
            hidden.push(Path::new("/usr/lib/python3").join(HOST_PACKAGES));
            hidden.push(Path::new(LOCAL).join("lib").join(name).join(HOST_PACKAGES));
        }
        // What the operator has installed by hand is hidden, except an interpreter.
        if !needs_local && root.is_none() {
            hidden.push(LOCAL.into());
        }
        Spec {
            image: root,
            system,
            binds,
            hidden,
            tmp_mib: settings.ephemeral_mib,
            memory_mib: settings.memory_mib,
            user: if order.id == SPARE { snapshots::USER } else { user },
            host_name: format!("instance-{}", order.id),
            fixed_layout,
            beginning: Beginning::Command,
            resolvers: order.reaches_out(&self.options).then(network::resolvers),
            listen: reach::listened(&self.options.reach).into_iter().map(|(inside, _)| inside).collect(),
            loopback_names: self.options.reach.iter().take(1).map(|_| reach::HOST_NAME.into()).collect(),
            command,
            folder,
            environment,
        }
    }
}

impl Maker for Containers {
    fn start(self: Arc<Self>, order: Order) -> BoxFuture<'static, Result<Arc<dyn Sandbox>>> {
        Box::pin(
            async move { Ok(Arc::new(restoring::start_or_restore(self, order).await?) as Arc<dyn Sandbox>) },
        )
    }

    fn prepare(self: Arc<Self>, version: Order) {
        let is_wanted = self.may_restore() && snapshots::is_asked_for(&version.deployment);
        if is_wanted && self.may_take() && self.snapshots.begin(&version.deployment) {
            tokio::spawn(self.load_or_take(version));
        }
    }

    fn snapshot_state(&self, deployment: &Deployment) -> SnapshotState {
        self.snapshots.state(deployment)
    }

    fn deleted(&self, function: FunctionId) {
        let known = self.snapshots.forget(function);
        // A worker that ends deletes all its functions, too.
        let lasts = *self.closing.borrow();
        if let (Some(saved), Some((name, version)), false) = (&self.saved, known, lasts) {
            saved.remove(&name, &version);
        }
    }

    /// A store that ends frees its memory, which takes time, and the caller holds the lock that every
    /// request needs.
    fn forget(&self, function: FunctionId) {
        let stores = self.stores.clone();
        drop(tokio::task::spawn_blocking(move || stores.end(function)));
    }

    fn memory(&self) -> Overall {
        let (stores, bytes) = self.stores.figures();
        let bytes = bytes + self.snapshots.bytes();
        Overall { store: data::Store { bytes, stores }, ready: self.ready.figures(), vm: None }
    }

    fn idle(self: Arc<Self>) {
        self.make_ready();
    }

    fn closing(&self) {
        self.closing.send_replace(true);
        self.ready.close();
    }

    fn close(&self) {
        restoring::end_taking();
        self.ready.wait_until_ended();
    }

    fn kind(&self) -> Kind {
        Kind { sandbox: "process", partitions: "none", snapshots: true }
    }
}
