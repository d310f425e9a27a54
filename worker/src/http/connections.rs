//! Bounds a server's connections, so that idle clients can neither keep others out nor fill its memory.
//!
//! A connection *waits* until a request has arrived whole, and again once that is answered; in between it
//! *works*. If more than [`WAITING`] wait for their first request, or more than that for another one, the
//! server closes the one of these that has waited for longest. So a client that holds hundreds half-open
//! loses those and no others. A connection that was kept alive after an answer is not among them, since its
//! client may be sending the next request while the server closes it. If this process can open no more, the
//! server closes one of the more numerous kind. Answers that clients have not read yet have at most
//! [`UNTAKEN_BYTES`]: beyond that, the server closes the connection whose client has read nothing for
//! longest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use worker_system::lock::lock;

/// Connections that wait at once for their first request, and as many for another one.
const WAITING: usize = 1024;
/// Connections at once; more are not accepted until one is done.
const MOST: usize = 4096;
/// The most unread bytes of all answers together.
const UNTAKEN_BYTES: usize = 256 * 1024 * 1024;

/// All connections of a server.
#[derive(Debug, Default)]
pub struct Connections {
    known: Mutex<Known>,
    /// Notified when one is closed.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Known {
    next: u64,
    open: BTreeMap<u64, Open>,
    /// Those that wait for their first request.
    new: Queue,
    /// Those that wait for another one.
    kept: Queue,
    untaken: usize,
}

/// Numbers of connections that wait, in the order in which they began to.
type Queue = BTreeMap<u64, u64>;

#[derive(Debug, Default)]
struct Open {
    /// Notified when it is to be closed, which is soon after `closes` is set.
    closed: Arc<Notify>,
    closes: bool,
    /// Bytes of answers that the client has not read.
    untaken: usize,
    /// When that began, or when the client last read some.
    since: u64,
}

impl Known {
    fn now(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn close(&mut self, number: u64) {
        if let Some(open) = self.open.get_mut(&number) {
            self.untaken -= std::mem::take(&mut open.untaken);
            open.closes = true;
            open.closed.notify_one();
        }
    }

    fn queue(&mut self, kind: Waits) -> &mut Queue {
        match kind {
            Waits::New => &mut self.new,
            Waits::Kept => &mut self.kept,
        }
    }

    fn close_longest(&mut self, kind: Waits) {
        if let Some((_, number)) = self.queue(kind).pop_first() {
            self.close(number);
        }
    }

    fn count(&mut self, number: u64, bytes: usize) {
        let now = self.now();
        let Some(open) = self.open.get_mut(&number).filter(|open| !open.closes) else { return };
        if open.untaken == 0 {
            open.since = now;
        }
        open.untaken += bytes;
        self.untaken += bytes;
        while self.untaken > UNTAKEN_BYTES {
            let takers = self.open.iter().filter(|(_, open)| open.untaken > 0);
            let slowest = takers.min_by_key(|(_, open)| open.since).map(|(number, _)| *number);
            self.close(slowest.expect("a client has not taken that"));
        }
    }

    fn taken(&mut self, number: u64, bytes: usize) {
        let now = self.now();
        let Some(open) = self.open.get_mut(&number).filter(|open| !open.closes) else { return };
        open.since = now;
        open.untaken -= bytes;
        self.untaken -= bytes;
    }
}

/// The request for which a connection waits.
#[derive(Clone, Copy, Debug)]
enum Waits {
    /// Its first.
    New,
    /// One after others that were answered.
    Kept,
}

/// The client of a connection, as long as that is open.
#[derive(Clone, Debug)]
pub struct Client {
    all: Arc<Connections>,
    number: u64,
    peer: IpAddr,
}

impl Client {
    /// Its address.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// A part of an answer to this client. It counts until it is dropped: once the client has read it, or
    /// the connection is closed.
    pub fn part(&self, bytes: impl Into<Bytes>) -> Part {
        let bytes = bytes.into();
        lock(&self.all.known).count(self.number, bytes.len());
        let untaken = Some(Untaken { client: self.clone(), bytes: bytes.len() });
        Part { _untaken: untaken, ..Part::uncounted(bytes) }
    }
}

/// A part of an answer.
#[derive(Debug)]
pub struct Part {
    bytes: Bytes,
    _untaken: Option<Untaken>,
    /// Memory that it uses.
    _held: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
struct Untaken {
    client: Client,
    bytes: usize,
}

impl Drop for Untaken {
    fn drop(&mut self) {
        lock(&self.client.all.known).taken(self.client.number, self.bytes);
    }
}

impl Part {
    /// Part of an answer to clients that are so few that their answers need no bound.
    pub fn uncounted(bytes: Bytes) -> Part {
        Part { bytes, _untaken: None, _held: None }
    }

    /// Keeps this as long as the part is there.
    pub fn hold(&mut self, memory: Option<OwnedSemaphorePermit>) {
        self._held = memory;
    }

    /// The same part in another form of about the same length.
    pub fn map(self, change: impl FnOnce(Bytes) -> Bytes) -> Part {
        Part { bytes: change(self.bytes), ..self }
    }

    /// Its bytes, which count no more.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

impl Buf for Part {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

/// One connection, until it is dropped.
pub struct Connection {
    client: Client,
    /// Its place in the order of those that wait, while it waits.
    turn: Mutex<Option<(Waits, u64)>>,
    closed: Arc<Notify>,
}

impl Connections {
    /// Waits until one more may be accepted.
    pub async fn has_place(&self) {
        self.fewer_than(MOST).await;
    }

    /// Waits until none is left.
    pub async fn none_left(&self) {
        self.fewer_than(1).await;
    }

    /// Waits until no connection has a request, or an answer that is not sent.
    pub async fn none_works(&self) {
        while self.some_works() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn some_works(&self) -> bool {
        let known = lock(&self.known);
        let waiting: BTreeSet<&u64> = known.new.values().chain(known.kept.values()).collect();
        known.open.iter().any(|(number, open)| open.untaken > 0 || !waiting.contains(number))
    }

    async fn fewer_than(&self, count: usize) {
        loop {
            let freed = self.freed.notified();
            if lock(&self.known).open.len() < count {
                return;
            }
            freed.await;
        }
    }

    /// Closes a connection that has waited for longest, after another could not be accepted.
    pub fn give_way(&self) {
        let mut known = lock(&self.known);
        let kind = if known.new.len() < known.kept.len() { Waits::Kept } else { Waits::New };
        known.close_longest(kind);
    }

    /// Adds a connection from this address, which waits for its first request.
    pub fn add(self: &Arc<Self>, peer: IpAddr) -> Connection {
        let closed = Arc::new(Notify::new());
        let number = {
            let mut known = lock(&self.known);
            let number = known.now();
            known.open.insert(number, Open { closed: closed.clone(), ..Open::default() });
            number
        };
        let client = Client { all: self.clone(), number, peer };
        let connection = Connection { client, turn: Mutex::default(), closed };
        connection.waits_for(Waits::New);
        connection
    }
}

impl Connection {
    /// From now on it waits for its next request.
    pub fn waits(&self) {
        self.waits_for(Waits::Kept);
    }

    fn waits_for(&self, kind: Waits) {
        self.works();
        let mut known = lock(&self.client.all.known);
        let turn = known.now();
        known.queue(kind).insert(turn, self.client.number);
        *lock(&self.turn) = Some((kind, turn));
        if known.queue(kind).len() > WAITING {
            known.close_longest(kind);
        }
    }

    /// Its request has arrived: it is not closed before that is answered.
    pub fn works(&self) {
        let turn = lock(&self.turn).take();
        if let Some((kind, turn)) = turn {
            lock(&self.client.all.known).queue(kind).remove(&turn);
        }
    }

    /// Waits until it is to be closed.
    pub async fn closed(&self) {
        self.closed.notified().await;
    }

    /// The client that receives its answers.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.works();
        let mut known = lock(&self.client.all.known);
        known.close(self.client.number);
        known.open.remove(&self.client.number);
        drop(known);
        self.client.all.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn is_closed(connection: &Connection) -> bool {
        let closed = std::pin::pin!(connection.closed());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        closed.poll(&mut context).is_ready()
    }

    #[test]
    fn closes_the_longest_waiting_new_connection_and_no_kept_or_working_one() {
        let all = Arc::new(Connections::default());
        let first: Vec<Connection> = (0..3).map(|_| all.add(LOCAL)).collect();
        first[0].works();
        first[2].waits(); // it has sent a request, and had its answer
        let many: Vec<Connection> = (0..WAITING - 1).map(|_| all.add(LOCAL)).collect();
        assert!(first.iter().chain(&many).all(|connection| !is_closed(connection)));
        let one_more = all.add(LOCAL);
        let closed: Vec<bool> = first.iter().map(is_closed).collect();
        assert_eq!(closed, [false, true, false]);
        first[0].waits();
        assert!(!many.iter().any(is_closed) && !is_closed(&one_more));
        all.give_way();
        assert!(is_closed(&many[0]) && !is_closed(&many[1]));
        drop((first, many, one_more));
        let known = lock(&all.known);
        assert_eq!((known.open.len(), known.new.len(), known.kept.len()), (0, 0, 0));
    }

    #[test]
    fn closes_the_longest_waiting_kept_connection_and_no_new_one() {
        let all = Arc::new(Connections::default());
        let new = all.add(LOCAL);
        let answered = |connection: Connection| {
            connection.waits();
            connection
        };
        let kept: Vec<Connection> = (0..=WAITING).map(|_| answered(all.add(LOCAL))).collect();
        assert!(is_closed(&kept[0]) && !kept[1..].iter().any(is_closed));
        all.give_way();
        assert!(is_closed(&kept[1]) && !is_closed(&kept[2]) && !is_closed(&new));
    }

    #[test]
    fn closes_the_client_that_has_read_nothing_for_longest() {
        let all = Arc::new(Connections::default());
        let clients: Vec<Connection> = (0..4).map(|_| all.add(LOCAL)).collect();
        let quarter = Bytes::from(vec![0; UNTAKEN_BYTES / 4]);
        let part = |client: usize| clients[client].client().part(quarter.clone());
        let (first, second) = ((part(0), part(0)), part(1));
        let third = part(2);
        drop(first.0); // something was taken
        let closed = || clients.iter().map(is_closed).collect::<Vec<_>>();
        let fourth = part(3);
        assert_eq!(closed(), [false; 4], "all of it is used");
        let more = part(3);
        assert_eq!(closed(), [false, true, false, false]);
        drop((second, part(1))); // its parts count for no client any more
        let last = part(0);
        assert_eq!(closed(), [false, false, true, false]);
        assert_eq!(lock(&all.known).untaken, UNTAKEN_BYTES);
        drop((first.1, third, fourth, more, last));
        assert_eq!(lock(&all.known).untaken, 0);
        drop(part(0).map(|bytes| bytes.slice(..5)));
        assert_eq!(lock(&all.known).untaken, 0);
    }
}
