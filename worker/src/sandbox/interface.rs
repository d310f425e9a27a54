//! The interface of an instance to its sandbox: start, serve, memory, end.
//!
//! ```text
//!   instance ──► Maker::start ──► Sandbox: serve, ending, memory, end
//!                  │
//!                  ├ containers   processes of this host: namespaces, cgroup, seccomp
//!                  └ vm/          a partition of a VM's memory (HotMem §4.1)
//! ```

use std::pin::Pin;
use std::sync::Arc;

use anyhow::Result;
use hyper::Request;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::pipe;
use vm::protocol::PartitionNumber;
use worker_container::steps::Steps;
pub use worker_container::{Bind, Ending, RUNTIME_PORT};
use worker_page::data::{Ready, Store, Vm};

use crate::base::process_memory::Memory;
use crate::function::definition::Deployment;
use crate::function::worker_options::Options;
use crate::http::Answer;
use worker_pool::{FunctionId, InstanceId};

/// Connections to one instance's Runtime API at once, beside two for each request of more than one at once.
pub(crate) const CONNECTIONS: usize = 16;
/// Headers of one request to the Runtime API: clients repeat the description of an error in one of up to
/// 1 MiB, beside the others.
pub(crate) const RUNTIME_HEADER_BYTES: usize = 1024 * 1024 + 64 * 1024;

/// A boxed future, for the methods of trait objects.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
/// A connection to a server inside.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}
/// Answers one request of the runtime inside.
pub(crate) type Handler = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Answer> + Send + Sync>;

/// The number of an instance that serves no request, of which there is one at a time: it is to be taken, or
/// restored on trial. Instances that serve have other numbers.
pub(crate) const SPARE: InstanceId = InstanceId(0);

/// The instance that is to be started.
#[derive(Clone)]
pub(crate) struct Order {
    pub id: InstanceId,
    pub deployment: Arc<Deployment>,
    /// With it, programs inside may ask for the instance's metadata.
    pub metadata_token: Arc<str>,
    /// Whether its runtime waits to be taken, or is restored, as Lambda's SnapStart has it.
    pub snap_start: bool,
}

impl Order {
    /// Its name in logs.
    pub fn label(&self) -> String {
        format!("[{}#{}]", self.deployment.name, self.id)
    }

    /// The most connections to its Runtime API at once.
    pub fn connections(&self) -> usize {
        CONNECTIONS + 2 * (self.deployment.settings.at_once() as usize - 1)
    }

    /// Whether it has a way to the outside world.
    pub fn reaches_out(&self, options: &Options) -> bool {
        self.deployment.settings.outside.unwrap_or(options.outside)
    }
}

/// Whether there is a snapshot of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotState {
    /// There is none, and none is being taken.
    None,
    /// One is being taken.
    Taking,
    /// Its next instances are restored.
    Ready,
}

/// Makes sandboxes of one kind.
pub(crate) trait Maker: Send + Sync {
    /// Starts an instance; its runtime runs when this is done. A failed start leaves nothing.
    fn start(self: Arc<Self>, order: Order) -> BoxFuture<'static, Result<Arc<dyn Sandbox>>>;

    /// Begins to take a snapshot of a version that asks for it, before its first instance.
    fn prepare(self: Arc<Self>, _version: Order) {}

    /// Whether instances of this deployment are restored from a snapshot.
    fn snapshot_state(&self, _deployment: &Deployment) -> SnapshotState {
        SnapshotState::None
    }

    /// How many times longer than on this machine's processors a start may take.
    fn slower(&self) -> u32 {
        1
    }

    /// Whether instances can run code that arrives while it serves. Otherwise all code comes from the
    /// template.
    fn takes_code(&self) -> bool {
        true
    }

    /// This function, version or tenant is deleted; its last instances may still run.
    fn deleted(&self, _function: FunctionId) {}

    /// This function is deleted, and its last instance has ended.
    fn forget(&self, _function: FunctionId) {}

    /// Memory that is no single instance's. Asks guests anew; their sandboxes use that report.
    fn memory(&self) -> Overall;

    /// The kind of sandbox, and how memory grows and shrinks with instances.
    fn kind(&self) -> Kind;

    /// No instance starts, and no request waits: it may prepare for the next start. Called often.
    fn idle(self: Arc<Self>) {}

    /// No instance will be started any more.
    fn closing(&self) {}

    /// All instances have ended.
    fn close(&self) {}
}

/// A maker's kind, for the page and the API.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub sandbox: &'static str,
    pub partitions: &'static str,
    /// Whether instances can be restored from a snapshot.
    pub snapshots: bool,
}

/// Memory that is no single instance's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overall {
    pub store: Store,
    pub ready: Ready,
    pub vm: Option<Vm>,
}

/// One instance's sandbox, which runs until `end`.
pub(crate) trait Sandbox: Send + Sync {
    /// What it prints, stdout and stderr in one. Taken once.
    fn take_output(&self) -> pipe::Receiver;

    /// What extensions print, if there are any. Taken once.
    fn take_extensions_output(&self) -> Option<pipe::Receiver> {
        None
    }

    /// Whether output is there as soon as it is printed.
    fn prints_at_once(&self) -> bool {
        true
    }

    /// Waits until what was printed by now is there.
    fn fetch_output(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Answers the requests that its runtime makes, until this is dropped, and with it every connection.
    fn serve(&self, handler: Handler) -> BoxFuture<'_, ()>;

    /// The programs of /opt/extensions that were started with the runtime.
    fn extensions(&self) -> &[String] {
        &[]
    }

    /// Waits until the runtime has ended, or an extension. If it [ends in steps](Sandbox::ends_in_steps), the
    /// next call waits for the next of them.
    fn ending(&self) -> BoxFuture<'_, Ended>;

    /// Whether extensions live on when the runtime has ended.
    fn ends_in_steps(&self) -> bool {
        false
    }

    /// How many times longer than on this machine's processors its end may take.
    fn slower(&self) -> u32 {
        1
    }

    /// Ends the runtime by SIGTERM, and the next time by SIGKILL, if it ends in steps.
    fn terminate(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Whether its runtime was restored from a snapshot.
    fn was_restored(&self) -> bool {
        false
    }

    /// What was done when, until its runtime was started or restored.
    fn steps(&self) -> Steps {
        Steps::default()
    }

    /// Whether it can connect to servers inside.
    fn has_way_inside(&self) -> bool {
        false
    }

    /// Connects to a server inside, on its loopback device.
    fn connect(&self, _port: u16) -> BoxFuture<'_, std::io::Result<Box<dyn Connection>>> {
        Box::pin(std::future::ready(Err(std::io::ErrorKind::Unsupported.into())))
    }

    /// Its memory: private, shared, of files. May read page tables, which takes milliseconds.
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
    fn partition(&self) -> Option<PartitionNumber> {
        None
    }

    /// It has worked, or has nothing to do: its runtime may soon need what only its idle work uses. Called
    /// often.
    fn may_do_idle_work(&self) {}

    /// Freezes all of its processes. False if that fails.
    fn freeze(&self) -> bool {
        false
    }

    /// Thaws it.
    fn thaw(&self) {}

    /// Pages its memory out to the host's swap; returns how many bytes of it are there then.
    fn page_out(&self) -> BoxFuture<'_, u64> {
        Box::pin(std::future::ready(0))
    }

    /// Whether it yields to other instances while the processors are busy.
    fn give_way(&self, _gives_way: bool) {}

    /// Ends all of its processes, frozen or not, and waits for their end.
    fn end(&self) -> BoxFuture<'_, ()>;
}

/// How a runtime ended by itself, and whether a process of its sandbox was killed because the memory was
/// used up.
pub(crate) struct Ended {
    pub how: Ending,
    pub out_of_memory: bool,
}

/// Makes sandboxes that never start.
#[cfg(any(test, fuzzing))]
pub(crate) struct Never;

#[cfg(any(test, fuzzing))]
impl Maker for Never {
    fn start(self: Arc<Self>, _: Order) -> BoxFuture<'static, Result<Arc<dyn Sandbox>>> {
        Box::pin(std::future::pending())
    }

    fn memory(&self) -> Overall {
        Overall::default()
    }

    fn kind(&self) -> Kind {
        Kind { sandbox: "none", partitions: "none", snapshots: false }
    }
}
