//! Asynchronous invocations: taken at once, run later, tried again when they fail, as Lambda does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::error::ApiError;
use crate::event_store::{EventStore, Kept};
use crate::invocation::Invocation;
use crate::limits;
use crate::name::{self, Target};
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
    store: Option<Arc<EventStore>>,
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
    /// The queue as the worker's state has it: what an earlier worker has accepted and not done is run now.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn new(worker: Arc<Worker>) -> Result<Events> {
        let store = worker.options.state.as_deref().map(EventStore::open).transpose()?.map(Arc::new);
        let events = Events { worker, held: Arc::default(), store };
        let kept = events.store.as_ref().map_or_else(|| Ok(Vec::new()), |store| store.all())?;
        if !kept.is_empty() {
            tracing::info!("{} events of an earlier run are run now", kept.len());
        }
        for event in kept {
            let place = events.place(event.payload.len());
            tokio::spawn(events.clone().run(event, place));
        }
        Ok(events)
    }

    /// Takes an invocation, which will be run; its outcome is only logged. Where the worker has a state, it is there when
    /// this returns.
    ///
    /// # Errors
    /// The queue is full, or the state cannot be written.
    pub async fn accept(&self, target: &Target, invocation: Invocation) -> Result<(), ApiError> {
        let bytes = invocation.payload.len();
        let place = self.place(bytes);
        let (count, held) =
            (self.held.count.load(Ordering::Relaxed), self.held.bytes.load(Ordering::Relaxed));
        if count > MOST || held > MOST_BYTES {
            return Err(ApiError::throttled("CallerRateLimitExceeded", "too many events are waiting"));
        }
        let event = Kept {
            function: target.to_string(),
            id: invocation.id,
            payload: String::from_utf8_lossy(&invocation.payload).into_owned(),
            client_context: invocation.client_context,
            trace_id: invocation.trace_id,
            failures: 0,
        };
        let failed = |error| ApiError::service(format!("the event cannot be kept: {error:#}"));
        self.write(&event, |store, event| store.keep(event)).await.map_err(failed)?;
        tokio::spawn(self.clone().run(event, place));
        Ok(())
    }

    fn place(&self, bytes: usize) -> Place {
        self.held.count.fetch_add(1, Ordering::Relaxed);
        self.held.bytes.fetch_add(bytes, Ordering::Relaxed);
        Place(self.held.clone(), bytes)
    }

    /// Changes the state, if there is one, on a thread that may wait for the disk.
    async fn write(
        &self,
        event: &Kept,
        change: impl FnOnce(&EventStore, &Kept) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let Some(store) = self.store.clone() else { return Ok(()) };
        let event = event.clone();
        tokio::task::spawn_blocking(move || change(&store, &event)).await?
    }

    async fn run(self, mut event: Kept, place: Place) {
        let (began, mut throttled) = (Instant::now(), 0);
        let label = format!("[{}] event {}", event.function, event.id);
        loop {
            // Each attempt has the same id, so that the function can tell.
            let attempt = Invocation {
                id: event.id.clone(),
                payload: event.payload.clone().into(),
                client_context: event.client_context.clone(),
                arn: name::arn(&event.function),
                trace_id: event.trace_id.clone(),
                stream: None,
            };
            let outcome = match name::parse(&event.function) {
                Ok(target) => self.worker.invoke(&target, attempt).await,
                Err(error) => Err(error),
            };
            // A worker that ends fails everything: the next one runs what this one has kept.
            if self.store.is_some() && self.worker.is_closing() && !matches!(&outcome, Ok(ran) if !ran.failed)
            {
                return;
            }
            let pause = match outcome {
                Ok(outcome) if !outcome.failed => break,
                Ok(outcome) => {
                    event.failures += 1;
                    let text = String::from_utf8_lossy(&outcome.payload[..outcome.payload.len().min(500)]);
                    tracing::warn!("{label}, attempt {}: {text}", event.failures);
                    if let Err(error) = self.write(&event, |store, event| store.keep(event)).await {
                        tracing::error!("{label}: {error:#}");
                    }
                    after_failure(event.failures)
                }
                Err(error) if error.status == 429 || error.status >= 500 => {
                    throttled += 1;
                    (began.elapsed() < MOST_AGE).then(|| after_throttle(throttled))
                }
                Err(error) => {
                    tracing::warn!("{label}: {error}");
                    None
                }
            };
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => {
                    tracing::error!("{label} is given up after {} failures", event.failures);
                    break;
                }
            }
        }
        if let Err(error) = self.write(&event, |store, event| store.forget(&event.id)).await {
            tracing::error!("{label} is done, but will be run again: {error:#}");
        }
        drop(place);
    }
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
