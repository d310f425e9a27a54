//! A page store's members and state.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::domains::trust_domain::TrustDomain;

/// A longer response to a scrape is cut there.
const MAX_METRICS_BYTES: u64 = 1 << 20;

/// The processes that a store serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members {
    /// All that have the socket: the operator mounted it.
    SocketHolders,
    /// Those in these cgroups; the list may be empty, for a container has none before its first process.
    Cgroups(Vec<String>),
    /// No process any more: the store ends.
    None,
}

/// The command and limit of every store.
#[derive(Clone, Debug)]
pub struct Program {
    /// The `mayfly` command.
    pub path: PathBuf,
    /// Bytes that a store may hold.
    pub max_bytes: u64,
}

/// The state of one store.
#[derive(Clone, Debug)]
pub struct State {
    /// Its process, while it runs.
    pub process: Option<u32>,
    /// How often the supervisor restarted it.
    pub restarts: u64,
    /// Bytes charged to its cgroup.
    pub memory_bytes: Option<u64>,
    /// The limit of its cgroup.
    pub limit_bytes: u64,
    /// The socket where the store serves its own metrics.
    pub metrics_socket: PathBuf,
}

impl State {
    /// The store's own metrics, as Prometheus' text; empty if it does not respond within half a second.
    pub fn metrics(&self) -> String {
        let get = || {
            let mut stream = UnixStream::connect(&self.metrics_socket)?;
            stream.set_read_timeout(Some(Duration::from_millis(500)))?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
            let mut text = String::new();
            stream.take(MAX_METRICS_BYTES).read_to_string(&mut text)?;
            Ok::<_, std::io::Error>(text)
        };
        let text = get().unwrap_or_default();
        text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }
}

/// The state of each store.
pub type SharedStates = Arc<Mutex<BTreeMap<TrustDomain, State>>>;

/// Locks the states.
pub fn lock_states(states: &SharedStates) -> MutexGuard<'_, BTreeMap<TrustDomain, State>> {
    states.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
