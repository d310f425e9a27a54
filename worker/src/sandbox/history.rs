//! What has happened, and how memory has developed: the last events and the last hour's samples, both in
//! memory only.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use worker_page::data::{Event, Events, Latency, Sample};

use crate::function::definition::Deployment;
use worker_pool::InstanceId;
use worker_system::lock::lock;

/// Time between two samples; longer where taking one is slow.
pub const INTERVAL: Duration = Duration::from_secs(1);
const EVENTS: usize = 10_000;
const SAMPLES: usize = 3600;

/// The worker's latest events and samples.
pub struct History {
    began: Instant,
    events: Mutex<Log>,
    samples: Mutex<VecDeque<Sample>>,
    /// Latencies since the last sample, in microseconds.
    latency: Mutex<Histogram<u64>>,
}

struct Log {
    next: u64,
    kept: VecDeque<Event>,
    totals: BTreeMap<String, Total>,
}

/// All events of a kind together, also those that are no longer stored.
#[derive(Clone, Debug, Default)]
pub struct Total {
    /// How many.
    pub count: u64,
    /// How long they took.
    pub ms: f64,
    /// The memory that was merged, returned, plugged or unplugged.
    pub bytes: u64,
}

/// An event of this kind; the kinds are named at [`Event::kind`].
pub fn event(kind: &str) -> Event {
    Event { kind: kind.to_string(), ..Event::default() }
}

/// An event of an instance.
pub fn of_instance(kind: &str, deployment: &Deployment, instance: InstanceId) -> Event {
    let tenant = deployment.tenant.as_deref().map(String::from);
    Event { function: Some(deployment.name.clone()), tenant, instance: Some(instance.0), ..event(kind) }
}

/// Milliseconds, for events.
pub fn ms(duration: Duration) -> Option<f64> {
    Some((duration.as_secs_f64() * 1e6).round() / 1e3)
}

impl History {
    /// Nothing yet.
    pub fn new(began: Instant) -> History {
        let latency = Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("the bounds are right");
        History {
            began,
            events: Mutex::new(Log { next: 0, kept: VecDeque::new(), totals: BTreeMap::new() }),
            samples: Mutex::default(),
            latency: Mutex::new(latency),
        }
    }

    /// Since the worker began.
    pub fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Notes an event; its number and time are set here.
    pub fn note(&self, event: Event) {
        let mut log = lock(&self.events);
        let (seq, at_ms) = (log.next, self.now_ms());
        log.next += 1;
        let total = log.totals.entry(event.kind.clone()).or_default();
        total.count += 1;
        total.ms += event.ms.unwrap_or(0.0);
        total.bytes += event.merged_bytes.or(event.trimmed_bytes).or(event.bytes).unwrap_or(0);
        if log.kept.len() == EVENTS {
            log.kept.pop_front();
        }
        log.kept.push_back(Event { seq, at_ms, ..event });
    }

    /// A request was answered by its function after so long.
    pub fn answered(&self, latency: Duration) {
        lock(&self.latency).saturating_record((latency.as_micros() as u64).max(1));
    }

    /// Latencies since the last time this was asked for.
    pub fn take_latency(&self) -> Latency {
        let mut histogram = lock(&self.latency);
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        let latency = Latency { requests: histogram.len(), p50_ms: at(0.5), p99_ms: at(0.99) };
        histogram.reset();
        latency
    }

    /// Keeps a sample.
    pub fn keep(&self, sample: Sample) {
        let mut samples = lock(&self.samples);
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// Events after this number, or all that are kept.
    pub fn events(&self, after: Option<u64>) -> Events {
        let log = lock(&self.events);
        let wanted = log.kept.iter().filter(|event| after.is_none_or(|seq| event.seq > seq));
        Events { next: log.next.saturating_sub(1), events: wanted.cloned().collect() }
    }

    /// The sums over all events of each kind.
    pub fn totals(&self) -> BTreeMap<String, Total> {
        lock(&self.events).totals.clone()
    }

    /// The newest sample.
    pub fn last_sample(&self) -> Option<Sample> {
        lock(&self.samples).back().cloned()
    }

    /// Samples taken after this time.
    pub fn samples(&self, after_ms: Option<u64>) -> Vec<Sample> {
        let samples = lock(&self.samples);
        samples.iter().filter(|sample| after_ms.is_none_or(|ms| sample.at_ms > ms)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_numbered_and_the_oldest_go() {
        let history = History::new(Instant::now());
        for _ in 0..EVENTS + 5 {
            history.note(event("start"));
        }
        let all = history.events(None);
        assert_eq!((all.events.len(), all.events[0].seq, all.next), (EVENTS, 5, EVENTS as u64 + 4));
        assert_eq!(history.totals()["start"].count, EVENTS as u64 + 5, "those that have gone count");
        assert_eq!(history.events(Some(all.next - 2)).events.len(), 2);
        assert!(history.events(Some(all.next)).events.is_empty());
    }

    #[test]
    fn latencies_are_those_since_the_last_sample() {
        let history = History::new(Instant::now());
        (1..=100).for_each(|ms| history.answered(Duration::from_millis(ms)));
        let latency = history.take_latency();
        assert_eq!(latency.requests, 100);
        assert!((49.0..52.0).contains(&latency.p50_ms) && (98.0..101.0).contains(&latency.p99_ms));
        assert_eq!(history.take_latency().requests, 0);
    }
}
