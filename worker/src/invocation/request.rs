//! One invocation: what the caller sent, what comes back, and the lines that Lambda's log has for it.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

use crate::base::time::since_1970;
use crate::http::connections::{Client, Part};
use crate::invocation::id::InvocationId;

/// A call of a function.
#[derive(Debug)]
pub struct Invocation {
    /// `RequestId`.
    pub id: InvocationId,
    /// The event, JSON.
    pub payload: Bytes,
    /// `X-Amz-Client-Context`, decoded: JSON.
    pub client_context: Option<String>,
    /// The function's ARN.
    pub arn: String,
    /// `X-Amzn-Trace-Id`.
    pub trace_id: String,
    /// `X-Amz-Tenant-Id`: only instances of this tenant may serve it.
    pub tenant: Option<String>,
    /// Receives the answer as it is made, if its caller wants that.
    pub stream: Option<Stream>,
}

/// Receives an answer while the function makes it.
#[derive(Debug)]
pub struct Stream {
    pieces: mpsc::Sender<Piece>,
    client: Client,
}

/// What a function streams.
#[derive(Debug)]
pub enum Piece {
    /// First of all: the `Content-Type` that the runtime gives.
    Kind(String),
    /// A part of the answer.
    Data(Part),
}

/// Pieces that may be unread: then a function waits that makes them faster than its caller reads.
const PIECES: usize = 16;

/// A stream, and the receiver of its pieces.
pub fn stream(client: Client) -> (Stream, mpsc::Receiver<Piece>) {
    let (pieces, receiver) = mpsc::channel(PIECES);
    (Stream { pieces, client }, receiver)
}

impl Stream {
    /// Waits until there is room. A caller that has disconnected misses it; others do not.
    pub async fn begin(&self, content_type: &str) {
        let _ = self.pieces.send(Piece::Kind(content_type.into())).await;
    }

    /// The same for a part of the answer.
    pub async fn send(&self, data: Bytes) {
        let _ = self.pieces.send(Piece::Data(self.client.part(data))).await;
    }
}

/// The most bytes of a caller's `X-Amzn-Trace-Id`. A longer one names no trace, and would be stored with
/// each event that waits.
const TRACE_BYTES: usize = 1024;

impl Invocation {
    /// An invocation with a new id.
    pub fn new(
        arn: String,
        payload: Bytes,
        client_context: Option<String>,
        trace_id: Option<&str>,
    ) -> Invocation {
        let trace_id = match trace_id.filter(|given| given.len() <= TRACE_BYTES) {
            Some(given) => given.to_string(),
            None => {
                let random = uuid::Uuid::new_v4().simple().to_string();
                format!("Root=1-{:08x}-{random:.24};Sampled=0", since_1970().as_secs())
            }
        };
        let id = InvocationId::random();
        Invocation { id, payload, client_context, arn, trace_id, tenant: None, stream: None }
    }

    /// Names a parent in its trace, unless one is named: on Lambda each function has one, and tracing
    /// libraries rely on that.
    pub fn name_parent(&mut self) {
        let Some(root) = self.trace_id.find("Root=").filter(|_| !self.trace_id.contains("Parent=")) else {
            return;
        };
        let end = self.trace_id[root..].find(';').map_or(self.trace_id.len(), |length| root + length);
        let random = uuid::Uuid::new_v4().simple().to_string();
        self.trace_id.insert_str(end, &format!(";Parent={random:.16}"));
    }
}

/// What a function answered, or how it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The answer, or a description of the error: JSON.
    pub payload: Bytes,
    /// Whether it is an error of the function (`X-Amz-Function-Error: Unhandled`).
    pub failed: bool,
    /// The end of its log.
    pub log_tail: Vec<u8>,
    /// Why the worker ended the call, where the function did not answer it.
    pub end: Option<End>,
}

/// The most characters of an error's type in a line of figures.
const KIND: usize = 200;

/// Why the worker ended a call, as the function's log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It took longer than the function's `Timeout`, in seconds.
    TimedOut(u32),
    /// Another reason: Lambda's name for it, and a sentence.
    Error(String, String),
}

impl Outcome {
    /// Lambda's fields for a failure in a line of figures.
    pub fn status(&self) -> String {
        match &self.end {
            Some(end) => end.status(),
            None => status_of(&self.error_type()),
        }
    }

    /// The type of the error that a runtime describes.
    pub fn error_type(&self) -> String {
        /// An error as runtimes describe it.
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Described {
            error_type: String,
        }
        let described = serde_json::from_slice::<Described>(&self.payload);
        described.map_or_else(|_| "Runtime.Unknown".into(), |known| short(&known.error_type))
    }

    /// What the function answered, or how it describes its failure.
    pub fn answered(payload: Bytes, failed: bool) -> Outcome {
        Outcome { payload, failed, log_tail: Vec::new(), end: None }
    }

    /// An error as Lambda describes it.
    pub fn error(kind: &str, message: &str) -> Outcome {
        let payload = json!({ "errorType": kind, "errorMessage": message }).to_string().into();
        let end = Some(End::Error(kind.into(), message.into()));
        Outcome { end, ..Outcome::answered(payload, true) }
    }

    /// The function did not answer in time.
    pub fn timed_out(id: InvocationId, timeout_s: u32) -> Outcome {
        let message = format!("RequestId: {id} Error: Task timed out after {timeout_s}.00 seconds");
        Outcome { end: Some(End::TimedOut(timeout_s)), ..Outcome::error("Sandbox.Timedout", &message) }
    }

    /// The runtime did not finish the stream that it had begun.
    pub fn cut_off() -> Outcome {
        Outcome::error("Runtime.TruncatedResponse", "The response was cut off")
    }

    /// The answer is longer than allowed.
    pub fn too_large(limit: usize) -> Outcome {
        let message = format!("Response payload size exceeded maximum allowed payload size ({limit} bytes).");
        Outcome::error("Function.ResponseSizeTooLarge", &message)
    }
}

impl End {
    /// The lines that name it in the log of this request.
    pub fn lines(&self, id: InvocationId) -> [String; 2] {
        match self {
            End::TimedOut(seconds) => {
                let now = humantime::format_rfc3339_millis(SystemTime::now());
                [format!("{now} {id} Task timed out after {seconds}.00 seconds"), String::new()]
            }
            End::Error(kind, message) if message.starts_with("RequestId: ") => {
                [message.clone(), kind.clone()]
            }
            End::Error(kind, message) => [format!("RequestId: {id} {message}"), kind.clone()],
        }
    }

    /// Lambda's fields for it in a line of figures.
    pub fn status(&self) -> String {
        match self {
            End::TimedOut(_) => "Status: timeout\t".into(),
            End::Error(kind, _) => status_of(kind),
        }
    }
}

fn status_of(kind: &str) -> String {
    format!("Status: error\tError Type: {}\t", short(kind))
}

fn short(kind: &str) -> String {
    kind.chars().map(|c| if c.is_control() { ' ' } else { c }).take(KIND).collect()
}

/// The figures of Lambda's `REPORT` line.
#[derive(Clone, Debug)]
pub struct Figures {
    /// From dispatch to answer.
    pub duration: Duration,
    /// From the instance's start until it asked for work, of a cold start.
    pub init: Option<Duration>,
    /// Whether it was restored from a snapshot, in that time.
    pub restored: bool,
    /// `MemorySize`.
    pub memory_mib: u32,
    /// The most memory that the instance has used.
    pub peak_bytes: Option<u64>,
    /// Lambda's fields for why the worker ended the call.
    pub end: Option<String>,
}

impl Figures {
    /// Milliseconds from the start, or from dispatch, to the answer, rounded up. A restore is not counted.
    pub fn billed_ms(&self) -> u64 {
        let init = self.init.filter(|_| !self.restored).unwrap_or_default();
        (self.duration + init).as_nanos().div_ceil(1_000_000) as u64
    }
}

/// Lambda's `REPORT` line.
pub fn report_line(id: InvocationId, figures: &Figures) -> String {
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let init = figures.init.unwrap_or_default();
    let mut line = format!(
        "REPORT RequestId: {id}\tDuration: {:.2} ms\tBilled Duration: {} ms\tMemory Size: {} MB\t",
        ms(figures.duration),
        figures.billed_ms(),
        figures.memory_mib,
    );
    let mut add = |text: std::fmt::Arguments<'_>| line.write_fmt(text).expect("strings take all");
    if let Some(bytes) = figures.peak_bytes {
        add(format_args!("Max Memory Used: {} MB\t", bytes.div_ceil(1 << 20)));
    }
    if figures.init.is_some() && figures.restored {
        let billed = init.as_nanos().div_ceil(1_000_000);
        add(format_args!("Restore Duration: {:.2} ms\tBilled Restore Duration: {billed} ms\t", ms(init)));
    } else if figures.init.is_some() {
        add(format_args!("Init Duration: {:.2} ms\t", ms(init)));
    }
    line + figures.end.as_deref().unwrap_or_default()
}

/// Lambda's line of a start that failed after this time.
pub fn init_report_line(after: Duration, status: &str) -> String {
    format!("INIT_REPORT Init Duration: {:.2} ms\tPhase: init\t{status}", after.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_line_is_lambdas() {
        let id = InvocationId::random();
        let mut figures = Figures {
            duration: Duration::from_micros(1_234),
            init: None,
            restored: false,
            memory_mib: 128,
            peak_bytes: Some((40 << 20) + 1),
            end: None,
        };
        assert_eq!(
            report_line(id, &figures),
            format!(
                "REPORT RequestId: {id}\tDuration: 1.23 ms\tBilled Duration: 2 ms\tMemory Size: 128 MB\tMax Memory Used: 41 MB\t"
            )
        );
        figures.init = Some(Duration::from_millis(100));
        let line = report_line(id, &figures);
        assert!(line.contains("Billed Duration: 102 ms\t"), "{line}");
        assert!(line.ends_with("Init Duration: 100.00 ms\t"), "{line}");
        let restored = report_line(id, &Figures { restored: true, ..figures.clone() });
        assert!(restored.contains("Billed Duration: 2 ms\t"), "{restored}");
        let ending = "Restore Duration: 100.00 ms\tBilled Restore Duration: 100 ms\t";
        assert!(restored.ends_with(ending), "{restored}");
        figures.end = Some(Outcome::timed_out(id, 3).status());
        assert!(report_line(id, &figures).ends_with("Init Duration: 100.00 ms\tStatus: timeout\t"));
        figures.end = Some(Outcome::error("Runtime.ExitError", "it left").status());
        let line = report_line(id, &figures);
        assert!(line.ends_with("ms\tStatus: error\tError Type: Runtime.ExitError\t"), "{line}");
    }

    #[test]
    fn trace_ids_have_the_form_of_x_ray() {
        let id = Invocation::new(String::new(), Bytes::new(), None, None).trace_id;
        assert_eq!(id.len(), "Root=1-01234567-0123456789abcdef01234567;Sampled=0".len(), "{id}");
        assert_eq!(Invocation::new(String::new(), Bytes::new(), None, Some("Root=y")).trace_id, "Root=y");
        let long = "x".repeat(TRACE_BYTES + 1);
        assert_ne!(Invocation::new(String::new(), Bytes::new(), None, Some(&long)).trace_id, long);
    }

    #[test]
    fn trace_names_one_parent() {
        let named = |given: &str| {
            let mut invocation = Invocation::new(String::new(), Bytes::new(), None, Some(given));
            invocation.name_parent();
            invocation.trace_id
        };
        let new = named("Root=1-0-1;Sampled=0");
        let digits = new.strip_prefix("Root=1-0-1;Parent=").unwrap().strip_suffix(";Sampled=0").unwrap();
        assert!(digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{new}");
        assert_eq!(named("Sampled=1;Root=y").len(), "Sampled=1;Root=y;Parent=0123456789abcdef".len());
        for kept in ["Root=y;Parent=z;Sampled=1", "", ";;", "Sampled=1"] {
            assert_eq!(named(kept), kept);
        }
    }
}
