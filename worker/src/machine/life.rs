//! The life of an instance in the VM: plug, spawn, serve, stop, unplug.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use vm::protocol::{Confinement, ExitReason, Limits, Spawn};
use vm::{Error, Place};
use worker_page::data::Event;

use super::relay::Listener;
use super::{Machine, Running};
use crate::environment::{self, Sharing, Sources};
use crate::memory::Memory;
use crate::sandbox::{CONNECTIONS, Ended, Ending, Handler, Later, Order, RUNTIME_PORT, Sandbox};
use crate::settings::Settings;
use crate::{history, http, limits};

/// How often the guest is asked for what an instance has printed.
const OUTPUT_EVERY: Duration = Duration::from_millis(250);
/// How long an ended instance's last output is waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// A partition that is on its way is waited for.
const PLUG_PATIENCE: Duration = Duration::from_secs(30);
/// How long a VM that ended before the instance had started is replaced by the next one.
const START_PATIENCE: Duration = Duration::from_secs(300);
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Until a partition that could not be unplugged is tried again.
const UNPLUG_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// An instance in its partition.
pub struct Instance {
    order: Order,
    /// Its name in the VM.
    name: String,
    machine: Arc<Machine>,
    running: Arc<Running>,
    partition: u32,
    listener: tokio::sync::Mutex<Listener>,
    output: Mutex<Option<pipe::Receiver>>,
    /// Fetches its output until that ends.
    fetching: Mutex<Option<JoinHandle<()>>>,
    /// Whether it is to be frozen.
    frozen: watch::Sender<bool>,
    ended: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plugs a partition and starts an instance in it. If the VM ends before it has started, it starts in the next one: nothing
/// of it has run.
///
/// # Errors
/// It could not be started; says why. Its partition is unplugged then.
pub async fn start(machine: &Arc<Machine>, order: Order) -> Result<Instance> {
    let name = format!("instance-{}", order.id);
    let deadline = Instant::now() + START_PATIENCE;
    loop {
        let running = machine.running().await?;
        match start_in(machine, &running, &order, &name).await {
            Ok((partition, listener)) => {
                let (output_in, output) = pipe::pipe().context("no pipe for the instance's output")?;
                let fetching = tokio::spawn(fetch_output(running.clone(), name.clone(), output_in));
                let (frozen, wish) = watch::channel(false);
                tokio::spawn(freeze_as_wished(running.clone(), name.clone(), wish));
                return Ok(Instance {
                    order,
                    name,
                    machine: machine.clone(),
                    running,
                    partition,
                    listener: tokio::sync::Mutex::new(listener),
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
    machine: &Machine,
    running: &Arc<Running>,
    order: &Order,
    name: &str,
) -> Result<(u32, Listener)> {
    let partition = plug(machine, running, order).await.context("no memory in the VM")?;
    let listener = running.relay.listen(name);
    let spawned = match spawn_order(machine, order, name) {
        Ok(order) => {
            ask(running, move |vm| vm.spawn(Place::Partition(partition), order)).await.map_err(Into::into)
        }
        Err(error) => Err(error),
    };
    match spawned {
        Ok(_) => Ok((partition, listener)),
        Err(error) => {
            unplug(machine, running, order, partition).await;
            Err(error)
        }
    }
}

/// Whether the VM, or the agent in it, ended while it was asked.
fn lost_its_vm(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<Error>();
    matches!(error, Some(Error::Ended(_) | Error::GuestDown(_) | Error::AgentLost(_)))
}

/// Calls that block, on a thread that may.
async fn ask<T: Send + 'static>(
    running: &Arc<Running>,
    what: impl FnOnce(&vm::Vm) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let running = running.clone();
    let asked = tokio::task::spawn_blocking(move || what(&running.vm)).await;
    asked.unwrap_or_else(|_| Err(Error::Failed("the thread that asked the VM panicked".into())))
}

/// An event of this instance and its partition.
fn event(kind: &str, order: &Order, partition: u32) -> Event {
    Event { partition: Some(partition.into()), ..history::of_instance(kind, &order.deployment, order.id) }
}

async fn plug(machine: &Machine, running: &Arc<Running>, order: &Order) -> Result<u32, Error> {
    let plugged = patiently(PLUG_PATIENCE, || ask(running, |vm| vm.plug(None))).await?;
    lock(&running.holders).insert(plugged.partition, order.id);
    machine.history.note(Event {
        ms: history::ms(Duration::from_nanos(plugged.total_ns)),
        device_ms: history::ms(Duration::from_nanos(plugged.device_ns)),
        bytes: Some(running.vm.layout().bytes_of(plugged.partition)),
        ..event("plug", order, plugged.partition)
    });
    Ok(plugged.partition)
}

/// Tries for so long to plug a partition: that of an instance that is ending is still plugged, or something is being done
/// to it.
async fn patiently<T, F: Future<Output = Result<T, Error>>>(
    patience: Duration,
    mut plug: impl FnMut() -> F,
) -> Result<T, Error> {
    let deadline = Instant::now() + patience;
    loop {
        match plug().await {
            Err(error)
                if (error.is_temporary() || matches!(error, Error::AllPlugged(_)))
                    && Instant::now() < deadline =>
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            outcome => return outcome,
        }
    }
}

/// Until the partition is the host's again, or the VM has ended: one that stayed plugged without an instance would be lost
/// to all others, who plug absent ones.
async fn unplug(machine: &Machine, running: &Arc<Running>, order: &Order, partition: u32) {
    let mut failed = false;
    loop {
        match ask(running, move |vm| vm.unplug(partition)).await {
            Ok(unplugged) => {
                return machine.history.note(Event {
                    ms: history::ms(Duration::from_nanos(unplugged.total_ns)),
                    device_ms: history::ms(Duration::from_nanos(unplugged.device_ns)),
                    bytes: Some(unplugged.host_before_bytes.saturating_sub(unplugged.host_after_bytes)),
                    ..event("unplug", order, partition)
                });
            }
            // The VM's keeper was faster.
            Err(Error::Absent(_)) if failed => return,
            Err(error) if !failed => {
                failed = true;
                machine
                    .history
                    .note(Event { message: Some(error.to_string()), ..event("fail", order, partition) });
            }
            Err(_) => {}
        }
        // The VM's keeper goes on with it, too: then the next to plug one may have it.
        let is_over = || {
            let is_anothers = lock(&running.holders).get(&partition) != Some(&order.id);
            !machine.is_running(running) || machine.is_closing() || is_anothers
        };
        if is_over() {
            return;
        }
        tokio::time::sleep(UNPLUG_AGAIN_AFTER).await;
        if is_over() {
            return;
        }
    }
}

impl Instance {
    async fn accept(&self, handler: Handler) {
        let mut listener = self.listener.lock().await;
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let stream = listener.accept().await;
            while connections.try_join_next().is_some() {}
            // One more than it may have is closed at once.
            let Ok(place) = places.clone().try_acquire_owned() else { continue };
            let handler = handler.clone();
            connections.spawn(async move {
                http::serve(stream, |request| handler(request)).await;
                drop(place);
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
            // Its last words are still there.
            let _ = tokio::time::timeout(LAST_WORDS, fetching).await;
        }
        let out_of_memory = matches!(ended, Ok(Some(ExitReason::Overflow)));
        let how = match ended {
            Ok(Some(ExitReason::Code { code })) => Ending::Exit(code),
            Ok(Some(ExitReason::Signal { signal })) => Ending::Signal(signal),
            Ok(Some(ExitReason::Overflow)) => Ending::Signal(libc::SIGKILL),
            Ok(Some(ExitReason::AgentLost) | None) => Ending::Lost("the VM or its agent ended".into()),
            Err(error) => Ending::Lost(error.to_string()),
        };
        Ended { how, out_of_memory }
    }
}

impl Sandbox for Instance {
    fn take_output(&self) -> pipe::Receiver {
        lock(&self.output).take().expect("the output is taken once")
    }

    fn serve(&self, handler: Handler) -> Later<'_, ()> {
        Box::pin(self.accept(handler))
    }

    fn ending(&self) -> Later<'_, Ended> {
        Box::pin(self.until_it_ends())
    }

    /// What is used of its partition, as the guest told last.
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

    /// The guest is asked for it, and does it a moment later.
    fn freeze(&self) -> bool {
        self.frozen.send_replace(true);
        true
    }

    fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    fn end(&self) -> Later<'_, ()> {
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
            unplug(&self.machine, &self.running, &self.order, self.partition).await;
        })
    }
}

fn spawn_order(machine: &Machine, order: &Order, name: &str) -> Result<Spawn> {
    let sharing = match machine.options.layers.merge {
        Some(_) => Sharing::Kernel,
        None => Sharing::No,
    };
    let Sources { binds, command, environment, user, root, fixed_layout, .. } =
        environment::sources_of(order, &machine.options, &machine.folder, sharing);
    ensure!(
        root.is_none(),
        "PackageType Image needs instances that are processes of this host (no --sandbox vm)"
    );
    let binds = binds.into_iter().map(|bind| {
        let missing =
            || format!("{} is not in the VM: functions come from the template", bind.source.display());
        let place = machine.disk.name_of(&bind.source).with_context(missing)?;
        Ok((place.to_string(), bind.target.to_string_lossy().into_owned()))
    });
    let settings = &order.deployment.settings;
    Ok(Spawn {
        more: Vec::new(),
        instance: name.to_string(),
        partition: None,
        argv: command,
        env: environment.into_iter().collect(),
        cwd: Some(environment::TASK.into()),
        cpus: Vec::new(),
        vcpus_milli: settings.processors.map(|processors| (processors * 1000.0).ceil() as u32),
        confinement: Some(Confinement {
            user,
            port: RUNTIME_PORT,
            binds: binds.collect::<Result<_>>()?,
            fixed_layout,
            limits: Limits {
                memory_bytes: u64::from(settings.memory_mib) << 20,
                file_bytes: file_bytes(settings),
                cpu_weight: limits::share(settings.memory_mib, 100) as u32,
            },
        }),
    })
}

/// What /tmp has room for. It is memory: half of what there is, so that a full one is told so before the whole instance ends.
fn file_bytes(settings: &Settings) -> u64 {
    u64::from(settings.ephemeral_mib.min(settings.memory_mib / 2)) << 20
}

/// Asks the guest to freeze and thaw an instance, one after the other, as long as it is there.
async fn freeze_as_wished(running: Arc<Running>, name: String, mut wish: watch::Receiver<bool>) {
    while wish.changed().await.is_ok() {
        loop {
            let (wanted, frozen) = (name.clone(), *wish.borrow_and_update());
            match ask(&running, move |vm| vm.freeze(&wanted, frozen)).await {
                Ok(()) => break,
                // Gone with its VM, or about to be.
                Err(_) if wish.has_changed().is_err() => return,
                Err(error) => {
                    tracing::debug!("{name}: {error}");
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
        }
    }
}

/// What the instance prints comes in pieces, when asked for.
async fn fetch_output(running: Arc<Running>, name: String, pipe: pipe::Sender) {
    let mut from = 0;
    loop {
        tokio::time::sleep(OUTPUT_EVERY).await;
        let wanted = name.clone();
        let Ok(piece) = ask(&running, move |vm| vm.output(&wanted, from)).await else { return };
        let mut text = piece.text.as_bytes();
        while !text.is_empty() {
            match pipe.try_write(text) {
                Ok(count) => text = &text[count..],
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a start is told that finds all partitions plugged for the first `times`.
    async fn plugged_after(times: u32, patience: Duration) -> (Result<u32, Error>, u32) {
        let mut asked = 0;
        let outcome = patiently(patience, || {
            asked += 1;
            std::future::ready(if asked > times { Ok(7) } else { Err(Error::AllPlugged(8)) })
        });
        (outcome.await, asked)
    }

    #[tokio::test]
    async fn a_start_waits_for_the_partition_of_an_instance_that_is_ending() {
        let (outcome, asked) = plugged_after(3, PLUG_PATIENCE).await;
        assert_eq!((outcome.unwrap(), asked), (7, 4));
    }

    #[tokio::test]
    async fn a_start_does_not_wait_for_ever() {
        let (outcome, asked) = plugged_after(u32::MAX, Duration::from_millis(60)).await;
        assert!(matches!(outcome, Err(Error::AllPlugged(8))) && asked > 1, "asked {asked} times");
    }

    #[tokio::test]
    async fn a_start_does_not_wait_for_what_will_not_change() {
        let mut asked = 0;
        let outcome: Result<u32, Error> = patiently(PLUG_PATIENCE, || {
            asked += 1;
            std::future::ready(Err(Error::Failed("no".into())))
        })
        .await;
        assert!(matches!(outcome, Err(Error::Failed(_))) && asked == 1, "asked {asked} times");
    }
}
