//! Control groups of Linux: version 2, version 1, and hosts that have both.
//!
//! ```text
//!   /proc/PID/cgroup ── Membership ── paths from the root ─┐
//!   /proc/self/mountinfo ── Group::own, where a process    ├─ Group: what it uses, Limits, freezing, killing
//!                           may make groups of its own ────┘
//! ```
//! A group's processes end and its files go at any time: readings of one that is gone are `None` or empty.

mod ending;
mod freezer;
mod group;
mod limits;
mod membership;
mod own;
#[cfg(test)]
mod plain_folders;
mod readings;

use std::io;
use std::path::{Path, PathBuf};

pub use freezer::Thawing;
pub use group::{Group, THREADS};
pub use limits::{Limits, PERIOD_US, Share};
pub use membership::Membership;
pub use readings::Peak;

/// The version of a hierarchy, which decides the names of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller, or for some together.
    One,
    /// One for all.
    Two,
}

/// What could not be done with a group.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refuses it, or the group is gone.
    #[error("cannot {doing} {}: {error}", path.display())]
    Refused {
        /// The step: "write".
        doing: &'static str,
        /// A file or folder of the group.
        path: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// A file that the controllers of this host, or of the group above, do not bring.
    #[error("{}: there is no {file}", folder.display())]
    Missing {
        /// The group's folder.
        folder: PathBuf,
        /// The file.
        file: &'static str,
    },
    /// Processes did not end in time.
    #[error("{}: still has processes", .0.display())]
    Populated(PathBuf),
}

impl Error {
    fn is(&self, kind: io::ErrorKind) -> bool {
        matches!(self, Error::Refused { error, .. } if error.kind() == kind)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Refused { error, .. } => error.kind(),
            Error::Missing { .. } => io::ErrorKind::NotFound,
            Error::Populated(_) => io::ErrorKind::TimedOut,
        };
        io::Error::new(kind, error)
    }
}

fn cannot(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::Refused { doing, path: path.into(), error }
}
