//! The client's end: a connection to the store of its trust domain, the store's index, and the segments in use.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::base::channel;
use crate::base::error::{Error, While};
use crate::base::fault;
use crate::base::index::Reader;
use crate::base::page::{PAGE_BYTES, PageHash, Secret};
use crate::base::protocol::{Answer, MOST_BYTES, MOST_HASHES, Refusal, Report, Request, VERSION};
use crate::base::segment::FINAL_SEALS;
use crate::base::socket_path;
use crate::client::checked_fd::Descriptor;

/// How long the store may take to answer; a segment takes it milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// The user whose store is trusted, beside root and the program's own: for stores with a user of their own, and for
/// user namespaces, where root looks like 65534.
const TRUSTED_USER: &str = "MAYFLY_SHARE_UID";

/// A segment that this process has.
pub struct Held {
    /// Read-only.
    pub file: Descriptor,
    /// Pages it can hold.
    pub pages: u32,
}

/// A connection to a store.
pub struct Connection {
    /// None after a fork, and when what was said last is not sure to have been understood.
    socket: Option<Descriptor>,
    path: PathBuf,
    identity: u64,
    buffer: Vec<u8>,
    /// What the store was told last.
    told: Report,
    /// How the store hashes.
    pub secret: Secret,
    /// Where its pages are.
    pub index: Reader,
    /// Its segments that this process has.
    pub segments: HashMap<u32, Held>,
    /// Device and number of this store's files that this process may have mapped.
    pub files: HashSet<(u64, u64)>,
    /// The same of stores that are gone, or have forgotten them.
    pub former_files: HashSet<(u64, u64)>,
}

/// What became of an offer.
pub enum Offered {
    /// The store has the pages; the index says where.
    Taken,
    /// It is full.
    Full(String),
}

fn gone(path: &std::path::Path) -> Error {
    Error::new(
        libc::ECONNRESET,
        format!("the page store at {} went away: advise again when it is back", path.display()),
    )
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// There is no store, it is somebody else's, or what listens is none.
    pub fn open() -> Result<Connection, Error> {
        let mut last = None;
        // A store that had no client left may close its door in the very moment in which one comes.
        for _ in 0..3 {
            match Connection::try_open() {
                Err(error) if error.errno == libc::ECONNRESET => last = Some(error),
                other => return other,
            }
        }
        Err(last.unwrap_or_else(|| Error::system("connecting", Errno::CONNRESET)))
    }

    fn try_open() -> Result<Connection, Error> {
        let path = socket_path::to_reach();
        let address =
            SocketAddrUnix::new(&path).while_doing(format!("the socket's path {}", path.display()))?;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .while_doing("a socket for the page store")?;
        // A store that does not accept and has its queue full is one that does not answer.
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            rustix::net::sockopt::Timeout::Send,
            Some(PATIENCE),
        )
        .while_doing("a socket for the page store")?;
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(silent(&path)),
                Err(errno) => {
                    let why = std::io::Error::from(errno);
                    let line = format!(
                        "no page store at {} ({why}): start one with `mayfly share`, or say where it is with {}",
                        path.display(),
                        socket_path::VARIABLE
                    );
                    let errno = if errno == Errno::ACCESS { libc::EACCES } else { libc::ECONNREFUSED };
                    return Err(Error::new(errno, line));
                }
            }
        }
        fault::point("client.connected");
        check_owner(&socket, &path)?;
        let mut buffer = vec![0; MOST_BYTES];
        let hello = Request::Hello { version: VERSION };
        let (answer, file) = exchange(socket.as_fd(), &path, &mut buffer, &hello, None)?;
        fault::point("client.hello");
        match (answer, file) {
            (Answer::Welcome { identity, secret }, Some(index)) => Ok(Connection {
                index: open_index(&index)?,
                socket: Some(Descriptor::new(socket).while_doing("the page store's socket")?),
                path,
                identity,
                buffer,
                told: Report::default(),
                secret: Secret::new(*secret),
                segments: HashMap::new(),
                files: HashSet::new(),
                former_files: HashSet::new(),
            }),
            (Answer::Refused { line, .. }, _) => Err(Error::new(libc::EPROTO, line)),
            _ => Err(senseless(&path)),
        }
    }

    /// Takes over what was known; hands the segments in again if this is another store, or one that has forgotten them.
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
            // Segments that the store packed itself are not sealed for good before they are full, and refused.
            let is_final = rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(FINAL_SEALS));
            if is_final && !matches!(self.offer(file, held.pages), Ok(Offered::Taken)) {
                break;
            }
        }
    }

    /// Whether the store is still there, as far as can be seen without asking.
    pub fn is_alive(&self) -> bool {
        let Some(Ok(socket)) = self.socket.as_ref().map(Descriptor::get) else { return false };
        let mut watched = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut watched, Some(&now)), Ok(0))
    }

    /// Leaves the connection to the parent, in a forked child.
    pub fn disconnect(&mut self) {
        self.socket = None;
    }

    /// Gets the index anew if the store has a larger one.
    pub fn refresh(&mut self) -> Result<(), Error> {
        while self.index.is_superseded() {
            match self.ask(&Request::Index, None)? {
                (Answer::Index, Some(file)) => self.index = open_index(&file)?,
                _ => return Err(senseless(&self.path)),
            }
        }
        Ok(())
    }

    /// Offers a sealed segment of so many pages.
    pub fn offer(&mut self, file: BorrowedFd<'_>, pages: u32) -> Result<Offered, Error> {
        let answer = self.ask(&Request::Offer { pages }, Some(file))?;
        fault::point("client.taken");
        match answer {
            (Answer::Taken { new_pages: 0, .. }, _) => Ok(Offered::Taken),
            (Answer::Taken { segment, segment_pages, .. }, Some(file)) => {
                self.hold(segment, segment_pages, file)?;
                Ok(Offered::Taken)
            }
            (Answer::Refused { reason: Refusal::Full, line }, _) => Ok(Offered::Full(line)),
            (Answer::Refused { line, .. }, _) => Err(Error::new(libc::EPROTO, line)),
            _ => Err(senseless(&self.path)),
        }
    }

    /// Gets a segment that the index names; false if it is gone.
    pub fn attach(&mut self, segment: u32) -> Result<bool, Error> {
        if self.segments.contains_key(&segment) {
            return Ok(true);
        }
        match self.ask(&Request::Attach { segment }, None)? {
            (Answer::Attached { segment_pages }, Some(file)) => {
                self.hold(segment, segment_pages, file)?;
                fault::point("client.attached");
                Ok(true)
            }
            (Answer::Refused { reason: Refusal::Gone, .. }, _) => Ok(false),
            (Answer::Refused { line, .. }, _) => Err(Error::new(libc::EMFILE, line)),
            _ => Err(senseless(&self.path)),
        }
    }

    /// Asks which of these pages this process is to offer: the others are there, or about to be offered by somebody else.
    pub fn claim(&mut self, pages: &[PageHash]) -> Result<Vec<bool>, Error> {
        let mut yours = Vec::with_capacity(pages.len());
        for pages in pages.chunks(MOST_HASHES) {
            match self.ask(&Request::Claim { pages: pages.to_vec() }, None)? {
                (Answer::Claimed { yours: bits }, _) if bits.len() == pages.len().div_ceil(8) => {
                    yours.extend((0..pages.len()).map(|i| bits[i / 8] >> (i % 8) & 1 != 0));
                }
                _ => return Err(senseless(&self.path)),
            }
        }
        Ok(yours)
    }

    /// Tells of pages that stay private.
    pub fn tell_private(&mut self, pages: &[PageHash]) -> Result<(), Error> {
        for pages in pages.chunks(MOST_HASHES) {
            self.ask(&Request::Private { pages: pages.to_vec() }, None)?;
        }
        Ok(())
    }

    /// Tells what this program's calls have done, if it is not what was told last.
    pub fn report(&mut self, report: Report) -> Result<(), Error> {
        if report != self.told {
            self.told = report;
            self.ask(&Request::Report(report), None)?;
        }
        Ok(())
    }

    /// The store's figures as JSON.
    pub fn status(&mut self) -> Result<String, Error> {
        self.ask_json(&Request::Status)
    }

    /// Programs after the first so many as JSON, a piece of the list.
    pub fn programs(&mut self, skip: u32) -> Result<String, Error> {
        self.ask_json(&Request::Programs { skip })
    }

    fn ask_json(&mut self, request: &Request) -> Result<String, Error> {
        match self.ask(request, None)? {
            (Answer::Status { json }, _) => Ok(json),
            _ => Err(senseless(&self.path)),
        }
    }

    /// Closes the segments that are not among `used` files, so that the store can free them.
    pub fn keep_only(&mut self, used: &HashSet<(u64, u64)>) {
        self.segments.retain(|_, held| used.contains(&held.file.identity()));
        self.files.retain(|file| used.contains(file));
        self.former_files.retain(|file| used.contains(file));
    }

    fn hold(&mut self, segment: u32, pages: u32, file: OwnedFd) -> Result<(), Error> {
        // What is mapped from it must never end before it should, nor change by anybody's hand but the store's.
        let seals = rustix::fs::fcntl_get_seals(&file).while_doing("a segment of the page store")?;
        let is_closed = seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
        let bytes = rustix::fs::fstat(&file).while_doing("a segment of the page store")?.st_size as u64;
        if !is_closed || !seals.contains(SealFlags::SHRINK) || bytes < pages as u64 * PAGE_BYTES as u64 {
            return Err(senseless(&self.path));
        }
        let file = Descriptor::new(file).while_doing("a segment of the page store")?;
        self.files.insert(file.identity());
        self.former_files.remove(&file.identity());
        self.segments.insert(segment, Held { file, pages });
        Ok(())
    }

    fn ask(
        &mut self,
        request: &Request,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(Answer, Option<OwnedFd>), Error> {
        let socket = match self.socket.as_ref().map(Descriptor::get) {
            Some(Ok(socket)) => socket,
            _ => return Err(gone(&self.path)),
        };
        let result = exchange(socket, &self.path, &mut self.buffer, request, file);
        if result.is_err() {
            // A late answer would be taken for the next request's.
            self.socket = None;
        }
        result
    }
}

fn silent(path: &std::path::Path) -> Error {
    let line = format!("the page store at {} has not answered for {PATIENCE:?}", path.display());
    Error::new(libc::ETIMEDOUT, line)
}

fn senseless(path: &std::path::Path) -> Error {
    Error::new(libc::EPROTO, format!("what listens at {} does not answer like a page store", path.display()))
}

fn open_index(file: &OwnedFd) -> Result<Reader, Error> {
    let seals = rustix::fs::fcntl_get_seals(file).while_doing("the page store's index")?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(Error::new(libc::EPROTO, "the page store's index is not sealed"));
    }
    Reader::open(file).while_doing("the page store's index")
}

/// A store of somebody else's could change pages after they were compared.
fn check_owner(socket: &OwnedFd, path: &std::path::Path) -> Result<(), Error> {
    let (_, owner) = channel::peer(socket).while_doing("whose page store it is")?;
    let trusted = std::env::var(TRUSTED_USER).ok().and_then(|user| user.parse::<u32>().ok());
    if owner == 0 || owner == rustix::process::geteuid().as_raw() || trusted == Some(owner) {
        return Ok(());
    }
    Err(Error::new(
        libc::EACCES,
        format!(
            "the page store at {} is uid {owner}'s, neither root's nor this user's: set {TRUSTED_USER}={owner} to \
             trust it",
            path.display()
        ),
    ))
}

fn exchange(
    socket: BorrowedFd<'_>,
    path: &std::path::Path,
    buffer: &mut [u8],
    request: &Request,
    file: Option<BorrowedFd<'_>>,
) -> Result<(Answer, Option<OwnedFd>), Error> {
    let lost = |errno| match errno {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => gone(path),
        Errno::AGAIN => silent(path),
        errno => Error::system(format!("the page store at {}", path.display()), errno),
    };
    channel::send(socket, &request.encode(), file, SendFlags::empty()).map_err(lost)?;
    if matches!(request, Request::Offer { .. }) {
        fault::point("client.offered");
    }
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let wait =
            rustix::time::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos() as i64 };
        match poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&wait)) {
            Ok(0) => {
                return Err(silent(path));
            }
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(lost(errno)),
        }
    }
    let received = channel::receive(socket, buffer, RecvFlags::DONTWAIT, true).map_err(lost)?;
    if received.bytes == 0 {
        return Err(gone(path));
    }
    match Answer::decode(&buffer[..received.bytes]) {
        Ok(answer) => Ok((answer, received.file)),
        Err(_) => Err(senseless(path)),
    }
}
