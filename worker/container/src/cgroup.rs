//! Limits of memory, processes and processor share, by cgroups: version 2, or 1 where the host has only that.
//!
//! All instances of a worker lie below one folder, `mayfly-worker-PID-...`, so that the next worker can
//! remove the cgroups of one that was killed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::freezer::{self, Freezer};
use super::limits::{LEAST_SHARES, LEAST_WEIGHT, SHARES, Version, WEIGHT, settings};
pub use super::limits::{Limits, share};
use super::mounts::{enable, version_one, version_one_of, version_two};
use worker_system::owned_folder::{self, Owned};

const PREFIX: &str = "mayfly-worker-";
const HOW_TO_GET_ONE: &str =
    "systemd-run --scope -p Delegate=yes mayfly up TEMPLATE (not as root: systemd-run --user)";

/// An instance that yields has 1/PART of its share.
const PART: u64 = 8;

/// The folder of a worker, one per controller in version 1.
#[derive(Debug)]
pub struct Hierarchy {
    version: Version,
    /// In version 1 one for each controller, memory first.
    folders: Vec<PathBuf>,
    /// Version 1 only, where the freezer has a hierarchy of its own.
    freezer: Option<PathBuf>,
    _owned: Vec<Owned>,
}

/// The cgroup of one instance.
#[derive(Debug)]
pub struct Cgroup {
    version: Version,
    folders: Vec<PathBuf>,
    freezer: Option<Freezer>,
    /// The file with its share of the processors, and its full share.
    share: Option<(PathBuf, u64)>,
    /// The file with the most memory it has used, open: it is read at every answer.
    peak: Option<File>,
}

impl Hierarchy {
    /// Finds where cgroups may be made and makes the worker's.
    ///
    /// # Errors
    /// The host has none, or this user may not make any; the error names what to do.
    pub fn new() -> Result<Hierarchy> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
        let own = fs::read_to_string("/proc/self/cgroup").context("cannot read this process's cgroup")?;
        let made = match (version_two(&mounts, &own), version_one(&mounts, &own)) {
            (Some(base), _) => enable(&base).and_then(|()| Hierarchy::below(Version::Two, &[base], None)),
            (None, Some(bases)) => {
                let freezer = version_one_of("freezer", &mounts, &own).filter(|base| !bases.contains(base));
                Hierarchy::below(Version::One, &bases, freezer)
            }
            (None, None) => {
                bail!("instances need a cgroup with the controllers memory and pids: {HOW_TO_GET_ONE}")
            }
        };
        made.with_context(|| format!("instances need cgroups: {HOW_TO_GET_ONE}"))
    }

    fn below(version: Version, bases: &[PathBuf], freezer: Option<PathBuf>) -> Result<Hierarchy> {
        let (mut folders, mut owned) = (Vec::new(), Vec::new());
        // First: frozen processes do not end.
        for base in freezer.iter().chain(bases) {
            owned_folder::remove_left_behind(base, PREFIX, remove_with_instances);
            let (folder, right) = owned_folder::make(base, PREFIX)
                .with_context(|| format!("cannot make a cgroup in {}", base.display()))?;
            folders.push(folder);
            owned.push(right);
        }
        let freezer = freezer.map(|_| folders.remove(0));
        if version == Version::Two {
            fs::write(folders[0].join("cgroup.subtree_control"), "+memory +pids +cpu")
                .with_context(|| format!("{}: controllers", folders[0].display()))?;
        }
        Ok(Hierarchy { version, folders, freezer, _owned: owned })
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
                cgroup.remove();
                Err(error)
            }
        }
    }

    /// Makes the cgroup of a sandbox that is no function's yet, and in which no program of one runs.
    ///
    /// # Errors
    /// A folder that cannot be made, named.
    pub fn create_unlimited(&self, name: &str) -> Result<Cgroup> {
        let folders: Vec<PathBuf> = self.folders.iter().map(|folder| folder.join(name)).collect();
        let freezer = match (self.version, &self.freezer) {
            (Version::Two, _) => Some(Freezer::two(&folders[0])),
            (Version::One, Some(freezer)) => Some(Freezer::one(&freezer.join(name))),
            (Version::One, None) => None,
        };
        let mut cgroup = Cgroup { version: self.version, folders, freezer, share: None, peak: None };
        for folder in cgroup.all_folders() {
            if let Err(error) = fs::create_dir_all(folder) {
                cgroup.remove();
                return Err(error).with_context(|| format!("cannot make {}", folder.display()));
            }
        }
        let peak = match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak", // Linux 5.19
        };
        cgroup.peak = File::open(cgroup.folders[0].join(peak)).ok();
        Ok(cgroup)
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        for folder in self.folders.iter().chain(&self.freezer) {
            if let Err(error) = fs::remove_dir(folder) {
                tracing::warn!("cannot remove the cgroup {}: {error}", folder.display());
            }
        }
    }
}

impl Cgroup {
    /// Limits it. Its files have no limits before.
    ///
    /// # Errors
    /// A file that cannot be written, named.
    pub fn limit(&mut self, limits: Limits) -> Result<()> {
        for (file, value, needed) in settings(self.version, limits) {
            let places = self.folders.iter().map(|folder| folder.join(file));
            let Some(place) = places.into_iter().find(|place| place.exists()) else {
                ensure!(!needed, "{}: there is no {file}", self.folders[0].display());
                continue;
            };
            fs::write(&place, &value).with_context(|| format!("cannot write {}", place.display()))?;
            if [SHARES, WEIGHT].contains(&file) {
                self.share = value.parse().ok().map(|share| (place, share));
            }
        }
        Ok(())
    }

    /// The files by which a whole process enters the cgroup.
    fn procs_files(&self) -> Vec<PathBuf> {
        self.folders.iter().map(|folder| folder.join("cgroup.procs")).collect()
    }

    /// The files by which a process of one thread enters the cgroup, which writes 0 to each.
    pub fn entering_files(&self) -> Vec<PathBuf> {
        match self.version {
            // A thread that moves itself waits for no other: `cgroup.procs` waits for an RCU grace period of
            // the whole host, 10 to 20 ms.
            Version::One => self.folders.iter().map(|folder| folder.join(freezer::THREADS)).collect(),
            // Threads of version 2 cannot enter a cgroup with a memory limit on their own.
            Version::Two => self.procs_files(),
        }
    }

    /// The freezer of its processes, if this host has one.
    pub fn freezer(&self) -> Option<&Freezer> {
        self.freezer.as_ref()
    }

    /// Has it yield to others that want the processors, or gives it its full share again.
    pub fn give_way(&self, gives_way: bool) {
        let Some((file, share)) = &self.share else { return };
        let least = if self.version == Version::One { LEAST_SHARES } else { LEAST_WEIGHT };
        let share = if gives_way { (share / PART).max(least) } else { *share };
        let _ = fs::write(file, share.to_string()); // fails only if the cgroup is removed
    }

    fn all_folders(&self) -> impl Iterator<Item = &PathBuf> {
        self.folders.iter().chain(self.freezer.as_ref().and_then(Freezer::own_folder))
    }

    /// The most memory it has used, if the kernel reports it.
    pub fn peak_bytes(&self) -> Option<u64> {
        let Some(file) = &self.peak else { return self.bytes() };
        let mut digits = [0; 24];
        let read = file.read_at(&mut digits, 0).ok()?;
        std::str::from_utf8(&digits[..read]).ok()?.trim().parse().ok()
    }

    /// The memory it uses now.
    pub fn bytes(&self) -> Option<u64> {
        match self.version {
            Version::One => self.number("memory.usage_in_bytes"),
            Version::Two => self.number("memory.current"),
        }
    }

    /// The anonymous memory it uses now.
    pub fn anonymous_bytes(&self) -> Option<u64> {
        let name = if self.version == Version::One { "rss " } else { "anon " };
        let text = fs::read_to_string(self.folders[0].join("memory.stat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    }

    /// Whether a process was killed because the memory was used up.
    pub fn was_out_of_memory(&self) -> bool {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.folders[0].join(file)).unwrap_or_default();
        text.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
    }

    /// Waits until no process is left in it, killing any that is, and removes it.
    pub async fn remove_when_empty(&self) {
        if let Some(freezer) = &self.freezer {
            freezer.thaw();
        }
        for attempt in 0_u64.. {
            if self.remove() {
                return;
            }
            // A process listed in this cgroup is one of this sandbox's; had it ended since, its number
            // could be another's only after the kernel has used up all numbers.
            for process in self.processes().into_iter().filter_map(Pid::from_raw) {
                let _ = kill_process(process, Signal::KILL);
            }
            if attempt == 500 {
                tracing::error!("processes in {} cannot be ended", self.folders[0].display());
            }
            tokio::time::sleep(Duration::from_millis(1 + attempt.min(49))).await;
        }
    }

    /// The processes in it.
    pub fn processes(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.folders[0].join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Moves a process into it.
    ///
    /// # Errors
    /// A file that cannot be written, named.
    pub fn take_in(&self, process: u32) -> Result<()> {
        for file in self.procs_files() {
            fs::write(&file, process.to_string())
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }

    /// Removes the cgroup if no process is left in it. Returns whether nothing of it is left.
    pub fn remove(&self) -> bool {
        let removed = |folder: &PathBuf| match fs::remove_dir(folder) {
            Err(error) => error.kind() == io::ErrorKind::NotFound,
            Ok(()) => true,
        };
        self.all_folders().filter(|folder| !removed(folder)).count() == 0
    }

    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.folders[0].join(file)).ok()?.trim().parse().ok()
    }
}

/// Removes the folder of a worker that has ended without removing it.
fn remove_with_instances(folder: &Path) -> io::Result<()> {
    for below in fs::read_dir(folder)?.flatten().filter(|entry| entry.path().is_dir()) {
        // The cgroup's own files are no folders, and the kernel removes them with it.
        freezer::remove_thawed(&below.path())?;
    }
    fs::remove_dir(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limits =
        Limits { memory_mib: 128, share_of_mib: 128, processes: 9, processors: None, may_swap: false };

    #[test]
    fn nothing_stays_of_a_cgroup_that_cannot_be_made() {
        let base = tempfile::tempdir().unwrap();
        let folders = vec![base.path().join("memory"), base.path().join("pids")];
        fs::create_dir(&folders[0]).unwrap();
        fs::write(&folders[1], "no folder").unwrap();
        let hierarchy = Hierarchy { version: Version::One, folders, freezer: None, _owned: Vec::new() };
        assert!(hierarchy.create("7", SMALL).is_err());
        assert!(!hierarchy.folders[0].join("7").exists());
        std::mem::forget(hierarchy); // one of its folders is none
    }

    #[test]
    fn version_two_is_set_up_in_plain_folders() {
        let base = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy::below(Version::Two, &[base.path().into()], None).unwrap();
        let inside = hierarchy.folders[0].join("7");
        fs::create_dir_all(&inside).unwrap();
        for file in ["memory.max", "pids.max", WEIGHT] {
            fs::write(inside.join(file), "").unwrap();
        }
        let cgroup = hierarchy.create("7", SMALL).unwrap();
        assert_eq!(fs::read_to_string(inside.join("memory.max")).unwrap(), "134217728");
        assert_eq!(fs::read_to_string(inside.join("pids.max")).unwrap(), "9");
        assert_eq!(cgroup.entering_files(), [inside.join("cgroup.procs")]);
        fs::write(inside.join("memory.events"), "oom 1\noom_kill 1\n").unwrap();
        assert!(cgroup.was_out_of_memory());
        fs::write(inside.join("memory.events"), "oom 0\noom_kill 0\n").unwrap();
        assert!(!cgroup.was_out_of_memory());
        std::mem::forget(hierarchy); // plain files do not go with their folder
    }
}
