//! The whole service in the foreground: functions of a template, the API, a clean end.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::api;
use crate::container::Containers;
use crate::function_store::Kept;
use crate::machine::{Disk, Machine, Part, Plan};
use crate::options::{Layers, Options};
use crate::pool::Capacity;
use crate::python;
use crate::queues::Queues;
use crate::runtime::Runtime;
use crate::sandbox::Maker;
use crate::sigv4::Credentials;
use crate::sources::Sources;
use crate::stack::{self, Ready, Stack};
use crate::worker::Worker;
use crate::{environment, runtime_files, sampler};

/// How requests that run are given time when the service ends.
const GRACE: Duration = Duration::from_secs(5);
/// How often time-outs of the pool are looked at.
const TICK: Duration = Duration::from_millis(200);

/// What the service is started with.
#[derive(Debug)]
pub struct Service {
    /// A SAM template, if functions shall be there from the start.
    pub template: Option<PathBuf>,
    /// Where the Lambda API listens.
    pub address: SocketAddr,
    /// What the instances may use.
    pub capacity: Capacity,
    /// Requests must be signed with these, if given.
    pub credentials: Option<Credentials>,
    /// What instances are given to save memory.
    pub layers: Layers,
    /// The VM that instances live in; otherwise they are processes of this host.
    pub machine: Option<Plan>,
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
    /// Whether functions that say nothing of it reach the outside world.
    pub outside: bool,
    /// Where what callers have made and events that were accepted are kept, so that they survive the worker; otherwise in memory.
    pub state: Option<PathBuf>,
}

/// Serves until SIGTERM or SIGINT. `ready` is called with the address once requests are taken.
///
/// # Errors
/// What hinders it from starting: the template, the packages, the address, the cgroups.
pub fn run(mut service: Service, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let read = |template: &Path| Stack::read(template, &service.cache);
    let declared = service.template.as_deref().map(read).transpose()?.unwrap_or_default();
    let default_python = Runtime::parse("python3.11").ok();
    let python = declared.functions().map(|function| &function.settings.runtime).chain(&default_python);
    let python_client = match python.into_iter().find(|runtime| matches!(runtime, Runtime::Python(..))) {
        Some(runtime) => python::client(runtime, &service.cache)?,
        None => None,
    };
    let largest_mib = declared.functions().map(|function| function.settings.memory_mib).max().unwrap_or(128);
    if let Some(plan) = &service.machine {
        // Memory is the VM's: a place for each partition.
        service.capacity.concurrency = service.capacity.concurrency.min(plan.partitions);
        service.capacity.memory_mib = u64::from(plan.partitions) * u64::from(largest_mib);
    }
    declared.check(service.outside, service.machine.is_some(), service.queues.is_some())?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    runtime.block_on(async {
        let worker = Worker::new(Options {
            address: service.address,
            capacity: service.capacity,
            credentials: service.credentials,
            layers: service.layers,
            python_client,
            program: service.program,
            cache: service.cache,
            code_folders: service.code_folders,
            image_registries: service.image_registries,
            queues: service.queues.map(|address| Queues { address }),
            outside: service.outside,
            state: service.state,
        })?;
        // With --sandbox vm functions come from the template; what is kept waits.
        let kept = if service.machine.is_none() { worker.read_kept()? } else { Kept::default() };
        let queues = declared.sources();
        let functions = declared.ready(&worker)?;
        let in_machine = service.machine.is_some();
        let maker: Arc<dyn Maker> = match service.machine {
            None => Arc::new(Containers::new(worker.options.clone(), worker.folder())?),
            Some(plan) => {
                let (parts, worker) = (parts(&worker, &functions), worker.clone());
                let boot = move || -> Result<Arc<Machine>> {
                    let folder = worker.folder();
                    let disk = Disk::make(folder, parts)?;
                    let (options, history) = (worker.options.clone(), worker.history.clone());
                    let machine = Machine::new(&plan, largest_mib, disk, options, folder, history)?;
                    let machine = Arc::new(machine);
                    machine.boot()?;
                    Ok(machine)
                };
                tokio::task::spawn_blocking(boot).await??
            }
        };
        worker.make_with(maker.clone());
        let names = stack::deploy(&worker, functions, &BTreeSet::new())?;
        worker.restore(kept);
        let sources = Arc::new(Sources::new(worker.clone()));
        sources.set(queues);
        if let Some(template) = service.template {
            let hangup = signal(SignalKind::hangup())?;
            tokio::spawn(reload(worker.clone(), template, names, hangup, in_machine, sources));
        }
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
        let outcome = tokio::select! {
            outcome = api::serve(worker.clone(), ready) => outcome,
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
        };
        let outcome = tokio::select! {
            () = worker.close(GRACE) => outcome,
            _ = interrupt.recv() => Err(anyhow!("interrupted twice")),
        };
        tokio::task::spawn_blocking(move || maker.close()).await?;
        outcome
    })
}

/// Reads the template anew at each SIGHUP. What is wrong with it is said, and all stays as it is.
async fn reload(
    worker: Arc<Worker>,
    template: PathBuf,
    mut names: BTreeSet<String>,
    mut hangup: Signal,
    in_machine: bool,
    sources: Arc<Sources>,
) {
    while hangup.recv().await.is_some() {
        if in_machine {
            tracing::error!("SIGHUP: what instances in a VM see is made when the worker starts: restart it");
            continue;
        }
        let (reading, path, earlier, asking) =
            (worker.clone(), template.clone(), names.clone(), sources.clone());
        let read = move || -> Result<BTreeSet<String>> {
            let stack = Stack::read(&path, &reading.options.cache)?;
            stack.check(reading.options.outside, false, reading.options.queues.is_some())?;
            let queues = stack.sources();
            let names = stack::deploy(&reading, stack.ready(&reading)?, &earlier)?;
            asking.set(queues);
            Ok(names)
        };
        match tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(error.into())) {
            Ok(now) => {
                tracing::info!("{} was read anew: {} functions", template.display(), now.len());
                names = now;
            }
            Err(error) => tracing::error!("SIGHUP: {error:#}"),
        }
    }
}

/// What the instances in a VM see of this host.
fn parts(worker: &Worker, functions: &[Ready]) -> Vec<Part> {
    let mut sources: Vec<PathBuf> =
        environment::common(&worker.options, worker.folder()).into_iter().map(|bind| bind.source).collect();
    sources.push(worker.folder().join(runtime_files::PACKAGES));
    sources.extend(functions.iter().map(|function| function.code.folder.clone()));
    sources.extend(functions.iter().filter_map(|function| function.opt.folder.clone()));
    sources.sort();
    sources.dedup();
    let part = |(number, source): (usize, PathBuf)| Part { source, name: number.to_string() };
    sources.into_iter().enumerate().map(part).collect()
}
