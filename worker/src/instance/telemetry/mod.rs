//! Lambda's Telemetry API: extensions subscribe to the events of their instance, to the function's output
//! and to that of extensions.
//!
//! ```text
//!   events, lines ──► queue of each subscriber (bounded) ──► delivery, a task ──► its server inside, HTTP or TCP
//! ```

mod delivery;
mod event;
mod queue;
mod subscription;

pub(crate) use subscription::Subscription;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::{Instance, lock};
use crate::base::level::Level;
use crate::invocation::output::Printer;
use crate::invocation::platform::PlatformEvent;
use crate::sandbox::interface::Sandbox;
use delivery::Subscriber;
use event::TelemetryEvent;
use subscription::Type;

/// The most bytes and events of a start that wait for a subscriber.
const EARLY_BYTES: usize = 256 * 1024;
const EARLY: usize = 1000;
/// How long an instance that ends waits for the delivery of the last events, before SHUTDOWN.
const LAST_EVENTS: Duration = Duration::from_millis(200);

/// The subscribers of one instance.
#[derive(Default)]
pub(super) struct Telemetry {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    subscribers: Vec<(Arc<Subscriber>, AbortHandle)>,
    /// The events of the start, which later subscribers receive, too. None is added once it has started.
    early: VecDeque<TelemetryEvent>,
    early_bytes: usize,
    has_started: bool,
}

/// Why an extension cannot subscribe.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SubscriptionError {
    /// The sandbox has no way to a server inside.
    NotSupported,
    /// The instance has started.
    Closed,
}

impl Telemetry {
    fn publish(&self, event: TelemetryEvent) {
        let mut state = lock(&self.state);
        for (subscriber, _) in &state.subscribers {
            subscriber.push(&event);
        }
        let fits = state.early.len() < EARLY && state.early_bytes + event.bytes() <= EARLY_BYTES;
        if !state.has_started && fits {
            state.early_bytes += event.bytes();
            state.early.push_back(event);
        }
    }

    /// Whether nothing receives events.
    fn is_unused(&self) -> bool {
        let state = lock(&self.state);
        state.has_started && state.subscribers.is_empty()
    }

    fn subscribers(&self) -> Vec<Arc<Subscriber>> {
        lock(&self.state).subscribers.iter().map(|(subscriber, _)| subscriber.clone()).collect()
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).end();
    }
}

impl State {
    fn end(&mut self) {
        for (_, delivery) in self.subscribers.drain(..) {
            delivery.abort();
        }
    }
}

impl Instance {
    /// Has an extension of this name receive events from now on, and those of the start.
    pub(crate) fn subscribe(&self, name: &str, wanted: Subscription) -> Result<(), SubscriptionError> {
        let sandbox = self.sandbox.get().filter(|sandbox| sandbox.has_way_inside());
        let sandbox = sandbox.ok_or(SubscriptionError::NotSupported)?.clone();
        let types: Vec<&str> = wanted.types.iter().map(|kind| kind.name()).collect();
        let event = PlatformEvent::subscription(name, &types);
        {
            let mut state = lock(&self.telemetry.state);
            if state.has_started {
                return Err(SubscriptionError::Closed);
            }
            let subscriber = Arc::new(Subscriber::new(name.into(), wanted));
            state.early.iter().for_each(|event| subscriber.push(event));
            let delivery = tokio::spawn(subscriber.clone().deliver(sandbox)).abort_handle();
            if let Some(index) = state.subscribers.iter().position(|(known, _)| known.name == name) {
                state.subscribers.swap_remove(index).1.abort();
            }
            state.subscribers.push((subscriber, delivery));
        }
        self.publish(|| event);
        Ok(())
    }

    /// Has subscribers receive an event, and writes it to a log in JSON.
    pub(super) fn publish(&self, event: impl FnOnce() -> PlatformEvent) {
        let is_used = !self.telemetry.is_unused();
        // Most functions have neither subscribers nor a log in JSON, and four events a request.
        if !is_used && self.deployment.settings.logging.json.is_none() {
            return;
        }
        let event = event();
        if is_used {
            self.telemetry.publish(TelemetryEvent::platform(&event));
        }
        self.log_in_json(&event);
    }

    /// Writes an event to the function's log, if that is in JSON and shows the event's level.
    pub(super) fn log_in_json(&self, event: &PlatformEvent) {
        if let Some(levels) = &self.deployment.settings.logging.json
            && event.level >= levels.system
            && let Some(output) = self.output.get()
        {
            output.say(&event.line());
        }
    }

    /// Has subscribers receive a line. Whether the function's log shows it.
    pub(super) fn publish_line(&self, printer: Printer, text: &str) -> bool {
        let kind = match printer {
            Printer::Function => Type::Function,
            Printer::Extension => Type::Extension,
        };
        let levels = &self.deployment.settings.logging.json;
        if !self.telemetry.is_unused() {
            self.telemetry.publish(TelemetryEvent::line(kind, text, levels.is_some()));
        }
        levels.is_none_or(|levels| kind != Type::Function || Level::of_line(text) >= levels.application)
    }

    /// The instance has started: nothing can subscribe any more.
    pub(super) fn close_subscriptions(&self) {
        let mut state = lock(&self.telemetry.state);
        state.has_started = true;
        state.early = VecDeque::new();
    }

    /// Has all events delivered, as far as subscribers take them in time.
    pub(super) async fn deliver_last_events(&self, sandbox: &dyn Sandbox) {
        let flush_all = async {
            sandbox.fetch_output().await;
            if let Some(output) = self.output.get() {
                output.catch_up(false);
            }
            for subscriber in self.telemetry.subscribers() {
                subscriber.flush().await;
            }
        };
        let _ = tokio::time::timeout(LAST_EVENTS * sandbox.slower(), flush_all).await;
    }

    /// Ends all deliveries.
    pub(super) fn end_deliveries(&self) {
        lock(&self.telemetry.state).end();
    }
}
