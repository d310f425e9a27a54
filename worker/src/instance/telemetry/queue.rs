//! The events that wait for one subscriber. They are bounded: a subscriber that is slow loses the newest
//! ones, and learns how many.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::event::TelemetryEvent;
use super::subscription::{Subscription, Type};
use crate::invocation::platform::PlatformEvent;

/// How much of what one delivery may have waits at most.
const DELIVERIES: usize = 2;

/// Events in JSON, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    events: VecDeque<String>,
    bytes: usize,
    since: Option<Instant>,
    lost: Lost,
    /// Nothing waits for more events any more.
    pub flushes: bool,
}

#[derive(Debug, Default)]
struct Lost {
    records: u64,
    bytes: u64,
    reason: String,
}

/// Events that are sent together.
#[derive(Debug)]
pub(super) struct Batch {
    pub events: Vec<String>,
    pub bytes: usize,
}

impl Queue {
    /// Adds an event, if there is room.
    pub fn push(&mut self, event: String, bounds: &Subscription) {
        let fits = self.events.len() < DELIVERIES * bounds.max_items
            && self.bytes + event.len() <= DELIVERIES * bounds.max_bytes;
        if !fits {
            let reason = "Some logs were dropped because the subscriber is slower than they are made";
            return self.lose(1, event.len(), reason);
        }
        self.since.get_or_insert_with(Instant::now);
        self.bytes += event.len();
        self.events.push_back(event);
    }

    /// These events did not reach the subscriber.
    pub fn lose(&mut self, records: usize, bytes: usize, reason: &str) {
        self.lost.records += records as u64;
        self.lost.bytes += bytes as u64;
        self.lost.reason = reason.into();
    }

    /// How long the oldest event still waits for others; none if there is no event.
    pub fn due_in(&self, bounds: &Subscription) -> Option<Duration> {
        let since = self.since?;
        let is_full = self.events.len() >= bounds.max_items || self.bytes >= bounds.max_bytes;
        match is_full || self.flushes {
            true => Some(Duration::ZERO),
            false => Some((since + bounds.timeout).saturating_duration_since(Instant::now())),
        }
    }

    /// Takes what one delivery may have; first of all how many events were lost before.
    pub fn take(&mut self, bounds: &Subscription) -> Batch {
        let mut batch = Batch { events: Vec::new(), bytes: 0 };
        let lost = std::mem::take(&mut self.lost);
        if lost.records > 0 && bounds.types.contains(&Type::Platform) {
            let event = PlatformEvent::logs_dropped(lost.records, lost.bytes, &lost.reason);
            batch.events.push(TelemetryEvent::platform(&event).json(bounds));
        }
        while let Some(event) = self.events.front() {
            let is_full = batch.events.len() >= bounds.max_items
                || (!batch.events.is_empty() && batch.bytes + event.len() > bounds.max_bytes);
            if is_full {
                break;
            }
            batch.bytes += event.len();
            batch.events.extend(self.events.pop_front());
        }
        self.bytes -= batch.bytes;
        self.since = (!self.events.is_empty()).then(Instant::now);
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> Subscription {
        let destination = super::super::subscription::Destination { port: 1, path: None };
        Subscription {
            types: vec![Type::Platform],
            destination,
            max_items: 3,
            max_bytes: 100,
            timeout: Duration::from_secs(30),
            objects: true,
        }
    }

    #[test]
    fn a_delivery_is_due_when_it_is_full_late_or_the_last() {
        let (mut queue, mut bounds) = (Queue::default(), bounds());
        assert_eq!(queue.due_in(&bounds), None);
        queue.push("1".into(), &bounds);
        assert!(queue.due_in(&bounds).unwrap() > Duration::from_secs(20));
        bounds.timeout = Duration::ZERO;
        assert_eq!(queue.due_in(&bounds), Some(Duration::ZERO));
        bounds.timeout = Duration::from_secs(30);
        queue.push("2".into(), &bounds);
        queue.push("3".into(), &bounds);
        assert_eq!(queue.due_in(&bounds), Some(Duration::ZERO));
        queue.push("4".into(), &bounds);
        assert_eq!(queue.take(&bounds).events, ["1", "2", "3"]);
        assert!(queue.due_in(&bounds).unwrap() > Duration::ZERO);
        queue.flushes = true;
        assert_eq!(queue.due_in(&bounds), Some(Duration::ZERO));
        assert_eq!(queue.take(&bounds).events, ["4"]);
        assert!(queue.events.is_empty() && queue.bytes == 0);
    }

    #[test]
    fn events_without_room_are_counted() {
        let (mut queue, bounds) = (Queue::default(), bounds());
        for _ in 0..4 {
            queue.push("x".repeat(60), &bounds);
        }
        assert!(queue.bytes <= DELIVERIES * bounds.max_bytes);
        let batch = queue.take(&bounds);
        assert_eq!((batch.events.len(), batch.bytes), (2, 60), "the first names what was lost");
        assert!(batch.events[0].contains("platform.logsDropped"), "{}", batch.events[0]);
        assert!(batch.events[0].contains("\"droppedRecords\":1"), "{}", batch.events[0]);
        queue.lose(3, 10, "no connection");
        assert!(queue.take(&bounds).events[0].contains("\"droppedRecords\":3"));
    }
}
