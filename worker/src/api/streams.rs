//! Answers that reach their caller while the function makes them: `InvokeWithResponseStream`, and function
//! URLs whose `InvokeMode` is `RESPONSE_STREAM`.
//!
//! The call's answer is a sequence of messages in AWS' event stream encoding
//! (`application/vnd.amazon.eventstream`): lengths and a checksum, headers, a payload, a checksum. A URL's
//! is plain HTTP; the function may begin it with status and headers in JSON, which eight zero bytes end.

use std::io;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Api, Call, invoke};
use crate::base::error::ApiError;
use crate::base::name::Target;
use crate::control::Worker;
use crate::gateway::answer as url_answer;
use crate::http::connections::Client;
use crate::http::{self, Answer, header};
use crate::invocation::request::{Invocation, Outcome, Piece, stream};

/// The content type of an answer to a URL that begins with its status and headers.
const INTEGRATION: &str = "application/vnd.awslambda.http-integration-response";
/// The bytes that end status and headers.
const END: [u8; 8] = [0; 8];
/// The most bytes of status and headers.
const PRELUDE_BYTES: usize = 64 * 1024;

/// The rest of a function's answer, which still arrives.
struct Coming {
    pieces: mpsc::Receiver<Piece>,
    outcome: tokio::task::JoinHandle<Result<Outcome, ApiError>>,
    done: Option<Outcome>,
}

/// The next part of an answer, or its end.
enum Next {
    Piece(Piece),
    Done(Outcome),
}

impl Drop for Coming {
    /// Its caller has disconnected, or has all: a request that still waits for an instance is cancelled.
    fn drop(&mut self) {
        self.outcome.abort();
    }
}

impl Coming {
    /// Runs the function. Its stream comes first, then its result.
    fn begin(worker: &Arc<Worker>, client: &Client, target: Target, mut invocation: Invocation) -> Coming {
        let (stream, pieces) = stream(client.clone());
        invocation.stream = Some(stream);
        let worker = worker.clone();
        let outcome = tokio::spawn(async move { worker.invoke(&target, invocation).await });
        Coming { pieces, outcome, done: None }
    }

    async fn next(&mut self) -> Result<Next, ApiError> {
        if self.done.is_none() {
            tokio::select! {
                biased;
                Some(piece) = self.pieces.recv() => return Ok(Next::Piece(piece)),
                outcome = &mut self.outcome => {
                    let outcome = outcome.map_err(|_| ApiError::service("the request was lost"))?;
                    self.done = Some(outcome?);
                }
            }
        }
        // All of it was sent before the runtime reported that it was done.
        match (self.pieces.try_recv(), self.done.take()) {
            (Ok(piece), done) => {
                self.done = done;
                Ok(Next::Piece(piece))
            }
            (Err(_), Some(outcome)) => Ok(Next::Done(outcome)),
            (Err(_), None) => Err(ApiError::service("the answer has ended")),
        }
    }
}

/// One message: its headers are texts.
fn message(headers: &[(&str, &str)], payload: &[u8]) -> Bytes {
    const TEXT: u8 = 7;
    const BESIDE: usize = 16;
    let mut encoded = BytesMut::new();
    for (name, value) in headers {
        encoded.put_u8(name.len() as u8);
        encoded.put_slice(name.as_bytes());
        encoded.put_u8(TEXT);
        encoded.put_u16(value.len() as u16);
        encoded.put_slice(value.as_bytes());
    }
    let mut message = BytesMut::new();
    message.put_u32((BESIDE + encoded.len() + payload.len()) as u32);
    message.put_u32(encoded.len() as u32);
    message.put_u32(crc32fast::hash(&message));
    message.put_slice(&encoded);
    message.put_slice(payload);
    message.put_u32(crc32fast::hash(&message));
    message.freeze()
}

fn event(kind: &str, content_type: &str, payload: &[u8]) -> Bytes {
    message(&[(":message-type", "event"), (":event-type", kind), (":content-type", content_type)], payload)
}

fn chunk(payload: &[u8]) -> Bytes {
    event("PayloadChunk", "application/octet-stream", payload)
}

/// The last message: the error, if there is one, and the end of the log, if the caller wants it.
fn complete(outcome: &Outcome, tail: bool) -> Bytes {
    let mut complete = json!({});
    if outcome.failed {
        let error: Value = serde_json::from_slice(&outcome.payload).unwrap_or_default();
        complete["ErrorCode"] = error["errorType"].as_str().unwrap_or("Runtime.Unknown").into();
        complete["ErrorDetails"] = String::from_utf8_lossy(&outcome.payload).into();
    }
    if tail {
        complete["LogResult"] = BASE64.encode(&outcome.log_tail).into();
    }
    event("InvokeComplete", "application/json", complete.to_string().as_bytes())
}

/// `InvokeWithResponseStream`.
pub async fn call(api: &Api, call: &Call, target: &Target) -> Result<Answer, ApiError> {
    let headers = &call.parts.headers;
    match header(headers, "x-amz-invocation-type").unwrap_or("RequestResponse") {
        "RequestResponse" => {}
        "DryRun" => {
            invoke::invocation(call, target, &*api.worker.target(target)?)?;
            return Ok(http::empty(204));
        }
        _ => return Err(ApiError::invalid_parameter("InvocationType must be RequestResponse or DryRun")),
    }
    let tail = header(headers, "x-amz-log-type") == Some("Tail");
    let deployment = api.worker.target(target)?;
    let version = deployment.version.clone();
    let invocation = invoke::invocation(call, target, &deployment)?;
    let id = invocation.id;
    let mut coming = Coming::begin(&api.worker, &call.client, target.clone(), invocation);
    let mut next = coming.next().await?;
    let (messages, answer) = mpsc::channel(1);
    let client = call.client.clone();
    tokio::spawn(async move {
        let mut streamed = false;
        loop {
            let (part, is_last) = match next {
                Next::Piece(Piece::Kind(_)) => (client.part(Bytes::new()), false),
                Next::Piece(Piece::Data(data)) => (data.map(|data| chunk(&data)), false),
                Next::Done(outcome) => {
                    let mut part = BytesMut::new();
                    // A function that streams nothing sends its whole answer here.
                    if !streamed && !outcome.failed {
                        part.put_slice(&chunk(&outcome.payload));
                    }
                    part.put_slice(&complete(&outcome, tail));
                    (client.part(part), true)
                }
            };
            streamed = true;
            if (part.has_remaining() && messages.send(Ok(part)).await.is_err()) || is_last {
                return;
            }
            next = match coming.next().await {
                Ok(next) => next,
                Err(error) => {
                    let _ = messages.send(Err(io::Error::other(error.message))).await;
                    return;
                }
            };
        }
    });
    let mut answer = http::in_parts(200, answer);
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/vnd.amazon.eventstream"));
    headers.insert("x-amzn-requestid", id.header());
    let version = HeaderValue::from_str(&version).expect("a version is a header");
    headers.insert("x-amz-executed-version", version);
    Ok(answer)
}

/// Answers a request to a function's URL with the function's stream, or with its whole answer if it does
/// not stream.
pub async fn url(api: &Api, call: &Call, target: Target, invocation: Invocation) -> Result<Answer, ApiError> {
    let mut coming = Coming::begin(&api.worker, &call.client, target, invocation);
    let kind = match coming.next().await? {
        Next::Done(outcome) => return Ok(url_answer::whole(&outcome)),
        Next::Piece(Piece::Kind(kind)) => kind,
        Next::Piece(Piece::Data(_)) => return Err(ApiError::service("the answer has no beginning")),
    };
    let mut begun = BytesMut::new();
    let prelude = if kind == INTEGRATION {
        let mut searched = 0;
        loop {
            if let Some(prelude) = take_prelude(&mut begun, &mut searched) {
                break Some(prelude);
            }
            match coming.next().await? {
                Next::Piece(Piece::Data(data))
                    if begun.len() + data.remaining() <= PRELUDE_BYTES.max(data.remaining()) =>
                {
                    begun.put(data);
                }
                _ => return Ok(url_answer::broken()),
            }
        }
    } else {
        None
    };
    let (parts, body) = mpsc::channel(1);
    let client = call.client.clone();
    let mut answer = http::in_parts(200, body);
    match prelude {
        None => {
            let kind =
                HeaderValue::from_str(&kind).unwrap_or(HeaderValue::from_static("application/octet-stream"));
            answer.headers_mut().insert(CONTENT_TYPE, kind);
        }
        Some(prelude) => {
            let described = serde_json::from_slice::<Value>(&prelude).ok();
            let Some(described) = described.as_ref().and_then(Value::as_object) else {
                return Ok(url_answer::broken());
            };
            if url_answer::describe_answer(&mut answer, described).is_err() {
                return Ok(url_answer::broken());
            }
        }
    }
    tokio::spawn(async move {
        let mut part = client.part(begun);
        loop {
            if part.has_remaining() && parts.send(Ok(part)).await.is_err() {
                return;
            }
            part = match coming.next().await {
                Ok(Next::Piece(Piece::Data(data))) => data,
                Ok(Next::Piece(Piece::Kind(_))) => client.part(Bytes::new()),
                Ok(Next::Done(outcome)) if !outcome.failed => return,
                // The only way left to report it is to break the connection off.
                _ => {
                    let _ = parts.send(Err(io::Error::other("the function failed"))).await;
                    return;
                }
            };
        }
    });
    Ok(answer)
}

/// Status and headers, if all of them are there; what follows stays. The bytes before `searched` are not
/// searched again: a function may send each byte alone.
fn take_prelude(begun: &mut BytesMut, searched: &mut usize) -> Option<Bytes> {
    let found = begun[*searched..].windows(END.len()).position(|window| window == END);
    let Some(at) = found else {
        *searched = (begun.len() + 1).saturating_sub(END.len());
        return None;
    };
    let prelude = begun.split_to(*searched + at);
    let _ = begun.split_to(END.len());
    Some(prelude.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::connections::Connections;

    #[test]
    fn a_prelude_is_found_however_it_is_divided() {
        let whole = b"{\"a\": 1}\0\0\0\0\0\0\0\0body\0\0\0\0\0\0\0\0";
        for size in 1..=whole.len() {
            let (mut begun, mut searched, mut prelude) = (BytesMut::new(), 0, None);
            for part in whole.chunks(size) {
                begun.put_slice(part);
                prelude = prelude.or_else(|| take_prelude(&mut begun, &mut searched));
            }
            assert_eq!(prelude.as_deref(), Some(&b"{\"a\": 1}"[..]), "{size}");
            assert_eq!(begun, whole[16..], "{size}");
        }
        let (mut begun, mut searched) = (BytesMut::from(&[0; 7][..]), 0);
        assert_eq!((take_prelude(&mut begun, &mut searched), searched), (None, 0));
    }

    #[tokio::test]
    async fn a_request_that_waits_is_taken_back_when_its_caller_goes_away() {
        let folder = tempfile::tempdir().unwrap();
        let worker = Worker::of_tests(folder.path());
        let target = crate::base::name::parse("f").unwrap();
        let invocation = Invocation::new(String::new(), Bytes::new(), None, None);
        let connection = Arc::<Connections>::default().add([127, 0, 0, 1].into());
        let coming = Coming::begin(&worker, connection.client(), target, invocation);
        let until = async |queued| {
            while worker.counts().queued != queued {
                tokio::task::yield_now().await;
            }
        };
        until(1).await;
        drop(coming);
        tokio::time::timeout(std::time::Duration::from_secs(10), until(0)).await.expect("it is taken back");
    }

    #[test]
    fn messages_are_encoded_as_aws_has_it() {
        let encoded = message(&[(":a", "bc")], b"xyz");
        let lengths = [0, 0, 0, 16 + 8 + 3, 0, 0, 0, 8];
        assert_eq!(encoded[..8], lengths);
        assert_eq!(encoded[8..12], crc32fast::hash(&lengths).to_be_bytes());
        assert_eq!(&encoded[12..20], b"\x02:a\x07\x00\x02bc");
        assert_eq!(&encoded[20..23], b"xyz");
        assert_eq!(encoded[23..], crc32fast::hash(&encoded[..23]).to_be_bytes());
    }
}
