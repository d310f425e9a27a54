//! Page stores: one for each function, so that no function can read or time the pages of another (UPM §IV-E).
//!
//! A store is a `mayfly share` of its own. Its folder is there for the function's first instance; it runs
//! from when one of them may rest, so that no start waits for it or shares a processor with it. Its socket
//! lies in that folder, which only that function's sandboxes show. All their users may call it
//! (`--domain everyone`): the instances that see the folder are the trust domain. Where the worker is root,
//! the store is a user of its own, whose only right is to ask whether a segment is still in use
//! (CAP_LEASE).
//!
//! A store that dies is started anew at the same place, for the instances that are there: what they share
//! stays theirs, and what they advise next finds the new one.

mod figures;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use merge::client::connection::{Connection, Offered};
use rustix::fs::FlockOperation;
use tokio::io::unix::AsyncFd;

use crate::cgroup::{Cgroup, Hierarchy, Limits};
use crate::rights::worker_is_root;
use crate::spawn::Spawner;
use crate::syscalls::{ending_of, own_user_with_leases};
use worker_pool::FunctionId;
use worker_system::lock::lock;

/// This program, by a path that a store's user can follow: the program's own may lead through folders that
/// are closed to it, such as root's home.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// The first host user of stores; instances' users end below.
const FIRST_USER: u32 = 2_001_000_000;
const SOCKET: &str = "share.socket";
/// The socket of the store's metrics, outside the folder that instances see.
const FIGURES: &str = "figures.socket";
/// One store holds at most 1/PART of the memory for all instances.
const PART: u64 = 4;
/// A store's own memory, beside the pages that it keeps.
const OWN_MIB: u32 = 64;
/// A store serves idle work: its share of the processors is that of an instance of this memory.
const SHARE_OF_MIB: u32 = 256;
const PROCESSES: u64 = 64;
/// How long an offer waits for a store that is being started.
const OFFER: Duration = Duration::from_secs(10);
/// How long the next one waits where one has died, so that a store which dies at once does not keep the
/// host busy.
const AGAIN: Duration = Duration::from_secs(1);

/// What an instance must know of its store.
#[derive(Clone)]
pub struct Endpoint {
    /// To be shown inside.
    pub folder: PathBuf,
    /// The name of the socket in it.
    pub socket: &'static str,
    /// The store's user, where it has one of its own.
    pub user: Option<u32>,
}

/// An offered segment that a store keeps: it forgets what no connection and no process uses.
pub struct Kept {
    _connection: Box<Connection>,
}

/// All page stores of a worker.
pub struct PageStores {
    spawner: Spawner,
    cgroups: Arc<Hierarchy>,
    folder: PathBuf,
    limit_mib: u32,
    stores: Mutex<BTreeMap<FunctionId, PageStore>>,
}

#[derive(Default)]
struct PageStore {
    /// Whether it is kept running from now on.
    begun: bool,
    /// `None` while it is being started, and from one's death to the next one's start.
    running: Option<Running>,
}

/// A store's process, and the cgroup that bounds it.
struct Running {
    child: Child,
    cgroup: Cgroup,
}

impl Running {
    /// A store holds nothing that must be written: instances keep the pages that they share.
    fn end(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.cgroup.group.remove();
    }
}

impl PageStore {
    /// Ends the store for good, and removes its folder.
    fn end(self, place: &Path) {
        if let Some(running) = self.running {
            running.end();
        }
        let _ = std::fs::remove_dir_all(place);
    }
}

impl PageStores {
    /// No store yet. `memory_mib` is what all instances together may have; a store holds a part of that at
    /// most.
    pub fn new(spawner: Spawner, cgroups: Arc<Hierarchy>, folder: PathBuf, memory_mib: u64) -> PageStores {
        let limit_mib = u32::try_from((memory_mib / PART).max(1)).unwrap_or(u32::MAX - OWN_MIB);
        PageStores { spawner, cgroups, folder, limit_mib, stores: Mutex::default() }
    }

    fn place(&self, function: FunctionId) -> PathBuf {
        self.folder.join(format!("store-{function}"))
    }

    fn endpoint(&self, function: FunctionId) -> Endpoint {
        let user = worker_is_root().then(|| FIRST_USER + (function.0 % 1_000_000) as u32);
        Endpoint { folder: self.place(function).join("socket"), socket: SOCKET, user }
    }

    /// The endpoint of a function's store, which need not run yet.
    ///
    /// # Errors
    /// Its folder cannot be made.
    pub fn prepare(&self, function: FunctionId) -> Result<Endpoint> {
        let endpoint = self.endpoint(function);
        if let Entry::Vacant(none) = lock(&self.stores).entry(function) {
            make_folder(&self.place(function), &endpoint)?;
            none.insert(PageStore::default());
        }
        Ok(endpoint)
    }

    /// An instance of the function may soon do idle work: its store runs from now on.
    pub fn begin(self: &Arc<Self>, function: FunctionId) {
        let mut stores = lock(&self.stores);
        let Some(store) = stores.get_mut(&function) else { return };
        if !std::mem::replace(&mut store.begun, true) {
            tokio::spawn(keep(Arc::downgrade(self), function));
        }
    }

    /// Has no instance of the function begin to merge until what is returned is dropped. None where one
    /// merges now, or the store was never prepared.
    pub fn hold_merges(&self, function: FunctionId) -> Option<OwnedFd> {
        // Instances lock the folder to merge one at a time (mayfly_bootstrap/rest.py).
        let folder = std::fs::File::open(self.endpoint(function).folder).ok()?;
        rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(folder.into())
    }

    /// Offers a sealed segment of so many pages to a function's store, which runs from now on. What its
    /// instances have of these pages they then share with all processes that map the segment.
    ///
    /// It keeps the segment as long as what is returned; none, if it has all of the pages.
    ///
    /// # Errors
    /// The store does not run in time, or refuses the segment.
    pub async fn offer(
        self: &Arc<Self>,
        function: FunctionId,
        file: OwnedFd,
        pages: u32,
    ) -> Result<Option<Kept>> {
        self.begin(function);
        let endpoint = self.endpoint(function);
        let work = tokio::task::spawn_blocking(move || {
            let socket = endpoint.folder.join(endpoint.socket);
            let began = Instant::now();
            let mut connection = loop {
                match Connection::at(&socket, endpoint.user) {
                    Ok(connection) => break connection,
                    Err(error) if began.elapsed() > OFFER => return Err(error.into()),
                    Err(_) => std::thread::sleep(Duration::from_millis(20)), // it is being started
                }
            };
            match connection.offer(file.as_fd(), pages)? {
                Offered::Accepted => {
                    Ok((!connection.segments.is_empty()).then(|| Kept { _connection: Box::new(connection) }))
                }
                Offered::Full(line) => bail!("{line}"),
            }
        });
        work.await.context("offering was cut short")?
    }

    /// Starts a function's store. What is returned becomes readable when the store has died; none, if the
    /// function was deleted meanwhile.
    async fn run(&self, function: FunctionId) -> Result<Option<AsyncFd<OwnedFd>>> {
        let place = self.place(function);
        let running = self.start(function, &place).await?;
        let ended = match ending_of(&running.child) {
            Ok(ended) => ended,
            Err(error) => {
                running.end();
                return Err(error).context("cannot watch it");
            }
        };
        let mut stores = lock(&self.stores);
        match stores.get_mut(&function) {
            Some(store) => store.running = Some(running),
            None => {
                PageStore { begun: true, running: Some(running) }.end(&place);
                return Ok(None);
            }
        }
        Ok(Some(ended))
    }

    /// Cleans up after a function's store that has died. Returns whether the function still exists.
    fn has_died(&self, function: FunctionId) -> bool {
        let mut stores = lock(&self.stores);
        let Some(store) = stores.get_mut(&function) else { return false };
        if let Some(running) = store.running.take() {
            running.end();
        }
        true
    }

    async fn start(&self, function: FunctionId, place: &Path) -> Result<Running> {
        let endpoint = self.endpoint(function);
        let mut command = Command::new(OWN_PROGRAM);
        command
            .arg0("mayfly")
            .arg("share")
            .arg("--socket")
            .arg(endpoint.folder.join(SOCKET))
            .args(["--domain", "everyone", "--limit", &format!("{}MiB", self.limit_mib)])
            .arg("--metrics")
            .arg(place.join(FIGURES))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        own_user_with_leases(&mut command, endpoint.user);
        let limits = Limits {
            memory_mib: self.limit_mib + OWN_MIB,
            share_of_mib: SHARE_OF_MIB,
            processes: PROCESSES,
            processors: None,
            may_swap: false,
        };
        let cgroup = self.cgroups.create(&format!("store-{function}"), limits)?;
        let child = match self.spawner.run(command).await.context("cannot start a page store") {
            Ok(child) => child,
            Err(error) => {
                let _ = cgroup.group.remove();
                return Err(error);
            }
        };
        let id = child.id();
        let running = Running { child, cgroup };
        if let Err(error) = running.cgroup.group.add(id) {
            running.end();
            return Err(error.into());
        }
        Ok(running)
    }

    /// Ends a function's store: it was deleted, and its last instance has ended.
    pub fn end(&self, function: FunctionId) {
        let removed = lock(&self.stores).remove(&function);
        if let Some(store) = removed {
            store.end(&self.place(function));
        }
    }

    /// The number of running stores, and the bytes of their pages. Blocks; not to be called on a thread
    /// that serves.
    pub fn figures(&self) -> (u64, u64) {
        let running =
            |(function, store): (&FunctionId, &PageStore)| store.running.is_some().then_some(*function);
        let functions: Vec<FunctionId> = lock(&self.stores).iter().filter_map(running).collect();
        let sockets = functions.iter().map(|function| self.place(*function).join(FIGURES));
        (functions.len() as u64, figures::pages_of_all(sockets) * 4096)
    }
}

/// The folder of a store and of its socket, which are its user's.
fn make_folder(place: &Path, endpoint: &Endpoint) -> Result<()> {
    std::fs::create_dir_all(&endpoint.folder)
        .with_context(|| format!("cannot make {}", endpoint.folder.display()))?;
    if let Some(user) = endpoint.user {
        // Closed to all others; a sandbox shows the inner one.
        std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o700))?;
        // The inner one first: in a folder that is its own, the store's user could have put a link in its
        // place.
        for folder in [&*endpoint.folder, place] {
            std::os::unix::fs::chown(folder, Some(user), Some(user))
                .with_context(|| format!("cannot give {} to its store", folder.display()))?;
        }
    }
    Ok(())
}

/// Keeps a function's store running until the function is deleted or the worker ends. Without it instances
/// serve as well: they share nothing.
async fn keep(stores: Weak<PageStores>, function: FunctionId) {
    loop {
        let Some(all) = stores.upgrade() else { return };
        let begun = all.run(function).await;
        drop(all);
        match begun {
            Ok(Some(ended)) => drop(ended.readable().await),
            Ok(None) => return,
            Err(error) => tracing::warn!("the page store of function {function} does not start: {error:#}"),
        }
        if !stores.upgrade().is_some_and(|stores| stores.has_died(function)) {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

impl Drop for PageStores {
    fn drop(&mut self) {
        let stores = std::mem::take(&mut *lock(&self.stores));
        for (function, store) in stores {
            store.end(&self.place(function));
        }
    }
}
