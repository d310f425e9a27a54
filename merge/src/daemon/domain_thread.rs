//! A trust domain's thread: its clients, its store, an event loop.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::base::channel;
use crate::base::error::{Error, While};
use crate::base::fault;
use crate::base::protocol::{Answer, MAX_BYTES, Refusal, Request};
use crate::daemon::domain_metrics::{DomainMetrics, MetricsByDomain};
use crate::daemon::page_store::PageStore;
use crate::daemon::programs::Programs;
use crate::daemon::requests;
use crate::daemon::trust_domain::{Peer, TrustDomain};
use crate::daemon::turn_away::{self, turn_away};
use crate::daemon::untrusted_fds::{self, PendingCloses, UntrustedFd};

/// How often the thread looks for segments that no process maps.
const SWEEP: Duration = Duration::from_secs(1);
const CONNECTIONS: u64 = 0;
/// Warnings about clients from one sweep to the next.
const MAX_WARNINGS: u32 = 10;

/// A new connection.
pub struct Connected {
    /// Its socket.
    pub socket: OwnedFd,
    /// Its process.
    pub peer: Peer,
}

/// The server's handle of a domain's thread.
pub struct DomainThread {
    connections: Sender<Connected>,
    wakeup: Arc<OwnedFd>,
    /// Set by the thread when it ends: the next connection needs another thread. Locked while the server
    /// hands a connection over.
    closed: Arc<Mutex<bool>>,
}

fn held(closed: &Mutex<bool>) -> MutexGuard<'_, bool> {
    closed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl DomainThread {
    /// Hands a connection over; returns it if the thread has ended.
    pub fn hand_over(&self, connected: Connected) -> Result<(), Connected> {
        let closed = held(&self.closed);
        if *closed {
            return Err(connected);
        }
        self.connections.send(connected).map_err(|returned| returned.0)?;
        self.wake();
        Ok(())
    }

    /// Whether the thread has ended.
    pub fn is_closed(&self) -> bool {
        *held(&self.closed)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.wakeup, &1u64.to_ne_bytes());
    }
}

impl Drop for DomainThread {
    fn drop(&mut self) {
        // The thread ends when no connection can arrive any more.
        let connections = std::mem::replace(&mut self.connections, channel().0);
        drop(connections);
        self.wake();
    }
}

struct Client {
    socket: OwnedFd,
    peer: Peer,
    /// Whether hello has succeeded.
    has_greeted: bool,
}

struct DomainLoop {
    domain: TrustDomain,
    store: PageStore,
    by_domain: Arc<MetricsByDomain>,
    events: OwnedFd,
    wakeup: Arc<OwnedFd>,
    connections: Receiver<Connected>,
    clients: HashMap<u64, Client>,
    max_clients: usize,
    metrics: DomainMetrics,
    programs: Programs,
    closing: PendingCloses,
    next: u64,
    /// Warnings written since the last sweep.
    warnings: u32,
    buffer: Vec<u8>,
}

/// Starts a domain's thread.
pub fn start(
    domain: TrustDomain,
    store: PageStore,
    by_domain: Arc<MetricsByDomain>,
    max_clients: usize,
) -> Result<DomainThread, Error> {
    let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).while_doing("eventfd")?);
    let events = epoll::create(epoll::CreateFlags::CLOEXEC).while_doing("epoll")?;
    watch(&events, wakeup.as_fd(), CONNECTIONS)?;
    let (connections, receiver) = channel();
    let closed = Arc::new(Mutex::new(false));
    let name = domain.to_string();
    let mut domain_loop = DomainLoop {
        domain,
        store,
        by_domain,
        events,
        wakeup: wakeup.clone(),
        connections: receiver,
        clients: HashMap::new(),
        max_clients,
        metrics: DomainMetrics::default(),
        programs: Programs::default(),
        closing: PendingCloses::default(),
        next: CONNECTIONS + 1,
        warnings: 0,
        buffer: vec![0; MAX_BYTES],
    };
    let closes = closed.clone();
    let run = move || {
        if let Err(error) = domain_loop.run(&closes) {
            tracing::error!("the store of {} has ended: {error}", domain_loop.domain);
        }
        *held(&closes) = true;
        domain_loop.by_domain.post(&domain_loop.domain, None);
    };
    std::thread::Builder::new().name(name.chars().take(15).collect()).spawn(run).map_err(|error| {
        Error::new(error.raw_os_error().unwrap_or(libc::EAGAIN), format!("a thread for {name}: {error}"))
    })?;
    Ok(DomainThread { connections, wakeup, closed })
}

impl DomainLoop {
    fn run(&mut self, closed: &Mutex<bool>) -> Result<(), Error> {
        let mut ready = Vec::with_capacity(256);
        let mut next_sweep = Instant::now() + SWEEP;
        loop {
            let wait = next_sweep.saturating_duration_since(Instant::now()).as_millis() as i64 + 1;
            let wait = rustix::time::Timespec { tv_sec: wait / 1000, tv_nsec: wait % 1000 * 1_000_000 };
            ready.clear();
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut ready), Some(&wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::system("epoll", errno)),
            }
            // One message of each client at a time: no client waits for the end of another's flood.
            for event in &ready {
                match event.data.u64() {
                    CONNECTIONS => {
                        if !self.accept_new() {
                            return Ok(());
                        }
                    }
                    token => self.serve(token),
                }
            }
            if Instant::now() >= next_sweep {
                next_sweep = Instant::now() + SWEEP;
                self.warnings = 0;
                self.metrics.dropped_pages_total += self.store.sweep() as u64;
                self.post_programs();
                if self.clients.is_empty() && self.store.is_empty() {
                    let mut closed = held(closed);
                    if !self.accept_new() || self.clients.is_empty() {
                        *closed = true;
                        return Ok(());
                    }
                }
            }
            self.post();
        }
    }

    fn post(&mut self) {
        self.metrics.clients = self.clients.len() as u64;
        self.store.count(&mut self.metrics);
        self.by_domain.post(&self.domain, Some(&self.metrics));
    }

    fn post_programs(&mut self) {
        self.programs.charge(&self.store.charged());
        self.by_domain.post_programs(&self.domain, &self.programs);
    }

    /// Accepts new connections; false if none can arrive any more.
    fn accept_new(&mut self) -> bool {
        let _ = rustix::io::read(&*self.wakeup, &mut [0; 8]);
        loop {
            match self.connections.try_recv() {
                Ok(Connected { socket, peer }) => {
                    let pid = peer.pid;
                    if self.clients.len() >= self.max_clients {
                        self.metrics.turned_away_total += 1;
                        let most = self.max_clients;
                        let line =
                            format!("{} has {most} connections to the page store, its limit", self.domain);
                        tracing::warn!("process {pid} was refused: {line}");
                        turn_away(socket, (Refusal::Exhausted, line));
                        continue;
                    }
                    let token = self.next;
                    self.next += 1;
                    if let Err(error) = watch(&self.events, socket.as_fd(), token) {
                        tracing::warn!("process {pid} was refused: {error}");
                        turn_away(socket, turn_away::refusal(&error));
                        continue;
                    }
                    tracing::debug!("process {pid} of {} is client {token}", self.domain);
                    self.metrics.connections_total += 1;
                    self.programs.connected(token, &peer);
                    self.clients.insert(token, Client { socket, peer, has_greeted: false });
                }
                Err(std::sync::mpsc::TryRecvError::Empty) => return true,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn serve(&mut self, token: u64) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        let flags = RecvFlags::DONTWAIT;
        // First peek at the message, and whether files lie beside it. A file that is received, or left in the
        // message, is closed here, which may take as long as its sender likes. So the thread receives a file
        // only where a request needs one, and only from a client whose hello succeeded; on other files it
        // closes the connection.
        let (bytes, has_files) = match channel::peek(&client.socket, &mut self.buffer, flags) {
            Err(Errno::AGAIN) => return,
            Err(errno) => return self.expel(token, &format!("message: {errno}")),
            Ok((0, _)) => return self.forget(token),
            Ok(seen) => seen,
        };
        let Ok(request) = Request::decode(&self.buffer[..bytes]) else {
            return self.expel(token, "malformed message");
        };
        let is_hello = matches!(request, Request::Hello { .. });
        if !client.has_greeted && !is_hello {
            return self.expel(token, "a request before hello");
        }
        let wants_file = matches!(request, Request::Offer { .. }) && self.closing.has_room();
        let mut file = None;
        if has_files && wants_file {
            let seen = channel::receive(&client.socket, &mut self.buffer, flags | RecvFlags::PEEK, true);
            let first = seen
                .map(|seen| (seen.file.map(|file| UntrustedFd::new(file, &self.closing)), seen.left_files));
            if let Ok((None, true)) = first {
                return self.refuse_file(token);
            }
            file = first.ok().filter(|&(_, is_one_of_several)| !is_one_of_several).and_then(|(file, _)| file);
        }
        if has_files && file.is_none() {
            return self.expel(token, "an unexpected file");
        }
        // The kernel drops the message's own reference to the file. `file` still has it open, so this call
        // does not close it.
        if let Err(errno) = channel::receive(&client.socket, &mut self.buffer, flags, false) {
            return self.expel(token, &format!("message: {errno}"));
        }
        fault::point("store.received");
        let user = client.peer.user;
        let (answer, file) = match (request, file) {
            (Request::Status, None) => (self.status(user), None),
            (Request::Programs { skip }, None) => (self.list(user, skip as usize), None),
            (request, file) => {
                let DomainLoop { store, metrics, programs, .. } = self;
                requests::handle(store, metrics, programs, token, request, file)
            }
        };
        let Some(client) = self.clients.get_mut(&token) else { return };
        client.has_greeted |= matches!(answer, Answer::Welcome { .. });
        let flags = SendFlags::DONTWAIT;
        let sent = channel::send(&client.socket, &answer.encode(), file.as_ref().map(AsFd::as_fd), flags);
        fault::point("store.answered");
        if let Err(errno) = sent {
            // The thread does not wait for a client that does not read.
            self.expel(token, &format!("answer: {errno}"));
        } else if let Answer::Refused { reason: Refusal::Wrong, line } = answer {
            self.expel(token, &line);
        }
    }

    /// Refuses an offer whose file the kernel did not pass on. The file stays in its message, which only a
    /// thread that may block can drop, so the connection ends; the client's next call opens another.
    fn refuse_file(&mut self, token: u64) {
        let Some(client) = self.clients.get(&token) else { return };
        let (reason, line) = match rustix::io::fcntl_dupfd_cloexec(&self.events, 0) {
            Err(errno) => turn_away::out_of_files(errno),
            // Another thread has closed one since.
            Ok(_) => turn_away::out_of_files(Errno::MFILE),
        }
        .unwrap_or((Refusal::Exhausted, "the page store could not receive the file".to_owned()));
        self.metrics.requests_total += 1;
        self.metrics.refused_total += 1;
        let answer = Answer::Refused { reason, line: line.clone() }.encode();
        let _ = channel::send(&client.socket, &answer, None, SendFlags::DONTWAIT);
        self.expel(token, &line);
    }

    /// Metrics of the client's domain; of all domains for clients of root and of the daemon's own user.
    fn status(&mut self, user: u32) -> Answer {
        self.metrics.requests_total += 1;
        self.post();
        Answer::Status { json: self.by_domain.json(self.visible_to(user)) }
    }

    /// A piece of the list of programs, of the same domains.
    fn list(&mut self, user: u32, skip: usize) -> Answer {
        self.metrics.requests_total += 1;
        if skip == 0 {
            self.post();
            self.post_programs();
        }
        Answer::Status { json: self.by_domain.programs(self.visible_to(user), skip) }
    }

    fn visible_to(&self, user: u32) -> Option<&TrustDomain> {
        let sees_all = user == 0 || user == rustix::process::geteuid().as_raw();
        if sees_all { None } else { Some(&self.domain) }
    }

    /// A warning about a client, at most [`MAX_WARNINGS`] per sweep.
    fn warn(&mut self, line: std::fmt::Arguments<'_>) {
        if self.warnings < MAX_WARNINGS {
            self.warnings += 1;
            tracing::warn!("{}: {line}", self.domain);
        }
    }

    fn forget(&mut self, token: u64) {
        if let Some(client) = self.clients.remove(&token) {
            tracing::debug!("client {token}, process {}, has disconnected", client.peer.pid);
            self.store.client_disconnected(token);
            self.programs.disconnected(token);
            // Until the socket is closed, epoll could report it again.
            let _ = epoll::delete(&self.events, &client.socket);
            untrusted_fds::close_on_thread(client.socket);
        }
    }

    fn expel(&mut self, token: u64, why: &str) {
        if let Some(client) = self.clients.get(&token) {
            let Peer { pid, user, .. } = client.peer;
            self.warn(format_args!("connection of process {pid}, uid {user}, was closed: {why}"));
            self.metrics.expelled_total += 1;
            self.forget(token);
        }
    }
}

fn watch(events: &OwnedFd, file: BorrowedFd<'_>, token: u64) -> Result<(), Error> {
    epoll::add(events, file, EventData::new_u64(token), EventFlags::IN).while_doing("epoll")
}
