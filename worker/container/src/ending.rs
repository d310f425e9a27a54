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
    /// What the wait status of an ended process describes.
    pub fn of_wait_status(status: i32) -> Ending {
        if libc::WIFSIGNALED(status) {
            Ending::Signal(libc::WTERMSIG(status))
        } else {
            Ending::Exit(libc::WEXITSTATUS(status))
        }
    }

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
            Ending::Killed => Ending::Signal(libc::SIGKILL).fmt(f),
            Ending::Signal(signal) => write!(f, "Runtime exited with error: signal: {}", name(*signal)),
            Ending::Lost(reason) => write!(f, "Runtime exited with error: {reason}"),
            Ending::NotStarted(reason) => write!(f, "Runtime could not be started: {reason}"),
        }
    }
}

/// A signal in Lambda's words, which are Go's.
fn name(signal: i32) -> String {
    let known = match signal {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGTRAP => "trace/breakpoint trap",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGUSR2 => "user defined signal 2",
        libc::SIGPIPE => "broken pipe",
        libc::SIGALRM => "alarm clock",
        libc::SIGTERM => "terminated",
        other => return format!("signal {other}"),
    };
    known.into()
}
