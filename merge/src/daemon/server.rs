//! Accepts connections, finds their domains, and hands them to the domains' threads. Serves /metrics.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::base::error::{Error, While};
use crate::base::fault;
use crate::base::page::PAGE_BYTES;
use crate::base::protocol::Refusal;
use crate::daemon::descriptor_store::{self, DescriptorStore};
use crate::daemon::domain_metrics::MetricsByDomain;
use crate::daemon::domain_thread::{self, Connected, DomainThread};
use crate::daemon::metrics_http::{Endpoint, Listener, ScrapeConnection, remove_socket};
use crate::daemon::page_budget::{Budget, Charge};
use crate::daemon::page_store::{Limits, PageStore};
use crate::daemon::socket_lock::SocketLock;
use crate::daemon::trust_domain::{self, Rule, TrustDomain};
use crate::daemon::turn_away::{self, turn_away};

/// The settings of a daemon.
pub struct Configuration {
    /// Its socket.
    pub socket: PathBuf,
    /// A file whose lock keeps other daemons from that socket; if none is given, one beside the socket.
    pub lock: Option<PathBuf>,
    /// Which processes share with which.
    pub rule: Rule,
    /// A file that names cgroups, one a line: programs of others are refused. Read at each connection.
    pub members: Option<PathBuf>,
    /// Bytes that a domain's store may hold.
    pub max_bytes: u64,
    /// Connections that a domain may have.
    pub max_clients: usize,
    /// Whose memory the pages are.
    pub charge: Charge,
    /// Where metrics are served.
    pub metrics: Option<Endpoint>,
}

/// Domains at a time: each has a thread.
const MAX_DOMAINS: usize = 256;
/// Connections to /metrics at a time, and how long each may take.
const MAX_SCRAPES: usize = 16;
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the daemon tries to accept a connection for which it has no descriptor.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(10);

/// A daemon that listens.
pub struct Server {
    configuration: Configuration,
    listener: OwnedFd,
    metrics: Option<Listener>,
    scrapes: Vec<ScrapeConnection>,
    threads: HashMap<TrustDomain, DomainThread>,
    by_domain: Arc<MetricsByDomain>,
    limits: Limits,
    descriptors: Arc<DescriptorStore>,
    budget: Arc<Budget>,
    last_warning: Option<Instant>,
    /// A descriptor that is closed to accept a connection where no other is left.
    reserve: Option<OwnedFd>,
    /// Held as long as the daemon lives: two daemons must not serve one socket.
    _lock: SocketLock,
}

impl Server {
    /// Listens, so that programs can connect when this returns.
    ///
    /// # Errors
    /// Another daemon serves that socket; the socket's folder cannot be made; the kernel lacks what the rule
    /// needs.
    pub fn new(mut configuration: Configuration) -> Result<Server, Error> {
        let asks_cgroups = configuration.rule == Rule::Cgroup || configuration.members.is_some();
        if asks_cgroups && !trust_domain::has_peer_pidfd() {
            return Err(Error::new(
                libc::ENOTSUP,
                "domains and members by cgroup need Linux 6.5 or newer (SO_PEERPIDFD)",
            ));
        }
        guard_this_process();
        let files = raise_file_limit();
        // No domain takes more than a quarter of the daemon's files for its segments, or an eighth for its
        // clients.
        configuration.max_clients = configuration.max_clients.min(files / 8);
        let beside = configuration.socket.with_extension("lock");
        let lock = SocketLock::take(&configuration.socket, configuration.lock.as_ref().unwrap_or(&beside))?;
        let listener = listen(&configuration)?;
        let metrics = match &configuration.metrics {
            None => None,
            Some(endpoint) => Some(Listener::new(endpoint).map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                Error::new(errno, format!("cannot serve metrics on {endpoint}: {error}"))
            })?),
        };
        let limits =
            Limits { pages: (configuration.max_bytes / PAGE_BYTES as u64) as usize, segments: files / 4 };
        let budget = Arc::new(Budget::of_machine(limits.pages, configuration.charge));
        let mut server = Server {
            configuration,
            listener,
            metrics,
            scrapes: Vec::new(),
            threads: HashMap::new(),
            by_domain: Arc::default(),
            limits,
            descriptors: Arc::new(DescriptorStore::from_environment()),
            budget,
            last_warning: None,
            reserve: None,
            _lock: lock,
        };
        for kept in descriptor_store::saved_stores() {
            let domain = kept.0.domain.clone();
            let store = PageStore::restore(kept, limits, server.descriptors.clone(), server.budget.clone())?;
            let thread = server.start(&domain, store)?;
            server.threads.insert(domain, thread);
        }
        server.descriptors.ready();
        Ok(server)
    }

    /// Serves until `stop` is readable.
    ///
    /// # Errors
    /// The sockets cannot be waited for.
    pub fn run(&mut self, stop: impl AsFd) -> Result<(), Error> {
        loop {
            let mut watched = vec![PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
            watched.push(PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN));
            let metrics = self.metrics.iter().map(|listener| (listener.file(), PollFlags::IN));
            let scrapes = self.scrapes.iter().map(|scrape| (scrape.file(), scrape.waits_for()));
            watched.extend(metrics.chain(scrapes).map(|(file, what)| PollFd::from_borrowed_fd(file, what)));
            let second = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
            match poll(&mut watched, Some(&second)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::system("poll", errno)),
            }
            let is_ready: Vec<bool> = watched.iter().map(|file| !file.revents().is_empty()).collect();
            drop(watched);
            if is_ready[0] {
                return Ok(());
            }
            if is_ready[1] {
                self.accept();
            }
            let first_scrape = 2 + self.metrics.is_some() as usize;
            let mut ready = is_ready[first_scrape..].iter();
            let by_domain = &self.by_domain;
            self.scrapes.retain_mut(|scrape| {
                let is_done = ready.next() == Some(&true) && scrape.serve(|| by_domain.prometheus());
                !is_done && scrape.since.elapsed() < SCRAPE_TIMEOUT
            });
            if let Some(listener) = &self.metrics
                && is_ready[2]
            {
                match listener.accept() {
                    Some(scrape) if self.scrapes.len() < MAX_SCRAPES => self.scrapes.push(scrape),
                    Some(_) => {}
                    // Without a descriptor it stays ready.
                    None => std::thread::sleep(ACCEPT_INTERVAL),
                }
            }
            self.threads.retain(|_, thread| !thread.is_closed());
        }
    }

    fn accept_one(&self) -> rustix::io::Result<OwnedFd> {
        rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    fn accept(&mut self) {
        // Before any connection: the first that cannot be served could take the last descriptor.
        if self.reserve.is_none() {
            match rustix::io::fcntl_dupfd_cloexec(&self.listener, 0) {
                Ok(descriptor) => self.reserve = Some(descriptor),
                Err(_) => return std::thread::sleep(ACCEPT_INTERVAL),
            }
        }
        let socket = match self.accept_one() {
            Ok(socket) => socket,
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                let error = Error::system("accepting a connection", errno);
                // Closed first: its descriptor is for the connection.
                drop(self.reserve.take());
                match self.accept_one() {
                    Ok(socket) => self.refuse(socket, &error),
                    Err(_) => std::thread::sleep(ACCEPT_INTERVAL),
                }
                return;
            }
            Err(_) => return,
        };
        fault::point("store.accepted");
        let peer = match self.configuration.rule.peer(&socket) {
            Ok(peer) => peer,
            Err(error) => return self.refuse(socket, &error),
        };
        if let Some(members) = &self.configuration.members
            && let Err(error) = trust_domain::check_member(&socket, peer.pid, members)
        {
            return self.exclude(socket, &error);
        }
        let own = rustix::process::geteuid();
        if !own.is_root() && peer.user != own.as_raw() && self.configuration.rule != Rule::Everyone {
            let why = format!("process {} is of uid {}, not of this user", peer.pid, peer.user);
            return self.refuse(socket, &Error::new(libc::EACCES, why));
        }
        let domain = peer.domain.clone();
        let mut connected = Connected { socket, peer };
        if let Some(thread) = self.threads.get(&domain) {
            match thread.hand_over(connected) {
                Ok(()) => return,
                Err(returned) => connected = returned,
            }
        }
        match self.start_domain(&domain) {
            Ok(thread) => {
                let _ = thread.hand_over(connected);
                self.threads.insert(domain, thread);
            }
            Err(error) => self.refuse(connected.socket, &error),
        }
    }

    fn start_domain(&self, domain: &TrustDomain) -> Result<DomainThread, Error> {
        if self.threads.len() >= MAX_DOMAINS {
            return Err(Error::new(libc::EAGAIN, format!("no store for {domain}: there are {MAX_DOMAINS}")));
        }
        let store =
            PageStore::new(domain.clone(), self.limits, self.descriptors.clone(), self.budget.clone())?;
        self.start(domain, store)
    }

    fn start(&self, domain: &TrustDomain, store: PageStore) -> Result<DomainThread, Error> {
        domain_thread::start(domain.clone(), store, self.by_domain.clone(), self.configuration.max_clients)
    }

    /// Refuses a program of another container. It learns no more than that: names of cgroups are the host's.
    fn exclude(&mut self, socket: OwnedFd, why: &Error) {
        self.warn(why);
        let line = "this process is no member of this store, whose log says more".into();
        let out_of_files = turn_away::out_of_files(Errno::from_raw_os_error(why.errno));
        turn_away(socket, out_of_files.unwrap_or((Refusal::Wrong, line)));
    }

    fn refuse(&mut self, socket: OwnedFd, why: &Error) {
        self.warn(why);
        turn_away(socket, turn_away::refusal(why));
    }

    fn warn(&mut self, why: &Error) {
        if self.last_warning.is_none_or(|last| last.elapsed() > Duration::from_millis(100)) {
            self.last_warning = Some(Instant::now());
            tracing::warn!("a connection was refused: {why}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = remove_socket(&self.configuration.socket);
        if let Some(Endpoint::Socket(path)) = &self.configuration.metrics {
            let _ = remove_socket(path);
        }
    }
}

/// Keeps other processes of the user from reading this one's memory, and a lease break from ending it.
fn guard_this_process() {
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // SAFETY: ignoring a signal touches no memory.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
}

/// Raises the limit of open files to this user's maximum; returns it.
fn raise_file_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.map_or(1 << 16, |files| files as usize)
}

fn listen(configuration: &Configuration) -> Result<OwnedFd, Error> {
    let path = &configuration.socket;
    let what = || format!("cannot listen on {}", path.display());
    let address = SocketAddrUnix::new(path).while_doing(what())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .while_doing("cannot make a socket")?;
    // The lock ensures that no daemon serves it.
    remove_socket(path).map_err(|error| Error::new(libc::EEXIST, format!("{}: {error}", what())))?;
    rustix::net::bind(&socket, &address).while_doing(what())?;
    let is_for_all = rustix::process::geteuid().is_root() || configuration.rule == Rule::Everyone;
    let mode = if is_for_all { 0o666 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(|error| {
        Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{}: {error}", what()))
    })?;
    rustix::net::listen(&socket, 256).while_doing(what())?;
    Ok(socket)
}
