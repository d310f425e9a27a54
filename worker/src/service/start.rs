//! The steps of the service's start. First all that a user can get wrong is checked, and nothing is made.
//! Then come the sandboxes, for VMs take minutes, while an earlier worker serves. Only then does this worker
//! take that one's state, deploy the functions, and call them for events.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpSocket;

use crate::code::installed::Installed;
use crate::code::runtime::Runtime;
use crate::control::Worker;
use crate::events::async_invokes::Events;
use crate::events::elsewhere::Elsewhere;
use crate::function::worker_options::{Account, Libraries, Options, TemplateOptions};
use crate::http::sigv4::Credentials;
use crate::sandbox::containers::Containers;
use crate::sandbox::interface::Maker;
use crate::sandbox::vm::{Plan, VmDomains};
use crate::service::changes::{Changes, Vms};
use crate::service::deploy::deploy;
use crate::service::http_apis;
use crate::service::sources::Running;
use crate::service::stack::{Offer, Prepared, Stack};
use crate::service::vm_domains::{domains_of, memory_of};
use crate::state::function_store::StoredState;
use crate::state::handover::{Predecessor, State};
use worker_pool::Capacity;

/// Connections that the kernel holds while no worker accepts them, such as during a handover.
const BACKLOG: u32 = 4096;

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

/// What a worker needs before it makes anything.
pub(super) struct Checked {
    /// The worker that serves now, and hands over to this one.
    predecessor: Option<Predecessor>,
    listener: TcpListener,
    installed: Installed,
    declared: Stack,
}

impl Checked {
    /// Binds the address, reads the template and checks it. VMs bound the capacity of `service`. Must be
    /// called within a runtime.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub(super) fn new(service: &mut Service) -> Result<Checked> {
        let (predecessor, listener) = match Predecessor::of_this_process()? {
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
        Ok(Checked { predecessor, listener, installed, declared })
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)?.into_std()
    };
    bound().with_context(|| format!("cannot listen on {address}: give another with --listen"))
}

/// A worker that has its functions, and serves no request yet.
pub(super) struct Started {
    pub worker: Arc<Worker>,
    pub maker: Arc<dyn Maker>,
    pub events: Events,
    pub listener: TcpListener,
    /// Whether an earlier worker has handed over to it.
    pub takes_over: bool,
}

impl Started {
    /// Makes the worker; the second part changes it at signals.
    ///
    /// # Errors
    /// What cannot be made.
    pub(super) async fn new(service: Service, checked: Checked) -> Result<(Started, Changes)> {
        let Checked { mut predecessor, listener, installed, declared } = checked;
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
        let Sandboxes { earlier, stored, functions, maker, vms } =
            Sandboxes::new(&worker, service.vm, declared, &mut predecessor).await?;
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
        let changes = Changes {
            worker: worker.clone(),
            template: service.template,
            names,
            vms,
            sources,
            wanted_sources,
            events: events.clone(),
            listener: listener.try_clone()?,
        };
        Ok((Started { worker, maker, events, listener, takes_over }, changes))
    }
}

/// What makes the sandboxes; and what is known by then of functions and requests.
struct Sandboxes {
    /// Of the worker before this one.
    earlier: State,
    stored: StoredState,
    functions: Prepared,
    maker: Arc<dyn Maker>,
    vms: Option<Vms>,
}

impl Sandboxes {
    async fn new(
        worker: &Arc<Worker>,
        vm: Option<Plan>,
        declared: Stack,
        predecessor: &mut Option<Predecessor>,
    ) -> Result<Sandboxes> {
        // From then on this worker owns the store.
        let mut take = || -> Result<State> {
            let earlier = predecessor.as_mut().map(Predecessor::state).transpose()?.unwrap_or_default();
            worker.open_state().map(|()| earlier)
        };
        let Some(plan) = vm else {
            let (earlier, stored) = (take()?, worker.read_stored()?);
            let functions = declared.ready(worker)?;
            let maker = Arc::new(Containers::new(worker.options.clone(), worker.folder())?);
            return Ok(Sandboxes { earlier, stored, functions, maker, vms: None });
        };
        let functions = declared.ready(worker)?;
        let (options, history) = (worker.options.clone(), worker.history.clone());
        let domains = Arc::new(VmDomains::new(plan.clone(), options, worker.folder(), history));
        let (booted, wanted) = (domains.clone(), domains_of(worker, &functions.functions));
        let boot = move || booted.provide(wanted).inspect_err(|_| booted.close());
        tokio::task::spawn_blocking(boot).await??;
        let vms = Some(Vms { plan, domains: domains.clone() });
        // An earlier worker serves until the VMs are up. Functions come from the template; what else is
        // stored waits.
        let (earlier, stored) = (take()?, StoredState::default());
        Ok(Sandboxes { earlier, stored, functions, maker: domains, vms })
    }
}
