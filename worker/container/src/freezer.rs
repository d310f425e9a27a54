//! Freezes and thaws all processes of an instance by the cgroup freezer, of version 1 or 2.
//!
//! A process that version 1 has frozen does not even take SIGKILL. There the freezer is a hierarchy of its
//! own, and the monitor stays out of it: if the worker ends, whatever way, the monitor kills process 1 and
//! thaws it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// In version 1, the file that has a cgroup's state.
const STATE: &str = "freezer.state";
const THAWED: &str = "THAWED";
/// In version 1, the file by which a thread enters a cgroup.
pub(crate) const THREADS: &str = "tasks";
/// How long processes that were killed while they were frozen may take to end.
const ENDING: Duration = Duration::from_secs(5);

/// The freezer of one cgroup.
#[derive(Debug)]
pub enum Freezer {
    /// The folder that process 1 enters, in version 1.
    One(PathBuf),
    /// The file to write to, in version 2.
    Two(PathBuf),
}

impl Freezer {
    /// The freezer of version 1, in this folder.
    pub fn one(folder: &Path) -> Freezer {
        Freezer::One(folder.into())
    }

    /// The freezer of version 2, of the cgroup in this folder.
    pub fn two(folder: &Path) -> Freezer {
        Freezer::Two(folder.join("cgroup.freeze"))
    }

    /// In version 1, the folder that only the freezer has.
    pub fn own_folder(&self) -> Option<&PathBuf> {
        match self {
            Freezer::One(folder) => Some(folder),
            Freezer::Two(_) => None,
        }
    }

    /// Freezes them. False if that fails.
    pub fn freeze(&self) -> bool {
        match self {
            Freezer::One(folder) => fs::write(folder.join(STATE), "FROZEN"),
            Freezer::Two(file) => fs::write(file, "1"),
        }
        .is_ok()
    }

    /// Thaws them.
    pub fn thaw(&self) {
        // Fails only if the cgroup is removed.
        let _ = match self {
            Freezer::One(folder) => fs::write(folder.join(STATE), THAWED),
            Freezer::Two(file) => fs::write(file, "0"),
        };
    }
}

/// For the monitor, in version 1: the file that thaws process 1, opened while it still has the right.
///
/// # Errors
/// The cgroup is not there.
pub fn thawing(folder: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).open(folder.join(STATE))
}

/// Thaws the cgroup of a file that [`thawing`] has opened.
///
/// # Errors
/// The cgroup was removed.
pub fn thaw(mut state: &fs::File) -> io::Result<()> {
    io::Write::write_all(&mut state, THAWED.as_bytes())
}

/// Moves this process, of one thread, into the freezer's cgroup.
///
/// # Errors
/// The cgroup is not there, or this process may not enter it.
pub fn enter(folder: &Path) -> io::Result<()> {
    fs::write(folder.join(THREADS), "0")
}

/// Removes the cgroup of an instance whose worker and monitor have ended. Where it is frozen, what was killed
/// in it ends first.
///
/// # Errors
/// A process in it has not ended in time.
pub fn remove_thawed(folder: &Path) -> io::Result<()> {
    if folder.join(STATE).exists() {
        Freezer::one(folder).thaw();
    }
    let deadline = std::time::Instant::now() + ENDING;
    loop {
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                if std::time::Instant::now() > deadline {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            removed => return removed,
        }
    }
}
