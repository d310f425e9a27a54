//! Runs the service in the foreground: deploys the template, serves the API, follows signals, ends cleanly.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tokio::net::TcpSocket;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::api;
use crate::code::installed::Installed;
use crate::code::runtime::Runtime;
use crate::control::Worker;
use crate::control::sampler;
use crate::events::async_invokes::Events;
use crate::events::elsewhere::Elsewhere;
use crate::function::definition::FunctionUrl;
use crate::function::worker_options::{Account, Libraries, Options, TemplateOptions};
use crate::http::connections::Connections;
use crate::http::sigv4::Credentials;
use crate::sandbox::containers::Containers;
use crate::sandbox::interface::Maker;
use crate::sandbox::vm::{Plan, VmDomains};
use crate::service::deploy::deploy;
use crate::service::http_apis;
use crate::service::open_files::open_many_files;
use crate::service::sources::{Running, Sources};
use crate::service::stack::{Offer, Stack};
use crate::service::systemd;
use crate::service::vm_domains::{domains_of, memory_of};
use crate::state::function_store::StoredState;
use crate::state::handover::{Accepting, HandedOver, Predecessor, State, Successor};
use worker_pool::Capacity;
use worker_system::descriptors;

/// Connections that the kernel holds while no worker accepts them, such as during a handover.
const BACKLOG: u32 = 4096;
/// How often the pool checks its time-outs.
const TICK: Duration = Duration::from_millis(200);

/// What the service is started with.
#[derive(Debug)]
pub struct Service {
    /// A SAM template with functions to deploy at the start.
    pub template: Option<PathBuf>,
    /// Where the Lambda API listens.
    pub address: SocketAddr,
    /// What the instances may use.
    pub capacity: Capacity,
    /// How long it serves on after SIGTERM while `/healthz` answers 503.
    pub drain: Duration,
    /// How long running requests may take when it ends, after that.
    pub grace: Duration,
    /// Requests must be signed with these, if given.
    pub credentials: Option<Credentials>,
    /// Mayfly's libraries in instances, which save memory.
    pub libraries: Libraries,
    /// The VM that instances live in; otherwise they are processes of this host.
    pub vm: Option<Plan>,
    /// `mayfly` itself.
    pub program: PathBuf,
    /// Installed packages stay here.
    pub cache: PathBuf,
    /// Folders below which callers of the API may name code.
    pub code_folders: Vec<PathBuf>,
    /// Registries on this machine from which callers of the API may name images.
    pub image_registries: Vec<SocketAddr>,
    /// The server of the queues that functions are called from.
    pub queues: Option<SocketAddr>,
    /// Whether functions without a setting for it reach the outside world.
    pub outside: bool,
    /// The services of this host that functions reach.
    pub reach: Vec<SocketAddr>,
    /// What functions sign calls of AWS' services with.
    pub account: Account,
    /// The folder where functions and layers of callers and accepted events survive the worker; otherwise
    /// they are in memory.
    pub state: Option<PathBuf>,
    /// How templates are read.
    pub templates: TemplateOptions,
}

/// Serves until SIGTERM or SIGINT. Calls `ready` with the address once requests are accepted.
///
/// # Errors
/// It cannot start: the template, the packages, the address or the cgroups are wrong.
pub fn run(mut service: Service, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    descriptors::keep_from_programs().context("descriptors cannot be kept from functions")?;
    open_many_files();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    let _in_runtime = runtime.enter();
    let (mut predecessor, listener) = match Predecessor::of_this_process()? {
        Some((predecessor, listener)) => (Some(predecessor), listener),
        None => (None, listen(service.address)?),
    };
    let installed = Installed::new(&service.cache, !service.templates.without_sdk);
    let read = |template: &Path| Stack::read(template, &installed, &service.templates);
    let mut declared = service.template.as_deref().map(read).transpose()?.unwrap_or_default();
    let default_python = Runtime::parse(&Runtime::nearest_of_host("python3.11")).ok();
    if let Some(runtime) = default_python.as_ref().filter(|runtime| runtime.to_install().is_none()) {
        installed.provide(runtime)?;
    }
    if let Some(plan) = &service.vm {
        // The VMs bound the worker: one instance for each partition, and their memory together.
        service.capacity.concurrency = service.capacity.concurrency.min(plan.partitions);
        service.capacity.memory_mib = memory_of(plan, &declared);
    }
    declared.check(Offer {
        outside: service.outside,
        in_vm: service.vm.is_some(),
        queues: service.queues.is_some(),
        memory_mib: service.capacity.memory_mib,
    })?;
    runtime.block_on(async {
        // Before a user may send one: without a handler these signals end the process.
        let (hangup, hand_over) = (signal(SignalKind::hangup())?, signal(SignalKind::user_defined2())?);
        let worker = Worker::new(Options {
            address: service.address,
            capacity: service.capacity,
            credentials: service.credentials,
            libraries: service.libraries,
            installed,
            program: service.program,
            cache: service.cache,
            code_folders: service.code_folders,
            image_registries: service.image_registries,
            queues: service.queues,
            outside: service.outside,
            reach: service.reach,
            account: service.account,
            state: service.state,
            template: service.templates,
        })?;
        let wanted_sources = declared.sources();
        http_apis::set(&worker, declared.http_apis());
        // From then on this worker owns the store.
        let mut take = || -> Result<State> {
            let earlier = predecessor.as_mut().map(Predecessor::state).transpose()?.unwrap_or_default();
            worker.open_state().map(|()| earlier)
        };
        let (earlier, stored, functions, maker, vms): (_, _, _, Arc<dyn Maker>, _) = match service.vm {
            None => {
                let (earlier, stored) = (take()?, worker.read_stored()?);
                let functions = declared.ready(&worker)?;
                let maker = Containers::new(worker.options.clone(), worker.folder())?;
                (earlier, stored, functions, Arc::new(maker), None)
            }
            Some(plan) => {
                let functions = declared.ready(&worker)?;
                let (options, history) = (worker.options.clone(), worker.history.clone());
                let domains = Arc::new(VmDomains::new(plan.clone(), options, worker.folder(), history));
                let (booted, wanted) = (domains.clone(), domains_of(&worker, &functions.functions));
                let boot = move || booted.provide(wanted).inspect_err(|_| booted.close());
                tokio::task::spawn_blocking(boot).await??;
                // An earlier worker serves until the VMs are up. Functions come from the template; what
                // else is stored waits.
                let vms = Some(Vms { plan, domains: domains.clone() });
                (take()?, StoredState::default(), functions, domains, vms)
            }
        };
        worker.make_with(maker.clone());
        let names = deploy(&worker, functions, &BTreeSet::new(), &earlier.urls, &BTreeSet::new())?;
        worker.restore(stored);
        let (events, begun) = Events::new(worker.clone(), &earlier.begun)?;
        let takes_over = predecessor.is_some();
        if let Some(predecessor) = predecessor {
            predecessor.serving()?;
            Elsewhere::new(&events, begun).follow(events.clone(), predecessor)?;
        }
        let sources = Arc::new(Running::new(&worker, &events));
        sources.set(wanted_sources.clone());
        let changing = Changing {
            worker: worker.clone(),
            template: service.template,
            names,
            vms,
            sources,
            wanted_sources,
            events: events.clone(),
            listener: listener.try_clone()?,
        };
        tokio::spawn(changing.follow(hangup, hand_over));
        let ticking = worker.clone();
        tokio::spawn(async move {
            let mut interval = tokio::time::interval(TICK);
            loop {
                interval.tick().await;
                ticking.tick();
            }
        });
        tokio::spawn(sampler::run(worker.clone()));
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let connections = Arc::new(Connections::default());
        let serving = api::serve(worker.clone(), listener, events, connections.clone(), |address| {
            if !takes_over {
                systemd::ready();
            }
            ready(address);
            http_apis::log(&worker, address);
        });
        let mut serving = pin!(serving);
        // A user at a terminal waits for the end, and no proxy does.
        let (served, drain) = tokio::select! {
            outcome = &mut serving => (Some(outcome), Duration::ZERO),
            _ = terminate.recv() => (None, service.drain),
            _ = interrupt.recv() => (None, Duration::ZERO),
        };
        // Until the end it goes on to serve: a connection that nothing accepts would wait for an answer.
        let refuses = async {
            match served {
                Some(_) => std::future::pending().await,
                None => serving.await,
            }
        };
        let ends = async {
            tokio::select! {
                () = worker.drain(drain) => {}
                _ = terminate.recv() => {}
            }
            let deadline = tokio::time::Instant::now() + service.grace;
            worker.close(service.grace).await;
            let _ = tokio::time::timeout_at(deadline, connections.none_works()).await;
        };
        let closed = tokio::select! {
            () = ends => Ok(()),
            Err(error) = refuses => Err(error),
            _ = interrupt.recv() => Err(anyhow!("interrupted twice")),
        };
        let outcome = served.unwrap_or(Ok(())).and(closed);
        let ending = worker.clone();
        let close = move || {
            maker.close();
            ending.close_traces();
        };
        tokio::task::spawn_blocking(close).await?;
        outcome
    })
}

/// Must be called within a runtime.
fn listen(address: SocketAddr) -> Result<TcpListener> {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)?.into_std()
    };
    bound().with_context(|| format!("cannot listen on {address}: give another with --listen"))
}

/// The VMs, if instances live in VMs.
#[derive(Clone)]
struct Vms {
    plan: Plan,
    domains: Arc<VmDomains>,
}

/// Follows SIGHUP (a template read anew) and SIGUSR2 (a handover).
struct Changing {
    worker: Arc<Worker>,
    template: Option<PathBuf>,
    /// Of the template's functions.
    names: BTreeSet<String>,
    vms: Option<Vms>,
    sources: Arc<Running>,
    wanted_sources: Sources,
    events: Events,
    listener: TcpListener,
}

impl Changing {
    async fn follow(mut self, mut hangup: Signal, mut hand_over: Signal) {
        loop {
            let (what, outcome) = tokio::select! {
                _ = hangup.recv() => ("SIGHUP", self.reload().await),
                _ = hand_over.recv() => ("SIGUSR2", self.hand_over().await),
            };
            if let Err(error) = outcome {
                tracing::error!("{what}: {error:#}");
            }
            if *self.worker.accepting.borrow() == Accepting::NoMore {
                return;
            }
        }
    }

    /// Reads the template anew. If it is wrong, the error is logged and nothing changes.
    async fn reload(&mut self) -> Result<()> {
        let Some(template) = self.template.clone() else { bail!("there is no template to reload") };
        let (worker, earlier, path) = (self.worker.clone(), self.names.clone(), template.clone());
        let vms = self.vms.clone();
        let read = move || -> Result<_> {
            let mut stack = Stack::read(&path, &worker.options.installed, &worker.options.template)?;
            stack.check(Offer {
                outside: worker.options.outside,
                in_vm: vms.is_some(),
                queues: worker.options.queues.is_some(),
                memory_mib: worker.options.capacity.memory_mib,
            })?;
            let (sources, apis) = (stack.sources(), stack.http_apis());
            let memory_mib = vms.as_ref().map(|vms| memory_of(&vms.plan, &stack));
            let functions = stack.ready(&worker)?;
            functions.check_served(&earlier)?;
            let mut replaced = BTreeSet::new();
            if let (Some(Vms { domains, .. }), Some(memory_mib)) = (&vms, memory_mib) {
                replaced = domains.provide(domains_of(&worker, &functions.functions))?;
                worker.set_memory(memory_mib);
            }
            let names = deploy(&worker, functions, &earlier, &BTreeMap::new(), &replaced)?;
            http_apis::set(&worker, apis);
            Ok((names, sources))
        };
        (self.names, self.wanted_sources) = tokio::task::spawn_blocking(read).await??;
        self.sources.set(self.wanted_sources.clone());
        http_apis::log(&self.worker, self.listener.local_addr()?);
        tracing::info!("{} was read anew: {} functions", template.display(), self.names.len());
        Ok(())
    }

    /// Hands over to a new version of the worker. If that one fails to start, this one goes on serving.
    async fn hand_over(&mut self) -> Result<()> {
        if let Some(function) = self.worker.first_unpersisted(&self.names) {
            bail!("{function} was made by the API and would be lost: mayfly up --state FOLDER keeps it");
        }
        let (program, listener) = (self.worker.options.program.clone(), self.listener.try_clone()?);
        let prepare = move || -> Result<Successor> {
            let mut successor = Successor::start(&program, &listener)?;
            successor.prepared()?;
            Ok(successor)
        };
        let successor = tokio::task::spawn_blocking(prepare).await??;
        let process = successor.id();
        // Calls that change persistent state have finished then, and the next one waits. That may take
        // long; other requests are served meanwhile.
        let mut handed_over = self.worker.handed_over.write().await;
        self.worker.accepting.send_replace(Accepting::NotNow);
        match self.give_state(successor).await {
            Ok(successor) => {
                *handed_over = Some(HandedOver::new(successor));
                self.worker.accepting.send_replace(Accepting::NoMore);
                self.worker.retire();
                systemd::is_now(process);
                tracing::info!("handed over to PID {process}; finishing in-flight requests");
                Ok(())
            }
            Err(error) => {
                let again = self.worker.set_store_open(true).and(self.events.set_store_open(true));
                self.sources.set(self.wanted_sources.clone());
                self.worker.accepting.send_replace(Accepting::Yes);
                again.and(Err(error))
            }
        }
    }

    async fn give_state(&self, mut successor: Successor) -> Result<Successor> {
        self.sources.stop();
        self.worker.set_store_open(false)?;
        self.events.set_store_open(false)?;
        let state = State { begun: self.events.begun(), urls: self.urls() };
        let take = move || successor.take(state).map(|()| successor);
        tokio::task::spawn_blocking(take).await?
    }

    /// Of the template's functions.
    fn urls(&self) -> BTreeMap<String, FunctionUrl> {
        let url = |name: &String| Some((name.clone(), self.worker.function(name).ok()?.url?));
        self.names.iter().filter_map(url).collect()
    }
}
