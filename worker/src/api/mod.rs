//! The Lambda API: finds the call that a request makes, after the checks that precede any call.

mod absent;
mod call;
mod configuration;
mod endpoint;
mod event_configs;
mod forward;
mod from_functions;
mod functions;
mod history;
mod http_apis;
mod invoke;
mod layer_policies;
mod layers;
mod list;
mod logs;
mod mappings;
mod metrics;
mod operations;
mod page;
mod paging;
mod persist_change;
mod policies;
mod route;
mod status;
mod streams;
mod tags;
mod urls;
mod versions;

use call::{Call, large_or_not, query, signed};
use endpoint::{Endpoint, Of};
use operations::{Named, Operation};
use status::error_answer;
pub use urls::{id_of_key, new as new_url};

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Method, Request};
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::base::error::{ApiError, ErrorKind};
use crate::base::limits;
use crate::base::name::Target;
use crate::control::Worker;
use crate::events::async_invokes::Events;
use crate::http::connections::{Connection, Connections};
use crate::http::sigv4;
use crate::http::{self, Answer, BodyError, BodyMemory};
use crate::invocation::id::InvocationId;
use crate::state::handover::Accepting;
use worker_system::text::shown;

/// Memory of all bodies that are being received or handled, uploads of code apart.
const BODIES_BYTES: usize = 256 * 1024 * 1024;
/// The same for uploads, apart, so that any number of them leaves calls of functions undisturbed.
const UPLOADS_BYTES: usize = 256 * 1024 * 1024;
/// Uploads that are unpacked or hashed at once, on threads of their own.
const UNPACKED_AT_ONCE: usize = 2;
/// The service that requests must be signed for.
pub(crate) const SERVICE: &str = "lambda";
/// The most bytes of a body with a .zip in base64.
const UPLOAD_BYTES: usize = limits::ZIP_BYTES / 3 * 4 + limits::CALL_BYTES;

/// State that all calls share.
pub(crate) struct Api {
    pub worker: Arc<Worker>,
    pub events: Events,
    bodies: BodyMemory,
    uploads: BodyMemory,
    /// Calls that functions make, and their answers.
    from_functions: from_functions::Calls,
    unpacking: Arc<Semaphore>,
    /// Held while a change is made and persisted.
    changing: Arc<tokio::sync::Mutex<()>>,
    address: SocketAddr,
}

/// Serves the API until the future is dropped, or until all is done after another worker has taken over.
/// `ready` is called once connections are accepted.
///
/// # Errors
/// The socket does not listen.
pub(crate) async fn serve(
    worker: Arc<Worker>,
    listener: TcpListener,
    events: Events,
    connections: Arc<Connections>,
    ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    let address = listener.local_addr()?;
    let mut accepting = worker.accepting.subscribe();
    let api = Arc::new(Api {
        worker,
        events,
        bodies: BodyMemory::new(BODIES_BYTES),
        uploads: BodyMemory::new(UPLOADS_BYTES),
        from_functions: from_functions::Calls::default(),
        unpacking: Arc::new(Semaphore::new(UNPACKED_AT_ONCE)),
        changing: Arc::default(),
        address,
    });
    api.worker.answer_functions(from_functions::handler(&api));
    ready(address);
    loop {
        connections.has_place().await;
        let accepted = tokio::select! {
            accepted = listener.accept(), if *accepting.borrow() == Accepting::Yes => accepted,
            _ = accepting.changed() => continue,
            () = std::future::ready(()), if *accepting.borrow() == Accepting::NoMore => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true); // answers are short and waited for
                let _ = http::close_untaken(&stream, http::UNTAKEN);
                let (api, connection) = (api.clone(), connections.add(peer.ip()));
                tokio::spawn(async move {
                    tokio::select! {
                        () = http::serve(stream, http::HEADER_BYTES, |request| handle(api.clone(), &connection, request)) => {}
                        () = connection.closed() => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                connections.give_way();
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    connections.none_left().await;
    api.events.none_left().await;
    Ok(())
}

async fn handle(api: Arc<Api>, connection: &Connection, request: Request<Incoming>) -> Answer {
    // The parser drops a length beside it (RFC 9112 §6.1), which a proxy in front may have believed: nothing
    // that follows on this connection is read as a request.
    let is_chunked = request.headers().contains_key(TRANSFER_ENCODING);
    let mut answer = match api.answer(connection, request).await {
        Ok(answer) => answer,
        Err(error) => error_answer(&error),
    };
    // A streamed answer has not arrived yet. A connection that ends with its answer waits for no request.
    let ends = api.worker.is_draining();
    if answer.body_mut().counted(connection.client()) && !ends {
        connection.waits();
    }
    let headers = answer.headers_mut();
    // A client that keeps its connection would send the next request here, too.
    if is_chunked || api.is_over() || ends {
        headers.insert("connection", HeaderValue::from_static("close"));
    }
    if !headers.contains_key("x-amzn-requestid") {
        headers.insert("x-amzn-requestid", InvocationId::random().header());
    }
    answer
}

impl Api {
    async fn answer(&self, connection: &Connection, request: Request<Incoming>) -> Result<Answer, ApiError> {
        let (parts, body) = request.into_parts();
        if self.is_over() {
            let (body, _memory) = self
                .uploads
                .read(body, UPLOAD_BYTES)
                .await
                .map_err(|error| body_error(&error, UPLOAD_BYTES))?;
            connection.works();
            return forward::forward(self, Call { parts, body, client: connection.client().clone() }).await;
        }
        let endpoint = Endpoint::of(&parts);
        if let Some(endpoint) = endpoint.as_ref().filter(|endpoint| endpoint.of == Of::Api) {
            return http_apis::answer(self, connection, endpoint, parts, body).await;
        }
        let segments = segments(parts.uri.path());
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let is_url = endpoint.is_some();
        if !is_url {
            refuse_browsers(&parts, self.worker.options.credentials.is_some())?;
        }
        if let (false, &Method::GET, [view]) = (is_url, &parts.method, &segments[..])
            && let Some(answer) = self.view(connection, &parts, view).await
        {
            return answer;
        }
        // Whatever can be refused without the body is refused before it is read.
        let credentials = self.worker.options.credentials.as_ref().filter(|_| !is_url);
        let logs =
            http::header(&parts.headers, "x-amz-target").and_then(|target| target.strip_prefix(logs::TARGET));
        let logs = logs.filter(|_| parts.method == Method::POST && segments[..] == [""]).map(str::to_string);
        let service = if logs.is_some() { logs::SERVICE } else { SERVICE };
        if let Some(known) = credentials {
            sigv4::claim(&parts.headers, known, service, SystemTime::now())?;
        }
        if let Some(endpoint) = &endpoint {
            return urls::answer(self, connection, endpoint, parts, body).await;
        }
        let named = Named::of(&parts.method, &segments, parts.uri.query());
        let (limit, memory) = match named {
            Some(Named { operation, .. }) if operation.has_code() => (UPLOAD_BYTES, &self.uploads),
            Some(Named { operation, values: [name, ..] }) if operation.is_invocation() => {
                self.worker.target(&Target::new(name, query(parts.uri.query(), "Qualifier").next())?)?;
                (limits::PAYLOAD_BYTES, &self.bodies)
            }
            _ => (limits::CALL_BYTES, &self.bodies),
        };
        let (body, _memory) = memory.read(body, limit).await.map_err(|error| body_error(&error, limit))?;
        connection.works();
        let call = Call { parts, body, client: connection.client().clone() };
        // A change of persistent state: a successor receives the state only when it is done.
        let handed_over = self.worker.handed_over.read();
        let handed_over = if changes_state(&call, named) { Some(handed_over.await) } else { None };
        // A successor may also have started to serve while the body arrived.
        if handed_over.as_deref().is_some_and(Option::is_some) || self.is_over() {
            drop(handed_over);
            return forward::forward(self, call).await;
        }
        if let Some(known) = credentials {
            let claim = sigv4::claim(&call.parts.headers, known, service, SystemTime::now())?;
            large_or_not(&call.body, || claim.verify(&call.signed(), known))?;
        }
        match (logs, named) {
            (Some(operation), _) => Ok(logs::answer(self, &call, &operation)),
            (None, Some(named)) => persist_change::route(self, &call, named).await,
            (None, None) => Err(unknown_operation(&call)),
        }
    }

    /// The worker's own pages; `None` if it is none of them.
    async fn view(
        &self,
        connection: &Connection,
        parts: &Parts,
        name: &str,
    ) -> Option<Result<Answer, ApiError>> {
        if name == "healthz" {
            // A load balancer sends the next requests elsewhere.
            let ends = self.worker.is_draining() || self.worker.is_closing();
            let (status, text) = if ends { (503, "the worker is being stopped\n") } else { (200, "ok\n") };
            return Some(Ok(http::answer(status, "text/plain", text)));
        }
        if !matches!(name, "" | "metrics" | "history" | "events" | "instances" | "log") {
            return None;
        }
        if let Err(error) = self.may_look(parts) {
            return Some(Err(error));
        }
        connection.works();
        let query = parts.uri.query();
        Some(Ok(match name {
            "" => page::page(self, query).await,
            "metrics" => metrics::metrics(self),
            "history" => history::history(self, history::after(query)),
            "events" => history::events(self, history::after(query)),
            "log" => logs::text(self, query),
            _ => history::instances(self).await,
        }))
    }

    /// Where requests must be signed, looking needs the same key: by a signature, or by HTTP's Basic
    /// scheme, which browsers and Prometheus have.
    fn may_look(&self, parts: &Parts) -> Result<(), ApiError> {
        let Some(known) = &self.worker.options.credentials else { return Ok(()) };
        let basic =
            http::header(&parts.headers, "authorization").and_then(|text| text.strip_prefix("Basic "));
        if let Some(given) = basic.and_then(|text| BASE64.decode(text).ok()) {
            let wanted = format!("{}:{}", known.access_key_id, known.secret_access_key);
            // Compares digests, whose timing reveals nothing of the secrets.
            if Sha256::digest(given) == Sha256::digest(wanted) {
                return Ok(());
            }
        }
        let claim = sigv4::claim(&parts.headers, known, SERVICE, SystemTime::now());
        let empty = Bytes::new();
        claim.and_then(|claim| claim.verify(&signed(parts, &empty), known)).map_err(|error| {
            ErrorKind::Unauthenticated.with(format!("{} (or: the same key by Basic)", error.message))
        })
    }

    /// Whether another worker serves now. Then this one forwards requests that still arrive on its
    /// connections.
    fn is_over(&self) -> bool {
        *self.worker.accepting.borrow() == Accepting::NoMore
    }

    /// Where clients reach the API.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The parts of a path, decoded.
fn segments(path: &str) -> Vec<String> {
    let parts = path.split('/').skip(1);
    parts.map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned()).collect()
}

/// Whether a call may change persistent state. One that only waits for a function does not, and may take
/// long.
fn changes_state(call: &Call, named: Option<Named<'_>>) -> bool {
    match named.map(|named| named.operation) {
        Some(Operation::InvokeWithResponseStream) => false,
        Some(Operation::Invoke) => {
            http::header(&call.parts.headers, "x-amz-invocation-type") == Some("Event")
        }
        _ => call.parts.method != Method::GET,
    }
}

fn unknown_operation(call: &Call) -> ApiError {
    let (method, path) = (&call.parts.method, shown(call.parts.uri.path()));
    ErrorKind::UnknownOperation.with(format!("{method} {path} is not supported here"))
}

/// The API can run any code. A page in a browser on this machine must not reach it, so requests that a
/// browser has made for a page of another origin, or that call this machine by another name, are refused.
/// Where requests are signed, a page that has bound a name to this machine could sign none, and the clients
/// of a proxy call it by its name, which they sign.
fn refuse_browsers(parts: &Parts, are_signed: bool) -> Result<(), ApiError> {
    let denied = |text: &str| Err(ErrorKind::AccessDenied.with(text));
    if parts.headers.contains_key("origin") {
        return denied("requests of web pages are not allowed");
    }
    if are_signed {
        return Ok(());
    }
    let host = http::header(&parts.headers, "host").unwrap_or_default();
    let host =
        host.rsplit_once(':').map_or(host, |(name, port)| if port.contains(']') { host } else { name });
    let is_address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    if is_address || host == "localhost" || host.ends_with(".localhost") || host.is_empty() {
        return Ok(());
    }
    denied("call this worker by its address or as localhost")
}

fn body_error(error: &BodyError, limit: usize) -> ApiError {
    match error {
        BodyError::TooLong => ApiError::too_large(format!("Request must be smaller than {limit} bytes")),
        BodyError::TooSlow => ErrorKind::RequestTimeout.with("the body did not arrive in time"),
        BodyError::Broken => ApiError::invalid_content("the body is incomplete"),
        BodyError::NoRoom => {
            ApiError::throttled("CallerRateLimitExceeded", "too many large requests at once")
        }
    }
}
