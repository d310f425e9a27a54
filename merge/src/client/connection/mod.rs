//! The client's end: a connection to the store of its trust domain, the store's index, and the attached
//! segments.

mod owner;
mod reports;

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::base::channel;
use crate::base::error::{Error, While};
use crate::base::fault;
use crate::base::index::Reader;
use crate::base::page::{PAGE_BYTES, PageHash, Secret};
use crate::base::protocol::{Answer, MAX_BYTES, MAX_HASHES, Refusal, Report, Request, VERSION};
use crate::base::segment::FINAL_SEALS;
use crate::base::socket_path;
use crate::client::checked_fd::CheckedFd;
use crate::client::stopped_store::stopped_process;

/// How long the store may take to answer; adding a segment takes it milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a client that waits looks whether the store is stopped.
const STATE_INTERVAL: Duration = Duration::from_millis(250);

/// A segment that this process has attached.
pub struct AttachedSegment {
    /// Read-only.
    pub file: CheckedFd,
    /// Pages it can hold.
    pub pages: u32,
}

/// A connection to a store.
pub struct Connection {
    /// None after a fork, and after an exchange that failed.
    socket: Option<CheckedFd>,
    path: PathBuf,
    identity: u64,
    buffer: Vec<u8>,
    /// The report that the store received last.
    last_report: Report,
    /// Hashes pages as the store does.
    pub secret: Secret,
    /// The locations of its pages.
    pub index: Reader,
    /// Its segments that this process has attached.
    pub segments: HashMap<u32, AttachedSegment>,
    /// Device and inode of this store's files that this process may have mapped.
    pub files: HashSet<(u64, u64)>,
    /// The same for stores that have ended or have dropped the segments.
    pub former_files: HashSet<(u64, u64)>,
}

/// The result of an offer.
pub enum Offered {
    /// The store has the pages; the index has their locations.
    Accepted,
    /// The store is full.
    Full(String),
}

fn disconnected(path: &std::path::Path) -> Error {
    Error::new(
        libc::ECONNRESET,
        format!("the page store at {} closed the connection: advise again once it runs", path.display()),
    )
}

impl Connection {
    /// Connects to this program's store.
    ///
    /// # Errors
    /// There is no store, another user runs it, or what listens is not a store.
    pub fn open() -> Result<Connection, Error> {
        Connection::at(&socket_path::to_reach(), owner::trusted_user())
    }

    /// Connects to the store with this socket, which root, this program's user or a trusted one runs.
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub fn at(path: &std::path::Path, trusted_user: Option<u32>) -> Result<Connection, Error> {
        let mut last = None;
        // A domain's thread ends when it has no client left, which may be at the moment of this connection.
        for _ in 0..3 {
            match Connection::try_open(path, trusted_user) {
                Err(error) if error.errno == libc::ECONNRESET => last = Some(error),
                other => return other,
            }
        }
        Err(last.unwrap_or_else(|| Error::system("connecting", Errno::CONNRESET)))
    }

    fn try_open(path: &std::path::Path, trusted_user: Option<u32>) -> Result<Connection, Error> {
        let address =
            SocketAddrUnix::new(path).while_doing(format!("the socket's path {}", path.display()))?;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .while_doing("a socket for the page store")?;
        // A store whose queue of connections stays full does not answer.
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            rustix::net::sockopt::Timeout::Send,
            Some(ANSWER_TIMEOUT),
        )
        .while_doing("a socket for the page store")?;
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(timed_out(path)),
                Err(errno) => {
                    let why = std::io::Error::from(errno);
                    let line = format!(
                        "no page store at {} ({why}): start one with `mayfly share`, or set {} to its socket",
                        path.display(),
                        socket_path::VARIABLE
                    );
                    let errno = if errno == Errno::ACCESS { libc::EACCES } else { libc::ECONNREFUSED };
                    return Err(Error::new(errno, line));
                }
            }
        }
        fault::point("client.connected");
        owner::check(&socket, path, trusted_user)?;
        let mut buffer = vec![0; MAX_BYTES];
        let hello = Request::Hello { version: VERSION };
        let (answer, file) = exchange(socket.as_fd(), path, &mut buffer, &hello, None)?;
        fault::point("client.hello");
        match (answer, file) {
            (Answer::Welcome { identity, secret }, Some(index)) => Ok(Connection {
                index: open_index(&index)?,
                socket: Some(CheckedFd::new(socket).while_doing("the page store's socket")?),
                path: path.to_path_buf(),
                identity,
                buffer,
                last_report: Report::default(),
                secret: Secret::new(*secret),
                segments: HashMap::new(),
                files: HashSet::new(),
                former_files: HashSet::new(),
            }),
            (Answer::Refused { reason, line }, _) => Err(refused(reason, line)),
            _ => Err(not_a_page_store(path)),
        }
    }

    /// Takes the segments of a former connection. If this is another store, or one that has lost them, offers
    /// them to it again.
    pub fn inherit(&mut self, former: Connection) {
        if self.identity == former.identity {
            self.segments = former.segments;
            self.files = former.files;
            self.former_files = former.former_files;
            return;
        }
        self.former_files = former.former_files;
        self.former_files.extend(former.files);
        for held in former.segments.into_values() {
            let Ok(file) = held.file.get() else { continue };
            // Segments that the store packed itself get their final seals once they are full; before, the
            // store refuses them.
            let is_final = rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(FINAL_SEALS));
            if is_final && !matches!(self.offer(file, held.pages), Ok(Offered::Accepted)) {
                break;
            }
        }
    }

    /// Whether the store is still connected, as far as can be seen without a request.
    pub fn is_alive(&self) -> bool {
        let Some(Ok(socket)) = self.socket.as_ref().map(CheckedFd::get) else { return false };
        let mut watched = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut watched, Some(&now)), Ok(0))
    }

    /// Leaves the connection to the parent, in a forked child.
    pub fn disconnect(&mut self) {
        self.socket = None;
    }

    /// Fetches the index again if the store has a larger one.
    ///
    /// # Errors
    /// The store has ended, or answers what is not of the protocol.
    pub fn refresh(&mut self) -> Result<(), Error> {
        while self.index.is_superseded() {
            match self.ask(&Request::Index, None)? {
                (Answer::Index, Some(file)) => self.index = open_index(&file)?,
                (Answer::Refused { reason, line }, _) => return Err(refused(reason, line)),
                _ => return Err(not_a_page_store(&self.path)),
            }
        }
        Ok(())
    }

    /// Offers a sealed segment of so many pages.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh), and EPROTO if the store refuses the segment for another reason than
    /// its limit.
    pub fn offer(&mut self, file: BorrowedFd<'_>, pages: u32) -> Result<Offered, Error> {
        let answer = self.ask(&Request::Offer { pages }, Some(file))?;
        fault::point("client.taken");
        match answer {
            (Answer::Accepted { new_pages: 0, .. }, _) => Ok(Offered::Accepted),
            (Answer::Accepted { segment, segment_pages, .. }, Some(file)) => {
                self.add_segment(segment, segment_pages, file)?;
                Ok(Offered::Accepted)
            }
            (Answer::Refused { reason: Refusal::Full, line }, _) => Ok(Offered::Full(line)),
            (Answer::Refused { reason, line }, _) => Err(refused(reason, line)),
            _ => Err(not_a_page_store(&self.path)),
        }
    }

    /// Attaches a segment that the index names; false if the store has dropped it.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh), and EMFILE if the store refuses.
    pub fn attach(&mut self, segment: u32) -> Result<bool, Error> {
        if self.segments.contains_key(&segment) {
            return Ok(true);
        }
        match self.ask(&Request::Attach { segment }, None)? {
            (Answer::Attached { segment_pages }, Some(file)) => {
                self.add_segment(segment, segment_pages, file)?;
                fault::point("client.attached");
                Ok(true)
            }
            (Answer::Refused { reason: Refusal::NoSegment, .. }, _) => Ok(false),
            (Answer::Refused { line, .. }, _) => Err(Error::new(libc::EMFILE, line)),
            _ => Err(not_a_page_store(&self.path)),
        }
    }

    /// Asks which of these pages this process is to upload: the store has the others, or another client is
    /// about to upload them.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub fn claim(&mut self, pages: &[PageHash]) -> Result<Vec<bool>, Error> {
        let mut yours = Vec::with_capacity(pages.len());
        for pages in pages.chunks(MAX_HASHES) {
            match self.ask(&Request::Claim { pages: pages.to_vec() }, None)? {
                (Answer::Claimed { yours: bits }, _) if bits.len() == pages.len().div_ceil(8) => {
                    yours.extend((0..pages.len()).map(|i| bits[i / 8] >> (i % 8) & 1 != 0));
                }
                _ => return Err(not_a_page_store(&self.path)),
            }
        }
        Ok(yours)
    }

    /// Closes the segments that are not among `used` files, so that the store can free them.
    pub fn detach_except(&mut self, used: &HashSet<(u64, u64)>) {
        self.segments.retain(|_, held| used.contains(&held.file.identity()));
        self.files.retain(|file| used.contains(file));
        self.former_files.retain(|file| used.contains(file));
    }

    fn add_segment(&mut self, segment: u32, pages: u32, file: OwnedFd) -> Result<(), Error> {
        // A mapping of it must never end early, nor change except through the store.
        let seals = rustix::fs::fcntl_get_seals(&file).while_doing("a segment of the page store")?;
        let is_closed = seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
        let bytes = rustix::fs::fstat(&file).while_doing("a segment of the page store")?.st_size as u64;
        if !is_closed || !seals.contains(SealFlags::SHRINK) || bytes < pages as u64 * PAGE_BYTES as u64 {
            return Err(not_a_page_store(&self.path));
        }
        let file = CheckedFd::new(file).while_doing("a segment of the page store")?;
        self.files.insert(file.identity());
        self.former_files.remove(&file.identity());
        self.segments.insert(segment, AttachedSegment { file, pages });
        Ok(())
    }

    fn ask(
        &mut self,
        request: &Request,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(Answer, Option<OwnedFd>), Error> {
        let socket = match self.socket.as_ref().map(CheckedFd::get) {
            Some(Ok(socket)) => socket,
            _ => return Err(disconnected(&self.path)),
        };
        let result = exchange(socket, &self.path, &mut self.buffer, request, file);
        // A late answer would be read as the next request's. After these refusals the store closes the
        // connection, and until it has, the next request would still be sent.
        let ends = match &result {
            Ok((Answer::Refused { reason: Refusal::Wrong, .. }, _)) => true,
            Ok((Answer::Refused { reason: Refusal::Exhausted, .. }, _)) => file.is_some(),
            result => result.is_err(),
        };
        if ends {
            self.socket = None;
        }
        result
    }
}

fn timed_out(path: &std::path::Path) -> Error {
    let line = format!("the page store at {} has not answered for {ANSWER_TIMEOUT:?}", path.display());
    Error::new(libc::ETIMEDOUT, line)
}

fn not_a_page_store(path: &std::path::Path) -> Error {
    Error::new(libc::EPROTO, format!("what listens at {} does not answer like a page store", path.display()))
}

fn refused(reason: Refusal, line: String) -> Error {
    Error::new(if reason == Refusal::Exhausted { libc::EMFILE } else { libc::EPROTO }, line)
}

fn open_index(file: &OwnedFd) -> Result<Reader, Error> {
    let seals = rustix::fs::fcntl_get_seals(file).while_doing("the page store's index")?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(Error::new(libc::EPROTO, "the page store's index is not sealed"));
    }
    Reader::open(file).while_doing("the page store's index")
}

fn exchange(
    socket: BorrowedFd<'_>,
    path: &std::path::Path,
    buffer: &mut [u8],
    request: &Request,
    file: Option<BorrowedFd<'_>>,
) -> Result<(Answer, Option<OwnedFd>), Error> {
    let lost = |errno| match errno {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => disconnected(path),
        Errno::AGAIN => timed_out(path),
        errno => Error::system(format!("the page store at {}", path.display()), errno),
    };
    if let Err(errno) = channel::send(socket, &request.encode(), file, SendFlags::empty()) {
        return last_refusal(socket, buffer).ok_or_else(|| lost(errno));
    }
    if matches!(request, Request::Offer { .. }) {
        fault::point("client.offered");
    }
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    loop {
        let wait = deadline.saturating_duration_since(Instant::now()).min(STATE_INTERVAL);
        let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos() as i64 };
        match poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&wait)) {
            Ok(0) if Instant::now() >= deadline => return Err(timed_out(path)),
            Ok(0) => {
                if let Some(process) = stopped_process(socket) {
                    let place = path.display();
                    let line = format!(
                        "the page store at {place} is stopped: continue process {process} (kill -CONT {process})"
                    );
                    return Err(Error::new(libc::ETIMEDOUT, line));
                }
            }
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(lost(errno)),
        }
    }
    let received = match channel::receive(socket, buffer, RecvFlags::DONTWAIT, true) {
        Ok(received) => received,
        Err(errno) => return last_refusal(socket, buffer).ok_or_else(|| lost(errno)),
    };
    if received.bytes == 0 {
        return Err(disconnected(path));
    }
    if received.left_files && received.file.is_none() {
        let line =
            "no file descriptor is left for the page store's files: raise the program's limit (ulimit -n)";
        return Err(Error::new(libc::EMFILE, line));
    }
    match Answer::decode(&buffer[..received.bytes]) {
        Ok(answer) => Ok((answer, received.file)),
        Err(_) => Err(not_a_page_store(path)),
    }
}

/// Why the store refused before it closed the connection. The kernel reports the close first, and once.
fn last_refusal(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Option<(Answer, Option<OwnedFd>)> {
    let received = channel::receive(socket, buffer, RecvFlags::DONTWAIT, false).ok()?;
    let answer = Answer::decode(&buffer[..received.bytes]).ok()?;
    matches!(answer, Answer::Refused { .. }).then_some((answer, None))
}
