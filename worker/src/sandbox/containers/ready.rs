//! Sandboxes that are made before a function needs one. They are empty: no program of a function has run in
//! them, and nothing in them is a function's. So the next instance of any function takes one, as TrEnv
//! (arXiv 2509.09525) repurposes sandboxes; but the sandbox of an instance ends with it, and serves no other.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use worker_page::data;

use worker_container::cgroup::Cgroup;
use worker_container::spawn::Empty;
use worker_system::lock::lock;

/// The most empty sandboxes, each of some 2 MiB; as many as instances start at once, if those are fewer.
const MOST: u32 = 2;
/// How long empty sandboxes may take to end when the worker ends.
const END: Duration = Duration::from_secs(10);

/// An empty sandbox, its cgroup, which has no limits yet, and the folder for its root.
pub(super) struct Prepared {
    pub empty: Empty,
    pub cgroup: Cgroup,
    pub mount_point: PathBuf,
}

impl Prepared {
    async fn end(self) {
        self.empty.end().await;
        remove(&self.cgroup, &self.mount_point).await;
    }
}

/// Removes what an ended sandbox leaves.
pub(super) async fn remove(cgroup: &Cgroup, mount_point: &Path) {
    cgroup.remove_when_empty().await;
    let _ = std::fs::remove_dir(mount_point);
}

/// Things that are made ahead, one after the other.
struct Stock<T> {
    most: usize,
    ready: Vec<T>,
    /// How many were begun.
    begun: u64,
    /// How many are being made, or are ending.
    unfinished: usize,
    /// The last one could not be made: no other is tried before one is missed.
    failed: bool,
    closed: bool,
}

impl<T> Stock<T> {
    fn new(most: usize) -> Stock<T> {
        Stock { most, ready: Vec::new(), begun: 0, unfinished: 0, failed: false, closed: false }
    }

    /// One of them, if there is one.
    fn take(&mut self) -> Option<T> {
        self.failed = false;
        self.ready.pop()
    }

    /// The number of the next one, if it is to be made now: the caller does so, and then calls
    /// [`Stock::put`].
    fn begin(&mut self) -> Option<u64> {
        if self.closed || self.failed || self.unfinished > 0 || self.ready.len() >= self.most {
            return None;
        }
        self.unfinished += 1;
        self.begun += 1;
        Some(self.begun)
    }

    /// One was made, or could not be. Returns one that is to be ended; then the caller calls
    /// [`Stock::ended`].
    fn put(&mut self, made: Option<T>) -> Option<T> {
        self.failed = made.is_none();
        if self.closed && made.is_some() {
            return made;
        }
        self.unfinished -= 1;
        self.ready.extend(made);
        None
    }

    /// Makes no more. Returns those that are to be ended; the caller calls [`Stock::ended`] for each.
    fn close(&mut self) -> Vec<T> {
        self.closed = true;
        self.unfinished += self.ready.len();
        std::mem::take(&mut self.ready)
    }

    fn ended(&mut self) {
        self.unfinished -= 1;
    }
}

/// The empty sandboxes of a worker.
#[derive(Clone)]
pub(super) struct Ready(Arc<Mutex<Stock<Prepared>>>);

impl Ready {
    /// None yet. `starting` is how many instances start at once.
    pub fn new(is_on: bool, starting: u32) -> Ready {
        let most = if is_on { MOST.min(starting) } else { 0 };
        Ready(Arc::new(Mutex::new(Stock::new(most as usize))))
    }

    /// One of them, if there is one.
    pub fn take(&self) -> Option<Prepared> {
        loop {
            let prepared = lock(&self.0).take()?;
            if !prepared.empty.has_ended() {
                return Some(prepared);
            }
            tracing::warn!("an empty sandbox has ended by itself");
            lock(&self.0).unfinished += 1;
            self.end(prepared);
        }
    }

    /// Makes no more, and ends those that are there.
    pub fn close(&self) {
        let all = lock(&self.0).close();
        all.into_iter().for_each(|prepared| self.end(prepared));
    }

    fn end(&self, prepared: Prepared) {
        let stock = self.0.clone();
        tokio::spawn(async move {
            prepared.end().await;
            lock(&stock).ended();
        });
    }

    /// Waits until all have ended. Blocks.
    pub fn wait_until_ended(&self) {
        let began = Instant::now();
        while lock(&self.0).unfinished > 0 && began.elapsed() < END {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The number of the next one, if it is to be made now: the caller does so, and then calls
    /// [`Ready::put`].
    pub fn begin(&self) -> Option<u64> {
        lock(&self.0).begin()
    }

    /// One was made, or could not be.
    pub fn put(&self, made: Option<Prepared>) {
        let unwanted = lock(&self.0).put(made);
        if let Some(prepared) = unwanted {
            self.end(prepared);
        }
    }

    /// Their number and memory.
    pub fn figures(&self) -> data::Ready {
        let stock = lock(&self.0);
        let bytes = stock.ready.iter().filter_map(|prepared| prepared.cgroup.group.memory_bytes()).sum();
        data::Ready { sandboxes: stock.ready.len() as u64, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_made_as_are_wanted_one_after_the_other() {
        let mut stock = Stock::new(2);
        assert_eq!(stock.take(), None);
        assert_eq!(stock.begin(), Some(1));
        assert_eq!(stock.begin(), None, "one is being made");
        assert_eq!(stock.put(Some("first")), None);
        assert_eq!(stock.begin(), Some(2));
        assert_eq!(stock.put(Some("second")), None);
        assert_eq!(stock.begin(), None, "there are enough");
        assert_eq!(stock.take(), Some("second"));
        assert_eq!(stock.begin(), Some(3));
        assert_eq!(stock.unfinished, 1);
    }

    #[test]
    fn after_a_failure_none_is_tried_until_one_is_missed() {
        let mut stock = Stock::<&str>::new(2);
        stock.begin();
        stock.put(None);
        assert_eq!(stock.begin(), None);
        assert_eq!(stock.take(), None);
        assert_eq!(stock.begin(), Some(2));
    }

    #[test]
    fn once_closed_those_that_are_there_and_the_one_being_made_end() {
        let mut stock = Stock::new(2);
        stock.begin();
        stock.put(Some("first"));
        stock.begin();
        assert_eq!(stock.close(), ["first"]);
        assert_eq!(stock.unfinished, 2);
        assert_eq!(stock.put(Some("second")), Some("second"));
        assert_eq!(stock.begin(), None);
        assert_eq!(stock.take(), None);
        stock.ended();
        stock.ended();
        assert_eq!(stock.unfinished, 0);
    }

    #[test]
    fn none_is_made_where_they_are_switched_off() {
        assert_eq!(lock(&Ready::new(false, 4).0).begin(), None);
        assert_eq!(lock(&Ready::new(true, 1).0).most, 1);
        assert_eq!(lock(&Ready::new(true, 100).0).most, MOST as usize);
    }
}
