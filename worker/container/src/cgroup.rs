//! Limits of memory, processes and processor share, by cgroups: version 2, or 1 where the host has only that.
//!
//! All instances of a worker lie below one folder, `mayfly-worker-PID-...`, so that the next worker can
//! remove the cgroups of one that was killed.
//!
//! A process that version 1 has frozen does not even take SIGKILL. There the freezer is a hierarchy of its
//! own, and the monitor stays out of it: if the worker ends, whatever way, the monitor kills process 1 and
//! thaws it.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cgroups::{Error, Group, Peak, Share};

pub use super::limits::{Limits, share};
use worker_system::owned_folder::{self, Owned};

const PREFIX: &str = "mayfly-worker-";
const HOW_TO_GET_ONE: &str =
    "systemd-run --scope -p Delegate=yes mayfly up TEMPLATE (not as root: systemd-run --user)";

/// An instance that yields has 1/PART of its share.
const PART: u64 = 8;
/// How long processes that were killed while they were frozen may take to end.
const ENDING: Duration = Duration::from_secs(5);

/// The cgroup of a worker, below which its instances have theirs.
#[derive(Debug)]
pub struct Hierarchy {
    group: Group,
    _owned: Vec<Owned>,
}

/// The cgroup of one instance.
#[derive(Debug)]
pub struct Cgroup {
    /// Its files.
    pub group: Group,
    /// Its full share of the processors, once it has limits.
    share: Option<Share>,
    /// The most memory it has used, if the kernel counts that.
    peak: Option<Peak>,
}

impl Hierarchy {
    /// Finds where cgroups may be made and makes the worker's.
    ///
    /// # Errors
    /// The host has none, or this user may not make any; the error names what to do.
    pub fn new() -> Result<Hierarchy> {
        let Some(base) = Group::own()? else {
            bail!("instances need a cgroup with the controllers memory and pids: {HOW_TO_GET_ONE}")
        };
        let made = base.delegate().map_err(Into::into).and_then(|()| Hierarchy::below(&base));
        made.with_context(|| format!("instances need cgroups: {HOW_TO_GET_ONE}"))
    }

    fn below(base: &Group) -> Result<Hierarchy> {
        let mut owned = Vec::new();
        let group = base.map(|base| {
            owned_folder::remove_left_behind(base, PREFIX, remove_with_instances);
            let (folder, right) = owned_folder::make(base, PREFIX)
                .with_context(|| format!("cannot make a cgroup in {}", base.display()))?;
            owned.push(right);
            anyhow::Ok(folder)
        })?;
        group.pass_controllers("+memory +pids +cpu")?;
        Ok(Hierarchy { group, _owned: owned })
    }

    /// Makes a cgroup with these limits.
    ///
    /// # Errors
    /// A file that cannot be written, named.
    pub fn create(&self, name: &str, limits: Limits) -> Result<Cgroup> {
        let mut cgroup = self.create_unlimited(name)?;
        match cgroup.limit(limits) {
            Ok(()) => Ok(cgroup),
            Err(error) => {
                let _ = cgroup.group.remove();
                Err(error)
            }
        }
    }

    /// Makes the cgroup of a sandbox that is no function's yet, and in which no program of one runs.
    ///
    /// # Errors
    /// A folder that cannot be made, named.
    pub fn create_unlimited(&self, name: &str) -> Result<Cgroup> {
        let group = self.group.child(name);
        group.create()?;
        let peak = group.peak();
        Ok(Cgroup { group, share: None, peak })
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        if let Err(error) = self.group.remove() {
            tracing::warn!("{error}");
        }
    }
}

impl Cgroup {
    /// Limits it. Its files have no limits before.
    ///
    /// # Errors
    /// A file that cannot be written, named.
    pub fn limit(&mut self, limits: Limits) -> Result<()> {
        self.group.limit(&limits.of_group())?;
        self.share = Some(limits.share());
        Ok(())
    }

    /// Has it yield to others that want the processors, or gives it its full share again.
    pub fn give_way(&self, gives_way: bool) {
        let Some(Share { part, whole }) = self.share else { return };
        let share = Share { part, whole: if gives_way { whole * PART } else { whole } };
        let _ = self.group.set_share(share); // fails only if the cgroup is removed
    }

    /// The most memory it has used, if the kernel reports it.
    pub fn peak_bytes(&self) -> Option<u64> {
        self.peak.as_ref().map_or_else(|| self.group.memory_bytes(), Peak::bytes)
    }

    /// Whether a process was killed because the memory was used up.
    pub fn was_out_of_memory(&self) -> bool {
        self.group.memory_kills() > 0
    }

    /// Waits until no process is left in it, killing any that is, and removes it.
    pub async fn remove_when_empty(&self) {
        let _ = self.group.thaw();
        for attempt in 0_u64.. {
            if self.group.remove().is_ok() {
                return;
            }
            let _ = self.group.kill();
            if attempt == 500 {
                tracing::error!("processes in {} cannot be ended", self.group.folder().display());
            }
            tokio::time::sleep(Duration::from_millis(1 + attempt.min(49))).await;
        }
    }
}

/// Removes the folder of a worker that has ended without removing it.
fn remove_with_instances(folder: &Path) -> io::Result<()> {
    let left = Group::at(folder);
    let removed = left.children().iter().try_for_each(|instance| {
        // Where it is frozen, what was killed in it ends first.
        let _ = instance.thaw();
        instance.remove_within(ENDING)
    });
    removed.and_then(|()| left.remove()).map_err(|error: Error| error.into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn version_two_is_set_up_in_plain_folders() {
        let base = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy::below(&Group::two(base.path())).unwrap();
        let inside = hierarchy.group.folder().join("7");
        fs::create_dir_all(&inside).unwrap();
        for file in ["memory.max", "pids.max", "cpu.weight"] {
            fs::write(inside.join(file), "").unwrap();
        }
        let text = |file: &str| fs::read_to_string(inside.join(file)).unwrap();
        let limits =
            Limits { memory_mib: 128, share_of_mib: 1769, processes: 9, processors: None, may_swap: false };
        let cgroup = hierarchy.create("7", limits).unwrap();
        assert_eq!((text("memory.max"), text("pids.max")), ("134217728".into(), "9".into()));
        cgroup.give_way(true);
        assert_eq!(text("cpu.weight"), "12");
        cgroup.give_way(false);
        assert_eq!(text("cpu.weight"), "100");
        fs::write(inside.join("memory.events"), "oom 1\noom_kill 1\n").unwrap();
        assert!(cgroup.was_out_of_memory());
        fs::write(inside.join("memory.events"), "oom 0\noom_kill 0\n").unwrap();
        assert!(!cgroup.was_out_of_memory());
        std::mem::forget(hierarchy); // plain files do not go with their folder
    }

    #[test]
    fn next_worker_removes_the_cgroups_of_one_that_was_killed() {
        let base = tempfile::tempdir().unwrap();
        let folders = ["memory", "freezer"].map(|name| base.path().join(name));
        let left = folders.each_ref().map(|folder| folder.join("mayfly-worker-1-a"));
        left.iter().for_each(|left| fs::create_dir_all(left.join("instance-0")).unwrap());
        let group = Group::one(vec![folders[0].clone()], Some(folders[1].clone()));
        let hierarchy = Hierarchy::below(&group).unwrap();
        assert!(left.iter().all(|left| !left.exists()));
        drop(hierarchy);
        assert!(folders.iter().all(|folder| fs::read_dir(folder).unwrap().count() == 0));
    }
}
