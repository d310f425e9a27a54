//! Freezing and thawing all processes of a group.
//!
//! A process that version 1 has frozen does not even take SIGKILL. There the freezer may be a hierarchy of
//! its own.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::group::STATE;
use crate::{Error, Group, Version, cannot};

const THAWED: &str = "THAWED";

impl Group {
    /// Freezes its processes.
    ///
    /// # Errors
    /// This host has no freezer, or the group is gone.
    pub fn freeze(&self) -> Result<(), Error> {
        self.set_frozen("FROZEN", "1")
    }

    /// Thaws its processes.
    ///
    /// # Errors
    /// As [`Group::freeze`].
    pub fn thaw(&self) -> Result<(), Error> {
        self.set_frozen(THAWED, "0")
    }

    fn set_frozen(&self, one: &str, two: &str) -> Result<(), Error> {
        match (self.version(), self.freezer_folder()) {
            (Version::Two, _) => self.write("cgroup.freeze", two),
            (Version::One, Some(folder)) => {
                let file = folder.join(STATE);
                fs::write(&file, one).map_err(cannot("write", &file))
            }
            (Version::One, None) => Err(Error::Missing { folder: self.folder().into(), file: STATE }),
        }
    }
}

/// For version 1, the right to thaw a group: its file, open, for a process that is about to lose its rights.
#[derive(Debug)]
pub struct Thawing(File);

impl Thawing {
    /// Of the group in this folder of the freezer's hierarchy.
    ///
    /// # Errors
    /// It is gone.
    pub fn open(folder: &Path) -> Result<Thawing, Error> {
        let file = folder.join(STATE);
        File::options().write(true).open(&file).map(Thawing).map_err(cannot("open", &file))
    }

    /// Thaws it.
    ///
    /// # Errors
    /// It was removed.
    pub fn thaw(&self) -> io::Result<()> {
        (&self.0).write_all(THAWED.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_is_frozen_by_a_file_of_its_own() {
        let base = tempfile::tempdir().unwrap();
        let state = |file: &str| fs::read_to_string(base.path().join(file)).unwrap();
        let two = Group::two(base.path());
        two.freeze().unwrap();
        assert_eq!(state("cgroup.freeze"), "1");
        two.thaw().unwrap();
        assert_eq!(state("cgroup.freeze"), "0");
        let none = Group::one(vec![base.path().into()], None);
        let error = none.freeze().unwrap_err();
        assert_eq!(error.to_string(), format!("{}: there is no freezer.state", base.path().display()));
        assert!(Thawing::open(base.path()).is_err());
        let one = Group::one(vec!["/no such folder".into()], Some(base.path().into()));
        one.freeze().unwrap();
        assert_eq!(state(STATE), "FROZEN");
        one.thaw().unwrap();
        assert_eq!(state(STATE), "THAWED");
        fs::write(base.path().join(STATE), "FROZEN").unwrap();
        Thawing::open(base.path()).unwrap().thaw().unwrap();
        assert_eq!(state(STATE), "THAWED");
    }
}
