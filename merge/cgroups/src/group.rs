//! A group: its folders, its limits, and what enters it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::{Error, Limits, Share, Version, cannot};

/// Where hierarchies are mounted: one of version 1 in a folder with its controllers' name, and the one of
/// version 2 there, or beside those of version 1 in `unified`.
const MEMORY_ROOTS: [&str; 3] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The file by which a process enters a group.
pub(crate) const PROCS: &str = "cgroup.procs";
/// In version 1, the file by which a thread enters a group.
pub const THREADS: &str = "tasks";
/// In version 2, the controllers that a group passes to those below it, and those that it has itself.
pub(crate) const SUBTREE: &str = "cgroup.subtree_control";
pub(crate) const HAS: &str = "cgroup.controllers";
/// In version 1, the state of the freezer.
pub(crate) const STATE: &str = "freezer.state";

/// A group, whether it is there or not.
#[derive(Clone, Debug)]
pub struct Group {
    version: Version,
    /// In version 1 one for each controller, memory's first.
    folders: Vec<PathBuf>,
    /// In version 1, the folder in the freezer's hierarchy.
    freezer: Option<PathBuf>,
}

impl Group {
    /// The group of version 2 in a folder.
    pub fn two(folder: impl Into<PathBuf>) -> Group {
        Group { version: Version::Two, folders: vec![folder.into()], freezer: None }
    }

    /// A group of version 1: a folder for each controller, memory's first, and the freezer's, if that has a
    /// hierarchy of its own.
    pub fn one(folders: Vec<PathBuf>, freezer: Option<PathBuf>) -> Group {
        Group { version: Version::One, folders, freezer }
    }

    /// The group in a folder that is there, of the version whose files it has.
    pub fn at(folder: impl Into<PathBuf>) -> Group {
        let folder = folder.into();
        let version = if folder.join(HAS).exists() { Version::Two } else { Version::One };
        Group::in_folder(version, folder)
    }

    fn in_folder(version: Version, folder: PathBuf) -> Group {
        let freezer = (version == Version::One && folder.join(STATE).exists()).then(|| folder.clone());
        Group { version, folders: vec![folder], freezer }
    }

    /// The memory's group of this path from the root, as [`Membership::memory`](crate::Membership::memory)
    /// has it; `None` if it is gone.
    pub fn of_memory(path: &str) -> Option<Group> {
        // A process in a cgroup namespace of its own sees groups outside it with this prefix.
        let path = path.trim_start_matches("/..");
        let mut folders = MEMORY_ROOTS.iter().map(|root| PathBuf::from(format!("{root}{path}")));
        folders.find(|folder| folder.is_dir()).map(Group::at)
    }

    /// The top of the hierarchy with the memory controller below `root`, which is `/sys/fs/cgroup`.
    pub fn top_of_memory(root: &Path) -> Option<Group> {
        let controllers = fs::read_to_string(root.join(HAS)).unwrap_or_default();
        if controllers.split_whitespace().any(|name| name == "memory") {
            return Some(Group::two(root));
        }
        let folder = root.join("memory");
        let is_there = ["memory.limit_in_bytes", PROCS].iter().any(|file| folder.join(file).exists());
        is_there.then(|| Group::one(vec![folder], None))
    }

    /// The group below it of this name.
    #[must_use]
    pub fn child(&self, name: &str) -> Group {
        let below = |folder: &PathBuf| folder.join(name);
        let folders = self.folders.iter().map(below).collect();
        Group { version: self.version, folders, freezer: self.freezer.as_ref().map(below) }
    }

    /// The groups below it, each with the one folder in which it was found.
    pub fn children(&self) -> Vec<Group> {
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        // The group's own files are no folders.
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.map(|entry| Group::in_folder(self.version, entry.path())).collect()
    }

    /// The group whose folders `find` names, given those of this one, the freezer's first: frozen processes
    /// do not end.
    ///
    /// # Errors
    /// Those of `find`.
    pub fn map<E>(&self, mut find: impl FnMut(&Path) -> Result<PathBuf, E>) -> Result<Group, E> {
        let freezer = self.freezer.as_deref().map(&mut find).transpose()?;
        let folders = self.folders.iter().map(|folder| find(folder)).collect::<Result<_, E>>()?;
        Ok(Group { version: self.version, folders, freezer })
    }

    /// The version of its hierarchies.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its folder, in version 1 the memory's.
    pub fn folder(&self) -> &Path {
        &self.folders[0]
    }

    /// In version 1, the folder that only the freezer has.
    pub fn freezer_folder(&self) -> Option<&Path> {
        self.freezer.as_deref()
    }

    pub(crate) fn all_folders(&self) -> impl Iterator<Item = &PathBuf> {
        self.folders.iter().chain(self.freezer.as_ref().filter(|own| !self.folders.contains(own)))
    }

    /// Makes it; it may be there already.
    ///
    /// # Errors
    /// This user may not. Nothing stays of it.
    pub fn create(&self) -> Result<(), Error> {
        self.all_folders().try_for_each(|folder| {
            fs::create_dir_all(folder).map_err(|error| {
                let _ = self.remove();
                cannot("make the cgroup", folder)(error)
            })
        })
    }

    /// Makes it.
    ///
    /// # Errors
    /// This user may not, or it is there already.
    pub fn create_new(&self) -> Result<(), Error> {
        fs::create_dir(self.folder()).map_err(cannot("make the cgroup", self.folder()))?;
        self.create()
    }

    /// Passes controllers to the groups below it, as "+memory +pids"; in version 1 they have them.
    ///
    /// # Errors
    /// It has no such controller, or holds processes.
    pub fn pass_controllers(&self, controllers: &str) -> Result<(), Error> {
        if self.version == Version::Two { self.write(SUBTREE, controllers) } else { Ok(()) }
    }

    /// Limits it.
    ///
    /// # Errors
    /// A file that cannot be written or is not there. Those before it are written.
    pub fn limit(&self, limits: &Limits) -> Result<(), Error> {
        for (file, value, is_needed) in limits.settings(self.version) {
            match self.place(file) {
                Some(place) => fs::write(&place, value).map_err(cannot("write", &place))?,
                None if is_needed => return Err(Error::Missing { folder: self.folder().into(), file }),
                None => {}
            }
        }
        Ok(())
    }

    /// Sets its share of the processors, if it has their controller.
    ///
    /// # Errors
    /// It is gone.
    pub fn set_share(&self, share: Share) -> Result<(), Error> {
        self.limit(&Limits { share: Some(share), ..Limits::default() })
    }

    /// Moves a process into it; 0 is the calling one.
    ///
    /// # Errors
    /// The process has ended, or this user may not.
    pub fn add(&self, process: u32) -> Result<(), Error> {
        let mut files = self.folders.iter().map(|folder| folder.join(PROCS));
        files.try_for_each(|file| fs::write(&file, process.to_string()).map_err(cannot("write", &file)))
    }

    /// The file, open, into which a process writes 0 to enter it; in version 1 for its memory alone.
    ///
    /// # Errors
    /// No descriptor is left, or it is gone.
    pub fn entrance(&self) -> Result<File, Error> {
        let file = self.folder().join(PROCS);
        File::options().write(true).open(&file).map_err(cannot("open", &file))
    }

    /// The files by which a process of one thread enters it, but for the freezer, writing 0 to each.
    pub fn entering_files(&self) -> Vec<PathBuf> {
        let file = match self.version {
            // A thread that moves itself waits for no other: `cgroup.procs` waits for an RCU grace period of
            // the whole host, 10 to 20 ms.
            Version::One => THREADS,
            // Threads of version 2 cannot enter a group with a memory limit on their own.
            Version::Two => PROCS,
        };
        self.folders.iter().map(|folder| folder.join(file)).collect()
    }

    /// In version 1 each controller's files are in its own hierarchy.
    fn place(&self, file: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(file)).find(|place| place.exists())
    }

    pub(crate) fn write(&self, file: &str, value: &str) -> Result<(), Error> {
        let file = self.folder().join(file);
        fs::write(&file, value).map_err(cannot("write", &file))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use super::*;
    use crate::plain_folders::{text, two};

    #[test]
    fn nothing_stays_of_a_group_that_cannot_be_made() {
        let base = tempfile::tempdir().unwrap();
        let folders = ["memory", "pids"].map(|name| base.path().join(name));
        fs::create_dir(&folders[0]).unwrap();
        fs::write(&folders[1], "no folder").unwrap();
        let group = Group::one(folders.to_vec(), None).child("7");
        let error = group.create().unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot make the cgroup {}/7: ", folders[1].display())),
            "{error}"
        );
        assert!(!folders[0].join("7").exists());
    }

    #[test]
    fn group_can_be_made_anew_and_removed_when_empty() {
        let base = tempfile::tempdir().unwrap();
        let group =
            Group::one(vec![base.path().join("a"), base.path().join("b")], Some(base.path().join("c")));
        group.create_new().unwrap();
        group.create().unwrap();
        assert!(group.create_new().unwrap_err().is(io::ErrorKind::AlreadyExists));
        group.child("inside").create().unwrap();
        assert!(group.remove().is_err(), "there is another in it");
        assert!(base.path().join("a").exists() && base.path().join("c").exists());
        group.child("inside").remove_within(Duration::ZERO).unwrap();
        group.remove().unwrap();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
        group.remove().unwrap();
    }

    #[test]
    fn folders_are_found_the_freezers_first() {
        let group = Group::one(vec!["m".into(), "p".into()], Some("f".into()));
        let mut seen = Vec::new();
        let mapped = group.map(|folder| {
            seen.push(folder.to_owned());
            Ok::<_, Error>(folder.join("x"))
        });
        assert_eq!(seen, ["f", "m", "p"].map(PathBuf::from));
        let mapped = mapped.unwrap();
        assert_eq!((mapped.folder(), mapped.freezer_folder()), (Path::new("m/x"), Some(Path::new("f/x"))));
    }

    #[test]
    fn memory_controller_is_found_in_either_version() {
        let root = tempfile::tempdir().unwrap();
        assert!(Group::top_of_memory(root.path()).is_none());
        two(&root.path().join("memory"), &[(PROCS, "")]);
        let top = Group::top_of_memory(root.path()).unwrap();
        assert_eq!((top.version(), top.folder()), (Version::One, &*root.path().join("memory")));
        fs::write(root.path().join(HAS), "cpu memory pids\n").unwrap();
        let top = Group::top_of_memory(root.path()).unwrap();
        assert_eq!((top.version(), top.folder()), (Version::Two, root.path()));
        assert_eq!(Group::at(root.path()).version(), Version::Two);
        assert_eq!(Group::at(root.path().join("memory")).version(), Version::One);
        top.pass_controllers("+memory").unwrap();
        assert_eq!(text(&top, SUBTREE), "+memory");
        assert!(Group::of_memory("/no such group").is_none());
    }

    #[test]
    fn limits_are_written_where_they_are_and_missed_where_they_must_be() {
        let base = tempfile::tempdir().unwrap();
        let group = two(base.path(), &[("memory.max", ""), ("cpu.weight", "")]);
        let limits = Limits {
            memory_bytes: Some(1 << 20),
            swap_bytes: Some(0),
            share: Some(Share { part: 2, whole: 1 }),
            ..Limits::default()
        };
        group.limit(&limits).unwrap();
        assert_eq!(
            (text(&group, "memory.max"), text(&group, "cpu.weight")),
            ("1048576".into(), "200".into())
        );
        assert!(!base.path().join("memory.swap.max").exists());
        let error = group.limit(&Limits { processes: Some(9), ..limits }).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: there is no pids.max", base.path().display()));
        // In version 1 each file is in its controller's hierarchy.
        let cpu = base.path().join("cpu");
        let group = Group::one(vec![base.path().into(), cpu.clone()], None);
        group.create().unwrap();
        fs::write(cpu.join("cpu.shares"), "").unwrap();
        group.set_share(Share { part: 1, whole: 4 }).unwrap();
        assert_eq!(fs::read_to_string(cpu.join("cpu.shares")).unwrap(), "256");
    }

    #[test]
    fn processes_enter_by_the_files_of_their_version() {
        let base = tempfile::tempdir().unwrap();
        let (one, other) = (base.path().join("memory"), base.path().join("pids"));
        let group = Group::one(vec![one.clone(), other.clone()], None);
        group.create().unwrap();
        assert_eq!(group.entering_files(), [one.join("tasks"), other.join("tasks")]);
        group.add(7).unwrap();
        assert_eq!(fs::read_to_string(other.join(PROCS)).unwrap(), "7");
        let group = two(&base.path().join("two"), &[(PROCS, "")]);
        assert_eq!(group.entering_files(), [group.folder().join(PROCS)]);
        io::Write::write_all(&mut group.entrance().unwrap(), b"0").unwrap();
        assert_eq!(group.processes(), [0]);
    }
}
