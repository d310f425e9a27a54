//! What changes a running service: SIGHUP, at which the template is read anew, and SIGUSR2, at which a new
//! version of the worker takes over.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use tokio::signal::unix::Signal;

use crate::control::Worker;
use crate::events::async_invokes::Events;
use crate::function::definition::FunctionUrl;
use crate::sandbox::vm::{Plan, VmDomains};
use crate::service::deploy::deploy;
use crate::service::http_apis;
use crate::service::sources::{Running, Sources};
use crate::service::stack::{Offer, Stack};
use crate::service::systemd;
use crate::service::vm_domains::{domains_of, memory_of};
use crate::state::handover::{Accepting, HandedOver, State, Successor};

/// The VMs, if instances live in VMs.
#[derive(Clone)]
pub(super) struct Vms {
    pub plan: Plan,
    pub domains: Arc<VmDomains>,
}

/// The worker that the signals change, and what it serves.
pub(super) struct Changes {
    pub worker: Arc<Worker>,
    pub template: Option<PathBuf>,
    /// Of the template's functions.
    pub names: BTreeSet<String>,
    pub vms: Option<Vms>,
    pub sources: Arc<Running>,
    pub wanted_sources: Sources,
    pub events: Events,
    pub listener: TcpListener,
}

impl Changes {
    pub(super) async fn follow(mut self, mut hangup: Signal, mut hand_over: Signal) {
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
