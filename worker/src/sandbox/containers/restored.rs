//! Restores instances: from the function's snapshot, or the one that an earlier worker has saved.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::{Containers, Start};
use crate::sandbox::container::Instance;
use crate::sandbox::interface::Order;
use crate::sandbox::restoring::{self, Restores};
use crate::sandbox::snapshots::Snapshots;
use worker_container::page_store::Kept;
use worker_snapshot::Snapshot;

/// One is loaded at a time: its pages are read from the disk, and counted.
static LOADING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

impl Restores for Containers {
    type Instance = Instance;
    type Snapshot = Snapshot;

    fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    fn can_restore(&self, _: &Order) -> bool {
        self.may_restore() && self.may_take()
    }

    async fn start_new(&self, order: &Order) -> Result<Instance> {
        self.start_fresh(order).await
    }

    async fn restore(&self, order: &Order, snapshot: Arc<Snapshot>) -> Result<Instance> {
        let (instance, _) = self.make(order, Start::Restored(snapshot)).await?;
        Ok(instance)
    }

    async fn take_tried(&self, order: &Order) -> Result<Arc<Snapshot>> {
        self.take_and_try(order).await
    }

    async fn look_for_earlier(&self, order: &Order) {
        self.look_for_saved(order).await;
    }

    fn was_restored(self: &Arc<Self>, order: &Order) {
        tokio::spawn(self.clone().drop_unused(order.deployment.function));
    }

    fn was_not_restored(&self, order: &Order) {
        if let Some(saved) = &self.saved {
            saved.remove(&order.deployment.name, &order.deployment.version);
        }
    }

    fn hold_merges(&self, order: &Order) -> Option<OwnedFd> {
        self.stores.hold_merges(order.deployment.store())
    }

    async fn offer(&self, order: &Order, snapshot: &Arc<Snapshot>) -> Option<Kept> {
        // A store takes only memory that is sealed.
        let is_offered = self.shares(order) && !snapshot.is_on_disk();
        if is_offered { self.offer_to_store(order, snapshot).await } else { None }
    }

    async fn save(&self, order: &Order, snapshot: &Arc<Snapshot>) {
        self.save_for_next(order, snapshot).await;
    }
}

impl Containers {
    /// Loads the snapshot of a published version, or takes it: it has begun.
    pub(super) async fn load_or_take(self: Arc<Self>, version: Order) {
        let turn = LOADING.lock().await;
        let loaded = self.load(&version).await;
        drop(turn);
        match loaded {
            Some(snapshot) => self.snapshots.taken(&version.deployment, Ok((snapshot, None))),
            None => restoring::take(self, version, Duration::ZERO).await,
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
    async fn save_for_next(&self, order: &Order, snapshot: &Arc<Snapshot>) {
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
