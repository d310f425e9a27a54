//! An instance's life as processes of this host, from its start until nothing of it is left.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use worker_page::data::Event;

use super::{Instance, Phase, lock};
use crate::error::ApiError;
use crate::invocation::Outcome;
use crate::output::Output;
use crate::sandbox::{Cgroup, Ending, Limits};
use crate::{environment, http, limits, machine, runtime_api};

/// Connections to one instance's Runtime API at once.
pub(crate) const CONNECTIONS: usize = 16;

impl Instance {
    /// The whole life. Returns when its last process has ended and nothing of it is left.
    pub(crate) async fn live(self: Arc<Self>) {
        if let Err(error) = self.try_to_live().await {
            tracing::error!("{}: {error:#}", self.label());
            self.note(Event { message: Some(format!("{error:#}")), ..self.event("fail") });
            *lock(&self.failure) =
                Some(Err(ApiError::service(format!("no instance could be started: {error:#}"))));
        }
        if let Some(cgroup) = self.cgroup.get() {
            cgroup.remove_when_empty().await;
        }
        self.worker.gone(self.id);
    }

    async fn try_to_live(self: &Arc<Self>) -> Result<()> {
        if let Some(machine) = self.worker.machine.get() {
            return machine::live(self, machine).await;
        }
        let settings = &self.deployment.settings;
        let limits = Limits {
            memory_mib: settings.memory_mib,
            processes: limits::PROCESSES,
            processors: settings.processors,
        };
        let cgroup = self.worker.cgroups.create(&format!("instance-{}", self.id), limits)?;
        let cgroup = self.cgroup.get_or_init(|| cgroup);
        let mount_point: PathBuf = self.worker.folder().join(format!("root-{}", self.id));
        std::fs::create_dir(&mount_point)
            .with_context(|| format!("cannot make {}", mount_point.display()))?;
        let door = match &self.options().layers.merge {
            Some(_) => Some(self.worker.stores.door(self.deployment.whole).await?),
            None => None,
        };
        let spec = environment::sandbox_of(self, mount_point.clone(), cgroup, door.as_ref());
        let lived = self.live_inside(&spec).await;
        // Empty for us: what is mounted there is seen by the sandbox alone.
        std::fs::remove_dir(&mount_point)
            .with_context(|| format!("cannot remove {}", mount_point.display()))?;
        lived
    }

    async fn live_inside(self: &Arc<Self>, spec: &crate::sandbox::Spec) -> Result<()> {
        let connect = async |keeper| {
            let network = self.worker.network().await?;
            tokio::task::spawn_blocking(move || network.connect(keeper)).await?
        };
        let (mut sandbox, listener) = self.worker.spawner.spawn(spec, connect).await?;
        self.set_output(Output::new(self.label(), self.log(), sandbox.take_output()));
        // Ends with this scope, and with it every connection.
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(self.clone(), listener));
        let reader = self.clone();
        tasks.spawn(async move { reader.follow_output().await });
        let out_of_memory = || self.cgroup.get().is_some_and(Cgroup::was_out_of_memory);
        let ending = async { (sandbox.ending().await, out_of_memory()) };
        self.until_it_ends(ending, 1).await;
        drop(tasks);
        sandbox.end().await;
        Ok(())
    }

    /// Waits until it has ended by itself (true), is to end, or did not start in time. The ending comes with whether
    /// memory was used up.
    pub(crate) async fn until_it_ends(
        &self,
        ending: impl Future<Output = (Ending, bool)>,
        slower: u32,
    ) -> bool {
        let timeout = Duration::from_secs(self.deployment.settings.timeout_s.into());
        let init = limits::INIT.max(timeout) * slower;
        tokio::select! {
            (ending, out_of_memory) = ending => {
                self.ended_by_itself(&ending, out_of_memory);
                return true;
            }
            () = self.stop.notified() => *lock(&self.phase) = Phase::Ended,
            () = self.still_starting_after(init) => {
                let message = format!("Error: Init phase timed out after {} seconds", init.as_secs());
                *lock(&self.failure) = Some(Ok(Outcome::error("Sandbox.Timedout", &message)));
                tracing::warn!("{}: {message}", self.label());
            }
        }
        false
    }

    async fn still_starting_after(&self, limit: Duration) {
        tokio::time::sleep(limit).await;
        if !matches!(&*lock(&self.phase), Phase::Init) {
            std::future::pending::<()>().await;
        }
    }

    /// The runtime has ended without being asked to: whoever waits for it is told why.
    fn ended_by_itself(&self, ending: &Ending, out_of_memory: bool) {
        let phase = std::mem::replace(&mut *lock(&self.phase), Phase::Ended);
        let memory = self.deployment.settings.memory_mib;
        let cause = if out_of_memory { format!(" (memory of {memory} MB used up)") } else { String::new() };
        tracing::warn!("{}: {ending}{cause}", self.label());
        self.note(Event { message: Some(format!("{ending}{cause}")), ..self.event("ended") });
        match phase {
            Phase::Busy(work) => {
                work.timer.abort();
                let message = format!("RequestId: {} Error: {ending}{cause}", work.invocation.id);
                self.report(work, Outcome::error("Runtime.ExitError", &message));
            }
            Phase::Init => {
                let mut failure = lock(&self.failure);
                // What the runtime itself has said is better.
                if failure.is_none() {
                    *failure =
                        Some(Ok(Outcome::error("Runtime.ExitError", &format!("Error: {ending}{cause}"))));
                }
                let tail = self.output.get().map(|output| {
                    output.catch_up();
                    output.tail()
                });
                if let (Some(Ok(outcome)), Some(tail)) = (failure.as_mut(), tail) {
                    outcome.log_tail = tail;
                }
            }
            Phase::Answered(timer) => timer.abort(),
            Phase::Waiting(_) | Phase::Ended => {}
        }
    }
}

/// Serves the Runtime API on the socket inside the instance's network namespace.
async fn accept(instance: Arc<Instance>, listener: TcpListener) {
    let listening = listener.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listener));
    let listener = match listening {
        Ok(listener) => listener,
        Err(error) => return tracing::error!("{}: {error}", instance.label()),
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true); // answers are short and waited for
                let instance = instance.clone();
                connections.spawn(async move {
                    http::serve(stream, |request| runtime_api::handle(instance.clone(), request)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("{}: {error}", instance.label());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
