//! Limits of memory, processes and processor share, by cgroups: version 2, or 1 where the host has only that.
//!
//! All instances of a worker lie below one folder, `mayfly-worker-PID-...`, so that the next worker can
//! remove the cgroups of one that was killed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::freezer::{self, Freezer};
use super::mounts::{enable, version_one, version_one_of, version_two};
use worker_system::owned_folder::{self, Owned};

/// Memory that stands for one processor: an instance's share of the processors is proportional to its memory.
const MIB_PER_PROCESSOR: u32 = 1769;

const PREFIX: &str = "mayfly-worker-";
/// The kernel's default period of a processor quota.
const PERIOD_US: u64 = 100_000;
const HOW_TO_GET_ONE: &str =
    "systemd-run --scope -p Delegate=yes mayfly up TEMPLATE (not as root: systemd-run --user)";

/// The version of the hierarchy, which decides the names of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The limits of one instance.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `MemorySize`.
    pub memory_mib: u32,
    /// Its share of the processors is that of an instance with this much memory.
    pub share_of_mib: u32,
    /// Processes and threads.
    pub processes: u64,
    /// Processors it may use at most, if its function has a limit.
    pub processors: Option<f64>,
    /// Whether any of its memory may be in the host's swap, where it counts as well.
    pub may_swap: bool,
}

/// The files with an instance's share of the processors, in version 1 and 2, and the least value that the
/// kernel accepts.
const SHARES: &str = "cpu.shares";
const LEAST_SHARES: u64 = 2;
const WEIGHT: &str = "cpu.weight";
const LEAST_WEIGHT: u64 = 1;
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

    /// Makes the cgroup of an instance.
    ///
    /// # Errors
    /// A file that cannot be written, named.
    pub fn create(&self, name: &str, limits: Limits) -> Result<Cgroup> {
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
        for (file, value, needed) in settings(self.version, limits) {
            let places = cgroup.folders.iter().map(|folder| folder.join(file));
            let Some(place) = places.into_iter().find(|place| place.exists()) else {
                if needed {
                    cgroup.remove();
                    bail!("{}: there is no {file}", cgroup.folders[0].display());
                }
                continue;
            };
            if let Err(error) = fs::write(&place, &value) {
                cgroup.remove();
                return Err(error).with_context(|| format!("cannot write {}", place.display()));
            }
            if [SHARES, WEIGHT].contains(&file) {
                cgroup.share = value.parse().ok().map(|share| (place, share));
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

/// File, value, and whether instances must not run without it.
fn settings(version: Version, of: Limits) -> Vec<(&'static str, String, bool)> {
    let memory = (u64::from(of.memory_mib) << 20).to_string();
    let processes = of.processes.to_string();
    let share = |of_one: u64, least: u64| share(of.share_of_mib, of_one).clamp(least, 10_000).to_string();
    // A quota in each period, as Lambda's own ceiling works.
    let quota = of.processors.map(|processors| (processors * PERIOD_US as f64).max(1000.0) as u64);
    let mut settings = match version {
        Version::One => vec![
            ("memory.limit_in_bytes", memory.clone(), true),
            // Absent where the kernel does not account for swap.
            ("memory.memsw.limit_in_bytes", memory, false),
            ("memory.swappiness", "0".into(), false),
            ("pids.max", processes, true),
            (SHARES, share(1024, LEAST_SHARES), false),
        ],
        Version::Two => vec![
            ("memory.max", memory.clone(), true),
            ("memory.swap.max", if of.may_swap { memory } else { "0".into() }, false),
            ("memory.oom.group", "1".into(), false),
            ("pids.max", processes, true),
            (WEIGHT, share(100, LEAST_WEIGHT), false),
        ],
    };
    settings.extend(quota.map(|quota| match version {
        Version::One => ("cpu.cfs_quota_us", quota.to_string(), true),
        Version::Two => ("cpu.max", format!("{quota} {PERIOD_US}"), true),
    }));
    settings
}

impl Cgroup {
    /// The files to which a process writes to enter the cgroup.
    pub fn procs_files(&self) -> Vec<PathBuf> {
        self.folders.iter().map(|folder| folder.join("cgroup.procs")).collect()
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

/// An instance's share of the processors, where `of_one` is one whole processor's.
pub fn share(memory_mib: u32, of_one: u64) -> u64 {
    of_one * u64::from(memory_mib) / u64::from(MIB_PER_PROCESSOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_each_version_names_them() {
        let limits = Limits {
            memory_mib: 3000,
            share_of_mib: 1769,
            processes: 10,
            processors: Some(0.5),
            may_swap: false,
        };
        let value = |version, file| {
            settings(version, limits).into_iter().find(|setting| setting.0 == file).map(|setting| setting.1)
        };
        assert_eq!(value(Version::One, "memory.limit_in_bytes").as_deref(), Some("3145728000"));
        assert_eq!(value(Version::Two, "memory.max").as_deref(), Some("3145728000"));
        assert_eq!(value(Version::One, "cpu.shares").as_deref(), Some("1024"));
        assert_eq!(value(Version::Two, "cpu.weight").as_deref(), Some("100"));
        assert_eq!(value(Version::Two, "memory.swap.max").as_deref(), Some("0"));
        let swap = settings(Version::Two, Limits { may_swap: true, ..limits });
        assert!(swap.contains(&("memory.swap.max", "3145728000".into(), false)));
        assert_eq!(value(Version::One, "cpu.cfs_quota_us").as_deref(), Some("50000"));
        assert_eq!(value(Version::Two, "cpu.max").as_deref(), Some("50000 100000"));
    }

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
        assert_eq!(cgroup.procs_files(), [inside.join("cgroup.procs")]);
        fs::write(inside.join("memory.events"), "oom 1\noom_kill 1\n").unwrap();
        assert!(cgroup.was_out_of_memory());
        fs::write(inside.join("memory.events"), "oom 0\noom_kill 0\n").unwrap();
        assert!(!cgroup.was_out_of_memory());
        std::mem::forget(hierarchy); // plain files do not go with their folder
    }
}
