//! Starts instances that are not restored, and takes snapshots ([`crate::sandbox::restoring`] says when). One
//! instance that serves no request is started and taken, and another is restored on trial.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};

use super::{Containers, Start};
use crate::sandbox::callers::Callers;
use crate::sandbox::container::Instance;
use crate::sandbox::environment;
use crate::sandbox::first_request::FirstRequest;
use crate::sandbox::interface::{Order, Sandbox};
use crate::sandbox::snapshots;
use worker_container::page_store::Kept;
use worker_container::rights::no_snapshots;
use worker_container::spawn::Ended;
use worker_pool::FunctionId;
use worker_snapshot::Snapshot;

impl Containers {
    /// Whether the worker has the right to take snapshots; it logs once why not.
    pub(super) fn may_take(&self) -> bool {
        let why = no_snapshots();
        if let Some(why) = &why {
            self.no_snapshot.call_once(|| tracing::warn!("functions start as ever: {why}"));
        }
        why.is_none()
    }

    /// Starts an instance; once more where its empty sandbox was killed just then.
    pub(super) async fn start_fresh(&self, order: &Order) -> Result<Instance> {
        let made = match self.make(order, Start::Fresh).await {
            Err(error) if error.is::<Ended>() => self.make(order, Start::Fresh).await,
            made => made,
        };
        Ok(made?.0)
    }

    /// A snapshot from which an instance was restored well: no request tries it.
    pub(super) async fn take_and_try(&self, order: &Order) -> Result<Arc<Snapshot>> {
        let snapshot = Arc::new(self.take(order).await?);
        let restored = self.make(order, Start::Restored(snapshot.clone())).await;
        let (instance, _) = restored.context("it was not restored")?;
        let goes_on = match snapshot.reads_its_line() {
            true => Ok(()),
            false => match Callers::serve(&instance.listener, order, &instance.extensions) {
                Ok(mut callers) => FirstRequest::until_work(&mut callers, snapshots::START).await,
                Err(error) => Err(error),
            },
        };
        instance.end().await;
        goes_on.context("it was not restored").map(|()| snapshot)
    }

    /// Gives the snapshot's pages to the function's store, for the instances that were started.
    pub(super) async fn offer_to_store(&self, order: &Order, snapshot: &Snapshot) -> Option<Kept> {
        let offered = async {
            let file = snapshot.pages().try_clone_to_owned().context("no descriptor is left")?;
            let pages = u32::try_from(snapshot.size() / 4096)?;
            self.stores.offer(order.deployment.store(), file, pages).await
        };
        offered.await.unwrap_or_else(|error| {
            tracing::warn!("{}: its store does without its snapshot: {error:#}", order.label());
            None
        })
    }

    /// Some time after an instance was restored, frees what none has of its snapshot.
    pub(super) async fn drop_unused(self: Arc<Self>, function: FunctionId) {
        tokio::time::sleep(snapshots::DROP_AFTER).await;
        drop(tokio::task::spawn_blocking(move || self.snapshots.drop_unused(function)));
    }

    async fn until_closing(&self) {
        // The sender lives as long as this.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    async fn take(&self, order: &Order) -> Result<Snapshot> {
        let (instance, line) = self.make(order, Start::Taken).await?;
        let callers = Callers::serve(&instance.listener, order, &instance.extensions);
        let work = async {
            let mut callers = callers?;
            // It ends if the line closes.
            let mut line = line.context("it has no line")?;
            let priming = snapshots::priming(&order.deployment);
            let waits = async {
                if let Some(invocation) = &priming {
                    line.prime(invocation, snapshots::START).await;
                }
                line.until_it_waits(snapshots::START).await
            };
            let first = tokio::select! {
                waits = waits => waits.map(|()| None),
                first = FirstRequest::receive(&mut callers, snapshots::START) => first.map(Some),
            };
            let first = first.context("it did not start")?;
            if priming.is_some() && first.is_some() {
                let what = "what an event primes, with a client that is not Mayfly's,";
                return Err(worker_snapshot::Error::Unsupported(what.into()).into());
            }
            let most = u64::from(order.deployment.settings.memory_mib) << 20;
            let rest = environment::rest_library(order, &self.options);
            let taken = snapshots::take(
                instance.cgroup.group.processes(),
                first,
                most,
                self.disk_folder.clone(),
                rest,
            )
            .await;
            drop(line);
            taken
        };
        let printed = snapshots::Printed::default();
        let taken = tokio::select! {
            taken = work => taken,
            never = printed.read(instance.take_output()) => match never {},
            never = snapshots::discard(instance.take_extensions_output()) => match never {},
            () = self.until_closing() => Err(anyhow!("the worker ends")),
        };
        instance.end().await;
        taken.with_context(|| printed.last_line())
    }
}
