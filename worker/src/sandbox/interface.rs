//! The seam between an instance and what it lives in: start, serve, memory, end.
//!
//! ```text
//!   instance ──► Maker::start ──► Sandbox: serve, ending, memory, end
//!                  │
//!                  ├ container/   processes of this host: namespaces, cgroup, seccomp
//!                  └ machine/     a partition of a VM's memory (HotMem §4.1)
//! ```

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::Result;
use hyper::Request;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe;
use worker_page::data::{Store, Vm};

use crate::base::process_memory::Memory;
use crate::function::definition::Deployment;
use crate::function::worker_options::Options;
use crate::http::Answer;
use worker_pool::{FunctionId, InstanceId};

/// Port of the Runtime API on the loopback device of every instance.
pub const RUNTIME_PORT: u16 = 9001;
/// Connections to one instance's Runtime API at once.
pub(crate) const CONNECTIONS: usize = 16;

/// What is waited for, of a trait's object.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
/// Answers one request of the runtime inside.
pub(crate) type Handler = Arc<dyn Fn(Request<Incoming>) -> Later<'static, Answer> + Send + Sync>;

/// A file or folder of the host, seen read-only inside.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bind {
    /// On the host.
    pub source: PathBuf,
    /// Inside.
    pub target: PathBuf,
}

/// Who is to be started.
#[derive(Clone)]
pub(crate) struct Order {
    pub id: InstanceId,
    pub deployment: Arc<Deployment>,
}

impl Order {
    /// Names it among people.
    pub fn label(&self) -> String {
        format!("[{}#{}]", self.deployment.name, self.id)
    }

    /// Whether it has a way to the outside world.
    pub fn reaches_out(&self, options: &Options) -> bool {
        self.deployment.settings.outside.unwrap_or(options.outside)
    }
}

/// Makes sandboxes of one kind.
pub(crate) trait Maker: Send + Sync {
    /// Starts an instance: its runtime runs when this is done. Where it fails, nothing is left.
    fn start(self: Arc<Self>, order: Order) -> Later<'static, Result<Arc<dyn Sandbox>>>;

    /// How many times longer than on this machine's processors a start may take.
    fn slower(&self) -> u32 {
        1
    }

    /// Whether code that comes while it makes instances can be theirs. Otherwise it is the template's.
    fn takes_code(&self) -> bool {
        true
    }

    /// Nobody has this function, or an instance of it, any more.
    fn forget(&self, _function: FunctionId) {}

    /// Memory that is no single instance's. A guest is asked anew, and its sandboxes tell what it then said.
    fn memory(&self) -> Overall;

    /// What instances are, in a word, and how memory grows and shrinks with them.
    fn kind(&self) -> Kind;

    /// Nothing will be started any more.
    fn closing(&self) {}

    /// All instances are gone.
    fn close(&self) {}
}

/// Of a maker, for those who look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub sandbox: &'static str,
    pub partitions: &'static str,
}

/// Memory that is no single instance's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overall {
    pub store: Store,
    pub vm: Option<Vm>,
}

/// One instance's own world, which runs until it is ended.
pub(crate) trait Sandbox: Send + Sync {
    /// What it prints, stdout and stderr in one. Taken once.
    fn take_output(&self) -> pipe::Receiver;

    /// Answers the requests that its runtime makes, until this is dropped, and with it every connection.
    fn serve(&self, handler: Handler) -> Later<'_, ()>;

    /// The programs of /opt/extensions that were started with the runtime.
    fn extensions(&self) -> &[String] {
        &[]
    }

    /// Waits until the runtime has ended by itself, or an extension.
    fn ending(&self) -> Later<'_, Ended>;

    /// Its memory, by whose it is. May read page tables: milliseconds.
    fn memory(&self) -> Memory;

    /// The memory that counts against its limit, if that is known.
    fn counted_bytes(&self) -> Option<u64> {
        None
    }

    /// The most of it so far.
    fn peak_bytes(&self) -> Option<u64> {
        None
    }

    /// The partition of the VM's memory that it has.
    fn partition(&self) -> Option<u32> {
        None
    }

    /// It has worked, or has nothing to do: its runtime may soon want what it only needs to rest. Told often.
    fn may_rest(&self) {}

    /// Stops all that runs in it. False if that cannot be.
    fn freeze(&self) -> bool {
        false
    }

    /// Lets it go on.
    fn thaw(&self) {}

    /// Has its memory go to the host's swap; how many bytes of it are there then.
    fn page_out(&self) -> Later<'_, u64> {
        Box::pin(std::future::ready(0))
    }

    /// Whether others go first where the processors are busy.
    fn give_way(&self, _gives_way: bool) {}

    /// Ends all that is left of it, frozen or not, and waits until nothing is.
    fn end(&self) -> Later<'_, ()>;
}

/// How a runtime ended by itself, and whether a process of its sandbox was killed because the memory was used up.
pub(crate) struct Ended {
    pub how: Ending,
    pub out_of_memory: bool,
}

/// How a runtime ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this exit code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// An extension has ended before, with this name and in this way.
    Extension(String, Box<Ending>),
    /// The sandbox was killed as a whole.
    Killed,
    /// It could not be started.
    NotStarted(String),
    /// What it ran in is gone.
    Lost(String),
}

impl Ending {
    /// The type of the error that callers are told.
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

/// Makes sandboxes that never start.
#[cfg(test)]
pub(crate) struct Never;

#[cfg(test)]
impl Maker for Never {
    fn start(self: Arc<Self>, _: Order) -> Later<'static, Result<Arc<dyn Sandbox>>> {
        Box::pin(std::future::pending())
    }

    fn memory(&self) -> Overall {
        Overall::default()
    }

    fn kind(&self) -> Kind {
        Kind { sandbox: "none", partitions: "none" }
    }
}
