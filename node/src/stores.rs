//! Page stores, one process for each trust domain: `mayfly share`, in a cgroup of its own, on a socket in a folder that only
//! the domain's containers mount, and for programs of those containers' cgroups only, whatever they say they are.
//!
//! A thread keeps them. A store that ends is started again, later each time; programs keep what they share meanwhile. Stores end
//! with the agent; the next agent's stores get the programs' segments again when these call.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cgroup::{Cgroup, Parent};
use crate::domain::Domain;

const TICK: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A store that ran for so long starts again at once.
const STABLE: Duration = Duration::from_secs(60);
/// What a store's process needs beside its pages: its index, threads, code.
const BESIDE_PAGES: u64 = 192 << 20;
/// Answers to scrapes are short.
const MOST_FIGURES: u64 = 1 << 20;
/// How long a store may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);

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
    figures_at: PathBuf,
}

type Board = Arc<Mutex<BTreeMap<Domain, State>>>;

fn held(board: &Board) -> MutexGuard<'_, BTreeMap<Domain, State>> {
    board.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

enum Order {
    Serve(Domain, Members),
    End(Sender<()>),
}

/// The stores of a node.
#[derive(Clone)]
pub struct Stores {
    orders: Sender<Order>,
    board: Board,
    places: Places,
    wanted: Wanted,
}

/// Domains that somebody is of or will be in a moment: their folders stay, for a runtime may be about to mount them.
type Wanted = Arc<Mutex<HashSet<Domain>>>;

fn wanted(wanted: &Wanted) -> MutexGuard<'_, HashSet<Domain>> {
    wanted.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[derive(Clone)]
struct Places(PathBuf);

impl Places {
    /// What containers mount.
    fn folder(&self, domain: &Domain) -> PathBuf {
        self.0.join("domains").join(domain.id())
    }

    /// What they do not.
    fn beside(&self, domain: &Domain, what: &str) -> PathBuf {
        self.0.join("stores").join(format!("{}.{what}", domain.id()))
    }
}

impl Stores {
    /// Starts the thread. `data` is the agent's folder; without `cgroups` stores run in the agent's own.
    ///
    /// # Errors
    /// The folders cannot be made.
    pub fn start(data: &Path, program: Program, cgroups: Option<Parent>) -> Result<Stores> {
        let places = Places(data.to_owned());
        for (name, mode) in [("domains", 0o755), ("stores", 0o700)] {
            let folder = data.join(name);
            fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode))?;
        }
        let (orders, receiver) = channel();
        let board = Board::default();
        let mut keeper = Keeper {
            program,
            cgroups,
            places: places.clone(),
            board: board.clone(),
            kept: BTreeMap::new(),
            wanted: Wanted::default(),
        };
        let wanted = keeper.wanted.clone();
        std::thread::Builder::new().name("stores".into()).spawn(move || keeper.run(&receiver))?;
        Ok(Stores { orders, board, places, wanted })
    }

    /// The folder that containers of the domain mount; its socket appears as soon as the store is up.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn folder(&self, domain: &Domain) -> Result<PathBuf> {
        let folder = self.places.folder(domain);
        wanted(&self.wanted).insert(domain.clone());
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        Ok(folder)
    }

    /// Serves these, and nobody else, from now on.
    pub fn serve(&self, domain: &Domain, members: Members) {
        if members == Members::Nobody {
            wanted(&self.wanted).remove(domain);
        } else {
            wanted(&self.wanted).insert(domain.clone());
        }
        let _ = self.orders.send(Order::Serve(domain.clone(), members));
    }

    /// How all are.
    pub fn states(&self) -> BTreeMap<Domain, State> {
        held(&self.board).clone()
    }

    /// Ends all stores. Programs keep what they share.
    pub fn end(&self) {
        let (sender, done) = channel();
        if self.orders.send(Order::End(sender)).is_ok() {
            let _ = done.recv_timeout(GRACE * 2);
        }
    }
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

struct Keeper {
    program: Program,
    cgroups: Option<Parent>,
    places: Places,
    board: Board,
    kept: BTreeMap<Domain, Kept>,
    wanted: Wanted,
}

impl Keeper {
    fn run(&mut self, orders: &Receiver<Order>) {
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
        *held(&self.board) = states.collect();
    }

    fn forget(&mut self, domain: &Domain) {
        if let Some(mut kept) = self.kept.remove(domain) {
            end(&mut kept.process, Instant::now() + GRACE);
            tracing::info!("page store of {domain} has ended: nobody is left");
        }
        for what in ["members", "metrics"] {
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
