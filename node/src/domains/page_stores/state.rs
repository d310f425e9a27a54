//! What is said of stores: whom they serve, and how they are.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::domains::trust_domain::Domain;

/// Answers to scrapes are short.
const MOST_FIGURES: u64 = 1 << 20;

/// Whom a store serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members {
    /// Whoever has the socket: the operator mounted it.
    Holders,
    /// Programs of these cgroups; none yet, maybe, for a container has none before its first process.
    Cgroups(Vec<String>),
    /// Nobody any more: the store ends.
    Nobody,
}

/// What every store is started with.
#[derive(Clone, Debug)]
pub struct Program {
    /// The `mayfly` command.
    pub path: PathBuf,
    /// Bytes that a store may hold.
    pub most_bytes: u64,
}

/// How one store is.
#[derive(Clone, Debug)]
pub struct State {
    /// Its process, while there is one.
    pub process: Option<u32>,
    /// How often it ended and was started again.
    pub restarts: u64,
    /// Bytes charged to its cgroup.
    pub memory_bytes: Option<u64>,
    /// Bytes that its cgroup may have.
    pub limit_bytes: u64,
    /// Its own figures, as Prometheus' text.
    pub figures_at: PathBuf,
}

impl State {
    /// What the store itself counts, as Prometheus' text; nothing if it does not answer at once.
    pub fn figures(&self) -> String {
        let ask = || {
            let mut stream = UnixStream::connect(&self.figures_at)?;
            stream.set_read_timeout(Some(Duration::from_millis(500)))?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
            let mut text = String::new();
            stream.take(MOST_FIGURES).read_to_string(&mut text)?;
            Ok::<_, std::io::Error>(text)
        };
        let text = ask().unwrap_or_default();
        text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }
}

/// How all are.
pub type SharedStates = Arc<Mutex<BTreeMap<Domain, State>>>;

/// The states, to read or write.
pub fn held(states: &SharedStates) -> MutexGuard<'_, BTreeMap<Domain, State>> {
    states.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
