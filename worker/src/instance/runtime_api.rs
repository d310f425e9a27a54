//! Lambda's Runtime API, as the runtime inside an instance sees it on AWS_LAMBDA_RUNTIME_API.
//!
//! `GET /2018-06-01/runtime/invocation/next`, `POST .../invocation/ID/response`, `.../ID/error`,
//! `.../init/error`, `GET .../restore/next`, `POST .../restore/error`. An answer may be streamed.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Method, Request};
use serde_json::json;

use crate::base::limits;
use crate::http::{self, Answer, BodyError};
use crate::instance::{Instance, Misuse};
use crate::instance::{extension_api, metadata_api};
use crate::invocation::id::InvocationId;
use crate::invocation::request::{Invocation, Outcome};
use worker_system::text::shown;

/// The longest description of why a runtime cannot start: several requests may send one at once.
const INIT_ERROR_BYTES: usize = 1024 * 1024;
/// The header of an answer that is streamed.
const MODE: &str = "lambda-runtime-function-response-mode";
const REST_BYTES: usize = 4096;
/// After how long without work a runtime wants to do idle work, if it does: one number, or two.
const IDLE_WORK_AFTER_MS: &str = "mayfly-rests-after-ms";
/// The number of the process that asks, of a runtime that has one for each request.
const PROCESS: &str = "mayfly-process";
/// The most that is read of a body that is not used.
const UNREAD_BYTES: usize = 64 * 1024;
/// By then, the worker has noticed the end of a connection.
const NOTICED: Duration = Duration::from_secs(2);

/// Answers one request of the runtime.
pub(crate) async fn handle(instance: Arc<Instance>, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_string();
    let request = match extension_api::subscribe(&instance, request).await {
        Ok(answer) => return answer,
        Err(request) => request,
    };
    if let Some(below) = path.strip_prefix(extension_api::ROOT) {
        return extension_api::handle(instance, below, request).await;
    }
    if let Some(below) = path.strip_prefix(metadata_api::ROOT) {
        let answer = metadata_api::answer(&instance, below, &request);
        return unread(request, answer).await;
    }
    let Some(below) = path.strip_prefix("/2018-06-01/runtime/") else {
        return if is_api_call(&request, &path) {
            call(&instance, request).await
        } else {
            unread(request, unknown(&path)).await
        };
    };
    let parts: Vec<&str> = below.split('/').collect();
    match (request.method(), &parts[..]) {
        (&Method::GET, ["invocation", "next"]) => next(&instance, &request).await,
        (&Method::POST, ["invocation", id, what @ ("response" | "error")]) => {
            match (InvocationId::parse(id), *what) {
                (Some(id), "response") => response(&instance, id, request).await,
                (Some(id), _) => error(&instance, id, request).await,
                (None, _) => unread(request, refused(&instance.no_such_request())).await,
            }
        }
        // A runtime that was taken while it asked asks again once it is restored.
        (&Method::GET, ["restore", "next"]) => http::answer(200, "application/json", Bytes::new()),
        (&Method::POST, ["init" | "restore", "error"]) => init_error(&instance, request).await,
        (&Method::POST, ["mayfly", "rest"]) => idle_work(&instance, request).await,
        (
            _,
            ["invocation" | "restore", "next"]
            | ["invocation", _, "response" | "error"]
            | ["init" | "restore", "error"],
        ) => unread(request, http::answer(405, "text/plain", Bytes::new())).await,
        (&Method::POST, ["mayfly", "ended", process]) => process_ended(&instance, process, request).await,
        _ => unread(request, unknown(&path)).await,
    }
}

/// Whether it is a call of Lambda's API, or of another service of AWS, which `AWS_ENDPOINT_URL` leads here.
fn is_api_call(request: &Request<Incoming>, path: &str) -> bool {
    let signature = http::header(request.headers(), "authorization");
    signature.is_some_and(|text| text.starts_with("AWS4-")) || path.split('/').nth(2) == Some("functions")
}

/// A call that the function makes. Its connection is closed, for the runtime needs one of the instance's
/// few.
async fn call(instance: &Instance, request: Request<Incoming>) -> Answer {
    let mut answer = match instance.context.calls.get() {
        Some(calls) => calls(request).await,
        None => message(503, "ServiceException", "the worker does not serve yet"),
    };
    answer.headers_mut().insert("connection", HeaderValue::from_static("close"));
    answer
}

async fn next(instance: &Instance, request: &Request<Incoming>) -> Answer {
    let idle_work_after: Vec<Duration> = http::header(request.headers(), IDLE_WORK_AFTER_MS)
        .into_iter()
        .flat_map(|text| text.split(','))
        .filter_map(|text| text.trim().parse().ok().map(Duration::from_millis))
        .collect();
    let process = http::header(request.headers(), PROCESS).and_then(|text| text.parse().ok());
    let work = match instance.next(&idle_work_after, process) {
        Ok(work) => work,
        Err(misuse) => return refused(&misuse),
    };
    match work.await {
        Ok(invocation) => {
            instance.begin(&invocation);
            hand_out(instance, &invocation)
        }
        // The instance is being ended: no answer is needed.
        Err(_) => std::future::pending().await,
    }
}

fn hand_out(instance: &Instance, invocation: &Invocation) -> Answer {
    let mut answer = http::answer(200, "application/json", invocation.payload.clone());
    let (id, deadline) = (invocation.id.to_string(), instance.deadline_ms().to_string());
    let headers = [
        ("lambda-runtime-aws-request-id", Some(id.as_str())),
        ("lambda-runtime-deadline-ms", Some(&deadline)),
        ("lambda-runtime-invoked-function-arn", Some(&invocation.arn)),
        ("lambda-runtime-trace-id", Some(&invocation.trace_id)),
        ("lambda-runtime-client-context", invocation.client_context.as_deref()),
        ("lambda-runtime-aws-tenant-id", invocation.tenant.as_deref()),
    ];
    for (name, value) in headers {
        // Only a client's own context may hold what no header may; then it is left out.
        if let Some(value) = value.and_then(|text| HeaderValue::from_str(text).ok()) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}

async fn response(instance: &Instance, id: InvocationId, request: Request<Incoming>) -> Answer {
    let _answering = match Answering::begin(instance, id).await {
        Ok(answering) => answering,
        Err(misuse) => return not_answering(instance, id, request, &misuse).await,
    };
    if http::header(request.headers(), MODE) == Some("streaming") {
        return streamed(instance, id, request).await;
    }
    match http::read_alone(request.into_body(), limits::ANSWER_BYTES).await {
        Ok(payload) => accepted(instance.answer(id, payload, false)),
        Err(BodyError::TooLong) => too_large(instance, id, limits::ANSWER_BYTES),
        Err(_) => message(400, "InvalidRequest", "the body is incomplete"),
    }
}

fn too_large(instance: &Instance, id: InvocationId, limit: usize) -> Answer {
    match instance.finish(id, Outcome::too_large(limit)) {
        Ok(()) => message(413, "RequestEntityTooLarge", "Exceeded maximum allowed payload size."),
        Err(misuse) => refused(&misuse),
    }
}

/// An answer that arrives while the function makes it. Its caller receives it piece by piece, or all at
/// once if the caller has not asked for pieces. The runtime sends an error in the middle as trailers.
async fn streamed(instance: &Instance, id: InvocationId, request: Request<Incoming>) -> Answer {
    let Some(invocation) = instance.invocation(id) else { return refused(&Misuse::State) };
    let limit = if invocation.stream.is_some() { limits::STREAM_BYTES } else { limits::ANSWER_BYTES };
    if let Some(stream) = &invocation.stream {
        let kind = http::header(request.headers(), "content-type").unwrap_or("application/octet-stream");
        stream.begin(kind).await;
    }
    let (mut body, mut whole, mut bytes) = (request.into_body(), BytesMut::new(), 0);
    let mut error = None;
    // The function's Timeout bounds how long it may take, and ends the instance.
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => {
                bytes += data.len();
                let over = bytes.saturating_sub(limit);
                match &invocation.stream {
                    Some(stream) => stream.send(data.slice(..data.len() - over)).await,
                    None if over == 0 => whole.extend_from_slice(&data),
                    None => {}
                }
                if over > 0 {
                    return too_large(instance, id, limit);
                }
            }
            Ok(Err(frame)) => {
                error = frame.into_trailers().ok().and_then(|trailers| trailing_error(&trailers))
            }
            Err(_) => {
                let _ = instance.finish(id, Outcome::cut_off());
                return message(400, "InvalidRequest", "the body is incomplete");
            }
        }
    }
    match error {
        Some(payload) => accepted(instance.answer(id, payload, true)),
        None => accepted(instance.answer(id, whole.freeze(), false)),
    }
}

/// The error in the trailers of an answer that failed.
fn trailing_error(trailers: &HeaderMap) -> Option<Bytes> {
    let kind = http::header(trailers, "lambda-runtime-function-error-type")?;
    let body = http::header(trailers, "lambda-runtime-function-error-body")
        .and_then(|text| BASE64.decode(text).ok())
        .filter(|body| serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok());
    Some(body.map_or_else(|| json!({ "errorType": kind }).to_string().into(), Bytes::from))
}

/// An answer that comes too early, too late or from nothing that was asked.
async fn not_answering(
    instance: &Instance,
    id: InvocationId,
    request: Request<Incoming>,
    misuse: &Misuse,
) -> Answer {
    if *misuse == Misuse::Overdue {
        // The runtime asks for more then, and must be able to on this connection.
        let _ = http::read_alone(request.into_body(), limits::ANSWER_BYTES).await;
        instance.finish_overdue(id);
        return refused(misuse);
    }
    unread(request, refused(misuse)).await
}

/// The right to answer a request; without an answer, another may.
struct Answering<'a>(&'a Instance, InvocationId);

impl Answering<'_> {
    /// If an earlier attempt has the right, its connection may be closed without the worker having noticed
    /// yet.
    async fn begin(instance: &Instance, id: InvocationId) -> Result<Answering<'_>, Misuse> {
        let wait = async {
            loop {
                let mut ends = pin!(instance.answering_ends().notified());
                ends.as_mut().enable();
                match instance.begin_answer(id) {
                    Err(Misuse::Answering) => ends.await,
                    begun => return begun,
                }
            }
        };
        let begun = tokio::time::timeout(NOTICED, wait).await.unwrap_or(Err(Misuse::Answering));
        begun.map(|()| Answering(instance, id))
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.abandon_answer(self.1);
    }
}

async fn error(instance: &Instance, id: InvocationId, request: Request<Incoming>) -> Answer {
    let _answering = match Answering::begin(instance, id).await {
        Ok(answering) => answering,
        Err(misuse) => return not_answering(instance, id, request, &misuse).await,
    };
    match described_error(request, limits::ANSWER_BYTES).await {
        Ok(payload) => accepted(instance.answer(id, payload, true)),
        Err(answer) => answer,
    }
}

async fn init_error(instance: &Instance, request: Request<Incoming>) -> Answer {
    if !instance.is_starting() {
        return unread(request, refused(&Misuse::State)).await;
    }
    match described_error(request, INIT_ERROR_BYTES).await {
        Ok(payload) => accepted(instance.init_failed(payload)),
        Err(answer) => answer,
    }
}

/// Not Lambda's: Mayfly's bootstrap reports its idle work.
async fn idle_work(instance: &Instance, request: Request<Incoming>) -> Answer {
    let body = http::read_alone(request.into_body(), REST_BYTES).await.unwrap_or_default();
    match serde_json::from_slice(&body) {
        Ok(rest) => {
            instance.note_idle_work(&rest);
            http::empty(204)
        }
        Err(_) => message(400, "InvalidRequest", "not a rest"),
    }
}

/// Not Lambda's: Mayfly's bootstrap reports that a process of its own has ended. The body is its status, as
/// `wait` has it.
async fn process_ended(instance: &Instance, process: &str, request: Request<Incoming>) -> Answer {
    let body = http::read_alone(request.into_body(), REST_BYTES).await.unwrap_or_default();
    let status = std::str::from_utf8(&body).ok().and_then(|text| text.trim().parse().ok());
    match (process.parse(), status) {
        (Ok(process), Some(status)) => instance.process_ended(process, status),
        _ => return message(400, "InvalidRequest", "not a process and its status"),
    }
    accepted(Ok(()))
}

/// The body if it is JSON and has at most `limit` bytes, or else a description made of the header that names
/// the error.
async fn described_error(request: Request<Incoming>, limit: usize) -> Result<Bytes, Answer> {
    let kind = http::header(request.headers(), "lambda-runtime-function-error-type")
        .unwrap_or("Runtime.UnknownReason")
        .to_string();
    match http::read_alone(request.into_body(), limit).await {
        Ok(body) if serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok() => Ok(body),
        Ok(_) | Err(BodyError::TooLong) => Ok(json!({ "errorType": kind }).to_string().into()),
        Err(_) => Err(message(400, "InvalidRequest", "the body is incomplete")),
    }
}

/// Answers a request whose body is not used. A small one is read all the same: the connection of one that
/// was not could not be used again, and the runtime's next request on it would fail.
async fn unread(request: Request<Incoming>, answer: Answer) -> Answer {
    if request.body().size_hint().upper().is_some_and(|bytes| bytes <= UNREAD_BYTES as u64) {
        let _ = http::read_alone(request.into_body(), UNREAD_BYTES).await;
    }
    answer
}

fn accepted(outcome: Result<(), Misuse>) -> Answer {
    match outcome {
        Ok(()) => http::json(202, &json!({ "status": "OK" })),
        Err(misuse) => refused(&misuse),
    }
}

fn refused(misuse: &Misuse) -> Answer {
    match misuse {
        Misuse::State | Misuse::Answering => {
            message(403, "InvalidStateTransition", "Transition from the current state is not allowed")
        }
        Misuse::Overdue => message(410, "InvokeTimeout", "Invoke timeout"),
        Misuse::RequestId => message(400, "InvalidRequestID", "Invalid request ID"),
    }
}

fn unknown(path: &str) -> Answer {
    message(404, "UnknownPath", &format!("the Runtime API has no {}", shown(path)))
}

fn message(status: u16, kind: &str, text: &str) -> Answer {
    http::json(status, &json!({ "errorType": kind, "errorMessage": text }))
}
