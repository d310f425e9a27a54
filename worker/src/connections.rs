//! The connections of a server, so that those who only hold one open cannot keep others out.
//!
//! A connection *waits* until a request has arrived whole, and again once that is answered; in between it *works*. Beyond
//! [`WAITING`] of those that wait, or of as many as this process can have open, the one that has for longest is closed: a client
//! that holds hundreds half-open loses those, and everybody else is served.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Connections that wait at once.
const WAITING: usize = 1024;
/// Connections at once; more are not accepted until one is done.
const MOST: usize = 4096;

/// All connections of a server.
#[derive(Default)]
pub struct Connections {
    known: Mutex<Known>,
    /// Told when one is gone.
    freed: Notify,
}

#[derive(Default)]
struct Known {
    count: usize,
    next: u64,
    /// In the order in which they began to wait.
    waiting: BTreeMap<u64, Arc<Notify>>,
}

impl Known {
    fn close_longest(&mut self) {
        if let Some((_, closed)) = self.waiting.pop_first() {
            closed.notify_one();
        }
    }
}

/// One connection, until it is dropped.
pub struct Connection {
    all: Arc<Connections>,
    /// Where it stands in the order, while it waits.
    turn: Mutex<Option<u64>>,
    closed: Arc<Notify>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    /// Waits until one more may be accepted.
    pub async fn has_place(&self) {
        loop {
            let freed = self.freed.notified();
            if lock(&self.known).count < MOST {
                return;
            }
            freed.await;
        }
    }

    /// Waits until none is left.
    pub async fn none_left(&self) {
        loop {
            let freed = self.freed.notified();
            if lock(&self.known).count == 0 {
                return;
            }
            freed.await;
        }
    }

    /// One more could not be accepted: the one goes that has waited for longest.
    pub fn give_way(&self) {
        lock(&self.known).close_longest();
    }

    /// Takes one, which waits for its first request.
    pub fn add(self: &Arc<Self>) -> Connection {
        lock(&self.known).count += 1;
        let connection = Connection { all: self.clone(), turn: Mutex::default(), closed: Arc::default() };
        connection.waits();
        connection
    }
}

impl Connection {
    /// Its next request is waited for, from now on.
    pub fn waits(&self) {
        self.works();
        let mut known = lock(&self.all.known);
        let turn = known.next;
        known.next += 1;
        known.waiting.insert(turn, self.closed.clone());
        *lock(&self.turn) = Some(turn);
        if known.waiting.len() > WAITING {
            known.close_longest();
        }
    }

    /// Its request has arrived: it is not closed before that is answered.
    pub fn works(&self) {
        let turn = lock(&self.turn).take();
        if let Some(turn) = turn {
            lock(&self.all.known).waiting.remove(&turn);
        }
    }

    /// Waits until it is to be closed.
    pub async fn closed(&self) {
        self.closed.notified().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.works();
        lock(&self.all.known).count -= 1;
        self.all.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_closed(connection: &Connection) -> bool {
        let closed = std::pin::pin!(connection.closed());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        closed.poll(&mut context).is_ready()
    }

    #[test]
    fn the_one_that_has_waited_for_longest_is_closed_and_none_that_works() {
        let all = Arc::new(Connections::default());
        let first: Vec<Connection> = (0..3).map(|_| all.add()).collect();
        first[0].works();
        let many: Vec<Connection> = (0..WAITING - 2).map(|_| all.add()).collect();
        assert!(first.iter().chain(&many).all(|connection| !is_closed(connection)));
        first[2].waits(); // it has sent a request, and had its answer
        let one_more = all.add();
        let closed: Vec<bool> = first.iter().map(is_closed).collect();
        assert_eq!(closed, [false, true, false]);
        first[0].waits();
        assert!(is_closed(&many[0]) && !is_closed(&many[1]) && !is_closed(&one_more));
        all.give_way();
        assert!(is_closed(&many[1]) && !is_closed(&many[2]));
        drop((first, many, one_more));
        let known = lock(&all.known);
        assert_eq!((known.count, known.waiting.len()), (0, 0));
    }
}
