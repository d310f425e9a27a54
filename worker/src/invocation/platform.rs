//! The events of an instance that Lambda itself reports (`platform.start`, ...), in the schema of the
//! Telemetry API: lines of a log in JSON, and what extensions subscribe to.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::base::level::Level;
use crate::invocation::request::{End, Figures, Invocation};

/// The only kind of start that there is.
const ON_DEMAND: &str = "on-demand";
const INIT: &str = "init";

/// An event.
#[derive(Clone, Debug)]
pub struct PlatformEvent {
    /// Its type, without `platform.`.
    pub kind: &'static str,
    /// Its level in a log in JSON.
    pub level: Level,
    /// Its own fields.
    pub record: Value,
}

/// How a start or a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Well.
    Success,
    /// With an error of this type.
    Error(String),
    /// It took too long.
    Timeout,
}

impl Status {
    /// Of a request that the worker has ended, or whose function has answered, with an error of this type or
    /// none.
    pub fn new(end: Option<&End>, error: Option<String>) -> Status {
        match (end, error) {
            (Some(End::TimedOut(_)), _) => Status::Timeout,
            (Some(End::Error(kind, _)), _) => Status::Error(kind.clone()),
            (None, Some(kind)) => Status::Error(kind),
            (None, None) => Status::Success,
        }
    }

    fn level(&self, of_success: Level) -> Level {
        if *self == Status::Success { of_success } else { Level::Warn }
    }

    /// Adds it to a record.
    fn add_to(&self, record: &mut Value) {
        record["status"] = match self {
            Status::Success => "success",
            Status::Error(_) => "error",
            Status::Timeout => "timeout",
        }
        .into();
        if let Status::Error(kind) = self {
            record["errorType"] = kind.as_str().into();
        }
    }
}

/// A duration in milliseconds, by the microsecond.
fn ms(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

/// Now, as events have it.
pub fn time() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

fn event(kind: &'static str, level: Level, record: Value) -> PlatformEvent {
    PlatformEvent { kind, level, record }
}

fn with_status(kind: &'static str, of_success: Level, status: &Status, mut record: Value) -> PlatformEvent {
    status.add_to(&mut record);
    event(kind, status.level(of_success), record)
}

impl PlatformEvent {
    /// Its line in a log in JSON.
    pub fn line(&self) -> String {
        json!({ "time": time(), "type": self.name(), "record": self.record }).to_string()
    }

    /// Its whole type.
    pub fn name(&self) -> String {
        format!("platform.{}", self.kind)
    }

    /// An instance begins to start.
    pub fn init_start(function: &str, version: &str, instance: &str, memory_mib: u32) -> PlatformEvent {
        let record = json!({
            "initializationType": ON_DEMAND,
            "phase": INIT,
            "functionName": function,
            "functionVersion": version,
            "instanceId": instance,
            "instanceMaxMemory": u64::from(memory_mib) << 20,
        });
        event("initStart", Level::Debug, record)
    }

    /// Its runtime has started, or failed.
    pub fn init_runtime_done(status: &Status) -> PlatformEvent {
        let record = json!({ "initializationType": ON_DEMAND, "phase": INIT });
        with_status("initRuntimeDone", Level::Debug, status, record)
    }

    /// It has started, or failed.
    pub fn init_report(after: Duration, status: &Status) -> PlatformEvent {
        let metrics = json!({ "durationMs": ms(after) });
        let record = json!({ "initializationType": ON_DEMAND, "phase": INIT, "metrics": metrics });
        with_status("initReport", Level::Debug, status, record)
    }

    /// A request begins.
    pub fn start(invocation: &Invocation, version: &str) -> PlatformEvent {
        let mut record = json!({ "requestId": invocation.id, "version": version });
        add_context(&mut record, invocation);
        event("start", Level::Info, record)
    }

    /// The runtime is done with a request.
    pub fn runtime_done(
        invocation: &Invocation,
        figures: &Figures,
        answered_bytes: usize,
        status: &Status,
    ) -> PlatformEvent {
        let mut record = json!({
            "requestId": invocation.id,
            "metrics": { "durationMs": ms(figures.duration), "producedBytes": answered_bytes },
        });
        add_context(&mut record, invocation);
        with_status("runtimeDone", Level::Debug, status, record)
    }

    /// The figures of a request.
    pub fn report(invocation: &Invocation, figures: &Figures, status: &Status) -> PlatformEvent {
        let mut metrics = json!({
            "durationMs": ms(figures.duration),
            "billedDurationMs": figures.billed_ms(),
            "memorySizeMB": figures.memory_mib,
            "maxMemoryUsedMB": figures.peak_bytes.unwrap_or_default().div_ceil(1 << 20),
        });
        if let Some(init) = figures.init {
            metrics["initDurationMs"] = ms(init).into();
        }
        let mut record = json!({ "requestId": invocation.id, "metrics": metrics });
        add_context(&mut record, invocation);
        with_status("report", Level::Info, status, record)
    }

    /// Why the worker ended a request, in the words of a log in plain text.
    pub fn fault(lines: &[String]) -> PlatformEvent {
        event("fault", Level::Warn, lines.join("\n").trim_end().into())
    }

    /// An extension has started.
    pub fn extension(name: &str, events: &[&str]) -> PlatformEvent {
        event("extension", Level::Info, json!({ "name": name, "state": "Ready", "events": events }))
    }

    /// An extension has subscribed.
    pub fn subscription(name: &str, types: &[&str]) -> PlatformEvent {
        let record = json!({ "name": name, "state": "Subscribed", "types": types });
        event("telemetrySubscription", Level::Info, record)
    }

    /// A subscriber has lost events.
    pub fn logs_dropped(records: u64, bytes: u64, reason: &str) -> PlatformEvent {
        let record = json!({ "droppedRecords": records, "droppedBytes": bytes, "reason": reason });
        event("logsDropped", Level::Warn, record)
    }
}

/// Adds the request's tenant and trace.
fn add_context(record: &mut Value, invocation: &Invocation) {
    if let Some(tenant) = &invocation.tenant {
        record["tenantId"] = tenant.as_str().into();
    }
    if !invocation.trace_id.is_empty() {
        record["tracing"] = json!({ "type": "X-Amzn-Trace-Id", "value": invocation.trace_id });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invocation::request::Outcome;

    #[test]
    fn events_have_the_fields_and_levels_of_the_documented_schema() {
        let invocation = Invocation::new("arn".into(), "{}".into(), None, Some("Root=1-2-3"));
        let figures = Figures {
            duration: Duration::from_micros(1_234),
            init: Some(Duration::from_millis(100)),
            restored: false,
            memory_mib: 128,
            peak_bytes: Some((40 << 20) + 1),
            end: None,
        };
        let report = PlatformEvent::report(&invocation, &figures, &Status::Success);
        assert_eq!((report.name().as_str(), report.level), ("platform.report", Level::Info));
        let tracing = json!({ "type": "X-Amzn-Trace-Id", "value": "Root=1-2-3" });
        let metrics = json!({
            "durationMs": 1.234, "billedDurationMs": 102, "memorySizeMB": 128, "maxMemoryUsedMB": 41,
            "initDurationMs": 100.0,
        });
        let expected = json!({
            "requestId": invocation.id, "metrics": metrics, "tracing": tracing, "status": "success",
        });
        assert_eq!(report.record, expected);
        let end = Outcome::error("Runtime.ExitError", "it left").end;
        let status = Status::new(end.as_ref(), None);
        let done = PlatformEvent::runtime_done(&invocation, &figures, 7, &status);
        assert_eq!((done.level, done.record["status"].as_str()), (Level::Warn, Some("error")));
        assert_eq!(done.record["errorType"], "Runtime.ExitError");
        let late = Status::new(Some(&End::TimedOut(3)), None);
        assert_eq!(PlatformEvent::report(&invocation, &figures, &late).record["status"], "timeout");
        assert_eq!(PlatformEvent::init_report(Duration::ZERO, &Status::Success).level, Level::Debug);
        let line: Value = serde_json::from_str(&PlatformEvent::start(&invocation, "$LATEST").line()).unwrap();
        assert_eq!(line["type"], "platform.start");
        assert_eq!(line["record"]["version"], "$LATEST");
    }

    #[test]
    fn events_of_a_request_name_its_tenant() {
        let mut invocation = Invocation::new("arn".into(), "{}".into(), None, None);
        let figures = Figures {
            duration: Duration::ZERO,
            init: None,
            restored: false,
            memory_mib: 128,
            peak_bytes: None,
            end: None,
        };
        let tenants = |invocation: &Invocation| {
            let start = PlatformEvent::start(invocation, "1");
            let done = PlatformEvent::runtime_done(invocation, &figures, 0, &Status::Success);
            let report = PlatformEvent::report(invocation, &figures, &Status::Timeout);
            [start, done, report].map(|event| event.record.get("tenantId").cloned())
        };
        assert_eq!(tenants(&invocation), [const { None }; 3]);
        invocation.tenant = Some("blue".into());
        assert_eq!(tenants(&invocation), [(); 3].map(|()| Some("blue".into())));
    }
}
