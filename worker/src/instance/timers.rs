//! When requests of an instance take too long. One task waits for the earliest of these times. A task for
//! each request would be woken twice, to begin and to end, and another thread with it, while nearly all
//! requests are answered long before.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::lock;
use worker_pool::RequestId;

/// The timer of one request.
#[derive(Clone, Debug, Default)]
pub(super) struct Timer(Arc<AtomicBool>);

impl Timer {
    /// Nothing happens at its end.
    pub fn abort(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_aborted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The timers of an instance, which are all of one length.
pub(super) struct Timers {
    length: Duration,
    queue: Mutex<Queue>,
    begun: Notify,
}

#[derive(Default)]
struct Queue {
    /// The earliest first.
    timers: VecDeque<(Instant, RequestId, Timer)>,
    /// The task waits for a timer to begin.
    waits: bool,
}

impl Queue {
    /// The first that is not aborted.
    fn first(&mut self) -> Option<(Instant, RequestId)> {
        while self.timers.front().is_some_and(|(.., timer)| timer.is_aborted()) {
            self.timers.pop_front();
        }
        self.timers.front().map(|(at, request, _)| (*at, *request))
    }
}

impl Timers {
    /// None has begun.
    pub fn new(length: Duration) -> Timers {
        Timers { length, queue: Mutex::default(), begun: Notify::new() }
    }

    /// Begins that of a request.
    pub fn begin(&self, request: RequestId) -> Timer {
        let timer = Timer::default();
        let mut queue = lock(&self.queue);
        let before = queue.timers.len();
        if queue.first().is_some() && before.is_power_of_two() {
            // Behind one that goes on, others were aborted.
            queue.timers.retain(|(.., timer)| !timer.is_aborted());
        }
        queue.timers.push_back((Instant::now() + self.length, request, timer.clone()));
        if std::mem::take(&mut queue.waits) {
            self.begun.notify_one();
        }
        timer
    }

    /// Waits for the end of the next that was not aborted. To be called by one task.
    pub async fn ended(&self) -> RequestId {
        loop {
            let first = {
                let mut queue = lock(&self.queue);
                let first = queue.first();
                queue.waits = first.is_none();
                match first {
                    Some((at, request)) if at <= Instant::now() => {
                        queue.timers.pop_front();
                        return request;
                    }
                    first => first,
                }
            };
            match first {
                // Those that begin meanwhile end later.
                Some((at, _)) => tokio::time::sleep_until(at).await,
                None => self.begun.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(3);

    #[tokio::test(start_paused = true)]
    async fn those_that_are_not_aborted_end_in_their_order() {
        let (timers, begun) = (Timers::new(LENGTH), Instant::now());
        let first = timers.begin(RequestId(1));
        tokio::time::sleep(LENGTH / 3).await;
        timers.begin(RequestId(2));
        timers.begin(RequestId(3)).abort();
        tokio::time::sleep(LENGTH / 3).await;
        timers.begin(RequestId(4));
        first.abort();
        assert_eq!((timers.ended().await, begun.elapsed()), (RequestId(2), LENGTH + LENGTH / 3));
        assert_eq!((timers.ended().await, begun.elapsed()), (RequestId(4), LENGTH + LENGTH * 2 / 3));
        assert!(tokio::time::timeout(9 * LENGTH, timers.ended()).await.is_err(), "none is left");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_begins_while_none_is_there_is_waited_for() {
        let timers = Arc::new(Timers::new(LENGTH));
        let waiting = tokio::spawn({
            let timers = timers.clone();
            async move { (timers.ended().await, Instant::now()) }
        });
        tokio::time::sleep(9 * LENGTH).await;
        timers.begin(RequestId(1)).abort();
        tokio::time::sleep(9 * LENGTH).await;
        let begun = Instant::now();
        timers.begin(RequestId(2));
        assert_eq!(waiting.await.unwrap(), (RequestId(2), begun + LENGTH));
    }

    #[test]
    fn aborted_ones_take_no_room() {
        let timers = Timers::new(LENGTH);
        let _goes_on = timers.begin(RequestId(0));
        for number in 1..100_000 {
            timers.begin(RequestId(number)).abort();
        }
        assert!(lock(&timers.queue).timers.len() <= 4);
    }
}
