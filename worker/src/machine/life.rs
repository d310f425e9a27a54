//! The life of an instance in the VM: plug, spawn, serve, stop, unplug.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::net::unix::pipe;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use vm::protocol::{Confinement, ExitReason, Spawn};
use vm::{Error, Place};
use worker_page::data::Event;

use super::relay::Door;
use super::{Machine, Running};
use crate::environment::{self, Sharing, Sources};
use crate::instance::{CONNECTIONS, Instance};
use crate::output::Output;
use crate::sandbox::{Ending, RUNTIME_PORT};
use crate::{history, http, runtime_api};

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
/// An emulated processor is that much slower.
pub const SLOWER: u32 = 6;

/// Lives until it has ended and its partition is unplugged, or its VM is gone. If the VM ends before the instance has
/// started, it starts in the next one: nothing of it has run.
///
/// # Errors
/// It could not be started; says why.
pub async fn live(instance: &Arc<Instance>, machine: &Arc<Machine>) -> Result<()> {
    let name = format!("instance-{}", instance.id);
    let deadline = Instant::now() + START_PATIENCE;
    loop {
        let running = machine.running().await?;
        match start(instance, machine, &running, &name).await {
            Ok((partition, door)) => {
                let lived = live_there(instance, &running, &name, door).await;
                unplug(instance, machine, &running, partition).await;
                return lived;
            }
            Err(error) if lost_its_vm(&error) && Instant::now() < deadline => {
                tracing::warn!("{}: starts again: {error:#}", instance.label());
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Plugs a partition and starts the instance in it; if it does not start, the partition is unplugged.
async fn start(
    instance: &Instance,
    machine: &Machine,
    running: &Arc<Running>,
    name: &str,
) -> Result<(u32, Door)> {
    let partition = plug(instance, running).await.context("no memory in the VM")?;
    instance.set_partition(partition);
    let door = running.relay.door(name);
    let spawned = match spawn_order(instance, machine, name) {
        Ok(order) => {
            ask(running, move |vm| vm.spawn(Place::Partition(partition), order)).await.map_err(Into::into)
        }
        Err(error) => Err(error),
    };
    match spawned {
        Ok(_) => Ok((partition, door)),
        Err(error) => {
            unplug(instance, machine, running, partition).await;
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

async fn plug(instance: &Instance, running: &Arc<Running>) -> Result<u32, Error> {
    let plugged = patiently(PLUG_PATIENCE, || ask(running, |vm| vm.plug(None))).await?;
    instance.note(Event {
        partition: Some(plugged.partition.into()),
        ms: history::ms(Duration::from_nanos(plugged.total_ns)),
        device_ms: history::ms(Duration::from_nanos(plugged.device_ns)),
        bytes: Some(running.vm.layout().partition_bytes),
        ..instance.event("plug")
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
async fn unplug(instance: &Instance, machine: &Machine, running: &Arc<Running>, partition: u32) {
    let mut failed = false;
    loop {
        match ask(running, move |vm| vm.unplug(partition)).await {
            Ok(unplugged) => {
                return instance.note(Event {
                    partition: Some(partition.into()),
                    ms: history::ms(Duration::from_nanos(unplugged.total_ns)),
                    device_ms: history::ms(Duration::from_nanos(unplugged.device_ns)),
                    bytes: Some(unplugged.host_before_bytes.saturating_sub(unplugged.host_after_bytes)),
                    ..instance.event("unplug")
                });
            }
            // The VM's keeper was faster.
            Err(Error::Absent(_)) if failed => return,
            Err(error) if !failed => {
                failed = true;
                instance.note(Event {
                    partition: Some(partition.into()),
                    message: Some(error.to_string()),
                    ..instance.event("fail")
                });
            }
            Err(_) => {}
        }
        // The VM's keeper goes on with it, too: then the next to plug one may have it.
        let is_over =
            || !machine.is_running(running) || instance.is_worker_closing() || instance.has_lost(partition);
        if is_over() {
            return;
        }
        tokio::time::sleep(UNPLUG_AGAIN_AFTER).await;
        if is_over() {
            return;
        }
    }
}

async fn live_there(instance: &Arc<Instance>, running: &Arc<Running>, name: &str, door: Door) -> Result<()> {
    let (output_in, output) = pipe::pipe().context("no pipe for the instance's output")?;
    instance.set_output(Output::new(instance.label(), instance.log(), output));
    let mut tasks = JoinSet::new();
    tasks.spawn(accept(instance.clone(), door));
    let fetching = tokio::spawn(fetch_output(running.clone(), name.to_string(), output_in));
    let reader = instance.clone();
    tasks.spawn(async move { reader.follow_output().await });
    let waiting = {
        let name = name.to_string();
        ask(running, move |vm| vm.wait(&name, Instant::now() + Duration::from_secs(86_400 * 365)))
    };
    let ended = instance
        .until_it_ends(
            async {
                match waiting.await {
                    Ok(Some(ExitReason::Code { code })) => (Ending::Exit(code), false),
                    Ok(Some(ExitReason::Signal { signal })) => (Ending::Signal(signal), false),
                    Ok(Some(ExitReason::Overflow)) => (Ending::Signal(libc::SIGKILL), true),
                    Ok(Some(ExitReason::AgentLost) | None) => {
                        (Ending::Lost("the VM or its agent ended".into()), false)
                    }
                    Err(error) => (Ending::Lost(error.to_string()), false),
                }
            },
            SLOWER,
        )
        .await;
    if ended {
        // Its last words are still there.
        let _ = tokio::time::timeout(LAST_WORDS, fetching).await;
    } else {
        fetching.abort();
        let name = name.to_string();
        // It may end by itself in this moment, or with its VM.
        if let Err(error) = ask(running, move |vm| vm.stop(&name, Duration::ZERO)).await {
            tracing::debug!("{}: {error}", instance.label());
        }
    }
    drop(tasks);
    Ok(())
}

fn spawn_order(instance: &Instance, machine: &Machine, name: &str) -> Result<Spawn> {
    let sharing = match instance.options().layers.merge {
        Some(_) => Sharing::Kernel,
        None => Sharing::No,
    };
    let Sources { binds, command, environment, user, fixed_layout } =
        environment::sources_of(instance, sharing);
    let binds = binds.into_iter().map(|bind| {
        let missing =
            || format!("{} is not in the VM: functions come from the template", bind.source.display());
        let place = machine.disk.name_of(&bind.source).with_context(missing)?;
        Ok((place.to_string(), bind.target.to_string_lossy().into_owned()))
    });
    Ok(Spawn {
        instance: name.to_string(),
        partition: None,
        argv: command,
        env: environment.into_iter().collect(),
        cwd: Some(environment::TASK.into()),
        cpus: Vec::new(),
        vcpus_milli: None,
        confinement: Some(Confinement {
            user,
            port: RUNTIME_PORT,
            binds: binds.collect::<Result<_>>()?,
            fixed_layout,
        }),
    })
}

async fn accept(instance: Arc<Instance>, mut door: Door) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let stream = door.next().await;
        let instance = instance.clone();
        while connections.try_join_next().is_some() {}
        // One more than it may have is closed at once.
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        connections.spawn(async move {
            http::serve(stream, |request| runtime_api::handle(instance.clone(), request)).await;
            drop(place);
        });
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
