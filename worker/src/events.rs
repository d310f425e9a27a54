//! Asynchronous invocations: taken at once, run later, tried again when they fail, as Lambda does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::ApiError;
use crate::invocation::Invocation;
use crate::limits;
use crate::worker::Worker;

/// Invocations that wait or run at once.
const MOST: usize = 10_000;
/// Their payloads together.
const MOST_BYTES: usize = 256 * 1024 * 1024;
/// After this time an invocation that is only throttled is given up (Lambda's `MaximumEventAgeInSeconds`).
const MOST_AGE: Duration = Duration::from_secs(6 * 3600);

/// The queue of asynchronous invocations.
#[derive(Clone)]
pub struct Events {
    worker: Arc<Worker>,
    held: Arc<Held>,
}

#[derive(Default)]
struct Held {
    count: AtomicUsize,
    bytes: AtomicUsize,
}

/// The place of one invocation in the queue.
struct Place(Arc<Held>, usize);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
        self.0.bytes.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Events {
    /// An empty queue.
    pub fn new(worker: Arc<Worker>) -> Events {
        Events { worker, held: Arc::default() }
    }

    /// Takes an invocation, which will be run; its outcome is only logged.
    ///
    /// # Errors
    /// The queue is full.
    pub fn accept(&self, name: &str, invocation: Invocation) -> Result<(), ApiError> {
        let bytes = invocation.payload.len();
        let count = self.held.count.fetch_add(1, Ordering::Relaxed);
        let held = self.held.bytes.fetch_add(bytes, Ordering::Relaxed);
        let place = Place(self.held.clone(), bytes);
        if count >= MOST || held + bytes > MOST_BYTES {
            return Err(ApiError::throttled("CallerRateLimitExceeded", "too many events are waiting"));
        }
        tokio::spawn(run(self.worker.clone(), name.to_string(), invocation, place));
        Ok(())
    }
}

async fn run(worker: Arc<Worker>, name: String, invocation: Invocation, place: Place) {
    let (began, mut failures, mut throttled) = (Instant::now(), 0, 0);
    let Invocation { id, payload, client_context, arn, trace_id } = invocation;
    loop {
        // Each attempt has the same id, so that the function can tell.
        let attempt = Invocation {
            id: id.clone(),
            payload: payload.clone(),
            client_context: client_context.clone(),
            arn: arn.clone(),
            trace_id: trace_id.clone(),
        };
        let pause = match worker.invoke(&name, attempt).await {
            Ok(outcome) if !outcome.failed => break,
            Ok(outcome) => {
                failures += 1;
                let text =
                    String::from_utf8_lossy(&outcome.payload[..outcome.payload.len().min(500)]).into_owned();
                tracing::warn!("[{name}] event {id}, attempt {failures}: {text}");
                after_failure(failures)
            }
            Err(error) if error.status == 429 || error.status >= 500 => {
                throttled += 1;
                (began.elapsed() < MOST_AGE).then(|| after_throttle(throttled))
            }
            Err(error) => {
                tracing::warn!("[{name}] event {id}: {error}");
                None
            }
        };
        match pause {
            Some(pause) => tokio::time::sleep(pause).await,
            None => {
                tracing::error!("[{name}] event {id} is given up after {failures} failures");
                break;
            }
        }
    }
    drop(place);
}

/// A minute after the first failure, two after the second.
fn after_failure(failures: u32) -> Option<Duration> {
    (failures <= limits::EVENT_RETRIES).then(|| Duration::from_secs(60 * u64::from(failures)))
}

/// One second at first, then twice as long each time, up to five minutes.
fn after_throttle(times: u32) -> Duration {
    Duration::from_secs((1 << (times - 1).min(9)).min(300))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_lambdas() {
        let seconds: Vec<_> = (1..=3).map(|failures| after_failure(failures).map(|p| p.as_secs())).collect();
        assert_eq!(seconds, [Some(60), Some(120), None]);
        let seconds: Vec<_> = [1, 2, 3, 9, 10, 40].map(|times| after_throttle(times).as_secs()).to_vec();
        assert_eq!(seconds, [1, 2, 4, 256, 300, 300]);
    }
}
