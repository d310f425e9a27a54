//! Asynchronous invocations: accepted at once, run later, and tried again when they fail, as Lambda does.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use tokio::sync::Notify;

use crate::base::error::ApiError;
use crate::base::limits;
use crate::base::name::{self, Target};
use crate::base::time::now_ms;
use crate::control::{Worker, stopping};
use crate::function::attached::key;
use crate::function::event_config::{self, Condition, EventConfig, after_failure, after_throttle};
use crate::invocation::id::InvocationId;
use crate::invocation::request::{Invocation, Outcome};
use crate::state::event_store::{EventStore, StoredEvent};
use crate::state::handover::{Accepting, Report};
use worker_system::lock::lock;

/// Invocations that wait or run at once.
const MOST: usize = 10_000;
/// Their payloads together.
const MOST_BYTES: usize = 256 * 1024 * 1024;

/// The queue of asynchronous invocations.
#[derive(Clone)]
pub struct Events {
    pub(super) worker: Arc<Worker>,
    size: Arc<QueueSize>,
    pub(super) store: Option<Arc<EventStore>>,
    /// Ids of the events that functions process now, here and in earlier workers.
    pub(super) begun: Arc<Mutex<BTreeSet<InvocationId>>>,
}

#[derive(Default)]
struct QueueSize {
    count: AtomicUsize,
    bytes: AtomicUsize,
    /// Notified whenever one is done.
    fewer: Notify,
}

/// One invocation's part of the queue's size.
pub(super) struct QueueSlot(Arc<QueueSize>, usize);

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
        self.0.bytes.fetch_sub(self.1, Ordering::Relaxed);
        self.0.fewer.notify_waiters();
    }
}

/// Functions that are each other's destinations, in a circle, stop here (Lambda's recursive loop detection).
const MOST_HOPS: u32 = 16;

/// The result of an event's attempt.
enum Next {
    /// It is done, or given up; and the event for its destination.
    Done(Option<Box<StoredEvent>>),
    /// It is tried again after this time.
    Again(Duration),
}

impl Events {
    /// Reads the queue from the worker's state. Events that an earlier worker has accepted and not done
    /// are run now, except those that it or one before it still runs, which are returned.
    ///
    /// # Errors
    /// The state cannot be read.
    pub(crate) fn new(
        worker: Arc<Worker>,
        begun: &BTreeSet<InvocationId>,
    ) -> Result<(Events, Vec<StoredEvent>)> {
        let store = worker.options.state.as_deref().map(EventStore::open).transpose()?.map(Arc::new);
        let events = Events { worker, size: Arc::default(), store, begun: Arc::default() };
        let kept = events.store.as_ref().map_or_else(|| Ok(Vec::new()), |store| store.all())?;
        let (elsewhere, kept): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|event| begun.contains(&event.id));
        if !kept.is_empty() {
            tracing::info!("running {} events of an earlier worker", kept.len());
        }
        for event in kept {
            events.start(event);
        }
        Ok((events, elsewhere))
    }

    pub(super) fn start(&self, event: StoredEvent) {
        let place = self.place(event.payload.len());
        tokio::spawn(self.clone().run(event, place));
    }

    /// Ids of the events that functions process now, here and in earlier workers.
    pub(crate) fn begun(&self) -> BTreeSet<InvocationId> {
        if self.store.is_some() { lock(&self.begun).clone() } else { BTreeSet::new() }
    }

    /// Closes the store, for another worker, or opens it again.
    ///
    /// # Errors
    /// Another worker has it.
    pub(crate) fn set_store_open(&self, in_use: bool) -> Result<()> {
        self.store.as_ref().map_or(Ok(()), |store| store.set_in_use(in_use))
    }

    /// Waits until this worker has no event left to run.
    pub(crate) async fn none_left(&self) {
        loop {
            let fewer = self.size.fewer.notified();
            tokio::pin!(fewer);
            fewer.as_mut().enable();
            if self.size.count.load(Ordering::Relaxed) == 0 {
                return;
            }
            fewer.await;
        }
    }

    /// Accepts an invocation, which will be run; its outcome is only logged. With `--state` it is on the
    /// disk when this returns.
    ///
    /// # Errors
    /// The queue is full, the state cannot be written, or the worker ends and has no state.
    pub async fn accept(&self, target: &Target, invocation: Invocation) -> Result<(), ApiError> {
        if self.store.is_none() && self.worker.is_closing() {
            return Err(stopping());
        }
        let bytes = invocation.payload.len();
        let place = self.place(bytes);
        let (count, held) =
            (self.size.count.load(Ordering::Relaxed), self.size.bytes.load(Ordering::Relaxed));
        if count > MOST || held > MOST_BYTES {
            return Err(ApiError::throttled("CallerRateLimitExceeded", "too many events are waiting"));
        }
        let event = StoredEvent::new(target, invocation, 0);
        // A task of its own, so that it is done even if the caller disconnects: an event that is stored
        // and not run would run only after the next start.
        let events = self.clone();
        let accepting = tokio::spawn(async move {
            events.write(&event, |store, event| store.put(event)).await?;
            tokio::spawn(events.run(event, place));
            Ok(())
        });
        let accepted: Result<()> = accepting.await.unwrap_or_else(|error| Err(error.into()));
        accepted.map_err(|error| ApiError::service(format!("the event cannot be kept: {error:#}")))
    }

    pub(super) fn place(&self, bytes: usize) -> QueueSlot {
        self.size.count.fetch_add(1, Ordering::Relaxed);
        self.size.bytes.fetch_add(bytes, Ordering::Relaxed);
        QueueSlot(self.size.clone(), bytes)
    }

    /// Changes the state, if there is one, on a thread that may wait for the disk.
    async fn write(
        &self,
        event: &StoredEvent,
        change: impl FnOnce(&EventStore, &StoredEvent) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let Some(store) = self.store.clone() else { return Ok(()) };
        let event = event.clone();
        tokio::task::spawn_blocking(move || change(&store, &event)).await?
    }

    /// Runs an event until it is done or given up, or until another worker runs it, which reads it from
    /// the state.
    async fn run(self, mut event: StoredEvent, place: QueueSlot) {
        let mut throttled = 0;
        while self.begin(event.id).await {
            let next = match self.attempt(&mut event, &mut throttled).await {
                // A worker that ends fails all invocations: the next one runs the stored events.
                None => break,
                Some(next) => next,
            };
            match self.settle(&event, next).await {
                Some(pause) => self.pause(pause).await,
                None => break,
            }
        }
        drop(place);
    }

    /// Whether this worker is to run the event now.
    async fn begin(&self, id: InvocationId) -> bool {
        let handed_over = self.worker.handed_over.read().await;
        if handed_over.is_some() && self.store.is_some() {
            return false;
        }
        lock(&self.begun).insert(id);
        true
    }

    /// Runs the event on the function once. None if its result is unknown because the worker ends.
    async fn attempt(&self, event: &mut StoredEvent, throttled: &mut u32) -> Option<Next> {
        let label = label(event);
        let outcome = match name::parse(&event.function) {
            Ok(target) => self.worker.invoke(&target, invocation(event)).await,
            Err(error) => Err(error),
        };
        if self.store.is_some() && self.worker.is_closing() && !matches!(&outcome, Ok(ran) if !ran.failed) {
            return None;
        }
        let config = self.config(event);
        let mut why = Condition::RetriesExhausted;
        let pause = match &outcome {
            Ok(outcome) if !outcome.failed => {
                why = Condition::Success;
                None
            }
            Ok(outcome) => {
                event.failures += 1;
                let text = String::from_utf8_lossy(&outcome.payload[..outcome.payload.len().min(500)]);
                tracing::warn!("{label}, attempt {}: {text}", event.failures);
                after_failure(event.failures, config.maximum_retry_attempts.unwrap_or(limits::EVENT_RETRIES))
            }
            Err(error) if error.kind.is_throttle() || error.kind.is_of_service() => {
                *throttled += 1;
                Some(after_throttle(*throttled))
            }
            Err(error) => {
                tracing::warn!("{label}: {error}");
                None
            }
        };
        if let Some(pause) = pause {
            let age = Duration::from_millis(now_ms().saturating_sub(event.accepted_ms));
            if age + pause < config.most_age() {
                return Some(Next::Again(pause));
            }
            why = Condition::EventAgeExceeded;
        }
        if why != Condition::Success {
            tracing::error!("{label} is given up after {} failures", event.failures);
        }
        let attempts = event.failures + u32::from(why == Condition::Success);
        let next_event = config
            .destination(why)
            .and_then(|target| self.follow_up(event, &target, why, attempts, outcome.ok()));
        Some(Next::Done(next_event.map(Box::new)))
    }

    /// How the function, version or alias that the event is for wants it retried.
    fn config(&self, event: &StoredEvent) -> EventConfig {
        let Ok(target) = name::parse(&event.function) else { return EventConfig::default() };
        let function = self.worker.function(&target.name);
        let found = function.ok().and_then(|mut function| function.attached.events.remove(&key(&target)));
        found.map_or_else(EventConfig::default, |found| found.config)
    }

    /// The event for another event's destination; none after too many results in a row, unless the
    /// destination allows loops.
    fn follow_up(
        &self,
        event: &StoredEvent,
        destination: &Target,
        condition: Condition,
        attempts: u32,
        response: Option<Outcome>,
    ) -> Option<StoredEvent> {
        let allows = || self.worker.function(&destination.name).is_ok_and(|one| one.attached.allows_loops);
        if event.hops >= MOST_HOPS && !allows() {
            tracing::error!(
                "{}: {destination} receives no result: functions are each other's destinations in a circle",
                label(event)
            );
            return None;
        }
        let of = invocation(event);
        // The version that an alias named when it ran is not kept: that of now stands for it.
        let deployment = name::parse(&event.function).and_then(|target| self.worker.target(&target));
        let version = deployment.map_or_else(|_| name::LATEST.into(), |found| found.version.clone());
        let response = response.as_ref().map(|response| (response, version.as_str()));
        let payload = event_config::receipt(&of, condition, attempts, response);
        let next = Invocation::new(String::new(), payload.into(), None, Some(&event.trace_id));
        Some(StoredEvent::new(destination, next, event.hops + 1))
    }

    /// Persists an attempt's result. Returns how long to wait for the next one, if this worker is to make
    /// it.
    async fn settle(&self, event: &StoredEvent, next: Next) -> Option<Duration> {
        let handed_over = self.worker.handed_over.read().await;
        lock(&self.begun).remove(&event.id);
        if let (Some(handed_over), Some(_)) = (&*handed_over, &self.store) {
            // Its destination comes first: better twice than never.
            match next {
                Next::Done(next_event) => {
                    next_event
                        .into_iter()
                        .for_each(|next_event| handed_over.report(&Report::Again(*next_event)));
                    handed_over.report(&Report::Done(event.id));
                }
                Next::Again(_) => handed_over.report(&Report::Again(event.clone())),
            }
            return None;
        }
        let (next_event, pause) = match next {
            Next::Done(next_event) => (next_event, None),
            Next::Again(pause) => (None, Some(pause)),
        };
        let kept = match (&next_event, pause) {
            (Some(next_event), _) => {
                let next_event = next_event.clone();
                self.write(event, move |store, event| store.replace(event.id, &next_event)).await
            }
            (None, None) => self.write(event, |store, event| store.forget(event.id)).await,
            (None, Some(_)) => self.write(event, |store, event| store.put(event)).await,
        };
        if let Err(error) = kept {
            tracing::error!("{}: its result is not persisted: {error:#}", label(event));
        }
        next_event.into_iter().for_each(|next_event| self.start(*next_event));
        pause
    }

    /// Waits, but not beyond a handover if there is a state, which another worker then has.
    async fn pause(&self, pause: Duration) {
        let mut accepting = self.worker.accepting.subscribe();
        let handed_over = accepting.wait_for(|accepting| *accepting == Accepting::NoMore);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = handed_over, if self.store.is_some() => {}
        }
    }
}

fn label(event: &StoredEvent) -> String {
    format!("[{}] event {}", event.function, event.id)
}

/// Each attempt has the same id, so that the function can recognise it.
fn invocation(event: &StoredEvent) -> Invocation {
    Invocation {
        id: event.id,
        payload: event.payload.clone().into(),
        client_context: event.client_context.clone(),
        arn: name::arn(&event.function),
        trace_id: event.trace_id.clone(),
        tenant: event.tenant.clone(),
        stream: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_a_persisted_event_without_its_caller() {
        // One thread waits for the disk, so that what was written is there when it does the next thing.
        let runtime =
            tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build();
        runtime.unwrap().block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let worker = Worker::of_tests(folder.path());
            let (events, _) = Events::new(worker, &BTreeSet::new()).unwrap();
            let target = name::parse("nobody").unwrap();
            let invocation = Invocation::new(name::arn("nobody"), "1".into(), None, None);
            let mut accepted = Box::pin(events.accept(&target, invocation));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(accepted.as_mut().poll(&mut context).is_pending());
            drop(accepted);
            events.none_left().await;
            tokio::task::spawn_blocking(|| ()).await.unwrap();
            assert_eq!(events.store.as_ref().unwrap().all().unwrap(), []);
        });
    }

    #[tokio::test]
    async fn the_age_of_an_event_is_not_that_of_the_worker() {
        let folder = tempfile::tempdir().unwrap();
        let worker = Worker::of_tests(folder.path());
        worker.reserve("f", Some(0)).unwrap(); // so that each call is throttled
        let (events, _) = Events::new(worker, &BTreeSet::new()).unwrap();
        let attempted = async |hours: u64| {
            let accepted_ms = now_ms() - hours * 3_600_000;
            let invocation = Invocation::new(String::new(), "1".into(), None, None);
            let mut event =
                StoredEvent { accepted_ms, ..StoredEvent::new(&name::parse("f").unwrap(), invocation, 0) };
            events.attempt(&mut event, &mut 0).await
        };
        assert!(matches!(attempted(5).await, Some(Next::Again(_))));
        assert!(matches!(attempted(6).await, Some(Next::Done(None))));
    }
}
