//! Restores instances in VMs from snapshots that their guests keep, in the VM's shared partition.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use worker_snapshot::Error;

use super::InUse;
use super::domains::VmDomains;
use super::lifecycle::{self, Instance};
use super::snapshot::{Start, VmSnapshot};
use crate::code::runtime::Runtime;
use crate::sandbox::interface::{Order, Sandbox};
use crate::sandbox::restoring::Restores;
use crate::sandbox::snapshots::{Printed, Snapshots};

impl Restores for VmDomains {
    type Instance = Instance;
    type Snapshot = VmSnapshot;

    fn snapshots(&self) -> &Snapshots<VmSnapshot> {
        &self.snapshots
    }

    fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    fn can_restore(&self, order: &Order) -> bool {
        let libraries = &self.host.options.libraries;
        if !self.plan.merges() {
            self.no_snapshots.call_once(|| {
                let mode = self.plan.mode.name();
                tracing::warn!(
                    "{}: VMs of mode {mode} have no snapshots: instances start as ever",
                    order.label()
                );
            });
        }
        self.plan.restores(libraries)
    }

    async fn start_new(&self, order: &Order) -> Result<Instance> {
        lifecycle::start(self.vm_of(order)?, order.clone(), Start::Fresh).await
    }

    async fn restore(&self, order: &Order, snapshot: Arc<VmSnapshot>) -> Result<Instance> {
        lifecycle::start(self.vm_of(order)?, order.clone(), Start::Restored(snapshot)).await
    }

    async fn take_tried(&self, order: &Order) -> Result<Arc<VmSnapshot>> {
        let vm = self.vm_of(order)?;
        check(&vm, order).await?;
        let instance = lifecycle::start(vm, order.clone(), Start::Taken).await?;
        let printed = Printed::default();
        let taken = tokio::select! {
            taken = take(&instance) => taken,
            never = printed.read(instance.take_output()) => match never {},
            () = self.until_closing() => Err(anyhow!("the worker ends")),
        };
        instance.end().await;
        let snapshot = Arc::new(taken.with_context(|| printed.last_line())?);
        let restored = self.restore(order, snapshot.clone()).await.context("it was not restored")?;
        restored.end().await;
        Ok(snapshot)
    }
}

impl VmDomains {
    /// The VM of a function, for an instance.
    fn vm_of(&self, order: &Order) -> Result<InUse> {
        self.take(&order.deployment.settings.vm).context("it has no VM: functions come from the template")
    }

    async fn until_closing(&self) {
        // The sender lives as long as this.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }
}

/// Whether instances of a function can be taken, as far as is known before one is started.
async fn check(vm: &InUse, order: &Order) -> Result<()> {
    let refuse = |what: &str| Err(Error::Unsupported(what.into()).into());
    // Others are taken in a request, whose connection is the relay's.
    if !matches!(order.deployment.settings.runtime, Runtime::Python(..) | Runtime::Node(..)) {
        return refuse("in a VM, a program with a Runtime API client of its own");
    }
    if !vm.running().await?.vm.knows_snapshots() {
        return refuse("an instance in a VM of an earlier image (build it anew: mayfly vm image)");
    }
    Ok(())
}

async fn take(instance: &Instance) -> Result<VmSnapshot> {
    if !instance.extensions().is_empty() {
        return Err(Error::Unsupported("an instance with extensions".into()).into());
    }
    instance.take_snapshot().await
}
