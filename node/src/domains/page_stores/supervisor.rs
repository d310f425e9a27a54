//! The thread that supervises the stores' processes.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::base::cgroup::{Cgroup, ParentCgroup};
use crate::domains::page_stores::state::{Members, Program, SharedStates, State, lock_states};
use crate::domains::trust_domain::TrustDomain;

const TICK: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(30);
/// A store that ran for so long is restarted at once.
const STABLE: Duration = Duration::from_secs(60);
/// Memory that a store's process needs beside its pages: its index, threads, code.
const OVERHEAD_BYTES: u64 = 192 << 20;
/// How long a store may take to end by itself.
pub const GRACE: Duration = Duration::from_secs(2);

/// Orders to the supervisor.
pub enum Order {
    /// Serve these members and no others: starts the store, or ends it if there are none.
    Serve(TrustDomain, Members),
    /// End all stores, then send.
    End(Sender<()>),
}

/// Domains that have members or are about to: their folders stay, for a runtime may be about to mount them.
pub type DomainsInUse = Arc<Mutex<HashSet<TrustDomain>>>;

/// Locks these domains.
pub fn lock_in_use(in_use: &DomainsInUse) -> MutexGuard<'_, HashSet<TrustDomain>> {
    in_use.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Where a domain's files lie, in the agent's folder.
#[derive(Clone)]
pub struct Paths(pub PathBuf);

impl Paths {
    /// The folder that containers mount.
    pub fn folder(&self, domain: &TrustDomain) -> PathBuf {
        self.0.join("domains").join(domain.id())
    }

    /// A file that they do not mount.
    pub fn private_file(&self, domain: &TrustDomain, suffix: &str) -> PathBuf {
        self.0.join("stores").join(format!("{}.{suffix}", domain.id()))
    }
}

struct Store {
    members: Members,
    /// Whether the members' file is written, which fails while the disk is full.
    has_members_file: bool,
    process: Option<Child>,
    cgroup: Option<Cgroup>,
    since: Instant,
    wait: Duration,
    restarts: u64,
}

/// Supervises the stores.
pub struct Supervisor {
    program: Program,
    cgroups: Option<ParentCgroup>,
    paths: Paths,
    states: SharedStates,
    in_use: DomainsInUse,
    stores: BTreeMap<TrustDomain, Store>,
}

impl Supervisor {
    /// A supervisor without stores; without `cgroups` they will run in the agent's own.
    pub fn new(
        program: Program,
        cgroups: Option<ParentCgroup>,
        paths: Paths,
        states: SharedStates,
        in_use: DomainsInUse,
    ) -> Self {
        Supervisor { program, cgroups, paths, states, in_use, stores: BTreeMap::new() }
    }

    /// Runs until it receives [`Order::End`], or all senders are dropped.
    pub fn run(&mut self, orders: &Receiver<Order>) {
        loop {
            match orders.recv_timeout(TICK) {
                Ok(Order::Serve(domain, members)) => self.serve(domain, members),
                Ok(Order::End(done)) => {
                    self.end_all();
                    let _ = done.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => self.check(),
                Err(RecvTimeoutError::Disconnected) => return self.end_all(),
            }
            self.publish_states();
        }
    }

    fn serve(&mut self, domain: TrustDomain, members: Members) {
        if members == Members::None {
            return self.remove(&domain);
        }
        let written = self.write_members(&domain, &members);
        if let Err(error) = &written {
            tracing::error!("cannot write the members of {domain} for its store; retrying: {error}");
        }
        let has_members_file = written.is_ok();
        match self.stores.get_mut(&domain) {
            Some(store) => (store.members, store.has_members_file) = (members, has_members_file),
            None => {
                let new = Store {
                    members,
                    has_members_file,
                    process: None,
                    cgroup: None,
                    since: Instant::now(),
                    wait: Duration::ZERO,
                    restarts: 0,
                };
                self.stores.insert(domain.clone(), new);
                self.start(&domain);
            }
        }
    }

    /// Writes the file from which a domain's store reads who may use it.
    fn write_members(&self, domain: &TrustDomain, members: &Members) -> std::io::Result<()> {
        match members {
            Members::Cgroups(paths) => {
                write_atomically(&self.paths.private_file(domain, "members"), &(paths.join("\n") + "\n"))
            }
            _ => Ok(()),
        }
    }

    fn start(&mut self, domain: &TrustDomain) {
        let Some(store) = self.stores.get_mut(domain) else { return };
        store.since = Instant::now();
        let mut command = Command::new(&self.program.path);
        command
            .arg("share")
            .arg("--socket")
            .arg(self.paths.folder(domain).join("share.socket"))
            // Not in that folder, where a container could take the lock and so keep the next store from
            // starting.
            .arg("--lock")
            .arg(self.paths.private_file(domain, "lock"))
            .args(["--domain", "everyone", "--limit", &self.program.max_bytes.to_string()])
            .arg("--metrics")
            .arg(self.paths.private_file(domain, "metrics"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .env_clear();
        if matches!(store.members, Members::Cgroups(_)) {
            command.arg("--members").arg(self.paths.private_file(domain, "members"));
        }
        // SAFETY: prctl with plain numbers, between fork and exec. This thread starts all stores and lives as
        // long as the agent, so the kernel sends the signal when the agent ends, however it ends.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
        let spawned = fs::create_dir_all(self.paths.folder(domain)).and_then(|()| command.spawn());
        match spawned {
            Err(error) => tracing::error!("cannot start a page store for {domain}: {error}"),
            Ok(process) => {
                if let (None, Some(parent)) = (&store.cgroup, &self.cgroups) {
                    let made = parent.make(&domain.id(), limit(&self.program));
                    store.cgroup = made.inspect_err(|why| tracing::warn!("{why:#}")).ok();
                }
                if let Some(Err(why)) = store.cgroup.as_ref().map(|cgroup| cgroup.add_process(process.id())) {
                    tracing::warn!("the page store of {domain} is charged to the agent: {why:#}");
                }
                tracing::info!("page store of {domain}: process {}", process.id());
                store.process = Some(process);
            }
        }
    }

    /// Restarts stores that exited, and writes members' files that are missing.
    fn check(&mut self) {
        let domains: Vec<TrustDomain> = self.stores.keys().cloned().collect();
        for domain in domains {
            let pending = self.stores.get(&domain).filter(|store| !store.has_members_file);
            if pending.is_some_and(|store| self.write_members(&domain, &store.members).is_ok())
                && let Some(store) = self.stores.get_mut(&domain)
            {
                store.has_members_file = true;
                tracing::info!("the members of {domain} are written for its store");
            }
            let Some(store) = self.stores.get_mut(&domain) else { continue };
            if let Some(Ok(Some(status))) = store.process.as_mut().map(Child::try_wait) {
                store.process = None;
                store.wait = if store.since.elapsed() > STABLE {
                    Duration::ZERO
                } else {
                    (store.wait * 2).clamp(TICK, MAX_WAIT)
                };
                tracing::warn!(
                    "the page store of {domain} exited ({status}); restarting in {:?}",
                    store.wait
                );
                store.since = Instant::now();
            }
            if store.process.is_none() && store.since.elapsed() >= store.wait {
                store.restarts += 1;
                self.start(&domain);
            }
        }
    }

    fn publish_states(&self) {
        let states = self.stores.iter().map(|(domain, store)| {
            let state = State {
                process: store.process.as_ref().map(Child::id),
                restarts: store.restarts,
                memory_bytes: store.cgroup.as_ref().and_then(Cgroup::bytes),
                limit_bytes: limit(&self.program),
                metrics_socket: self.paths.private_file(domain, "metrics"),
            };
            (domain.clone(), state)
        });
        *lock_states(&self.states) = states.collect();
    }

    fn remove(&mut self, domain: &TrustDomain) {
        if let Some(mut store) = self.stores.remove(domain) {
            end(&mut store.process, Instant::now() + GRACE);
            tracing::info!("page store of {domain} ended: no container is left in its domain");
        }
        for suffix in ["members", "metrics", "lock"] {
            let _ = fs::remove_file(self.paths.private_file(domain, suffix));
        }
        let in_use = lock_in_use(&self.in_use);
        if !in_use.contains(domain) {
            let _ = fs::remove_dir_all(self.paths.folder(domain));
        }
    }

    fn end_all(&mut self) {
        for store in self.stores.values_mut() {
            signal(&store.process);
        }
        let until = Instant::now() + GRACE;
        for store in self.stores.values_mut() {
            end(&mut store.process, until);
        }
        self.stores.clear();
    }
}

fn limit(program: &Program) -> u64 {
    program.max_bytes.saturating_add(OVERHEAD_BYTES)
}

fn signal(process: &Option<Child>) {
    if let Some(process) = process {
        // SAFETY: a signal to a child that this thread has not waited for, so its PID is not reused.
        unsafe { libc::kill(process.id() as i32, libc::SIGTERM) };
    }
}

fn end(process: &mut Option<Child>, until: Instant) {
    signal(process);
    let Some(mut process) = process.take() else { return };
    while let Ok(None) = process.try_wait() {
        if Instant::now() > until {
            let _ = process.kill();
            let _ = process.wait();
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn write_atomically(path: &Path, text: &str) -> std::io::Result<()> {
    let fresh = path.with_extension("fresh");
    fs::write(&fresh, text)?;
    fs::rename(fresh, path)
}
