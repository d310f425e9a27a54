//! When instances are restored, and when a snapshot is taken: alike for all kinds of sandboxes. What differs
//! is behind [`Restores`].

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use worker_container::page_store::Kept;

use crate::sandbox::interface::{Order, SPARE};
use crate::sandbox::snapshots::{self, Snapshots};
use crate::sandbox::taken::Taken;

/// Makes sandboxes whose instances can be restored.
pub(super) trait Restores: Send + Sync + Sized + 'static {
    type Instance: Send;
    type Snapshot: Taken;

    fn snapshots(&self) -> &Snapshots<Self::Snapshot>;

    /// Whether the worker ends.
    fn is_closing(&self) -> bool;

    /// Whether instances can be restored here; logs once why not, unless that was the user's choice.
    fn can_restore(&self, order: &Order) -> bool;

    /// Starts an instance.
    fn start_new(&self, order: &Order) -> impl Future<Output = Result<Self::Instance>> + Send;

    /// Restores an instance; it runs when this is done.
    fn restore(
        &self,
        order: &Order,
        snapshot: Arc<Self::Snapshot>,
    ) -> impl Future<Output = Result<Self::Instance>> + Send;

    /// Starts an instance that serves no request, takes it, ends it, and restores another on trial.
    fn take_tried(&self, order: &Order) -> impl Future<Output = Result<Arc<Self::Snapshot>>> + Send;

    /// Looks for the snapshot of an earlier worker, when the function needs one first.
    fn look_for_earlier(&self, _: &Order) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// An instance was restored.
    fn was_restored(self: &Arc<Self>, _: &Order) {}

    /// The snapshot is of no use.
    fn was_not_restored(&self, _: &Order) {}

    /// Keeps the function's instances from merging, until it is dropped.
    fn hold_merges(&self, _: &Order) -> Option<OwnedFd> {
        None
    }

    /// Gives the snapshot's pages to the function's other instances.
    fn offer(&self, _: &Order, _: &Arc<Self::Snapshot>) -> impl Future<Output = Option<Kept>> + Send {
        std::future::ready(None)
    }

    /// Saves it for the next worker.
    fn save(&self, _: &Order, _: &Arc<Self::Snapshot>) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Restores an instance, if there is a snapshot; starts it otherwise, or if it cannot be restored. After the
/// first start a snapshot is taken.
pub(super) async fn start_or_restore<M: Restores>(maker: Arc<M>, order: Order) -> Result<M::Instance> {
    let (all, deployment) = (maker.snapshots(), &order.deployment);
    if !(snapshots::is_wanted(deployment) && maker.can_restore(&order)) {
        return maker.start_new(&order).await;
    }
    maker.look_for_earlier(&order).await;
    // Once more, where the first was killed.
    for _ in 0..2 {
        let Some(snapshot) = all.of(deployment) else { break };
        let restored = Order { snap_start: true, ..order.clone() };
        match maker.restore(&restored, snapshot).await {
            Ok(instance) => {
                all.restored(deployment);
                maker.was_restored(&order);
                return Ok(instance);
            }
            Err(error) if all.failed(deployment, &error) => {
                tracing::warn!("{}: starts as ever, as it was not restored: {error:#}", order.label());
                maker.was_not_restored(&order);
            }
            Err(error) => tracing::info!("{}: it was not restored: {error:#}", order.label()),
        }
    }
    let instance = maker.start_new(&order).await?;
    if all.begin(deployment) {
        tokio::spawn(take(maker.clone(), order, snapshots::AFTER));
    }
    Ok(instance)
}

/// Has a snapshot taken that was [begun](Snapshots::begin), after so long.
pub(super) async fn take<M: Restores>(maker: Arc<M>, order: Order, after: Duration) {
    let order = Order { id: SPARE, snap_start: true, ..order };
    // An instance that merged before would keep pages of its own in place of the snapshot's.
    let _held = maker.hold_merges(&order);
    tokio::time::sleep(after).await;
    let Ok(_turn) = snapshots::TAKING.acquire().await else { return };
    if maker.is_closing() {
        return;
    }
    let (name, began) = (&order.deployment.name, Instant::now());
    match maker.take_tried(&order).await {
        Ok(snapshot) => {
            let kept = maker.offer(&order, &snapshot).await;
            let (mib, mappings) = (snapshot.bytes() >> 20, snapshot.mappings());
            let ms = began.elapsed().as_millis();
            let copied = snapshot
                .why_copied()
                .map_or_else(String::new, |why| format!("; its pages are copied: {why}"));
            tracing::info!(
                "[{name}] has a snapshot, from which its next instances are restored ({mib} MiB, {mappings} mappings, in {ms} ms{copied})"
            );
            maker.snapshots().taken(&order.deployment, Ok((snapshot.clone(), kept)));
            maker.save(&order, &snapshot).await;
        }
        Err(error) => {
            let line = format!("[{name}] starts as ever, without a snapshot: {error:#}");
            match snapshots::is_asked_for(&order.deployment) {
                true => tracing::warn!("{line}"),
                false => tracing::info!("{line}"),
            }
            maker.snapshots().taken(&order.deployment, Err(&error));
        }
    }
}

/// Waits until the instance that serves no request has ended: no other starts once the worker ends. Blocks.
pub(super) fn end_taking() {
    let began = Instant::now();
    while snapshots::TAKING.try_acquire().is_err() && began.elapsed() < snapshots::RESTORE {
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;
    use std::time::SystemTime;

    use worker_pool::{FunctionId, InstanceId};
    use worker_system::lock::lock;

    use super::*;
    use crate::code::Code;
    use crate::code::lambda_layers::OptMount;
    use crate::function::definition::Deployment;
    use crate::function::settings::Settings;
    use crate::sandbox::interface::SnapshotState;
    use crate::sandbox::line::Fault;
    use crate::sandbox::taken::Gone;

    struct Empty;

    impl Taken for Empty {
        fn bytes(&self) -> u64 {
            0
        }

        fn size(&self) -> u64 {
            0
        }

        fn mappings(&self) -> usize {
            0
        }

        fn why_copied(&self) -> Option<&str> {
            None
        }
    }

    /// A maker whose next restores end so, and the order of what it did.
    struct Maker {
        snapshots: Snapshots<Empty>,
        restores: fn() -> Result<&'static str>,
        did: Mutex<Vec<&'static str>>,
    }

    impl Restores for Maker {
        type Instance = &'static str;
        type Snapshot = Empty;

        fn snapshots(&self) -> &Snapshots<Empty> {
            &self.snapshots
        }

        fn is_closing(&self) -> bool {
            false
        }

        fn can_restore(&self, _: &Order) -> bool {
            true
        }

        async fn start_new(&self, _: &Order) -> Result<&'static str> {
            lock(&self.did).push("start");
            Ok("started")
        }

        async fn restore(&self, order: &Order, _: Arc<Empty>) -> Result<&'static str> {
            assert!(order.snap_start);
            lock(&self.did).push("restore");
            (self.restores)()
        }

        async fn take_tried(&self, order: &Order) -> Result<Arc<Empty>> {
            assert!(order.snap_start && order.id == SPARE);
            Ok(Arc::new(Empty))
        }

        fn was_not_restored(&self, _: &Order) {
            lock(&self.did).push("not restored");
        }
    }

    /// What the last of so many starts does whose function has a snapshot at first, and what it starts; and
    /// whether the next one would have a snapshot.
    async fn outcome(
        folder: &Path,
        restores: fn() -> Result<&'static str>,
        times: usize,
    ) -> (Vec<&'static str>, SnapshotState) {
        let wanted = serde_json::from_str(r#"{"Runtime": "provided.al2023", "Handler": "h"}"#);
        let settings = Settings::new(&wanted.expect("it is JSON")).expect("it is right");
        let deployment = Arc::new(Deployment {
            function: FunctionId(1),
            parent: FunctionId(1),
            tenant: None,
            name: "f".into(),
            version: "$LATEST".into(),
            settings: Settings { snapshot: true, ..settings },
            code: Code::from_folder(folder).expect("a folder"),
            opt: OptMount::default(),
            revision: String::new(),
            modified: SystemTime::UNIX_EPOCH,
        });
        let order = Order { id: InstanceId(1), deployment, metadata_token: "".into(), snap_start: false };
        let maker = Arc::new(Maker { snapshots: Snapshots::new(1), restores, did: Mutex::default() });
        for _ in 0..times {
            lock(&maker.did).clear();
            if maker.snapshots.begin(&order.deployment) {
                take(maker.clone(), order.clone(), Duration::ZERO).await;
            }
            let started = start_or_restore(maker.clone(), order.clone()).await.unwrap();
            lock(&maker.did).push(started);
            // If one is taken after a start, it is there by then.
            tokio::time::sleep(2 * snapshots::AFTER).await;
        }
        let did = lock(&maker.did).clone();
        (did, maker.snapshots.state(&order.deployment))
    }

    #[tokio::test(start_paused = true)]
    async fn snapshots_are_used_while_they_are_of_use() {
        let folder = tempfile::tempdir().unwrap();
        let restored = outcome(folder.path(), || Ok("restored"), 5).await;
        assert_eq!(restored, (vec!["restore", "restored"], SnapshotState::Ready));
        // One that has gone with its VM is not at fault, however often that happens.
        let gone = outcome(folder.path(), || Err(Gone.into()), 10).await;
        assert_eq!(gone, (vec!["restore", "start", "started"], SnapshotState::Ready));
        // One that cannot be restored is given up after some attempts.
        let faulty = outcome(folder.path(), || Err(Fault("no".into()).into()), 10).await;
        assert_eq!(faulty, (vec!["start", "started"], SnapshotState::None));
    }
}
