//! A failure with an exit code of its own, for `main` to report.

use std::fmt;

/// Failures of `run` and `trace` themselves, apart from those of the program they run.
pub const OWN_FAILURE: i32 = 125;

/// One line and the exit code that goes with it.
#[derive(Debug)]
pub struct Failure {
    /// The exit code of the process.
    pub exit_code: i32,
    line: String,
}

impl Failure {
    /// `line` names the fault and its place.
    pub fn new(exit_code: i32, line: String) -> Failure {
        Failure { exit_code, line }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for Failure {}

/// The reason alone: "No such file or directory", without Rust's "(os error 2)".
#[cfg(feature = "objects")]
pub(crate) fn plain_reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}
