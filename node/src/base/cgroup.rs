//! Cgroups of page stores, one each, that limit and count their memory: version 2, or 1 where the node has
//! only that.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A sibling of the pods' cgroups, so that no pod is charged for a store.
const PARENT: &str = "mayfly-node";

/// The folder below which each store has a cgroup.
#[derive(Clone, Debug)]
pub struct ParentCgroup {
    folder: PathBuf,
    is_version_two: bool,
}

impl ParentCgroup {
    /// Finds the memory controller below `root`, which is `/sys/fs/cgroup`, and makes the folder. Cgroups
    /// that a former agent's stores left are empty by now; they are removed.
    ///
    /// # Errors
    /// There is no memory controller, or no permission.
    pub fn new(root: &Path) -> Result<ParentCgroup> {
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let is_version_two = controllers.split_whitespace().any(|name| name == "memory");
        let base = if is_version_two {
            let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
            root.to_owned()
        } else if root.join("memory/memory.limit_in_bytes").exists()
            || root.join("memory/cgroup.procs").exists()
        {
            root.join("memory")
        } else {
            bail!("no memory controller below {}", root.display());
        };
        let folder = base.join(PARENT);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the cgroup {}", folder.display()))?;
        if is_version_two {
            let file = folder.join("cgroup.subtree_control");
            fs::write(&file, "+memory").with_context(|| format!("cannot write {}", file.display()))?;
        }
        for left in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let _ = fs::remove_dir(left.path());
        }
        Ok(ParentCgroup { folder, is_version_two })
    }

    /// The cgroup of a store, which may use `most_bytes`.
    ///
    /// # Errors
    /// The file that cannot be written.
    pub fn make(&self, name: &str, max_bytes: u64) -> Result<Cgroup> {
        let folder = self.folder.join(name);
        let cgroup = Cgroup { folder, is_version_two: self.is_version_two };
        match fs::create_dir(&cgroup.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(error)
                    .with_context(|| format!("cannot make the cgroup {}", cgroup.folder.display()));
            }
            _ => {}
        }
        let limit = if self.is_version_two { "memory.max" } else { "memory.limit_in_bytes" };
        let file = cgroup.folder.join(limit);
        fs::write(&file, max_bytes.to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
        let swap = if self.is_version_two { ("memory.swap.max", "0") } else { ("memory.swappiness", "0") };
        let _ = fs::write(cgroup.folder.join(swap.0), swap.1); // absent where the kernel does not swap
        Ok(cgroup)
    }
}

/// A store's cgroup.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    is_version_two: bool,
}

impl Cgroup {
    /// Moves a process into it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add_process(&self, process: u32) -> Result<()> {
        let file = self.folder.join("cgroup.procs");
        fs::write(&file, process.to_string()).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Bytes charged to it.
    pub fn bytes(&self) -> Option<u64> {
        let name = if self.is_version_two { "memory.current" } else { "memory.usage_in_bytes" };
        fs::read_to_string(self.folder.join(name)).ok()?.trim().parse().ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Fails while the kernel still removes its last process; the next agent then removes it.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The folder of a container's cgroup, a path from the root.
fn folder_of(path: &str) -> Option<PathBuf> {
    let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    // An agent in a cgroup namespace of its own sees the cgroups outside it with this prefix.
    let path = path.trim_start_matches("/..");
    roots.iter().map(|root| PathBuf::from(format!("{root}{path}"))).find(|folder| folder.is_dir())
}

/// Bytes charged to a container's cgroup, a path from the root; `None` if it has ended.
pub fn charged_bytes(path: &str) -> Option<u64> {
    let folder = folder_of(path)?;
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
    read("memory.current").or_else(|| read("memory.usage_in_bytes"))
}

/// The processes of a container: those of its cgroup, a path from the root, and of the cgroups below it.
pub fn processes_below(path: &str) -> Vec<u32> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = folder_of(path).into_iter().collect();
    while let Some(folder) = folders.pop() {
        let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        let below = fs::read_dir(&folder).into_iter().flatten().flatten();
        folders.extend(
            below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_version_two_by_its_controllers() {
        let folder = tempfile::tempdir().unwrap();
        assert!(ParentCgroup::new(folder.path()).is_err());
        fs::write(folder.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let parent = ParentCgroup::new(folder.path()).unwrap();
        let cgroup = parent.make("store", 1 << 20).unwrap();
        assert_eq!(
            fs::read_to_string(folder.path().join("mayfly-node/store/memory.max")).unwrap(),
            "1048576"
        );
        fs::write(folder.path().join("mayfly-node/store/memory.current"), "4096\n").unwrap();
        assert_eq!(cgroup.bytes(), Some(4096));
    }
}
