//! Page stores: one for each function, so that no function can read or time the pages of another (UPM §IV-E).
//!
//! A store is a `mayfly share` of its own, started with the function's first instance. Its socket lies in a folder that
//! only that function's sandboxes show. All their users may call it (`--domain everyone`): who sees the folder is the
//! trust domain. Where the worker is root, the store is a user of its own, whose only right is to ask who still uses a
//! segment (CAP_LEASE).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use super::cgroup::{Cgroup, Hierarchy, Limits};
use super::spawn::Spawner;
use super::system::own_user_with_leases;
use super::worker_is_root;
use crate::environment::Endpoint;
use crate::pool::FunctionId;

/// The first host user of stores; instances' users end below.
const FIRST_USER: u32 = 2_001_000_000;
const SOCKET: &str = "share.socket";
/// Not in the folder that instances see.
const FIGURES: &str = "figures.socket";
/// Of the memory for all instances, what one store may hold at most.
const PART: u64 = 4;
/// A store's own memory, beside the pages that it keeps.
const OWN_MIB: u32 = 64;
const PROCESSES: u64 = 64;
/// A store answers at once; one that is stuck must not hold up a sample.
const PATIENCE: Duration = Duration::from_millis(200);

/// All page stores of a worker.
pub struct Stores {
    program: PathBuf,
    spawner: Spawner,
    cgroups: Arc<Hierarchy>,
    folder: PathBuf,
    limit_mib: u32,
    stores: Mutex<BTreeMap<FunctionId, Store>>,
}

struct Store {
    /// `None` while it is being started.
    running: Option<Running>,
}

/// A store's process, and the cgroup that bounds it.
struct Running {
    child: Child,
    cgroup: Cgroup,
}

impl Store {
    /// It keeps nothing that must be written: what instances share stays theirs.
    fn end(self, place: &Path) {
        let Some(Running { mut child, cgroup }) = self.running else { return };
        let _ = child.kill();
        let _ = child.wait();
        cgroup.remove();
        let _ = std::fs::remove_dir_all(place);
    }

    /// Whether it runs, or is about to. The kernel forgets one that has ended only when it is asked.
    fn runs(&mut self) -> bool {
        match &mut self.running {
            Some(running) => matches!(running.child.try_wait(), Ok(None)),
            None => true,
        }
    }
}

impl Stores {
    /// No store yet. `memory_mib` is what all instances together may have; a store holds a part of that at most.
    pub fn new(
        program: PathBuf,
        spawner: Spawner,
        cgroups: Arc<Hierarchy>,
        folder: PathBuf,
        memory_mib: u64,
    ) -> Stores {
        let limit_mib = u32::try_from((memory_mib / PART).max(1)).unwrap_or(u32::MAX - OWN_MIB);
        Stores { program, spawner, cgroups, folder, limit_mib, stores: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<FunctionId, Store>> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, function: FunctionId) -> PathBuf {
        self.folder.join(format!("store-{function}"))
    }

    /// The way to a function's store, which is started if it does not run.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn endpoint(&self, function: FunctionId) -> Result<Endpoint> {
        let place = self.place(function);
        let user = worker_is_root().then(|| FIRST_USER + (function % 1_000_000) as u32);
        let endpoint = Endpoint { folder: place.join("socket"), socket: SOCKET, user };
        {
            let mut stores = self.lock();
            if stores.get_mut(&function).is_some_and(Store::runs) {
                return Ok(endpoint);
            }
            if let Some(died) = stores.insert(function, Store { running: None }) {
                died.end(&place);
            }
        }
        let started = self.start(function, &place, &endpoint).await;
        let mut stores = self.lock();
        match (started, stores.get_mut(&function)) {
            (Ok(running), Some(store)) => store.running = Some(running),
            // The function was deleted meanwhile.
            (Ok(running), None) => Store { running: Some(running) }.end(&place),
            (Err(error), _) => {
                stores.remove(&function);
                return Err(error);
            }
        }
        Ok(endpoint)
    }

    async fn start(&self, function: FunctionId, place: &Path, endpoint: &Endpoint) -> Result<Running> {
        std::fs::create_dir_all(&endpoint.folder)
            .with_context(|| format!("cannot make {}", endpoint.folder.display()))?;
        let mut command = Command::new(&self.program);
        command
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
        if let Some(user) = endpoint.user {
            // Closed to all others; a sandbox shows the inner one.
            std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o700))?;
            for folder in [place, &endpoint.folder] {
                std::os::unix::fs::chown(folder, Some(user), Some(user))
                    .with_context(|| format!("cannot give {} to its store", folder.display()))?;
            }
        }
        own_user_with_leases(&mut command, endpoint.user);
        let limits = Limits { memory_mib: self.limit_mib + OWN_MIB, processes: PROCESSES, processors: None };
        let cgroup = self.cgroups.create(&format!("store-{function}"), limits)?;
        let child = match self.spawner.run(command).await.context("cannot start a page store") {
            Ok(child) => child,
            Err(error) => {
                cgroup.remove();
                return Err(error);
            }
        };
        let id = child.id();
        let running = Running { child, cgroup };
        if let Err(error) = running.cgroup.take_in(id) {
            Store { running: Some(running) }.end(place);
            return Err(error);
        }
        Ok(running)
    }

    /// Ends a function's store: it was deleted, and its last instance is gone.
    pub fn end(&self, function: FunctionId) {
        let removed = self.lock().remove(&function);
        if let Some(store) = removed {
            store.end(&self.place(function));
        }
    }

    /// How many stores run, and what their pages occupy.
    pub fn figures(&self) -> (u64, u64) {
        let running = |(function, store): (&FunctionId, &mut Store)| store.runs().then_some(*function);
        let functions: Vec<FunctionId> = self.lock().iter_mut().filter_map(running).collect();
        let pages: u64 =
            functions.iter().filter_map(|function| pages_of(&self.place(*function).join(FIGURES))).sum();
        (functions.len() as u64, pages * 4096)
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        let stores = std::mem::take(&mut *self.lock());
        for (function, store) in stores {
            store.end(&self.place(function));
        }
    }
}

/// What the store says of itself.
fn pages_of(socket: &Path) -> Option<u64> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: store\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.take(1 << 20).read_to_string(&mut text).ok()?;
    Some(store_pages(&text))
}

/// The sum over the store's domains; there is one, or none before the first call.
fn store_pages(figures: &str) -> u64 {
    let lines = figures.lines().filter(|line| line.starts_with("mayfly_share_store_pages{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_from_the_figures() {
        let text = "# TYPE mayfly_share_store_pages gauge\nmayfly_share_store_pages{domain=\"everyone\"} 12\n\
                    mayfly_share_store_pages_other{} 5\n";
        assert_eq!((store_pages(text), store_pages("")), (12, 0));
    }
}
