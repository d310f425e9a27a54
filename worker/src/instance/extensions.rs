//! Lambda's external and internal extensions: programs beside the runtime that receive each invocation, and
//! the shutdown.
//!
//! An instance is ready when its runtime and every extension have asked for what comes next: at its start,
//! and after each invocation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::Instance;
use super::shutdown::FAILURE;
use super::timers::Timer;
use crate::base::limits;
use crate::invocation::platform::{PlatformEvent, Status};
use crate::invocation::request::{Invocation, Outcome};

/// The identifier that an extension has from its registration on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExtensionId(Uuid);

impl ExtensionId {
    /// The identifier that a request gives, if it is a UUID.
    pub fn parse(text: &str) -> Option<ExtensionId> {
        Uuid::parse_str(text).ok().map(ExtensionId)
    }
}

impl fmt::Display for ExtensionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The events that an extension may register for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    pub invoke: bool,
    pub shutdown: bool,
}

impl Wishes {
    fn names(self) -> Vec<&'static str> {
        let all = [(self.invoke, "INVOKE"), (self.shutdown, "SHUTDOWN")];
        all.into_iter().filter_map(|(is_wanted, name)| is_wanted.then_some(name)).collect()
    }
}

/// Why an extension's request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is registered already, too late, or one too many: Lambda's name for it, and a sentence.
    Registration(&'static str, &'static str),
    /// No extension has this identifier.
    Unknown,
}

#[derive(Debug)]
struct Extension {
    name: String,
    wishes: Wishes,
    /// It has asked for what comes next, and does nothing until then.
    waits: bool,
    waiting: Option<oneshot::Sender<Value>>,
    /// The event that it missed while its connection was broken.
    missed: Option<Value>,
}

impl Extension {
    fn send_event(&mut self, event: Value) {
        self.waits = false;
        self.missed = match self.waiting.take() {
            Some(waiting) => waiting.send(event).err(),
            None => Some(event),
        };
    }
}

/// The extensions of one instance.
#[derive(Debug, Default)]
pub(super) struct Extensions {
    /// The programs that were started with the runtime.
    started: Vec<String>,
    registered: BTreeMap<ExtensionId, Extension>,
    /// How many requests the runtime waits for of which the pool has no report.
    runtime_waits: usize,
    /// Instances that serve several requests at once send extensions no invocations.
    several: bool,
    /// Ends the instance where an extension is never done with an invocation.
    timer: Option<Timer>,
    was_ready: bool,
    /// One has reported that it cannot go on: even if it asks for what comes next, there is no more work.
    failed: bool,
    /// Why the instance ends, if it does not just because it is not needed.
    reason: Option<&'static str>,
}

impl Extensions {
    fn register(&mut self, name: &str, wishes: Wishes) -> Result<ExtensionId, Refused> {
        let refused = |kind, reason| Err(Refused::Registration(kind, reason));
        if self.was_ready {
            return refused("Extension.RegistrationClosed", "extensions register while the instance starts");
        }
        if self.registered.len() >= limits::EXTENSIONS {
            return refused("Extension.TooManyExtensions", "there are too many extensions");
        }
        if self.registered.values().any(|known| known.name == name) {
            return refused("Extension.InvalidExtensionState", "an extension of this name is registered");
        }
        if wishes.invoke && self.several {
            return refused(
                "Extension.InvalidEventType",
                "no extension receives INVOKE where an instance serves several requests at once",
            );
        }
        if wishes.shutdown && !self.started.iter().any(|known| known == name) {
            return refused(
                "Extension.InvalidEventType",
                "only extensions in /opt/extensions receive SHUTDOWN",
            );
        }
        let id = ExtensionId(Uuid::new_v4());
        let known = Extension { name: name.into(), wishes, waits: false, waiting: None, missed: None };
        self.registered.insert(id, known);
        Ok(id)
    }

    fn next(&mut self, id: ExtensionId) -> Result<oneshot::Receiver<Value>, Refused> {
        let extension = self.registered.get_mut(&id).ok_or(Refused::Unknown)?;
        let (sender, receiver) = oneshot::channel();
        match extension.missed.take() {
            Some(event) => drop(sender.send(event)),
            None => {
                extension.waits = true;
                extension.waiting = Some(sender);
            }
        }
        Ok(receiver)
    }

    /// How many requests the instance is ready for of which the pool has no report: once the runtime and all
    /// extensions wait.
    fn take_ready(&mut self) -> Option<usize> {
        if self.several && self.was_ready && !self.failed {
            return Some(std::mem::take(&mut self.runtime_waits)).filter(|asks| *asks > 0);
        }
        let all = self.started.iter().all(|name| self.registered.values().any(|known| known.name == *name));
        if self.failed || !all || !self.registered.values().all(|known| known.waits) {
            return None;
        }
        let ready = Some(std::mem::take(&mut self.runtime_waits)).filter(|asks| *asks > 0)?;
        self.was_ready = true;
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
        Some(ready)
    }

    /// Sends an event to the extensions that have registered for it. Returns their names.
    fn send_event(&mut self, wishes: fn(&Wishes) -> bool, event: &Value) -> BTreeSet<String> {
        let mut sent = BTreeSet::new();
        for extension in self.registered.values_mut().filter(|known| wishes(&known.wishes)) {
            extension.send_event(event.clone());
            sent.insert(extension.name.clone());
        }
        sent
    }

    /// The runtime waits for work. `timer` ends the instance if an extension is not done by then.
    pub(super) fn runtime_waits(&mut self, timer: Option<Timer>) {
        self.runtime_waits += 1;
        match self.several {
            true => timer.iter().for_each(Timer::abort),
            false => self.timer = timer,
        }
    }

    /// Whether all were ready once: the runtime alone does not make an instance so.
    pub(super) fn was_ready(&self) -> bool {
        self.was_ready
    }

    /// Whether its runtime is done, and an extension is not.
    pub(super) fn are_at_work(&self) -> bool {
        self.runtime_waits > 0
    }

    /// From now on this is the reason of the shutdown that extensions receive, unless there is one.
    pub(super) fn end_because_of(&mut self, reason: &'static str) {
        self.reason.get_or_insert(reason);
    }

    /// Whether extensions have registered, and whether one of them is a program of its own.
    pub(super) fn kinds(&self) -> (bool, bool) {
        let is_program = |known: &Extension| self.started.contains(&known.name);
        (!self.registered.is_empty(), self.registered.values().any(is_program))
    }

    /// Sends SHUTDOWN to those that have registered for it. Returns their names.
    pub(super) fn send_shutdown(&mut self, deadline_ms: u64) -> BTreeSet<String> {
        let reason = self.reason.unwrap_or("spindown");
        let event = json!({ "eventType": "SHUTDOWN", "shutdownReason": reason, "deadlineMs": deadline_ms });
        self.send_event(|wishes| wishes.shutdown, &event)
    }
}

impl Instance {
    /// Registers an extension, and returns its identifier.
    pub(crate) fn register_extension(&self, name: &str, wishes: Wishes) -> Result<ExtensionId, Refused> {
        self.state().extensions.register(name, wishes)
    }

    /// An extension is done, and asks for what comes next.
    pub(crate) fn next_for_extension(&self, id: ExtensionId) -> Result<oneshot::Receiver<Value>, Refused> {
        let next = self.state().extensions.next(id)?;
        self.ready_if_all_wait();
        Ok(next)
    }

    /// The name of an extension.
    pub(crate) fn extension(&self, id: ExtensionId) -> Result<String, Refused> {
        let known = self.state().extensions.registered.get(&id).map(|known| known.name.clone());
        known.ok_or(Refused::Unknown)
    }

    /// An extension cannot go on: callers that wait receive the reason, and the instance ends.
    pub(crate) fn extension_failed(&self, kind: &str, reason: &str) {
        tracing::warn!("{}: {kind}: {reason}", self.label());
        let (busy, was_ready) = {
            let mut state = self.state();
            state.extensions.failed = true;
            state.extensions.end_because_of(FAILURE);
            let busy = state.requests.ids();
            if busy.is_empty() {
                state.failure.get_or_insert_with(|| Ok(Outcome::error(kind, reason)));
            }
            (busy, state.extensions.was_ready)
        };
        for id in busy {
            // The runtime may have answered meanwhile.
            drop(self.finish(id, Outcome::error(kind, &format!("RequestId: {id} {reason}"))));
        }
        match was_ready {
            true => self.scheduler.clone().end(self.id),
            // Not by the pool: it would start another instance for the waiting caller, without the reason.
            false => self.stop(),
        }
    }

    /// Reports to the pool that the instance is ready.
    pub(super) fn ready_if_all_wait(&self) {
        let (ready, has_started) = {
            let extensions = &mut self.state().extensions;
            let before = extensions.was_ready;
            (extensions.take_ready().unwrap_or_default(), !before && extensions.was_ready)
        };
        if has_started {
            self.publish_start();
            if self.was_restored() {
                self.scheduler.clone().replace_started(self.id);
            }
        }
        if ready > 0 {
            self.idles();
        }
        for _ in 0..ready {
            self.scheduler.clone().ready(self.id);
        }
    }

    /// Publishes what an instance has once it has started.
    fn publish_start(&self) {
        let events: Vec<PlatformEvent> = {
            let state = self.state();
            let event = |known: &Extension| PlatformEvent::extension(&known.name, &known.wishes.names());
            state.extensions.registered.values().map(event).collect()
        };
        events.into_iter().for_each(|event| self.publish(|| event));
        let after = self.start_time().unwrap_or_default();
        self.publish(|| PlatformEvent::init_report(after, &Status::Success));
        self.close_subscriptions();
    }

    /// The runtime receives an invocation: extensions receive the event.
    pub(super) fn send_invocation(&self, invocation: &Invocation) {
        let mut state = self.state();
        if !state.extensions.registered.values().any(|known| known.wishes.invoke) {
            return;
        }
        let event = json!({
            "eventType": "INVOKE",
            "deadlineMs": self.deadline_ms(),
            "requestId": invocation.id,
            "invokedFunctionArn": invocation.arn,
            "tracing": { "type": "X-Amzn-Trace-Id", "value": invocation.trace_id },
        });
        state.extensions.send_event(|wishes| wishes.invoke, &event);
    }

    /// Whether it was ready once: its runtime alone does not make it so.
    pub(super) fn was_ready(&self) -> bool {
        self.state().extensions.was_ready
    }

    /// The programs that were started with the runtime.
    pub(super) fn extensions_started(&self, names: &[String]) {
        let extensions = &mut self.state().extensions;
        extensions.started = names.to_vec();
        extensions.several = self.deployment.settings.at_once() > 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVOKE: Wishes = Wishes { invoke: true, shutdown: false };

    #[test]
    fn an_instance_is_ready_when_all_wait_and_that_is_said_once() {
        let mut extensions = Extensions { started: vec!["one".into()], ..Extensions::default() };
        extensions.runtime_waits = 1;
        assert_eq!(extensions.take_ready(), None, "one has not registered");
        let one = extensions.register("one", INVOKE).unwrap();
        let internal = extensions.register("inside", INVOKE).unwrap();
        let mut waiting = extensions.next(one).unwrap();
        assert_eq!(extensions.take_ready(), None, "the other does not wait");
        drop(extensions.next(internal).unwrap());
        assert_eq!(extensions.take_ready(), Some(1));
        assert_eq!(extensions.take_ready(), None);
        assert!(matches!(extensions.register("late", INVOKE), Err(Refused::Registration(..))));

        extensions.send_event(|wishes| wishes.invoke, &json!(1));
        assert_eq!(waiting.try_recv().unwrap(), json!(1));
        extensions.runtime_waits = 1;
        assert_eq!(extensions.take_ready(), None);
        drop(extensions.next(one).unwrap());
        // The connection on which it waited was broken: it receives the event all the same.
        assert_eq!(extensions.next(internal).unwrap().try_recv().unwrap(), json!(1));
        assert_eq!(extensions.take_ready(), None, "and has it to do");
        drop(extensions.next(internal).unwrap());
        assert_eq!(extensions.take_ready(), Some(1));
        assert_eq!(extensions.next(ExtensionId(Uuid::new_v4())).unwrap_err(), Refused::Unknown);

        extensions.failed = true;
        extensions.runtime_waits = 1;
        assert_eq!(extensions.take_ready(), None, "one cannot go on, whatever it asks for");
    }

    #[test]
    fn an_instance_for_several_requests_is_ready_for_each_that_its_runtime_asks_for() {
        let mut extensions = Extensions { several: true, runtime_waits: 2, ..Extensions::default() };
        extensions.started = vec!["one".into()];
        assert!(matches!(extensions.register("one", INVOKE), Err(Refused::Registration(..))));
        let one = extensions.register("one", Wishes { invoke: false, shutdown: true }).unwrap();
        assert_eq!(extensions.take_ready(), None, "the extension does not wait");
        drop(extensions.next(one).unwrap());
        assert_eq!(extensions.take_ready(), Some(2));
        assert_eq!(extensions.take_ready(), None);
        extensions.runtime_waits += 1;
        assert_eq!(extensions.take_ready(), Some(1));
    }

    #[test]
    fn registration_follows_the_rules() {
        let mut extensions = Extensions { started: vec!["one".into()], ..Extensions::default() };
        let both = Wishes { invoke: true, shutdown: true };
        assert!(extensions.register("one", both).is_ok());
        assert!(extensions.register("one", INVOKE).is_err(), "twice");
        assert!(extensions.register("inside", both).is_err(), "it ends with the runtime");
        for number in 1..limits::EXTENSIONS {
            assert!(extensions.register(&number.to_string(), INVOKE).is_ok());
        }
        assert!(extensions.register("more", INVOKE).is_err());
    }
}
