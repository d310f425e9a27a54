//! Snapshots of functions (SnapStart): an instance that has started is taken once, and the next ones are
//! restored from its memory.
//!
//! ```text
//!   first instance ──► one more is started, and waits in restore_next ──take──► Snapshot of the deployment
//!                      (no request waits for it; it ends afterwards)             │     │
//!                      one is restored on trial, and ends ◄──────────────────────┘     │
//!   next instance ──► a sandbox as ever ──► becomes the process that was taken ◄───────┘
//! ```
//! Its pages lie on the disk, and in memory as far as instances touch them. Where the disk is memory itself,
//! the function's page store has them as a segment.
//!
//! What cannot be restored is named in one line of the log, and the function starts as ever. A snapshot
//! belongs to one deployment, and is dropped with it, or when a file that it has mapped changes.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::mount::OpenTreeFlags;
use tokio::io::{AsyncBufReadExt, AsyncReadExt};
use tokio::net::unix::pipe;
use tokio::sync::Semaphore;
use worker_container::page_store::Kept;
use worker_pool::FunctionId;
use worker_snapshot::{Error, Function, Limits, Snapshot, Waiting};
use worker_system::lock::lock;
use worker_system::text::shown;

use crate::base::name;
use crate::code::runtime::Runtime;
use crate::function::definition::Deployment;
use crate::sandbox::first_request::FirstRequest;
use crate::sandbox::interface::SnapshotState;
use crate::sandbox::line::Fault;
use crate::sandbox::runtime_process::runtime_of;
use crate::sandbox::taken::{Gone, Taken};

/// How long after an instance's start another is started to be taken: the first request runs alone.
pub(super) const AFTER: Duration = Duration::from_secs(1);
/// How long an instance that is to be taken may take to start. It yields to the others.
pub(super) const START: Duration = Duration::from_secs(60);
/// How long a restored instance may take, its hooks included: Lambda's limit.
pub(super) const RESTORE: Duration = Duration::from_secs(10);
/// How long a process may take from its line to the call in which it waits.
const WAIT: Duration = Duration::from_secs(5);
/// How long after the last restore pages of a snapshot that no instance maps are dropped: the kernel has read
/// some ahead.
pub(super) const DROP_AFTER: Duration = Duration::from_secs(5);
/// So many snapshots of a function may be of no use; then it starts as ever.
const ATTEMPTS: u32 = 3;
/// So many instances in a row may end before it is the snapshot's fault, and not that of who kills them.
const KILLS: u32 = 16;
/// Output of an instance that is to be taken; more fills the pipe, and then it does not start in time.
const MOST_PRINTED: u64 = 16 << 20;
/// The function of the library for idle work that prepares a process.
const PREPARES: &str = "mayfly_rest_before_snapshot";
/// The variable that has an instance wait to be taken; it says whether the function's owner asks for it.
pub(super) const VARIABLE: &str = "MAYFLY_SNAPSHOT";
/// The variable that has such an instance read its line first, for the event that primes it.
pub(super) const PRIMED: &str = "MAYFLY_SNAPSHOT_PRIMED";
pub(super) const ASKED: &str = "asked";
pub(super) const BY_DEFAULT: &str = "default";
/// The user of the [spare](crate::sandbox::interface::SPARE) instance; the users of others are before it.
pub(super) const USER: u32 = 2_002_000_000;

/// The snapshots of a worker's functions. Together they have so many bytes at most: of those beyond, the one
/// whose function has not started an instance for longest goes, until its next start.
pub(super) struct Snapshots<S = Snapshot> {
    all: Mutex<All<S>>,
    most_bytes: u64,
}

struct All<S> {
    known: HashMap<FunctionId, Known<S>>,
    /// Functions and versions that are deleted, whose last instances may still start. Ids are not used again.
    deleted: HashSet<FunctionId>,
}

impl<S: Taken> All<S> {
    fn keep_within(&mut self, most_bytes: u64) {
        let bytes = |known: &Known<S>| match &known.state {
            State::Ready(snapshot, _) => snapshot.size(),
            State::None | State::Taking => 0,
        };
        while self.known.values().map(bytes).sum::<u64>() > most_bytes {
            let ready = self.known.values_mut().filter(|known| matches!(known.state, State::Ready(..)));
            let Some(oldest) = ready.min_by_key(|known| known.used) else { return };
            oldest.state = State::None;
        }
    }
}

/// What is known of one deployment.
struct Known<S> {
    /// Its name and version.
    name: (String, String),
    revision: String,
    state: State<S>,
    /// How often its instances could not be restored.
    useless: u32,
    /// How many have ended since one was restored.
    killed: u32,
    /// When an instance was restored last, or the snapshot was taken.
    used: Instant,
}

impl<S> Known<S> {
    fn new(deployment: &Deployment) -> Known<S> {
        Known {
            name: (deployment.name.clone(), deployment.version.clone()),
            revision: deployment.revision.clone(),
            state: State::None,
            useless: 0,
            killed: 0,
            used: Instant::now(),
        }
    }
}

enum State<S> {
    None,
    Taking,
    Ready(Arc<S>, Option<Kept>),
}

/// One is taken at a time.
pub(super) static TAKING: Semaphore = Semaphore::const_new(1);

/// Whether a deployment's instances are to be restored, if they can be. Mayfly's own bootstraps make unique
/// what must be; of a function with another client its owner has to say that all is.
pub(crate) fn is_wanted(deployment: &Deployment) -> bool {
    let settings = &deployment.settings;
    let by_default =
        settings.snapshot_by_default && deployment.version == name::LATEST && deployment.tenant.is_none();
    let has_bootstrap = matches!(settings.runtime, Runtime::Python(..) | Runtime::Node(..));
    settings.at_once() == 1 && (is_asked_for(deployment) || by_default && has_bootstrap)
}

/// Whether the function's owner asks for it.
pub(crate) fn is_asked_for(deployment: &Deployment) -> bool {
    let settings = &deployment.settings;
    settings.snapshot || settings.snap_start && deployment.version != name::LATEST
}

impl<S: Taken> Snapshots<S> {
    /// None yet.
    pub fn new(most_bytes: u64) -> Snapshots<S> {
        let all = All { known: HashMap::new(), deleted: HashSet::new() };
        Snapshots { all: Mutex::new(all), most_bytes }
    }

    /// The snapshot of a deployment, if there is one.
    pub fn of(&self, deployment: &Deployment) -> Option<Arc<S>> {
        let mut all = lock(&self.all);
        let known = all.known.get_mut(&deployment.function)?;
        match &known.state {
            State::Ready(snapshot, _) if known.revision == deployment.revision => {
                known.used = Instant::now();
                Some(snapshot.clone())
            }
            _ => None,
        }
    }

    /// Whether there is one of a deployment.
    pub fn state(&self, deployment: &Deployment) -> SnapshotState {
        match lock(&self.all).known.get(&deployment.function) {
            Some(known) if known.revision == deployment.revision => match known.state {
                State::None => SnapshotState::None,
                // A version does not wait for another one.
                State::Taking if known.useless + known.killed > 0 => SnapshotState::None,
                State::Taking => SnapshotState::Taking,
                State::Ready(..) => SnapshotState::Ready,
            },
            _ => SnapshotState::None,
        }
    }

    /// Whether one is to be taken: the caller does it, and then calls [`Snapshots::taken`].
    pub fn begin(&self, deployment: &Deployment) -> bool {
        let mut all = lock(&self.all);
        if all.deleted.contains(&deployment.function) {
            return false;
        }
        let known = all.known.entry(deployment.function).or_insert_with(|| Known::new(deployment));
        if known.revision != deployment.revision {
            *known = Known::new(deployment);
        }
        let begins = matches!(known.state, State::None) && known.useless < ATTEMPTS;
        if begins {
            known.state = State::Taking;
        }
        begins
    }

    /// It has been taken, and is a segment of the store, or it cannot be taken. A deployment that has changed
    /// or gone meanwhile has none.
    pub fn taken(&self, deployment: &Deployment, snapshot: Result<(Arc<S>, Option<Kept>), &anyhow::Error>) {
        let mut all = lock(&self.all);
        let Some(known) = all.known.get_mut(&deployment.function) else { return };
        if known.revision == deployment.revision {
            match snapshot {
                Ok((snapshot, kept)) => {
                    known.state = State::Ready(snapshot, kept);
                    (known.used, known.killed) = (Instant::now(), 0);
                }
                Err(error) if !is_unsupported(error) && !error.is::<Fault>() && known.killed < KILLS => {
                    (known.state, known.killed) = (State::None, known.killed + 1);
                }
                // Another one will have the same.
                Err(error) if is_unsupported(error) => {
                    (known.state, known.useless) = (State::None, ATTEMPTS);
                }
                Err(_) => (known.state, known.useless) = (State::None, known.useless + 1),
            }
        }
        all.keep_within(self.most_bytes);
    }

    /// An instance was restored.
    pub fn restored(&self, deployment: &Deployment) {
        if let Some(known) = lock(&self.all).known.get_mut(&deployment.function) {
            known.killed = 0;
        }
    }

    /// An instance could not be restored. If that is the snapshot's fault, another is taken, unless that
    /// happens again and again. Returns whether it is.
    pub fn failed(&self, deployment: &Deployment, error: &anyhow::Error) -> bool {
        let mut all = lock(&self.all);
        let Some(known) = all.known.get_mut(&deployment.function) else { return true };
        if error.is::<Gone>() {
            if matches!(known.state, State::Ready(..)) {
                known.state = State::None;
            }
            return false;
        }
        if !error.is::<Fault>() && known.killed < KILLS {
            known.killed += 1;
            return false;
        }
        if matches!(known.state, State::Ready(..)) {
            (known.state, known.useless) = (State::None, known.useless + 1);
        }
        true
    }

    /// Whether it is known whether a deployment has one.
    pub fn is_known(&self, deployment: &Deployment) -> bool {
        let all = lock(&self.all);
        all.known.get(&deployment.function).is_some_and(|known| known.revision == deployment.revision)
    }

    /// A deployment has this one, or none, from an earlier worker.
    pub fn loaded(&self, deployment: &Deployment, snapshot: Option<Arc<S>>) {
        let mut all = lock(&self.all);
        if all.deleted.contains(&deployment.function) {
            return;
        }
        let state = snapshot.map_or(State::None, |snapshot| State::Ready(snapshot, None));
        all.known.insert(deployment.function, Known { state, ..Known::new(deployment) });
        all.keep_within(self.most_bytes);
    }

    /// A function or version is deleted; returns its name and version, if it has started.
    pub fn forget(&self, function: FunctionId) -> Option<(String, String)> {
        let mut all = lock(&self.all);
        all.deleted.insert(function);
        all.known.remove(&function).map(|known| known.name)
    }

    /// Bytes of all snapshots in memory that no store counts. Pages of those on the disk are, as a library's,
    /// their instances' memory.
    pub fn bytes(&self) -> u64 {
        let bytes = |known: &Known<S>| match &known.state {
            State::Ready(snapshot, None) if !snapshot.is_on_disk() => snapshot.size(),
            State::Ready(..) | State::None | State::Taking => 0,
        };
        lock(&self.all).known.values().map(bytes).sum()
    }

    /// Has the kernel forget what no instance maps of a function's snapshot, unless another was restored
    /// lately: the next ones would read it again. Blocks.
    pub fn drop_unused(&self, function: FunctionId) {
        let unused = match lock(&self.all).known.get(&function) {
            Some(Known { state: State::Ready(snapshot, _), used, .. }) if used.elapsed() >= DROP_AFTER => {
                snapshot.clone()
            }
            _ => return,
        };
        unused.drop_unused();
    }
}

fn is_unsupported(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Unsupported(_)))
}

/// The last line that an instance has printed that is to be taken. The first instance has printed the same
/// in the function's log.
#[derive(Default)]
pub(super) struct Printed(Mutex<String>);

impl Printed {
    /// Reads its output.
    pub async fn read(&self, output: pipe::Receiver) -> Infallible {
        let mut lines = tokio::io::BufReader::new(output.take(MOST_PRINTED)).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if !line.trim().is_empty() {
                *lock(&self.0) = line;
            }
        }
        std::future::pending().await
    }

    /// For an error's message.
    pub fn last_line(&self) -> String {
        match &*lock(&self.0) {
            line if line.is_empty() => "it printed nothing".to_string(),
            line => format!("it printed at last '{}'", shown(line)),
        }
    }
}

/// What the worker tells an instance that an event primes, one line: a request without an answer.
pub(super) fn priming(deployment: &Deployment) -> Option<String> {
    let event = deployment.settings.primed_by.as_ref()?;
    let (id, arn, ms) = (uuid::Uuid::new_v4(), deployment.arn(), START.as_millis());
    Some(format!("{{\"id\":\"{id}\",\"arn\":\"{arn}\",\"ms\":{ms},\"event\":{event}}}\n"))
}

/// Reads what extensions of that instance print: those of the others print the same in the function's log.
pub(super) async fn discard(output: Option<pipe::Receiver>) -> Infallible {
    if let Some(mut output) = output {
        let _ = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
    }
    std::future::pending().await
}

/// The folder for snapshots, as a mount of its own that is nowhere in the tree: the kernel names files of it
/// by their paths below it. None without the right to mount.
pub(super) fn disk_folder(folder: &Path) -> Option<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(rustix::fs::CWD, folder, flags).ok()
}

/// Takes the runtime among the processes of an instance, which waits: on its line, or for the answer to its
/// first request. `rest` is the library for idle work, and where the instance has it.
///
/// # Errors
/// It has something that cannot be restored.
pub(super) async fn take(
    processes: Vec<i32>,
    first: Option<FirstRequest>,
    most_bytes: u64,
    disk: Option<Arc<OwnedFd>>,
    rest: Option<(PathBuf, PathBuf)>,
) -> Result<Snapshot> {
    // All of it on one thread: a process has one tracer.
    let work = tokio::task::spawn_blocking(move || {
        let runtime = runtime_of(&processes)?;
        // Where its client is not Mayfly's, nothing has prepared it yet.
        let of_library =
            |(library, inside): (PathBuf, PathBuf)| Function::of_library(&library, &inside, PREPARES);
        let prepares = rest.map(of_library).transpose().context("the library for idle work")?;
        let waiting = match &first {
            Some(request) => Waiting::ForAnswer(request.as_sent(), prepares.as_ref()),
            None => Waiting::AtLine,
        };
        let disk = disk.as_deref().map(AsFd::as_fd);
        let limits = Limits { bytes: most_bytes, own_folder: Some(Path::new("/tmp")), disk };
        // It has sent its message, and enters the call.
        Ok(worker_snapshot::take_once_it_waits(runtime, waiting, limits, WAIT)?)
    });
    work.await.context("taking was cut short")?
}
