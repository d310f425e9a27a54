//! The life of an instance in the VM: it is spawned in its partition, served, stopped.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use vm::protocol::{Confinement, ExitReason, Limits, Network, Spawn};
use vm::{Error, MemorySource};

use super::partition::{ask, lock, plug, unplug};
use super::relay::{Link, Listener};
use super::tunnel::Tunnel;
use super::{InUse, PartitionedVm, Running};
use crate::base::limits;
use crate::base::process_memory::Memory;
use crate::function::settings::Settings;
use crate::http;
use crate::http::heads::Heads;
use crate::sandbox::environment::{self, ProgramSpec, Sharing};
use crate::sandbox::interface::{
    Bind, BoxFuture, Ended, Ending, Handler, Order, RUNTIME_HEADER_BYTES, RUNTIME_PORT, Sandbox,
};
use crate::sandbox::network;

/// How often the guest is asked for what an instance has printed.
const OUTPUT_EVERY: Duration = Duration::from_millis(250);
/// How long an ended instance's last output is waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// For how long a start may move to the next VM, if its VM ends before the instance has started.
const START_PATIENCE: Duration = Duration::from_secs(300);
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// An instance in its partition.
pub struct Instance {
    order: Order,
    /// Its name in the VM.
    name: String,
    /// Until it is ended.
    vm: Mutex<Option<InUse>>,
    running: Arc<Running>,
    partition: u32,
    extensions: Vec<String>,
    heads: Arc<Heads>,
    listener: tokio::sync::Mutex<Listener>,
    _link: Option<Link>,
    output: Mutex<Option<pipe::Receiver>>,
    /// Fetches its output until that ends.
    fetching: Mutex<Option<JoinHandle<()>>>,
    /// Whether it is to be frozen.
    frozen: watch::Sender<bool>,
    ended: AtomicBool,
}

/// Plugs a partition and starts an instance in it. If the VM ends before it has started, it starts in the
/// next one: nothing of it has run.
///
/// # Errors
/// It could not be started, and why. Its partition is unplugged then.
pub async fn start(vm: InUse, order: Order) -> Result<Instance> {
    let name = format!("instance-{}", order.id);
    let deadline = Instant::now() + START_PATIENCE;
    loop {
        let running = vm.running().await?;
        // Made first: a failure here leaves no process to end.
        let (output_in, output) = pipe::pipe().context("no pipe for the instance's output")?;
        match start_in(&vm, &running, &order, &name).await {
            Ok((partition, extensions, listener, link)) => {
                let fetching = tokio::spawn(fetch_output(running.clone(), name.clone(), output_in));
                let (frozen, wish) = watch::channel(false);
                tokio::spawn(freeze_as_wished(running.clone(), name.clone(), wish));
                let heads = Arc::new(Heads::new(vm.host.long_heads.clone()));
                return Ok(Instance {
                    order,
                    name,
                    vm: Mutex::new(Some(vm)),
                    running,
                    partition,
                    extensions,
                    heads,
                    listener: tokio::sync::Mutex::new(listener),
                    _link: link,
                    output: Mutex::new(Some(output)),
                    fetching: Mutex::new(Some(fetching)),
                    frozen,
                    ended: AtomicBool::new(false),
                });
            }
            Err(error) if lost_its_vm(&error) && Instant::now() < deadline => {
                tracing::warn!("{}: starts again: {error:#}", order.label());
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn start_in(
    vm: &PartitionedVm,
    running: &Arc<Running>,
    order: &Order,
    name: &str,
) -> Result<(u32, Vec<String>, Listener, Option<Link>)> {
    let link = match order.reaches_out(&vm.host.options) {
        true => {
            let network = vm.host.outside.network().await?;
            let tunnel = tokio::task::spawn_blocking(move || Tunnel::new(&network)).await?;
            Some(running.relay.link(name, tunnel.context("no network for the instance")?))
        }
        false => None,
    };
    let partition = plug(vm, running, order).await.context("no memory in the VM")?;
    let listener = running.relay.listen(name, order.connections());
    let address = link.as_ref().map(Link::address);
    let spawned = match spawn_order(vm, order, name, address) {
        Ok(order) => ask(running, move |vm| vm.spawn(MemorySource::Partition(partition), order))
            .await
            .map_err(Into::into),
        Err(error) => Err(error),
    };
    match spawned {
        Ok(spawned) => Ok((partition, spawned.extensions, listener, link)),
        Err(error) => {
            unplug(vm, running, order, partition).await;
            Err(error)
        }
    }
}

/// Whether the VM, or the agent in it, ended while it was asked.
fn lost_its_vm(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<Error>();
    matches!(error, Some(Error::Ended(_) | Error::GuestDown(_) | Error::AgentLost(_)))
}

impl Instance {
    async fn accept(&self, handler: Handler) {
        let mut listener = self.listener.lock().await;
        let mut connections = JoinSet::new();
        loop {
            let stream = listener.accept().await;
            while connections.try_join_next().is_some() {}
            let (handler, heads) = (handler.clone(), self.heads.clone());
            connections.spawn(async move {
                http::serve_instance(stream, RUNTIME_HEADER_BYTES, &heads, |request| handler(request)).await;
            });
        }
    }

    async fn until_it_ends(&self) -> Ended {
        let name = self.name.clone();
        let forever = Duration::from_secs(86_400 * 365);
        let ended = ask(&self.running, move |vm| vm.wait(&name, Instant::now() + forever)).await;
        self.ended.store(true, Ordering::Relaxed);
        let fetching = lock(&self.fetching).take();
        if let Some(fetching) = fetching {
            // The guest still has its last output.
            let _ = tokio::time::timeout(LAST_WORDS, fetching).await;
        }
        let out_of_memory = matches!(ended, Ok(Some(ExitReason::Overflow)));
        let how = match ended {
            Ok(reason) => how(reason.unwrap_or(ExitReason::AgentLost)),
            Err(error) => Ending::Lost(error.to_string()),
        };
        Ended { how, out_of_memory }
    }
}

/// The ending in the terms that all sandboxes share.
fn how(reason: ExitReason) -> Ending {
    match reason {
        ExitReason::Code { code } => Ending::Exit(code),
        ExitReason::Signal { signal } => Ending::Signal(signal),
        ExitReason::Extension { name, how: own } => Ending::Extension(name, Box::new(how(*own))),
        ExitReason::Overflow => Ending::Signal(libc::SIGKILL),
        ExitReason::AgentLost => Ending::Lost("the VM or its agent ended".into()),
    }
}

impl Sandbox for Instance {
    fn take_output(&self) -> pipe::Receiver {
        lock(&self.output).take().expect("the output is taken once")
    }

    fn serve(&self, handler: Handler) -> BoxFuture<'_, ()> {
        Box::pin(self.accept(handler))
    }

    fn extensions(&self) -> &[String] {
        &self.extensions
    }

    fn ending(&self) -> BoxFuture<'_, Ended> {
        Box::pin(self.until_it_ends())
    }

    /// The used memory of its partition, as the guest last reported.
    fn memory(&self) -> Memory {
        let node = self.running.guest.partition(self.partition);
        node.map_or_else(Memory::default, |node| Memory {
            pss_bytes: node.total_bytes.saturating_sub(node.free_bytes),
            private_bytes: node.anonymous_bytes,
            ..Memory::default()
        })
    }

    fn partition(&self) -> Option<u32> {
        Some(self.partition)
    }

    /// The guest receives the request, and freezes it a moment later.
    fn freeze(&self) -> bool {
        self.frozen.send_replace(true);
        true
    }

    fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    fn end(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(fetching) = lock(&self.fetching).take() {
                fetching.abort();
            }
            if !self.ended.load(Ordering::Relaxed) {
                let name = self.name.clone();
                // It may end by itself in this moment, or with its VM.
                if let Err(error) = ask(&self.running, move |vm| vm.stop(&name, Duration::ZERO)).await {
                    tracing::debug!("{}: {error}", self.order.label());
                }
            }
            let vm = lock(&self.vm).take();
            if let Some(vm) = vm {
                unplug(&vm, &self.running, &self.order, self.partition).await;
            }
        })
    }
}

fn spawn_order(vm: &PartitionedVm, order: &Order, name: &str, address: Option<Ipv4Addr>) -> Result<Spawn> {
    let sharing = match vm.host.options.libraries.merge {
        Some(_) => Sharing::Kernel,
        None => Sharing::No,
    };
    let ProgramSpec { binds, command, environment, user, root, system, folder, fixed_layout } =
        environment::program_spec(order, &vm.host.options, &vm.host.folder, sharing);
    ensure!(system.is_none(), "the VM lacks {}", order.deployment.settings.runtime.name());
    let on_disk = |source: &Path| -> Result<String> {
        let missing = || format!("{} is not in the VM: functions come from the template", source.display());
        vm.disk.name_of(source).map(str::to_string).with_context(missing)
    };
    let seen = |bind: Bind| Ok((on_disk(&bind.source)?, bind.target.to_string_lossy().into_owned()));
    let settings = &order.deployment.settings;
    Ok(Spawn {
        more: Vec::new(),
        instance: name.to_string(),
        partition: None,
        argv: command,
        env: environment.into_iter().collect(),
        cwd: Some(folder),
        cpus: Vec::new(),
        vcpus_milli: settings.processors.map(|processors| (processors * 1000.0).ceil() as u32),
        waits_for_reader: false,
        confinement: Some(Box::new(Confinement {
            user,
            port: RUNTIME_PORT,
            network: address.map(|address| Network { address, resolvers: network::resolvers() }),
            root: root.as_deref().map(on_disk).transpose()?,
            binds: binds.into_iter().map(seen).collect::<Result<_>>()?,
            fixed_layout,
            limits: Limits {
                memory_bytes: u64::from(settings.memory_mib) << 20,
                file_bytes: file_bytes(settings),
                cpu_weight: limits::share(settings.memory_mib, 100) as u32,
            },
        })),
    })
}

/// The size of /tmp. It is memory: half of what there is, so that a program with a full /tmp gets an error
/// before the whole instance ends.
fn file_bytes(settings: &Settings) -> u64 {
    u64::from(settings.ephemeral_mib.min(settings.memory_mib / 2)) << 20
}

/// Has the guest freeze and thaw an instance, one request after the other, as long as it exists.
async fn freeze_as_wished(running: Arc<Running>, name: String, mut wish: watch::Receiver<bool>) {
    while wish.changed().await.is_ok() {
        loop {
            let (wanted, frozen) = (name.clone(), *wish.borrow_and_update());
            match ask(&running, move |vm| vm.freeze(&wanted, frozen)).await {
                Ok(()) => break,
                // It ended with its VM, or is about to.
                Err(_) if wish.has_changed().is_err() => return,
                Err(error) => {
                    tracing::debug!("{name}: {error}");
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
        }
    }
}

/// Fetches the instance's output in pieces.
async fn fetch_output(running: Arc<Running>, name: String, pipe: pipe::Sender) {
    let mut from = 0;
    loop {
        tokio::time::sleep(OUTPUT_EVERY).await;
        let wanted = name.clone();
        let Ok(piece) = ask(&running, move |vm| vm.output(&wanted, from)).await else { return };
        let mut bytes = &piece.bytes[..];
        while !bytes.is_empty() {
            match pipe.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if pipe.writable().await.is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
        from = piece.next;
        if piece.ended {
            return;
        }
    }
}
