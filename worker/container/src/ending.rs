//! How the runtime or an extension in a sandbox ended.

/// How a runtime ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this exit code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// The extension of this name ended first, in this way.
    Extension(String, Box<Ending>),
    /// The sandbox was killed as a whole.
    Killed,
    /// It could not be started.
    NotStarted(String),
    /// Its VM has ended.
    Lost(String),
}

impl Ending {
    /// The type of the error that callers receive.
    pub fn kind(&self) -> &'static str {
        if matches!(self, Ending::Extension(..)) { "Extension.Crash" } else { "Runtime.ExitError" }
    }
}

impl std::fmt::Display for Ending {
    /// In the words of Lambda's `Runtime.ExitError`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Extension(name, how) => {
                write!(f, "{}", how.to_string().replacen("Runtime", &format!("extension {name}"), 1))
            }
            Ending::Exit(0) => f.write_str("Runtime exited without providing a reason"),
            Ending::Exit(code) => write!(f, "Runtime exited with error: exit status {code}"),
            Ending::Signal(libc::SIGKILL) | Ending::Killed => {
                f.write_str("Runtime exited with error: signal: killed")
            }
            Ending::Signal(signal) => write!(f, "Runtime exited with error: signal: {signal}"),
            Ending::Lost(reason) => write!(f, "Runtime exited with error: {reason}"),
            Ending::NotStarted(reason) => write!(f, "Runtime could not be started: {reason}"),
        }
    }
}
