//! Where this process may make groups, from the mounts and from its own groups.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::group::{PROCS, SUBTREE};
use crate::{Error, Group, Membership, Version, cannot};

/// The group of the process itself, in version 2: groups with processes can have none below them that have
/// controllers.
const LEAF: &str = "mayfly";
const CONTROLLERS: &str = "+memory +pids +cpu";

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

/// The folder of a group below a mount.
fn folder(mount: &Mount<'_>, group: &str) -> PathBuf {
    let below = group.strip_prefix(mount.root).unwrap_or(group);
    Path::new(mount.place).join(below.trim_start_matches('/'))
}

/// The group of version 2 below which this process may make others: its own, if that belongs to this user,
/// such as a unit of systemd's with `Delegate=yes`.
fn version_two(mounts: &str, own: &Membership) -> Option<PathBuf> {
    let mount = mounts.lines().filter_map(mount).find(|mount| mount.kind == "cgroup2")?;
    let own = folder(&mount, own.unified().unwrap_or("/"));
    // The successor of an earlier process is in the leaf that [`Group::delegate`] has made for that one.
    let base = match own.parent() {
        Some(parent) if own.ends_with(LEAF) && names_both(&parent.join(SUBTREE)) => parent.into(),
        _ => own,
    };
    let is_own = fs::metadata(&base).is_ok_and(|metadata| metadata.uid() == geteuid().as_raw());
    (is_own && names_both(&base.join("cgroup.controllers"))).then_some(base)
}

/// Whether a list of controllers has memory and pids.
fn names_both(list: &Path) -> bool {
    let text = fs::read_to_string(list).unwrap_or_default();
    ["memory", "pids"].iter().all(|wanted| text.split_whitespace().any(|controller| controller == *wanted))
}

/// The own group of one controller.
fn version_one_of(controller: &str, mounts: &str, own: &Membership) -> Option<PathBuf> {
    let has = |list: &str| list.split(',').any(|name| name == controller);
    let mount =
        mounts.lines().filter_map(mount).find(|mount| mount.kind == "cgroup" && has(mount.options))?;
    Some(folder(&mount, own.of_controller(controller)?))
}

/// The own groups of the three controllers, memory first; the processor's may be missing.
fn version_one(mounts: &str, own: &Membership) -> Option<Vec<PathBuf>> {
    let of = |controller| version_one_of(controller, mounts, own);
    let mut folders = vec![of("memory")?, of("pids")?];
    folders.extend(of("cpu"));
    folders.dedup();
    Some(folders)
}

impl Group {
    /// The group below which this process may make others that limit memory and processes; `None` if this
    /// host has no such group, or another user has it. In version 1 with the freezer, if that has a hierarchy
    /// of its own.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn own() -> Result<Option<Group>, Error> {
        let path = Path::new("/proc/self/mountinfo");
        let mounts = fs::read_to_string(path).map_err(cannot("read", path))?;
        let own = Membership::of("self").map_err(cannot("read", Path::new("/proc/self/cgroup")))?;
        if let Some(base) = version_two(&mounts, &own) {
            return Ok(Some(Group::two(base)));
        }
        Ok(version_one(&mounts, &own).map(|bases| {
            let freezer = version_one_of("freezer", &mounts, &own).filter(|base| !bases.contains(base));
            Group::one(bases, freezer)
        }))
    }

    /// Passes the controllers memory, pids and cpu to the groups below. If the group holds processes, this
    /// one moves into a leaf.
    ///
    /// # Errors
    /// It holds others, too, or this user may not.
    pub fn delegate(&self) -> Result<(), Error> {
        if self.version() == Version::One || self.pass_controllers(CONTROLLERS).is_ok() {
            return Ok(());
        }
        let leaf = self.folder().join(LEAF);
        fs::create_dir_all(&leaf).map_err(cannot("make", &leaf))?;
        fs::write(leaf.join(PROCS), "0").map_err(cannot("enter", &leaf))?;
        let passed = self.pass_controllers(CONTROLLERS);
        if passed.is_err() {
            // The group also holds other processes, such as the shell that started this one.
            let _ = self.add(0).map(|()| fs::remove_dir(&leaf));
        }
        passed
    }
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
    fn own_groups_are_found_below_their_mounts() {
        let own = Membership::parse(OWN);
        assert_eq!(
            version_one(HYBRID, &own).unwrap(),
            ["/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/pids/", "/sys/fs/cgroup/cpu/x"].map(PathBuf::from)
        );
        assert_eq!(version_one("", &own), None);
        assert_eq!(version_two("", &own), None);
    }

    #[test]
    fn version_two_is_used_below_the_own_group_and_nowhere_else() {
        let top = tempfile::tempdir().unwrap();
        let mounts =
            format!("40 29 0:37 / {} rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n", top.path().display());
        let service = top.path().join("system.slice/worker.service");
        fs::create_dir_all(service.join(LEAF)).unwrap();
        fs::write(top.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let found = |leaf: &str| {
            version_two(&mounts, &Membership::parse(&format!("0::/system.slice/worker.service{leaf}\n")))
        };
        assert_eq!(found(""), None, "it has no controllers, whatever the top has");
        fs::write(service.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        assert_eq!(found(""), Some(service.clone()));
        // After the first worker has entered the leaf, the second is there too.
        fs::write(service.join(SUBTREE), "cpu memory pids\n").unwrap();
        assert_eq!(found("/mayfly"), Some(service));
    }
}
