//! An event of the Telemetry API.

use std::sync::Arc;

use serde_json::{Value, json};

use super::subscription::{Subscription, Type};
use crate::invocation::platform::{self, PlatformEvent};

/// An event, before a subscription says how it is written.
#[derive(Clone, Debug)]
pub(super) struct TelemetryEvent {
    pub kind: Type,
    name: String,
    time: String,
    record: Record,
}

#[derive(Clone, Debug)]
enum Record {
    Fields(Value),
    /// A line, and whether a log in JSON has it.
    Line(Arc<str>, bool),
}

impl TelemetryEvent {
    pub fn platform(event: &PlatformEvent) -> TelemetryEvent {
        let record = Record::Fields(event.record.clone());
        TelemetryEvent { kind: Type::Platform, name: event.name(), time: platform::time(), record }
    }

    pub fn line(kind: Type, text: &str, in_json: bool) -> TelemetryEvent {
        let record = Record::Line(text.into(), in_json);
        TelemetryEvent { kind, name: kind.name().into(), time: platform::time(), record }
    }

    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        match &self.record {
            Record::Fields(_) => 512,
            Record::Line(text, _) => text.len(),
        }
    }

    /// As a subscriber receives it.
    pub fn json(&self, subscription: &Subscription) -> String {
        let record = match &self.record {
            Record::Fields(fields) => fields.clone(),
            Record::Line(text, in_json) => {
                let object = *in_json && subscription.objects && text.starts_with('{');
                let parsed = object.then(|| serde_json::from_str(text).ok()).flatten();
                parsed.unwrap_or_else(|| text.as_ref().into())
            }
        };
        json!({ "time": self.time, "type": self.name, "record": record }).to_string()
    }
}
