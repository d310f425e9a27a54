//! The life of an instance in the VM: it is spawned in its partition, served, stopped.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::JoinSet;
use vm::protocol::{ErrorKind, ExitReason, PartitionNumber, Spawn};
use vm::report::End;
use vm::{Error, MemorySource};

use super::order::spawn_order;
use super::output::{Fetching, Read};
use super::partition::{ask, lock, plug, unplug};
use super::relay::{Link, Listener};
use super::snapshot::{self, Start, VmSnapshot};
use super::tunnel::Tunnel;
use super::{InUse, PartitionedVm, Running, SLOWER};
use crate::base::process_memory::Memory;
use crate::http;
use crate::http::heads::Heads;
use crate::sandbox::interface::{
    BoxFuture, Connection, Ended, Ending, Handler, Order, RUNTIME_HEADER_BYTES, Sandbox,
};

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
    partition: PartitionNumber,
    extensions: Vec<String>,
    restored: bool,
    heads: Arc<Heads>,
    listener: tokio::sync::Mutex<Listener>,
    _link: Option<Link>,
    /// Of its program, and of its extensions.
    outputs: Mutex<Vec<Option<pipe::Receiver>>>,
    /// They fetch its outputs until these end.
    fetching: Vec<Fetching>,
    /// Whether it is to be frozen.
    frozen: watch::Sender<bool>,
    /// How many of its processes are known to have ended.
    ends: AtomicUsize,
    /// Whether all are.
    ended: AtomicBool,
}

/// Plugs a partition and starts or restores an instance in it. If the VM ends before it has started, it
/// starts in the next one: nothing of it has run.
///
/// # Errors
/// It could not be started, and why. Its partition is unplugged then.
pub async fn start(vm: InUse, order: Order, start: Start) -> Result<Instance> {
    let name = format!("instance-{}", order.id);
    let deadline = Instant::now() + START_PATIENCE;
    loop {
        let running = vm.running().await?;
        // Made first: a failure here leaves no process to end.
        let pipe = || pipe::pipe().context("no pipe for the instance's output");
        let (own, of_extensions) = (pipe()?, pipe()?);
        match start_in(&vm, &running, &order, &name, &start).await {
            Ok((partition, extensions, listener, link)) => {
                let read: [(_, Read); 2] = [
                    (own, |vm, name, from| vm.output(name, from)),
                    (of_extensions, |vm, name, from| vm.output_of_extensions(name, from)),
                ];
                let (mut outputs, mut fetching) = (Vec::new(), Vec::new());
                for ((sender, receiver), read) in
                    read.into_iter().take(if extensions.is_empty() { 1 } else { 2 })
                {
                    fetching.push(Fetching::new(&running, &name, read, sender));
                    outputs.push(Some(receiver));
                }
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
                    restored: start.is_restored(),
                    heads,
                    listener: tokio::sync::Mutex::new(listener),
                    _link: link,
                    outputs: Mutex::new(outputs),
                    fetching,
                    frozen,
                    ends: AtomicUsize::new(0),
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
    start: &Start,
) -> Result<(PartitionNumber, Vec<String>, Listener, Option<Link>)> {
    let beginning = start.beginning(order, running)?;
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
        Ok(spawn) => {
            let mut spawn = Spawn { beginning, ..spawn };
            spawn.env.extend(start.variable(&order.deployment));
            ask(running, move |vm| vm.spawn(MemorySource::Partition(partition), spawn))
                .await
                .map_err(snapshot::in_own_words)
        }
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

    async fn until_one_ends(&self) -> Ended {
        let (name, seen) = (self.name.clone(), self.ends.load(Ordering::Relaxed));
        let forever = Duration::from_secs(86_400 * 365);
        let end = ask(&self.running, move |vm| vm.next_end(&name, seen, Instant::now() + forever)).await;
        let end = end.map(|end| end.unwrap_or(End::All(ExitReason::AgentLost)));
        match &end {
            Ok(End::Process(_)) => {
                self.fetch().await;
                // Last, so that a caller that stops waiting misses no end.
                self.ends.store(seen + 1, Ordering::Relaxed);
            }
            _ => self.fetch_rest().await,
        }
        let out_of_memory =
            matches!(end, Ok(End::Process(ExitReason::Overflow) | End::All(ExitReason::Overflow)));
        let how = match end {
            Ok(End::Process(reason)) => how(reason),
            // How the first ended is known.
            Ok(End::All(_)) if self.ended.swap(true, Ordering::Relaxed) || seen > 0 => Ending::Killed,
            Ok(End::All(reason)) => how(reason),
            Err(error) => Ending::Lost(error.to_string()),
        };
        Ended { how, out_of_memory }
    }

    /// Waits until what it has printed by now is there.
    async fn fetch(&self) {
        let fetch = async {
            for fetching in &self.fetching {
                fetching.now().await;
            }
        };
        let _ = tokio::time::timeout(LAST_WORDS, fetch).await;
    }

    /// Waits for its last output, which the guest still has when it has ended.
    async fn fetch_rest(&self) {
        let fetch = async {
            for fetching in &self.fetching {
                fetching.rest().await;
            }
        };
        let _ = tokio::time::timeout(LAST_WORDS, fetch).await;
    }

    /// Has the guest take it; it waits, or is about to.
    pub(super) async fn take_snapshot(&self) -> Result<VmSnapshot> {
        let (running, name, deployment) =
            (self.running.clone(), self.name.clone(), self.order.deployment.clone());
        let work = move || snapshot::take(&running, &name, &deployment.settings);
        tokio::task::spawn_blocking(work).await.context("taking was cut short")?
    }

    async fn connect_to(&self, port: u16) -> std::io::Result<UnixStream> {
        let waiting = self.running.relay.await_connection(&self.name)?;
        let (name, token) = (self.name.clone(), waiting.token);
        ask(&self.running, move |vm| vm.connect(&name, port, token)).await.map_err(|error| {
            let kind = match error.is_refusal(ErrorKind::NotListening) {
                true => std::io::ErrorKind::ConnectionRefused,
                false => std::io::ErrorKind::Other,
            };
            std::io::Error::new(kind, error)
        })?;
        waiting.connection().await
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
        lock(&self.outputs)[0].take().expect("the output is taken once")
    }

    fn take_extensions_output(&self) -> Option<pipe::Receiver> {
        lock(&self.outputs).get_mut(1)?.take()
    }

    fn prints_at_once(&self) -> bool {
        false
    }

    fn fetch_output(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.fetch())
    }

    fn serve(&self, handler: Handler) -> BoxFuture<'_, ()> {
        Box::pin(self.accept(handler))
    }

    fn extensions(&self) -> &[String] {
        &self.extensions
    }

    fn was_restored(&self) -> bool {
        self.restored
    }

    fn ending(&self) -> BoxFuture<'_, Ended> {
        Box::pin(self.until_one_ends())
    }

    fn ends_in_steps(&self) -> bool {
        true
    }

    fn slower(&self) -> u32 {
        if self.running.vm.is_emulated() { SLOWER } else { 1 }
    }

    fn terminate(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let name = self.name.clone();
            // It may end by itself in this moment, or with its VM.
            if let Err(error) = ask(&self.running, move |vm| vm.terminate(&name)).await {
                tracing::debug!("{}: {error}", self.order.label());
            }
        })
    }

    fn has_way_inside(&self) -> bool {
        true
    }

    fn connect(&self, port: u16) -> BoxFuture<'_, std::io::Result<Box<dyn Connection>>> {
        Box::pin(async move { Ok(Box::new(self.connect_to(port).await?) as Box<dyn Connection>) })
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

    fn partition(&self) -> Option<PartitionNumber> {
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
            if !self.ended.load(Ordering::Relaxed) {
                let name = self.name.clone();
                // It may end by itself in this moment, or with its VM.
                if let Err(error) = ask(&self.running, move |vm| vm.stop(&name, Duration::ZERO)).await {
                    tracing::debug!("{}: {error}", self.order.label());
                }
            }
            let vm = lock(&self.vm).take();
            let unplug = async {
                if let Some(vm) = vm {
                    unplug(&vm, &self.running, &self.order, self.partition).await;
                }
            };
            tokio::join!(unplug, self.fetch_rest());
        })
    }
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
