//! The thread that keeps the stores' processes.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::base::cgroup::{Cgroup, Parent};
use crate::domains::page_stores::state::{Members, Program, SharedStates, State, held};
use crate::domains::trust_domain::Domain;

const TICK: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A store that ran for so long starts again at once.
const STABLE: Duration = Duration::from_secs(60);
/// What a store's process needs beside its pages: its index, threads, code.
const BESIDE_PAGES: u64 = 192 << 20;
/// How long a store may take to end by itself.
pub const GRACE: Duration = Duration::from_secs(2);

/// What the supervisor is told.
pub enum Order {
    /// Serve these and nobody else; the store begins or ends with that.
    Serve(Domain, Members),
    /// End all, and say so.
    End(Sender<()>),
}

/// Domains that somebody is of or will be in a moment: their folders stay, for a runtime may be about to mount them.
pub type Wanted = Arc<Mutex<HashSet<Domain>>>;

/// These, to read or write.
pub fn wanted(wanted: &Wanted) -> MutexGuard<'_, HashSet<Domain>> {
    wanted.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Where a domain's files lie, in the agent's folder.
#[derive(Clone)]
pub struct Places(pub PathBuf);

impl Places {
    /// What containers mount.
    pub fn folder(&self, domain: &Domain) -> PathBuf {
        self.0.join("domains").join(domain.id())
    }

    /// What they do not.
    pub fn beside(&self, domain: &Domain, what: &str) -> PathBuf {
        self.0.join("stores").join(format!("{}.{what}", domain.id()))
    }
}

struct Kept {
    members: Members,
    /// Whether its store can read who they are; not while the disk is full.
    told: bool,
    process: Option<Child>,
    cgroup: Option<Cgroup>,
    since: Instant,
    wait: Duration,
    restarts: u64,
}

/// Keeps them.
pub struct Supervisor {
    program: Program,
    cgroups: Option<Parent>,
    places: Places,
    states: SharedStates,
    wanted: Wanted,
    kept: BTreeMap<Domain, Kept>,
}

impl Supervisor {
    /// One with no store yet; without `cgroups` they run in the agent's own.
    pub fn new(
        program: Program,
        cgroups: Option<Parent>,
        places: Places,
        states: SharedStates,
        wanted: Wanted,
    ) -> Self {
        Supervisor { program, cgroups, places, states, wanted, kept: BTreeMap::new() }
    }

    /// Until it is told to end, or nobody can tell it any more.
    pub fn run(&mut self, orders: &Receiver<Order>) {
        loop {
            match orders.recv_timeout(TICK) {
                Ok(Order::Serve(domain, members)) => self.serve(domain, members),
                Ok(Order::End(done)) => {
                    self.end_all();
                    let _ = done.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => return self.end_all(),
            }
            self.post();
        }
    }

    fn serve(&mut self, domain: Domain, members: Members) {
        if members == Members::Nobody {
            return self.forget(&domain);
        }
        let told = self.tell(&domain, &members);
        if let Err(error) = &told {
            tracing::error!(
                "the members of {domain} are not known to its store, which is tried again: {error}"
            );
        }
        let told = told.is_ok();
        match self.kept.get_mut(&domain) {
            Some(kept) => (kept.members, kept.told) = (members, told),
            None => {
                let new = Kept {
                    members,
                    told,
                    process: None,
                    cgroup: None,
                    since: Instant::now(),
                    wait: Duration::ZERO,
                    restarts: 0,
                };
                self.kept.insert(domain.clone(), new);
                self.begin(&domain);
            }
        }
    }

    /// Writes down who may use a domain's store.
    fn tell(&self, domain: &Domain, members: &Members) -> std::io::Result<()> {
        match members {
            Members::Cgroups(paths) => {
                write_at_once(&self.places.beside(domain, "members"), &(paths.join("\n") + "\n"))
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, domain: &Domain) {
        let Some(kept) = self.kept.get_mut(domain) else { return };
        kept.since = Instant::now();
        let mut command = Command::new(&self.program.path);
        command
            .arg("share")
            .arg("--socket")
            .arg(self.places.folder(domain).join("share.socket"))
            // Not in that folder, where a container could take it and keep the next store away.
            .arg("--lock")
            .arg(self.places.beside(domain, "lock"))
            .args(["--domain", "everyone", "--limit", &self.program.most_bytes.to_string()])
            .arg("--metrics")
            .arg(self.places.beside(domain, "metrics"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .env_clear();
        if matches!(kept.members, Members::Cgroups(_)) {
            command.arg("--members").arg(self.places.beside(domain, "members"));
        }
        // SAFETY: prctl with plain numbers, between fork and exec. This thread starts all stores and lives as long as the
        // agent, so the signal comes when the agent ends, whichever way.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
        let spawned = fs::create_dir_all(self.places.folder(domain)).and_then(|()| command.spawn());
        match spawned {
            Err(error) => tracing::error!("no page store for {domain}: {error}"),
            Ok(process) => {
                if let (None, Some(parent)) = (&kept.cgroup, &self.cgroups) {
                    let made = parent.make(&domain.id(), limit(&self.program));
                    kept.cgroup = made.inspect_err(|why| tracing::warn!("{why:#}")).ok();
                }
                if let Some(Err(why)) = kept.cgroup.as_ref().map(|cgroup| cgroup.take(process.id())) {
                    tracing::warn!("the page store of {domain} is charged to the agent: {why:#}");
                }
                tracing::info!("page store of {domain}: process {}", process.id());
                kept.process = Some(process);
            }
        }
    }

    /// Starts again what has ended.
    fn look(&mut self) {
        let domains: Vec<Domain> = self.kept.keys().cloned().collect();
        for domain in domains {
            let untold = self.kept.get(&domain).filter(|kept| !kept.told);
            if untold.is_some_and(|kept| self.tell(&domain, &kept.members).is_ok())
                && let Some(kept) = self.kept.get_mut(&domain)
            {
                kept.told = true;
                tracing::info!("the members of {domain} are known to its store");
            }
            let Some(kept) = self.kept.get_mut(&domain) else { continue };
            if let Some(Ok(Some(status))) = kept.process.as_mut().map(Child::try_wait) {
                kept.process = None;
                kept.wait = if kept.since.elapsed() > STABLE {
                    Duration::ZERO
                } else {
                    (kept.wait * 2).clamp(TICK, LONGEST_WAIT)
                };
                tracing::warn!("the page store of {domain} ended ({status}); again in {:?}", kept.wait);
                kept.since = Instant::now();
            }
            if kept.process.is_none() && kept.since.elapsed() >= kept.wait {
                kept.restarts += 1;
                self.begin(&domain);
            }
        }
    }

    fn post(&self) {
        let states = self.kept.iter().map(|(domain, kept)| {
            let state = State {
                process: kept.process.as_ref().map(Child::id),
                restarts: kept.restarts,
                memory_bytes: kept.cgroup.as_ref().and_then(Cgroup::bytes),
                limit_bytes: limit(&self.program),
                figures_at: self.places.beside(domain, "metrics"),
            };
            (domain.clone(), state)
        });
        *held(&self.states) = states.collect();
    }

    fn forget(&mut self, domain: &Domain) {
        if let Some(mut kept) = self.kept.remove(domain) {
            end(&mut kept.process, Instant::now() + GRACE);
            tracing::info!("page store of {domain} has ended: nobody is left");
        }
        for what in ["members", "metrics", "lock"] {
            let _ = fs::remove_file(self.places.beside(domain, what));
        }
        let wanted = wanted(&self.wanted);
        if !wanted.contains(domain) {
            let _ = fs::remove_dir_all(self.places.folder(domain));
        }
    }

    fn end_all(&mut self) {
        for kept in self.kept.values_mut() {
            signal(&kept.process);
        }
        let until = Instant::now() + GRACE;
        for kept in self.kept.values_mut() {
            end(&mut kept.process, until);
        }
        self.kept.clear();
    }
}

fn limit(program: &Program) -> u64 {
    program.most_bytes.saturating_add(BESIDE_PAGES)
}

fn signal(process: &Option<Child>) {
    if let Some(process) = process {
        // SAFETY: a signal to a child that was not waited for, so the number is its own.
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

fn write_at_once(path: &Path, text: &str) -> std::io::Result<()> {
    let fresh = path.with_extension("fresh");
    fs::write(&fresh, text)?;
    fs::rename(fresh, path)
}
