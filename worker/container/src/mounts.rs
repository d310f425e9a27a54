//! Finds where this process may make cgroups, from the mounts and its own cgroups.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::process::geteuid;

/// A mounted file system: its root within the file system, its mount point, its kind and options.
struct Mount<'a> {
    root: &'a str,
    place: &'a str,
    kind: &'a str,
    options: &'a str,
}

/// One line of /proc/self/mountinfo (proc(5)).
fn mount(line: &str) -> Option<Mount<'_>> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let mut after = after.split(' ');
    let (root, place) = (before.next()?, before.next()?);
    Some(Mount { root, place, kind: after.next()?, options: after.nth(1)? })
}

/// The folder of a cgroup below a mount.
fn folder(mount: &Mount<'_>, cgroup: &str) -> PathBuf {
    let below = cgroup.strip_prefix(mount.root).unwrap_or(cgroup);
    Path::new(mount.place).join(below.trim_start_matches('/'))
}

/// The cgroup of the worker itself, in version 2: cgroups with processes can have none below them that have
/// controllers.
const LEAF: &str = "mayfly";
/// The files with the controllers that a cgroup passes to those below it, and with those that it has
/// itself.
const SUBTREE: &str = "cgroup.subtree_control";
const HAS: &str = "cgroup.controllers";
const CONTROLLERS: &str = "+memory +pids +cpu";

/// The cgroup of version 2 below which the worker may make others: its own, if that belongs to this user,
/// such as a unit of systemd's with `Delegate=yes`.
pub fn version_two(mounts: &str, own: &str) -> Option<PathBuf> {
    let mount = mounts.lines().filter_map(mount).find(|mount| mount.kind == "cgroup2")?;
    let own = folder(&mount, own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/"));
    // The successor of an earlier worker is in the leaf that [`enable`] has made for that one.
    let base = match own.parent() {
        Some(parent) if own.ends_with(LEAF) && names_both(&parent.join(SUBTREE)) => parent.into(),
        _ => own,
    };
    let is_own = fs::metadata(&base).is_ok_and(|metadata| metadata.uid() == geteuid().as_raw());
    (is_own && names_both(&base.join(HAS))).then_some(base)
}

/// Whether a list of controllers has the two without which there are no instances.
fn names_both(list: &Path) -> bool {
    let text = fs::read_to_string(list).unwrap_or_default();
    ["memory", "pids"].iter().all(|wanted| text.split_whitespace().any(|controller| controller == *wanted))
}

/// Passes the controllers to the cgroups below `base`. If `base` holds processes, this one moves into a
/// leaf.
pub fn enable(base: &Path) -> Result<()> {
    let control = base.join(SUBTREE);
    if fs::write(&control, CONTROLLERS).is_ok() {
        return Ok(());
    }
    let leaf = base.join(LEAF);
    fs::create_dir_all(&leaf).with_context(|| format!("cannot make {}", leaf.display()))?;
    fs::write(leaf.join("cgroup.procs"), "0").with_context(|| format!("cannot enter {}", leaf.display()))?;
    let given = fs::write(&control, CONTROLLERS);
    if given.is_err() {
        // `base` also holds other processes, such as the shell that started this one.
        let _ = fs::write(base.join("cgroup.procs"), "0").and_then(|()| fs::remove_dir(&leaf));
    }
    given.with_context(|| format!("cannot write {}", control.display()))
}

/// The own cgroup of one controller.
pub fn version_one_of(controller: &str, mounts: &str, own: &str) -> Option<PathBuf> {
    let has = |list: &str| list.split(',').any(|name| name == controller);
    let mount =
        mounts.lines().filter_map(mount).find(|mount| mount.kind == "cgroup" && has(mount.options))?;
    let cgroup = own.lines().find_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        has(controllers).then_some(path)
    })?;
    Some(folder(&mount, cgroup))
}

/// The own cgroups of the three controllers, memory first; the processor's may be missing.
pub fn version_one(mounts: &str, own: &str) -> Option<Vec<PathBuf>> {
    let of = |controller| version_one_of(controller, mounts, own);
    let mut folders = vec![of("memory")?, of("pids")?];
    folders.extend(of("cpu"));
    folders.dedup();
    Some(folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
29 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw
30 29 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
33 29 0:30 /outer /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 29 0:34 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 29 0:37 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
";
    const OWN: &str = "8:pids:/\n4:memory:/outer/a/b\n1:cpu,cpuacct:/x\n0::/own\n";

    #[test]
    fn own_cgroups_are_found_below_their_mounts() {
        assert_eq!(
            version_one(HYBRID, OWN).unwrap(),
            ["/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/pids/", "/sys/fs/cgroup/cpu/x"].map(PathBuf::from)
        );
        assert_eq!(version_one("", OWN), None);
        assert_eq!(version_two("", OWN), None);
    }

    #[test]
    fn version_two_is_used_below_the_own_cgroup_and_nowhere_else() {
        let top = tempfile::tempdir().unwrap();
        let mounts =
            format!("40 29 0:37 / {} rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n", top.path().display());
        let service = top.path().join("system.slice/worker.service");
        fs::create_dir_all(service.join(LEAF)).unwrap();
        fs::write(top.path().join(HAS), "cpu memory pids\n").unwrap();
        let own = |leaf: &str| format!("0::/system.slice/worker.service{leaf}\n");
        assert_eq!(version_two(&mounts, &own("")), None, "it has no controllers, whatever the top has");
        fs::write(service.join(HAS), "cpu memory pids\n").unwrap();
        assert_eq!(version_two(&mounts, &own("")), Some(service.clone()));
        // After the first worker has entered the leaf, the second is there too.
        fs::write(service.join(SUBTREE), "cpu memory pids\n").unwrap();
        assert_eq!(version_two(&mounts, &own("/mayfly")), Some(service));
    }
}
