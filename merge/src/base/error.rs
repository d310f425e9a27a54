//! Errors: an errno for programs, a line for people.

use std::fmt;

/// A call that failed.
#[derive(Clone, Debug)]
pub struct Error {
    /// The value for C's errno.
    pub errno: i32,
    line: String,
}

impl Error {
    /// `line` names what is wrong, where, and what to do.
    pub fn new(errno: i32, line: impl Into<String>) -> Error {
        Error { errno, line: line.into() }
    }

    /// A system call that failed: `what` names the step that made it.
    pub fn system(what: impl fmt::Display, errno: rustix::io::Errno) -> Error {
        Error::new(errno.raw_os_error(), format!("{what}: {}", std::io::Error::from(errno)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for Error {}

/// Names the step at which a system call failed.
pub(crate) trait While<T> {
    /// `what` precedes the system's own message.
    fn while_doing(self, what: impl fmt::Display) -> Result<T, Error>;
}

impl<T> While<T> for rustix::io::Result<T> {
    fn while_doing(self, what: impl fmt::Display) -> Result<T, Error> {
        self.map_err(|errno| Error::system(what, errno))
    }
}
