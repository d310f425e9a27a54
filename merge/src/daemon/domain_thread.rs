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
use crate::base::protocol::{Answer, MOST_BYTES, Refusal, Request};
use crate::daemon::domain_metrics::{Figures, FiguresByDomain};
use crate::daemon::page_store::Store;
use crate::daemon::programs::Programs;
use crate::daemon::requests;
use crate::daemon::trust_domain::{Domain, Peer};
use crate::daemon::untrusted_fds::{self, Closing, Stranger};

/// How often segments that nobody maps are looked for.
const SWEEP: Duration = Duration::from_secs(1);
const CONNECTIONS: u64 = 0;
/// Lines about clients from one sweep to the next.
const MOST_COMPLAINTS: u32 = 10;

/// Somebody who has connected.
pub struct Connected {
    /// The connection.
    pub socket: OwnedFd,
    /// Who it is.
    pub peer: Peer,
}

/// A domain's thread, as the server knows it.
pub struct DomainThread {
    connections: Sender<Connected>,
    bell: Arc<OwnedFd>,
    /// Set by the thread when it leaves: who connects next needs another. Held while somebody is let in.
    closed: Arc<Mutex<bool>>,
}

fn held(closed: &Mutex<bool>) -> MutexGuard<'_, bool> {
    closed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl DomainThread {
    /// Hands a connection over, or back if the thread has left.
    pub fn let_in(&self, connected: Connected) -> Result<(), Connected> {
        let closed = held(&self.closed);
        if *closed {
            return Err(connected);
        }
        self.connections.send(connected).map_err(|returned| returned.0)?;
        self.ring();
        Ok(())
    }

    /// Whether the thread has left.
    pub fn is_closed(&self) -> bool {
        *held(&self.closed)
    }

    fn ring(&self) {
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

impl Drop for DomainThread {
    fn drop(&mut self) {
        // The thread ends when nobody can come any more.
        let gone = std::mem::replace(&mut self.connections, channel().0);
        drop(gone);
        self.ring();
    }
}

struct Client {
    socket: OwnedFd,
    peer: Peer,
    /// Whether it has said hello.
    is_known: bool,
}

struct Service {
    domain: Domain,
    store: Store,
    by_domain: Arc<FiguresByDomain>,
    events: OwnedFd,
    bell: Arc<OwnedFd>,
    connections: Receiver<Connected>,
    clients: HashMap<u64, Client>,
    most_clients: usize,
    figures: Figures,
    programs: Programs,
    closing: Closing,
    next: u64,
    /// Lines written since the last sweep.
    complaints: u32,
    buffer: Vec<u8>,
}

/// Starts a domain's thread.
pub fn start(
    domain: Domain,
    store: Store,
    by_domain: Arc<FiguresByDomain>,
    most_clients: usize,
) -> Result<DomainThread, Error> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).while_doing("eventfd")?);
    let events = epoll::create(epoll::CreateFlags::CLOEXEC).while_doing("epoll")?;
    watch(&events, bell.as_fd(), CONNECTIONS)?;
    let (connections, receiver) = channel();
    let closed = Arc::new(Mutex::new(false));
    let name = domain.to_string();
    let mut service = Service {
        domain,
        store,
        by_domain,
        events,
        bell: bell.clone(),
        connections: receiver,
        clients: HashMap::new(),
        most_clients,
        figures: Figures::default(),
        programs: Programs::default(),
        closing: Closing::default(),
        next: CONNECTIONS + 1,
        complaints: 0,
        buffer: vec![0; MOST_BYTES],
    };
    let closes = closed.clone();
    let run = move || {
        if let Err(error) = service.run(&closes) {
            tracing::error!("the store of {} has ended: {error}", service.domain);
        }
        *held(&closes) = true;
        service.by_domain.post(&service.domain, None);
    };
    std::thread::Builder::new().name(name.chars().take(15).collect()).spawn(run).map_err(|error| {
        Error::new(error.raw_os_error().unwrap_or(libc::EAGAIN), format!("a thread for {name}: {error}"))
    })?;
    Ok(DomainThread { connections, bell, closed })
}

impl Service {
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
            // One message of each client at a time: nobody waits for another's flood to end.
            for event in &ready {
                match event.data.u64() {
                    CONNECTIONS => {
                        if !self.welcome() {
                            return Ok(());
                        }
                    }
                    token => self.serve(token),
                }
            }
            if Instant::now() >= next_sweep {
                next_sweep = Instant::now() + SWEEP;
                self.complaints = 0;
                self.figures.dropped_pages_total += self.store.sweep() as u64;
                self.post_programs();
                if self.clients.is_empty() && self.store.is_empty() {
                    let mut closed = held(closed);
                    if !self.welcome() || self.clients.is_empty() {
                        *closed = true;
                        return Ok(());
                    }
                }
            }
            self.post();
        }
    }

    fn post(&mut self) {
        self.figures.clients = self.clients.len() as u64;
        self.store.count(&mut self.figures);
        self.by_domain.post(&self.domain, Some(&self.figures));
    }

    fn post_programs(&mut self) {
        self.programs.charge(&self.store.charged());
        self.by_domain.post_programs(&self.domain, &self.programs);
    }

    /// Lets in who has connected; false if nobody can come any more.
    fn welcome(&mut self) -> bool {
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        loop {
            match self.connections.try_recv() {
                Ok(Connected { socket, peer }) => {
                    let pid = peer.pid;
                    if self.clients.len() >= self.most_clients {
                        self.figures.turned_away_total += 1;
                        tracing::warn!(
                            "process {pid} was turned away: {} has too many connections",
                            self.domain
                        );
                        untrusted_fds::hang_up(socket);
                        continue;
                    }
                    let token = self.next;
                    self.next += 1;
                    if let Err(error) = watch(&self.events, socket.as_fd(), token) {
                        tracing::warn!("process {pid} was refused: {error}");
                        untrusted_fds::hang_up(socket);
                        continue;
                    }
                    tracing::debug!("process {pid} of {} is client {token}", self.domain);
                    self.figures.connections_total += 1;
                    self.programs.comes(token, &peer);
                    self.clients.insert(token, Client { socket, peer, is_known: false });
                }
                Err(std::sync::mpsc::TryRecvError::Empty) => return true,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn serve(&mut self, token: u64) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        let flags = RecvFlags::DONTWAIT;
        // First what it says, and whether files lie beside it: one that is taken, or left, is closed here, and that may take as long
        // as who has sent it likes. So one is taken only where one is wanted, from whom it is, and of others the connection is closed.
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
        if !client.is_known && !is_hello {
            return self.expel(token, "a request before hello");
        }
        let wants_file = matches!(request, Request::Offer { .. }) && self.closing.has_room();
        let mut file = None;
        if has_files && wants_file {
            let seen = channel::receive(&client.socket, &mut self.buffer, flags | RecvFlags::PEEK, true);
            let first =
                seen.map(|seen| (seen.file.map(|file| Stranger::new(file, &self.closing)), seen.left_files));
            file = first.ok().filter(|&(_, is_one_of_several)| !is_one_of_several).and_then(|(file, _)| file);
        }
        if has_files && file.is_none() {
            return self.expel(token, "a file that is not wanted");
        }
        // What the kernel closes with the message is open here, too.
        if let Err(errno) = channel::receive(&client.socket, &mut self.buffer, flags, false) {
            return self.expel(token, &format!("message: {errno}"));
        }
        fault::point("store.received");
        let user = client.peer.user;
        let (answer, file) = match (request, file) {
            (Request::Status, None) => (self.status(user), None),
            (Request::Programs { skip }, None) => (self.list(user, skip as usize), None),
            (request, file) => {
                let Service { store, figures, programs, .. } = self;
                requests::answer(store, figures, programs, token, request, file)
            }
        };
        let Some(client) = self.clients.get_mut(&token) else { return };
        client.is_known |= matches!(answer, Answer::Welcome { .. });
        let flags = SendFlags::DONTWAIT;
        let sent = channel::send(&client.socket, &answer.encode(), file.as_ref().map(AsFd::as_fd), flags);
        fault::point("store.answered");
        if let Err(errno) = sent {
            // Nobody waits for a client that does not read.
            self.expel(token, &format!("answer: {errno}"));
        } else if let Answer::Refused { reason: Refusal::Wrong, line } = answer {
            self.expel(token, &line);
        }
    }

    /// Figures of the asker's domain, or of all for root and the daemon's own user.
    fn status(&mut self, user: u32) -> Answer {
        self.figures.requests_total += 1;
        self.post();
        Answer::Status { json: self.by_domain.json(self.seen_by(user)) }
    }

    /// A piece of the list of programs, for the same.
    fn list(&mut self, user: u32, skip: usize) -> Answer {
        self.figures.requests_total += 1;
        if skip == 0 {
            self.post();
            self.post_programs();
        }
        Answer::Status { json: self.by_domain.programs(self.seen_by(user), skip) }
    }

    fn seen_by(&self, user: u32) -> Option<&Domain> {
        let sees_all = user == 0 || user == rustix::process::geteuid().as_raw();
        if sees_all { None } else { Some(&self.domain) }
    }

    /// One line about a client, but not as many as a client might like.
    fn complain(&mut self, line: std::fmt::Arguments<'_>) {
        if self.complaints < MOST_COMPLAINTS {
            self.complaints += 1;
            tracing::warn!("{}: {line}", self.domain);
        }
    }

    fn forget(&mut self, token: u64) {
        if let Some(client) = self.clients.remove(&token) {
            tracing::debug!("client {token}, process {}, has gone", client.peer.pid);
            self.store.client_has_gone(token);
            self.programs.goes(token);
            // While that is closed there may be something to hear of it still.
            let _ = epoll::delete(&self.events, &client.socket);
            untrusted_fds::hang_up(client.socket);
        }
    }

    fn expel(&mut self, token: u64, why: &str) {
        if let Some(client) = self.clients.get(&token) {
            let Peer { pid, user, .. } = client.peer;
            self.complain(format_args!("connection of process {pid}, uid {user}, was closed: {why}"));
            self.figures.expelled_total += 1;
            self.forget(token);
        }
    }
}

fn watch(events: &OwnedFd, file: BorrowedFd<'_>, token: u64) -> Result<(), Error> {
    epoll::add(events, file, EventData::new_u64(token), EventFlags::IN).while_doing("epoll")
}
