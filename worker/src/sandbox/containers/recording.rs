//! Records which pages the first answer of a restored instance has touched: the next ones prepare them
//! (`worker_snapshot::working_set`). That is once for a snapshot, after the answer has gone to its caller.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::{Context, Result};
use worker_snapshot::{Snapshot, WorkingSet};
use worker_system::processes::{or_as_user, read};

use super::Containers;
use crate::sandbox::container::FirstAnswer;
use crate::sandbox::interface::Order;
use crate::sandbox::runtime_process::runtime_of;

impl Containers {
    /// What is done after the first answer of an instance that was restored from this snapshot.
    pub(super) fn records(self: Arc<Self>, order: &Order, snapshot: Arc<Snapshot>) -> FirstAnswer {
        let order = order.clone();
        Box::new(move |processes, user| {
            tokio::spawn(async move {
                let name = &order.deployment.name;
                match self.record(&order, snapshot, processes, user).await {
                    Ok(Some(kib)) => tracing::info!("[{name}] restored instances prepare {kib} KiB ahead"),
                    Ok(None) => {} // another one was faster
                    // It has ended, or works in several processes: another one's is recorded.
                    Err(error) => tracing::debug!("[{name}] its working set is not known: {error:#}"),
                }
            });
        })
    }

    /// Returns KiB that the next ones write ahead, if it is this one's set.
    async fn record(
        &self,
        order: &Order,
        snapshot: Arc<Snapshot>,
        processes: Vec<i32>,
        user: Option<u32>,
    ) -> Result<Option<u64>> {
        let recorded = snapshot.clone();
        let work = tokio::task::spawn_blocking(move || {
            let set = working_set(&processes, user)?;
            let kib = set.written_bytes() >> 10;
            anyhow::Ok(recorded.prepare(set)?.then_some(kib))
        });
        let kib = work.await.context("recording was cut short")??;
        if let (Some(saved), true) = (&self.saved, kib.is_some()) {
            saved.save_working_set(order, snapshot).await?;
        }
        Ok(kib)
    }
}

/// The working set of the runtime among these processes.
fn working_set(processes: &[i32], user: Option<u32>) -> Result<WorkingSet> {
    let process = runtime_of(processes)?;
    let maps = read(process, "maps", user)?;
    let page_map = or_as_user(user, || File::open(format!("/proc/{process}/pagemap")))?;
    Ok(WorkingSet::read(&maps, |entries, offset| page_map.read_exact_at(entries, offset))?)
}
