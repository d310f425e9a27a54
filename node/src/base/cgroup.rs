//! Cgroups of page stores, one each, that limit and count their memory; and those of containers.

use std::path::Path;

use anyhow::{Context, Result};
use cgroups::{Error, Group, Limits, Membership};

/// A sibling of the pods' cgroups, so that no pod is charged for a store.
const PARENT: &str = "mayfly-node";

/// The cgroup below which each store has one.
#[derive(Clone, Debug)]
pub struct ParentCgroup(Group);

impl ParentCgroup {
    /// Finds the memory controller below `root`, which is `/sys/fs/cgroup`, and makes the cgroup. Cgroups
    /// that a former agent's stores left are empty by now; they are removed.
    ///
    /// # Errors
    /// There is no memory controller, or no permission.
    pub fn new(root: &Path) -> Result<ParentCgroup> {
        let top = Group::top_of_memory(root)
            .with_context(|| format!("no memory controller below {}", root.display()))?;
        let _ = top.pass_controllers("+memory");
        let group = top.child(PARENT);
        group.create()?;
        group.pass_controllers("+memory")?;
        for left in group.children() {
            let _ = left.remove();
        }
        Ok(ParentCgroup(group))
    }

    /// The cgroup of a store, which may use so many bytes and is not swapped.
    ///
    /// # Errors
    /// The file that cannot be written.
    pub fn make(&self, name: &str, max_bytes: u64) -> Result<Cgroup, Error> {
        let cgroup = Cgroup(self.0.child(name));
        cgroup.0.create()?;
        let swap_bytes = Some(0);
        cgroup.0.limit(&Limits { memory_bytes: Some(max_bytes), swap_bytes, ..Limits::default() })?;
        Ok(cgroup)
    }
}

/// A store's cgroup.
#[derive(Debug)]
pub struct Cgroup(Group);

impl Cgroup {
    /// Moves a process into it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add_process(&self, process: u32) -> Result<(), Error> {
        self.0.add(process)
    }

    /// Bytes charged to it.
    pub fn bytes(&self) -> Option<u64> {
        self.0.memory_bytes()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Fails while the kernel still removes its last process; the next agent then removes it.
        let _ = self.0.remove();
    }
}

/// The memory cgroup of a process that lives, a path from the root, as a store beside the caller sees it.
pub fn of_process(process: u32) -> Option<String> {
    Membership::of(process).ok()?.memory().map(str::to_owned)
}

/// Bytes charged to a container's cgroup, a path from the root; `None` if it has ended.
pub fn charged_bytes(path: &str) -> Option<u64> {
    Group::of_memory(path)?.memory_bytes()
}

/// The processes of a container: those of its cgroup, a path from the root, and of the cgroups below it.
pub fn processes_below(path: &str) -> Vec<i32> {
    Group::of_memory(path).map(|group| group.all_processes()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn finds_version_two_by_its_controllers() {
        let folder = tempfile::tempdir().unwrap();
        assert!(ParentCgroup::new(folder.path()).is_err());
        fs::write(folder.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let left = folder.path().join("mayfly-node/left");
        fs::create_dir_all(&left).unwrap();
        let parent = ParentCgroup::new(folder.path()).unwrap();
        assert!(!left.exists());
        let store = folder.path().join("mayfly-node/store");
        fs::create_dir(&store).unwrap();
        for (file, text) in [("memory.max", "max\n"), ("memory.current", "4096\n")] {
            fs::write(store.join(file), text).unwrap();
        }
        let cgroup = parent.make("store", 1 << 20).unwrap();
        assert_eq!(fs::read_to_string(store.join("memory.max")).unwrap(), "1048576");
        assert_eq!(cgroup.bytes(), Some(4096));
    }
}
