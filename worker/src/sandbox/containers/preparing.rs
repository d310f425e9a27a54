//! Makes empty sandboxes: a cgroup, a folder for the root, a monitor and its process 1.

use std::sync::Arc;

use anyhow::{Context, Result};

use super::Containers;
use super::ready::{self, Prepared};
use worker_container::Preparation;

impl Containers {
    /// Makes an empty sandbox, unless there are enough.
    pub(super) fn make_ready(self: Arc<Self>) {
        let Some(number) = self.ready.begin() else { return };
        tokio::spawn(async move {
            let made = self.empty(&format!("ready-{number}")).await;
            let made = made.inspect_err(|error| tracing::warn!("no sandbox is kept ready: {error:#}")).ok();
            self.ready.put(made);
        });
    }

    /// Makes an empty sandbox.
    pub(super) async fn empty(&self, name: &str) -> Result<Prepared> {
        let cgroup = self.cgroups.create_unlimited(name)?;
        let mount_point = self.folder.join(format!("root-{name}"));
        let made = async {
            std::fs::create_dir(&mount_point)
                .with_context(|| format!("cannot make {}", mount_point.display()))?;
            let preparation = Preparation {
                worker: std::process::id(),
                mount_point: mount_point.clone(),
                cgroup_files: cgroup.group.entering_files(),
                freezer: cgroup.group.freezer_folder().map(Into::into),
            };
            self.spawner.prepare(&preparation).await
        };
        match made.await {
            Ok(empty) => Ok(Prepared { empty, cgroup, mount_point }),
            Err(error) => {
                ready::remove(&cgroup, &mount_point).await;
                Err(error)
            }
        }
    }
}
