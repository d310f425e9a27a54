//! Starts instances as containers: a cgroup, the page store's socket, a network if wanted, the processes.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once};

use anyhow::{Context, Result};
use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tokio::sync::Semaphore;
use worker_page::data;

use crate::base::limits;
use crate::base::process_memory::Memory;
use crate::code::runtime::Runtime;
use crate::function::worker_options::Options;
use crate::http;
use crate::http::heads::{Heads, LongHeads};
use crate::sandbox::accept::accept;
use crate::sandbox::environment::{self, ProgramSpec, Sharing};
use crate::sandbox::interface::{
    BoxFuture, Connection, Ended, Handler, Kind, Maker, Order, Overall, RUNTIME_HEADER_BYTES, Sandbox,
};
use crate::sandbox::network::{self, Outside};
use crate::sandbox::reach;
use worker_container::cgroup::{Cgroup, Hierarchy, Limits};
use worker_container::disk::Disks;
use worker_container::freezer::Freezer;
use worker_container::page_store::Endpoint;
use worker_container::page_store::PageStores;
use worker_container::spawn::{Commands, Container, Network, Spawner};
use worker_container::{Spec, page_out, worker_is_root};
use worker_pool::FunctionId;
use worker_system::lock::lock;
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
    stores: Arc<PageStores>,
    /// Removed after the stores.
    _store_folder: Folder,
    outside: Outside,
    cgroups: Arc<Hierarchy>,
    spawner: Spawner,
    /// None if the worker is not root.
    disks: Option<Arc<Disks>>,
    /// Has the worker log only once that a disk is missing.
    no_disk: Once,
    long_heads: Arc<LongHeads>,
}

impl Containers {
    /// None yet. `folder` is the worker's own.
    ///
    /// # Errors
    /// No cgroup or folder can be made.
    pub fn new(options: Arc<Options>, folder: &Path) -> Result<Containers> {
        // Stores are users of their own where the worker is root, whose cache is closed to others.
        let store_folder = Folder::new(if worker_is_root() { Path::new("/run") } else { &options.cache })?;
        let spawner = Spawner::new(options.program.clone())?;
        let cgroups = Arc::new(Hierarchy::new()?);
        let place = store_folder.path().to_path_buf();
        let stores =
            Arc::new(PageStores::new(spawner.clone(), cgroups.clone(), place, options.capacity.memory_mib));
        let folder = folder.to_path_buf();
        let disks = worker_is_root().then(|| Arc::new(Disks::new(folder.clone())));
        Ok(Containers {
            options,
            folder,
            stores,
            _store_folder: store_folder,
            outside: Outside::default(),
            cgroups,
            spawner,
            disks,
            no_disk: Once::new(),
            long_heads: Arc::default(),
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

    async fn make(&self, order: &Order) -> Result<Instance> {
        let settings = &order.deployment.settings;
        let limits = Limits {
            memory_mib: settings.memory_mib,
            share_of_mib: settings.memory_mib,
            processes: limits::PROCESSES,
            processors: settings.processors,
            may_swap: settings.page_out_after_s.is_some(),
        };
        let cgroup = self.cgroups.create(&format!("instance-{}", order.id), limits)?;
        let mount_point = self.folder.join(format!("root-{}", order.id));
        match self.make_in(order, &cgroup, &mount_point).await {
            Ok((mut container, listener)) => {
                let store = self.shares(order).then(|| (self.stores.clone(), order.deployment.store()));
                let output = Mutex::new(Some(container.take_output()));
                let of_extensions = Mutex::new(container.take_extensions_output());
                let extensions = std::mem::take(&mut container.extensions);
                let commands = container.commands();
                let services = reach::listened(&self.options.reach).into_iter().map(|(_, service)| service);
                let reached = std::mem::take(&mut container.listening).into_iter().zip(services).collect();
                let container = tokio::sync::Mutex::new(Some(container));
                Ok(Instance {
                    label: order.label(),
                    container,
                    commands,
                    listener,
                    output,
                    of_extensions,
                    cgroup,
                    mount_point,
                    extensions,
                    long_heads: self.long_heads.clone(),
                    reached,
                    store,
                    connections: order.connections(),
                })
            }
            Err(error) => {
                cgroup.remove_when_empty().await;
                let _ = std::fs::remove_dir(&mount_point);
                Err(error)
            }
        }
    }

    async fn make_in(
        &self,
        order: &Order,
        cgroup: &Cgroup,
        mount_point: &Path,
    ) -> Result<(Container, TcpListener)> {
        std::fs::create_dir(mount_point).with_context(|| format!("cannot make {}", mount_point.display()))?;
        let endpoint = match self.shares(order) {
            true => Some(self.stores.prepare(order.deployment.store())?),
            false => None,
        };
        let spec = self.spec(order, mount_point.to_path_buf(), cgroup, endpoint.as_ref());
        let connect = async |monitor| {
            let network = self.outside.network().await?;
            let pair = tokio::task::spawn_blocking(move || network.connect(monitor)).await??;
            anyhow::Ok(Box::new(pair) as Network)
        };
        let disk = self.disk(spec.tmp_mib).await;
        self.spawner.spawn(&spec, disk, connect).await
    }

    /// Whether the instance shares pages by its function's store.
    fn shares(&self, order: &Order) -> bool {
        self.options.libraries.merge.is_some() && environment::may_share(order)
    }

    /// The monitor's order.
    fn spec(&self, order: &Order, mount_point: PathBuf, cgroup: &Cgroup, store: Option<&Endpoint>) -> Spec {
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
            worker: std::process::id(),
            mount_point,
            image: root,
            system,
            binds,
            hidden,
            tmp_mib: settings.ephemeral_mib,
            memory_mib: settings.memory_mib,
            user,
            host_name: format!("instance-{}", order.id),
            cgroup_procs: cgroup.procs_files(),
            freezer: cgroup.freezer().and_then(Freezer::own_folder).cloned(),
            fixed_layout,
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
        Box::pin(async move { Ok(Arc::new(self.make(&order).await?) as Arc<dyn Sandbox>) })
    }

    /// A store that ends frees its memory, which takes time, and the caller holds the lock that every
    /// request needs.
    fn forget(&self, function: FunctionId) {
        let stores = self.stores.clone();
        drop(tokio::task::spawn_blocking(move || stores.end(function)));
    }

    fn memory(&self) -> Overall {
        let (stores, bytes) = self.stores.figures();
        Overall { store: data::Store { bytes, stores }, vm: None }
    }

    fn kind(&self) -> Kind {
        Kind { sandbox: "process", partitions: "none" }
    }
}

/// An instance as processes of this host.
struct Instance {
    label: String,
    /// Until it is ended.
    container: tokio::sync::Mutex<Option<Container>>,
    commands: Arc<Commands>,
    /// The socket inside the instance's network namespace.
    listener: TcpListener,
    output: Mutex<Option<pipe::Receiver>>,
    of_extensions: Mutex<Option<pipe::Receiver>>,
    cgroup: Cgroup,
    /// Empty for the worker: only the container sees the mounts there.
    mount_point: PathBuf,
    extensions: Vec<String>,
    long_heads: Arc<LongHeads>,
    /// Sockets inside, each with the service of the host that it leads to.
    reached: Vec<(TcpListener, SocketAddr)>,
    /// All stores, and the function or tenant whose store it uses; none if it shares no pages.
    store: Option<(Arc<PageStores>, FunctionId)>,
    /// The most connections to the Runtime API at once.
    connections: usize,
}

impl Instance {
    async fn accept(&self, handler: Handler) -> std::io::Result<()> {
        let places = Arc::new(Semaphore::new(self.connections));
        let heads = Arc::new(Heads::new(self.long_heads.clone()));
        let serve = |stream: TcpStream| {
            let _ = stream.set_nodelay(true); // answers are short and waited for
            let _ = http::close_untaken(&stream, http::UNTAKEN);
            let (handler, heads) = (handler.clone(), heads.clone());
            async move {
                http::serve_instance(stream, RUNTIME_HEADER_BYTES, &heads, |request| handler(request)).await;
            }
        };
        accept(&self.listener, places, &self.label, serve).await
    }
}

impl Sandbox for Instance {
    fn take_output(&self) -> pipe::Receiver {
        let mut output = lock(&self.output);
        output.take().expect("the output is taken once")
    }

    fn serve(&self, handler: Handler) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _relays = reach::serve(&self.reached, &self.label);
            if let Err(error) = self.accept(handler).await {
                tracing::error!("{}: {error}", self.label);
            }
        })
    }

    fn extensions(&self) -> &[String] {
        &self.extensions
    }

    fn ending(&self) -> BoxFuture<'_, Ended> {
        Box::pin(async move {
            let container = self.container.lock().await;
            match container.as_ref() {
                Some(container) => {
                    let how = container.ending().await;
                    Ended { how, out_of_memory: self.cgroup.was_out_of_memory() }
                }
                None => std::future::pending().await,
            }
        })
    }

    fn take_extensions_output(&self) -> Option<pipe::Receiver> {
        lock(&self.of_extensions).take()
    }

    fn has_way_inside(&self) -> bool {
        true
    }

    fn connect(&self, port: u16) -> BoxFuture<'_, std::io::Result<Box<dyn Connection>>> {
        Box::pin(async move {
            let socket = self.commands.socket().await?;
            let stream = socket.connect((Ipv4Addr::LOCALHOST, port).into()).await?;
            Ok(Box::new(stream) as Box<dyn Connection>)
        })
    }

    fn ends_in_steps(&self) -> bool {
        true
    }

    fn terminate(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.commands.terminate())
    }

    fn memory(&self) -> Memory {
        Memory::of_processes(self.cgroup.processes())
    }

    fn counted_bytes(&self) -> Option<u64> {
        self.cgroup.bytes()
    }

    fn peak_bytes(&self) -> Option<u64> {
        self.cgroup.peak_bytes()
    }

    fn may_do_idle_work(&self) {
        if let Some((stores, function)) = &self.store {
            stores.begin(*function);
        }
    }

    fn freeze(&self) -> bool {
        self.cgroup.freezer().is_some_and(Freezer::freeze)
    }

    fn thaw(&self) {
        if let Some(freezer) = self.cgroup.freezer() {
            freezer.thaw();
        }
    }

    fn page_out(&self) -> BoxFuture<'_, u64> {
        let processes = self.cgroup.processes();
        let work = tokio::task::spawn_blocking(move || page_out::page_out(&processes));
        Box::pin(async { work.await.unwrap_or(0) })
    }

    fn give_way(&self, gives_way: bool) {
        self.cgroup.give_way(gives_way);
    }

    fn end(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // With cgroup version 2 the monitor itself is frozen, and notices nothing.
            self.thaw();
            if let Some(container) = self.container.lock().await.take() {
                container.end().await;
            }
            if let Err(error) = std::fs::remove_dir(&self.mount_point) {
                tracing::error!("cannot remove {}: {error}", self.mount_point.display());
            }
            self.cgroup.remove_when_empty().await;
        })
    }
}
