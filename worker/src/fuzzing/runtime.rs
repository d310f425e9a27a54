//! The Runtime API as a hostile runtime calls it: an instance without a sandbox, whose scheduler hands it one
//! request after the other.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use worker_pool::{FunctionId, InstanceId, RequestId};
use worker_system::lock::lock;

use crate::base::error::ApiError;
use crate::code::Code;
use crate::code::lambda_layers::OptMount;
use crate::function::definition::Deployment;
use crate::function::settings::Settings;
use crate::http;
use crate::http::connections::Connections;
use crate::http::heads::Heads;
use crate::instance::{Instance, InstanceContext, Scheduler, runtime_api as api};
use crate::invocation::id::InvocationId;
use crate::invocation::logs::Logs;
use crate::invocation::request::{Invocation, Outcome, stream};
use crate::sandbox::history::History;
use crate::sandbox::interface::{Never, RUNTIME_HEADER_BYTES};

/// Which request an answer is for.
#[derive(Clone, Copy, Debug)]
pub enum Id {
    /// The one that was handed out last.
    Current,
    /// An earlier one.
    Earlier,
    /// None.
    Other,
}

/// What a runtime does.
#[allow(missing_docs, reason = "the variants say what their fields are")]
#[derive(Clone, Debug)]
pub enum Step<'a> {
    /// `GET invocation/next`.
    Next,
    /// `POST invocation/ID/response`, or `error`.
    Answer { id: Id, failed: bool, body: &'a [u8] },
    /// A streamed response in these chunks, with trailers.
    Stream { id: Id, kind: &'a str, chunks: Vec<&'a [u8]>, trailers: Vec<(&'a str, &'a str)> },
    /// A call of another path.
    Call { method: &'a str, path: &'a str, headers: Vec<(&'a str, &'a str)>, body: &'a [u8] },
    /// Bytes as they are.
    Bytes(&'a [u8]),
    /// Another connection from here on.
    Reconnect,
}

/// Hands out requests, and keeps what they came to.
#[derive(Default)]
struct Requests {
    instance: OnceLock<Weak<Instance>>,
    next: AtomicU64,
    outcomes: Mutex<Vec<(RequestId, Outcome)>>,
}

fn id_of(request: u64) -> InvocationId {
    InvocationId::parse(&format!("00000000-0000-4000-8000-{request:012}")).expect("it is a UUID")
}

impl Scheduler for Requests {
    fn ready(self: Arc<Self>, _: InstanceId) {
        let Some(instance) = self.instance.get().and_then(Weak::upgrade) else { return };
        let request = self.next.fetch_add(1, Ordering::Relaxed);
        let mut invocation = Invocation::new("arn".into(), Bytes::from_static(b"{}"), None, None);
        invocation.id = id_of(request);
        // The callers of every other one want the answer as it is made.
        if request % 2 == 1 {
            let connection = Arc::<Connections>::default().add([127, 0, 0, 1].into());
            let (stream, mut pieces) = stream(connection.client().clone());
            invocation.stream = Some(stream);
            tokio::spawn(async move {
                while pieces.recv().await.is_some() {}
                drop(connection);
            });
        }
        tokio::spawn(async move { instance.dispatch(RequestId(request), Arc::new(invocation)) });
    }

    fn answer(self: Arc<Self>, _: InstanceId, request: RequestId, outcome: Result<Outcome, ApiError>) {
        lock(&self.outcomes).extend(outcome.map(|outcome| (request, outcome)));
    }

    fn drain(self: Arc<Self>, _: InstanceId) {}
    fn replace_started(self: Arc<Self>, _: InstanceId) {}
    fn end(self: Arc<Self>, _: InstanceId) {}
    fn ended(self: Arc<Self>, _: InstanceId) {}
}

fn instance(requests: &Arc<Requests>, folder: &Path) -> Arc<Instance> {
    let wanted = serde_json::from_str(r#"{"Runtime": "provided.al2023", "Handler": "h"}"#);
    let settings = Settings::new(&wanted.expect("it is JSON")).expect("it is right");
    let deployment = Arc::new(Deployment {
        function: FunctionId(1),
        parent: FunctionId(1),
        tenant: None,
        name: "f".into(),
        version: "$LATEST".into(),
        settings,
        code: Code::from_folder(folder).expect("a folder"),
        opt: OptMount::default(),
        revision: String::new(),
        modified: SystemTime::UNIX_EPOCH,
    });
    let context = Arc::new(InstanceContext {
        maker: Arc::new(Never),
        count: Arc::default(),
        history: Arc::new(History::new(Instant::now())),
        logs: Arc::<Logs>::default(),
        zone: "z".into(),
        calls: OnceLock::new(),
    });
    let instance = Arc::new(Instance::new(InstanceId(1), deployment, requests.clone(), context));
    let _ = requests.instance.set(Arc::downgrade(&instance));
    instance
}

/// A connection to the Runtime API, until its client closes it.
fn connected(instance: &Arc<Instance>, heads: &Arc<Heads>) -> DuplexStream {
    let (client, server) = duplex(1 << 16);
    let (instance, heads) = (instance.clone(), heads.clone());
    tokio::spawn(async move {
        let handler = |request| api::handle(instance.clone(), request);
        http::serve_instance(server, RUNTIME_HEADER_BYTES, &heads, handler).await;
    });
    client
}

impl Step<'_> {
    fn bytes(&self, current: u64) -> Vec<u8> {
        let path = |id: &Id, what: &str| {
            let id = match id {
                Id::Current => id_of(current).to_string(),
                Id::Earlier => id_of(current.saturating_sub(1)).to_string(),
                Id::Other => "none".into(),
            };
            format!("/2018-06-01/runtime/invocation/{id}/{what}")
        };
        let whole = |method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]| {
            let headers: String =
                headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let head = format!(
                "{method} {path} HTTP/1.1\r\nhost: h\r\n{headers}content-length: {}\r\n\r\n",
                body.len()
            );
            [head.as_bytes(), body].concat()
        };
        match self {
            Step::Next => whole("GET", "/2018-06-01/runtime/invocation/next", &[], b""),
            Step::Answer { id, failed, body } => {
                whole("POST", &path(id, if *failed { "error" } else { "response" }), &[], body)
            }
            Step::Stream { id, kind, chunks, trailers } => {
                let mut bytes = format!(
                    "POST {} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\ncontent-type: {kind}\r\n\
                     lambda-runtime-function-response-mode: streaming\r\n\r\n",
                    path(id, "response")
                )
                .into_bytes();
                for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
                    bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend(b"\r\n");
                }
                bytes.extend(b"0\r\n");
                for (name, value) in trailers {
                    bytes.extend(format!("{name}: {value}\r\n").bytes());
                }
                bytes.extend(b"\r\n");
                bytes
            }
            Step::Call { method, path, headers, body } => whole(method, path, headers, body),
            Step::Bytes(bytes) => bytes.to_vec(),
            Step::Reconnect => Vec::new(),
        }
    }
}

/// How long a runtime waits for an answer; time is the test's own.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// What the API answers, until it has nothing more to say.
async fn heard(client: &mut DuplexStream) -> String {
    let mut answer = Vec::new();
    loop {
        let mut part = [0; 4096];
        match tokio::time::timeout(PATIENCE, client.read(&mut part)).await {
            Ok(Ok(read @ 1..)) => answer.extend_from_slice(&part[..read]),
            _ => return String::from_utf8_lossy(&answer).into_owned(),
        }
    }
}

/// Takes these steps. Returns the bodies of all answers that the worker took for the instance's requests.
/// `folder` is any folder.
///
/// # Panics
/// The worker takes an answer twice, or one that was not given.
pub async fn runtime_api(steps: &[Step<'_>], folder: &Path) -> Vec<Bytes> {
    let requests = Arc::<Requests>::default();
    let instance = instance(&requests, folder);
    let heads = Arc::new(Heads::new(Arc::default()));
    let mut client = connected(&instance, &heads);
    // Whether all that was sent on this connection were whole requests.
    let mut is_in_step = true;
    for step in steps {
        match step {
            Step::Reconnect => {
                client = connected(&instance, &heads);
                is_in_step = true;
                continue;
            }
            Step::Bytes(_) => is_in_step = false,
            Step::Call { headers, .. } => is_in_step &= headers.is_empty(),
            _ => {}
        }
        let current = requests.next.load(Ordering::Relaxed).saturating_sub(1);
        let before = lock(&requests.outcomes).len();
        let bytes = step.bytes(current);
        let sent = tokio::time::timeout(PATIENCE, client.write_all(&bytes)).await;
        let answer = heard(&mut client).await;
        if let (Step::Answer { id: Id::Current, body, failed: false }, Ok(Ok(()))) = (step, sent)
            && is_in_step
            && answer.starts_with("HTTP/1.1 202")
            && answer.matches("HTTP/1.1").count() == 1
        {
            let outcomes = lock(&requests.outcomes);
            let taken = outcomes[before..].iter().any(|(_, outcome)| outcome.payload == *body);
            assert!(taken, "an answer was accepted and not taken");
        }
    }
    let outcomes = lock(&requests.outcomes);
    let mut answered: Vec<RequestId> = outcomes.iter().map(|(request, _)| *request).collect();
    answered.dedup();
    assert_eq!(answered.len(), outcomes.len(), "a request was answered twice");
    outcomes.iter().map(|(_, outcome)| outcome.payload.clone()).collect()
}
