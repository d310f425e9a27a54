//! Restores instances: from the function's snapshot, or the one that an earlier worker has saved.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::{Containers, Start};
use crate::sandbox::container::Instance;
use crate::sandbox::interface::Order;
use crate::sandbox::snapshots;
use worker_snapshot::Snapshot;

/// One is loaded at a time: its pages are read from the disk, and counted.
static LOADING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

impl Containers {
    /// Restores an instance, if there is a snapshot; starts it otherwise, or if it cannot be restored. After
    /// the first start a snapshot is taken.
    pub(super) async fn start_or_restore(self: Arc<Self>, order: Order) -> Result<Instance> {
        let is_wanted = self.may_restore() && snapshots::is_wanted(&order.deployment);
        if !(is_wanted && self.may_take()) {
            return self.start_fresh(&order).await;
        }
        self.look_for_saved(&order).await;
        // Once more, where the first was killed.
        for _ in 0..2 {
            let Some(snapshot) = self.snapshots.of(&order.deployment) else { break };
            let restored = Order { snap_start: true, ..order.clone() };
            match self.make(&restored, Start::Restored(snapshot)).await {
                Ok((instance, _)) => {
                    self.snapshots.restored(&order.deployment);
                    tokio::spawn(self.clone().drop_unused(order.deployment.function));
                    return Ok(instance);
                }
                Err(error) if self.snapshots.failed(&order.deployment, &error) => {
                    tracing::warn!("{}: starts as ever, as it was not restored: {error:#}", order.label());
                    if let Some(saved) = &self.saved {
                        saved.remove(&order.deployment.name, &order.deployment.version);
                    }
                }
                Err(error) => tracing::info!("{}: it was not restored: {error:#}", order.label()),
            }
        }
        let instance = self.start_fresh(&order).await?;
        if self.snapshots.begin(&order.deployment) {
            tokio::spawn(self.clone().snapshot(order, snapshots::AFTER));
        }
        Ok(instance)
    }

    /// Loads the snapshot of a published version, or takes it: it has begun.
    pub(super) async fn load_or_take(self: Arc<Self>, version: Order) {
        let turn = LOADING.lock().await;
        let loaded = self.load(&version).await;
        drop(turn);
        match loaded {
            Some(snapshot) => self.snapshots.taken(&version.deployment, Ok((snapshot, None))),
            None => self.snapshot(version, Duration::ZERO).await,
        }
    }

    /// Loads the snapshot that an earlier worker has saved, when the function needs one first.
    async fn look_for_saved(&self, order: &Order) {
        if self.saved.is_none() || self.snapshots.is_known(&order.deployment) {
            return;
        }
        let _turn = LOADING.lock().await;
        if self.snapshots.is_known(&order.deployment) {
            return;
        }
        let snapshot = self.load(order).await;
        self.snapshots.loaded(&order.deployment, snapshot);
    }

    async fn load(&self, order: &Order) -> Option<Arc<Snapshot>> {
        let name = &order.deployment.name;
        match self.saved.as_ref()?.load(order, &self.options, &self.folder).await {
            Ok(snapshot) => {
                let snapshot = Arc::new(snapshot?);
                let (mib, mappings) = (snapshot.bytes() >> 20, snapshot.mappings());
                tracing::info!("[{name}] has the snapshot of before ({mib} MiB, {mappings} mappings)");
                Some(snapshot)
            }
            Err(error) => {
                tracing::info!("[{name}] starts as ever: its snapshot of before is of no use: {error:#}");
                None
            }
        }
    }

    /// Saves a snapshot from which an instance was restored well, for the next worker.
    pub(super) async fn save(&self, order: &Order, snapshot: &Arc<Snapshot>) {
        let Some(saved) = self.saved.as_ref().filter(|_| snapshot.is_on_disk() && !*self.closing.borrow())
        else {
            return;
        };
        let Order { deployment, .. } = order;
        if let Err(error) = saved.save(order, &self.options, &self.folder, snapshot.clone()).await {
            tracing::warn!("[{}] the next worker takes its snapshot anew: {error:#}", deployment.name);
        }
        if !self.snapshots.is_known(deployment) {
            saved.remove(&deployment.name, &deployment.version); // it was deleted or changed meanwhile
        }
    }

    /// Whether instances may be restored: where no pages are shared, a snapshot's would not be.
    pub(super) fn may_restore(&self) -> bool {
        self.options.libraries.snapshot && self.options.libraries.merge.is_some()
    }
}
