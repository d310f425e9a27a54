//! Bounds what long heads of requests hold that never end: clients of instances repeat the description of an
//! error in a header of up to 1 MiB, and a hostile function could send sixteen such heads by half.
//!
//! A head of up to [`SHORT`] needs nothing. A connection with a longer one waits for the turn of its
//! instance, one at a time, and for one of the [`TURNS`] of all instances. It keeps both until it is closed,
//! which is after the answer: its buffer stays as large as its longest head. Where instances wait for more
//! than [`PATIENCE`], the connection that has had its turn for longest, and for more than that, is closed.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use worker_system::lock::lock;

/// The most bytes of a head that needs no turn.
const SHORT: usize = 16 * 1024;
/// Connections of all instances that have a long head at once.
const TURNS: usize = 32;
/// For how long a long head may hold up others.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most bytes of one read, so that buffers grow for heads alone.
const READ: usize = 64 * 1024;

/// The long heads of all instances.
#[derive(Debug)]
pub(crate) struct LongHeads {
    turns: Arc<Semaphore>,
    held: Mutex<BTreeMap<(Instant, u64), Arc<Notify>>>,
}

impl Default for LongHeads {
    fn default() -> LongHeads {
        LongHeads { turns: Arc::new(Semaphore::new(TURNS)), held: Mutex::default() }
    }
}

impl LongHeads {
    async fn take(self: Arc<Self>, own: Arc<Semaphore>, closed: Arc<Notify>, number: u64) -> Turn {
        let own = own.acquire_owned().await.expect("it is never closed");
        let mut one = std::pin::pin!(self.turns.clone().acquire_owned());
        let of_all = loop {
            tokio::select! {
                turn = &mut one => break turn.expect("it is never closed"),
                () = tokio::time::sleep(PATIENCE) => self.close_longest(),
            }
        };
        let since = (Instant::now(), number);
        lock(&self.held).insert(since, closed);
        Turn { all: self, since, _own: own, _of_all: of_all }
    }

    fn close_longest(&self) {
        let held = lock(&self.held);
        if let Some(((since, _), closed)) = held.first_key_value()
            && since.elapsed() >= PATIENCE
        {
            closed.notify_one();
        }
    }
}

/// A connection's right to a long head.
struct Turn {
    all: Arc<LongHeads>,
    since: (Instant, u64),
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.all.held).remove(&self.since);
    }
}

/// The heads of one instance.
#[derive(Debug)]
pub(crate) struct Heads {
    own: Arc<Semaphore>,
    all: Arc<LongHeads>,
    next: AtomicUsize,
}

impl Heads {
    /// Those of an instance that has just started.
    pub fn new(all: Arc<LongHeads>) -> Heads {
        Heads { own: Arc::new(Semaphore::new(1)), all, next: AtomicUsize::new(0) }
    }

    /// A stream whose heads are bounded, and its state.
    pub fn bound<S>(&self, stream: S) -> (Bounded<S>, Arc<HeadState>) {
        let state = Arc::<HeadState>::default();
        // Distinct within the instance; the time tells instances apart, and where it does not, one of two
        // is closed later.
        let number = self.next.fetch_add(1, Ordering::Relaxed) as u64;
        let number = (number << 32) ^ (Arc::as_ptr(&self.own) as u64);
        let turn = Wanted::No { own: self.own.clone(), all: self.all.clone(), number };
        (Bounded { stream, state: state.clone(), turn }, state)
    }
}

/// What a connection does.
#[derive(Debug, Default)]
pub(crate) struct HeadState {
    /// Bytes read since no request was handled.
    bytes: AtomicUsize,
    works: AtomicBool,
    is_long: AtomicBool,
    closed: Arc<Notify>,
}

impl HeadState {
    /// A request's head has arrived.
    pub fn works(&self) {
        self.works.store(true, Ordering::Relaxed);
    }

    /// It is answered. Returns whether the connection should close now.
    pub fn is_done(&self) -> bool {
        self.bytes.store(0, Ordering::Relaxed);
        self.works.store(false, Ordering::Relaxed);
        self.is_long.load(Ordering::Relaxed)
    }

    /// Waits until the connection is to be closed.
    pub async fn closed(&self) {
        self.closed.notified().await;
    }
}

enum Wanted {
    No { own: Arc<Semaphore>, all: Arc<LongHeads>, number: u64 },
    Waits(Pin<Box<dyn Future<Output = Turn> + Send>>),
    Has { _turn: Turn },
}

/// A stream whose heads are bounded.
pub(crate) struct Bounded<S> {
    stream: S,
    state: Arc<HeadState>,
    turn: Wanted,
}

impl<S> Bounded<S> {
    /// How many bytes may be read now.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<usize> {
        let state = &self.state;
        if state.works.load(Ordering::Relaxed) {
            return Poll::Ready(READ);
        }
        let left = SHORT.saturating_sub(state.bytes.load(Ordering::Relaxed));
        if let (Wanted::No { own, all, number }, 0) = (&self.turn, left) {
            self.turn = Wanted::Waits(Box::pin(all.clone().take(own.clone(), state.closed.clone(), *number)));
        }
        if let Wanted::Waits(turn) = &mut self.turn {
            let turn = ready!(turn.as_mut().poll(context));
            self.turn = Wanted::Has { _turn: turn };
            state.is_long.store(true, Ordering::Relaxed);
        }
        Poll::Ready(if matches!(self.turn, Wanted::Has { .. }) { READ } else { left })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let room = ready!(this.poll_room(context));
        let before = buffer.filled().len();
        if buffer.remaining() <= room {
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        } else {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(room));
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut part))?;
            let read = part.filled().len();
            buffer.advance(read);
        }
        let read = buffer.filled().len() - before;
        if !this.state.works.load(Ordering::Relaxed) {
            this.state.bytes.fetch_add(read, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinSet;

    use super::*;
    use crate::http;

    const LIMIT: usize = 1024 * 1024 + 64 * 1024;
    /// What a stream holds between its two ends.
    const PIPE: usize = 1024;

    /// A client's end of a connection that is served.
    fn connected(heads: &Arc<Heads>, tasks: &mut JoinSet<()>) -> DuplexStream {
        let (client, server) = duplex(PIPE);
        let heads = heads.clone();
        let answer = |_| async { http::answer(200, "text/plain", "done") };
        tasks.spawn(async move { http::serve_instance(server, LIMIT, &heads, answer).await });
        client
    }

    fn head(bytes: usize) -> Vec<u8> {
        format!("GET / HTTP/1.1\r\nHost: h\r\nX-Long: {}\r\n\r\n", "x".repeat(bytes)).into_bytes()
    }

    /// Writes until the other end reads no more; returns how much it has read.
    async fn pushed(client: &mut DuplexStream, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            let write = client.write(&bytes[sent..]);
            match tokio::time::timeout(Duration::from_millis(100), write).await {
                Ok(Ok(count)) if count > 0 => sent += count,
                _ => break,
            }
        }
        sent.saturating_sub(PIPE)
    }

    async fn answered(mut client: DuplexStream, head: &[u8]) -> String {
        let mut answer = String::new();
        if client.write_all(head).await.is_ok() {
            let _ = client.read_to_string(&mut answer).await;
        }
        answer
    }

    #[tokio::test]
    async fn half_sent_heads_of_an_instance_hold_little_and_long_heads_are_answered() {
        let (all, mut tasks) = (Arc::<LongHeads>::default(), JoinSet::new());
        let hostile = Arc::new(Heads::new(all.clone()));
        let half = &head(1 << 20)[..1 << 20];
        let (mut held, mut clients) = (0, Vec::new());
        for _ in 0..16 {
            let mut client = connected(&hostile, &mut tasks);
            held += pushed(&mut client, half).await;
            clients.push(client);
        }
        assert!(held <= (1 << 20) + 15 * SHORT, "{held}");
        assert!(held >= 1 << 20, "one of them has the turn");
        // Another instance's head of 1 MiB, and after the hostile ones an own.
        let other = Arc::new(Heads::new(all.clone()));
        let answer = answered(connected(&other, &mut tasks), &head(1 << 20)).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
        drop(clients);
        let answer = answered(connected(&hostile, &mut tasks), &head(1 << 20)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        while tasks.join_next().await.is_some() {}
        assert_eq!((all.turns.available_permits(), lock(&all.held).len()), (TURNS, 0));
    }

    #[tokio::test]
    async fn stalled_heads_of_all_instances_make_room_for_others() {
        let (all, mut tasks) = (Arc::<LongHeads>::default(), JoinSet::new());
        let mut clients = Vec::new();
        for _ in 0..TURNS {
            let heads = Arc::new(Heads::new(all.clone()));
            let mut client = connected(&heads, &mut tasks);
            pushed(&mut client, &head(1 << 20)[..1 << 19]).await;
            clients.push(client);
        }
        assert_eq!(all.turns.available_permits(), 0);
        let heads = Arc::new(Heads::new(all.clone()));
        let answer = answered(connected(&heads, &mut tasks), &head(1 << 20)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[tokio::test]
    async fn connection_with_short_heads_is_kept() {
        let (all, mut tasks) = (Arc::<LongHeads>::default(), JoinSet::new());
        let heads = Arc::new(Heads::new(all));
        let mut client = connected(&heads, &mut tasks);
        let mut got = Vec::new();
        for round in 1..=5 {
            client.write_all(&head(SHORT / 2)).await.unwrap();
            while got.windows(4).filter(|window| window == b"done").count() < round {
                assert!(client.read_buf(&mut got).await.unwrap() > 0, "it is closed");
            }
        }
    }
}
