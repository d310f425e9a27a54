//! The commands and the event of QEMU's monitor protocol that this crate uses, over qapi-spec's envelopes.
//!
//! qapi-qmp has all of QEMU's schema as types, which take half a minute to compile.

use qapi_spec::{Any, Command, Empty, Response};
use serde::{Deserialize, Serialize};

/// QEMU's first line.
#[derive(Deserialize)]
pub struct Greeting {
    #[serde(rename = "QMP")]
    _version_and_capabilities: Any,
}

/// Any later line.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Message {
    Event(Event),
    Response(Response<Any>),
}

/// An event. Events of other names are accepted, and mean nothing here.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "event", content = "data")]
pub enum Event {
    /// The guest has opened or closed a virtio-serial port.
    #[serde(rename = "VSERPORT_CHANGE")]
    PortChange { id: String, open: bool },
    #[serde(untagged)]
    Other { event: String },
}

/// Ends the negotiation of capabilities, of which none is needed.
#[derive(Serialize)]
pub struct NegotiateCapabilities {}

impl Command for NegotiateCapabilities {
    type Ok = Empty;
    const NAME: &'static str = "qmp_capabilities";
    const ALLOW_OOB: bool = false;
}

/// Reads a property of an object in QEMU's object tree.
#[derive(Serialize)]
pub struct GetProperty<'a> {
    pub path: &'a str,
    pub property: &'a str,
}

impl Command for GetProperty<'_> {
    type Ok = Any;
    const NAME: &'static str = "qom-get";
    const ALLOW_OOB: bool = false;
}

/// Sets a property of an object in QEMU's object tree.
#[derive(Serialize)]
pub struct SetProperty<'a> {
    pub path: &'a str,
    pub property: &'a str,
    pub value: Any,
}

impl Command for SetProperty<'_> {
    type Ok = Empty;
    const NAME: &'static str = "qom-set";
    const ALLOW_OOB: bool = false;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of QEMU's as a message.
    fn message(line: &str) -> Message {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn events_are_read_known_or_not() {
        let Message::Event(event) = message(
            r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "VSERPORT_CHANGE", "data": {"open": true, "id": "agent"}}"#,
        ) else {
            panic!("no event")
        };
        assert_eq!(event, Event::PortChange { id: "agent".to_string(), open: true });
        for data in ["", r#", "data": {"guest": true, "reason": "guest-shutdown"}"#] {
            let line =
                format!(r#"{{"timestamp": {{"seconds": 1, "microseconds": 2}}, "event": "SHUTDOWN"{data}}}"#);
            let Message::Event(event) = message(&line) else { panic!("no event") };
            assert_eq!(event, Event::Other { event: "SHUTDOWN".to_string() });
        }
    }

    #[test]
    fn an_answer_is_no_event() {
        for line in [r#"{"return": {"event": "SHUTDOWN"}, "id": 7}"#, r#"{"return": {}, "id": 7}"#] {
            let Message::Response(answer) = message(line) else { panic!("no answer: {line}") };
            assert_eq!(answer.id().and_then(Any::as_u64), Some(7));
        }
    }
}
