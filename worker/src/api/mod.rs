//! The Lambda API: which call a request is, and the checks that come before any.

mod functions;
mod history;
mod invoke;
mod metrics;
mod page;
mod urls;

pub use urls::new as new_url;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{Method, Request};
use percent_encoding::percent_decode_str;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::error::ApiError;
use crate::events::Events;
use crate::http::{self, Answer, BodyError, BodyMemory};
use crate::sigv4::{self, Signed};
use crate::worker::Worker;
use crate::{limits, name};

/// Connections at once.
const CONNECTIONS: usize = 1024;
/// Memory of all bodies that are being received or handled.
const BODIES_BYTES: usize = 512 * 1024 * 1024;
/// What a body with a .zip in base64 may have.
const UPLOAD_BYTES: usize = limits::ZIP_BYTES / 3 * 4 + limits::CALL_BYTES;

/// What a call needs.
pub(crate) struct Api {
    pub worker: Arc<Worker>,
    pub events: Events,
    bodies: BodyMemory,
    address: SocketAddr,
}

/// Serves the API until the future is dropped. `ready` is called once connections are taken.
///
/// # Errors
/// The address cannot be listened on.
pub async fn serve(worker: Arc<Worker>, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let wanted = worker.options.address;
    let listener = TcpListener::bind(wanted)
        .await
        .with_context(|| format!("cannot listen on {wanted}: give another with --listen"))?;
    let address = listener.local_addr()?;
    let events = Events::new(worker.clone());
    let api = Arc::new(Api { worker, events, bodies: BodyMemory::new(BODIES_BYTES), address });
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    ready(address);
    loop {
        let place = places.clone().acquire_owned().await?;
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true); // answers are short and waited for
                let api = api.clone();
                tokio::spawn(async move {
                    http::serve(stream, |request| handle(api.clone(), request)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

async fn handle(api: Arc<Api>, request: Request<Incoming>) -> Answer {
    let id = uuid::Uuid::new_v4().to_string();
    let mut answer = match api.answer(request).await {
        Ok(answer) => answer,
        Err(error) => error_answer(&error),
    };
    let headers = answer.headers_mut();
    if !headers.contains_key("x-amzn-requestid") {
        headers.insert("x-amzn-requestid", HeaderValue::from_str(&id).expect("a UUID is a header"));
    }
    answer
}

fn error_answer(error: &ApiError) -> Answer {
    let mut answer = http::answer(error.status, "application/json", error.body());
    let headers = answer.headers_mut();
    headers.insert("x-amzn-errortype", HeaderValue::from_static(error.name));
    if error.status == 429 {
        headers.insert("retry-after", HeaderValue::from_static("1"));
    }
    answer
}

/// A call with its body.
pub(crate) struct Call {
    pub parts: Parts,
    pub body: Bytes,
}

impl Call {
    /// The value of a query parameter.
    pub fn query(&self, wanted: &str) -> Option<String> {
        let mut pairs =
            self.parts.uri.query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let (_, value) = pairs.find(|(name, _)| *name == wanted)?;
        Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
    }

    /// The body as JSON.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, ApiError> {
        let body: &[u8] = if self.body.is_empty() { b"{}" } else { &self.body };
        serde_json::from_slice(body).map_err(|error| {
            ApiError::invalid_content(format!("Could not parse request body into json: {error}"))
        })
    }
}

impl Api {
    async fn answer(&self, request: Request<Incoming>) -> Result<Answer, ApiError> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_string();
        let segments: Vec<String> = path
            .split('/')
            .skip(1)
            .map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned())
            .collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        match (&parts.method, &segments[..]) {
            (&Method::GET, ["healthz"]) => return Ok(http::answer(200, "text/plain", "ok\n")),
            (&Method::GET, [""]) => return Ok(page::page(self, parts.uri.query()).await),
            (&Method::GET, ["metrics"]) => return Ok(metrics::metrics(self)),
            (&Method::GET, ["history"]) => {
                return Ok(history::history(self, history::after(parts.uri.query())));
            }
            (&Method::GET, ["events"]) => {
                return Ok(history::events(self, history::after(parts.uri.query())));
            }
            (&Method::GET, ["instances"]) => return Ok(history::instances(self).await),
            _ => {}
        }
        let (_, segment) = (&segments, segments.first().copied());
        let is_url = segment == Some(urls::PREFIX);
        let limit = match &segments[..] {
            [_, "functions", _, "invocations"] | [urls::PREFIX, ..] => limits::PAYLOAD_BYTES,
            [_, "functions"] | [_, "functions", _, "code"] => UPLOAD_BYTES,
            _ => limits::CALL_BYTES,
        };
        if !is_url {
            refuse_browsers(&parts)?;
        }
        let (body, _memory) =
            self.bodies.read(body, limit).await.map_err(|error| body_error(&error, limit))?;
        let call = Call { parts, body };
        if is_url {
            return urls::call(self, &call, &segments[1..]).await;
        }
        if let Some(credentials) = &self.worker.options.credentials {
            let signed = Signed {
                method: call.parts.method.as_str(),
                path: call.parts.uri.path(),
                query: call.parts.uri.query().unwrap_or_default(),
                headers: &call.parts.headers,
                body: &call.body,
            };
            sigv4::check(&signed, credentials, SystemTime::now())?;
        }
        self.route(&call, &segments).await
    }

    async fn route(&self, call: &Call, segments: &[&str]) -> Result<Answer, ApiError> {
        let method = call.parts.method.as_str();
        let named = |text: &str| named(text, call);
        match (method, segments) {
            ("POST", ["2015-03-31", "functions", function, "invocations"]) => {
                invoke::invoke(self, call, &named(function)?).await
            }
            ("POST", ["2015-03-31", "functions"]) => functions::create(self, call),
            ("GET", ["2015-03-31", "functions" | ""]) | ("GET", ["2015-03-31", "functions", ""]) => {
                functions::list(self, call)
            }
            ("GET", ["2015-03-31", "functions", function]) => functions::get(self, &named(function)?),
            ("DELETE", ["2015-03-31", "functions", function]) => functions::delete(self, &named(function)?),
            ("GET", ["2015-03-31", "functions", function, "configuration"]) => {
                functions::get_configuration(self, &named(function)?)
            }
            ("PUT", ["2015-03-31", "functions", function, "configuration"]) => {
                functions::update_configuration(self, call, &named(function)?)
            }
            ("PUT", ["2015-03-31", "functions", function, "code"]) => {
                functions::update_code(self, call, &named(function)?)
            }
            ("PUT", ["2017-10-31", "functions", function, "concurrency"]) => {
                functions::put_concurrency(self, call, &named(function)?)
            }
            ("DELETE", ["2017-10-31", "functions", function, "concurrency"]) => {
                functions::delete_concurrency(self, &named(function)?)
            }
            ("GET", ["2019-09-30", "functions", function, "concurrency"]) => {
                functions::get_concurrency(self, &named(function)?)
            }
            ("POST", ["2021-10-31", "functions", function, "url"]) => {
                urls::create(self, call, &named(function)?)
            }
            ("GET", ["2021-10-31", "functions", function, "url"]) => urls::get(self, &named(function)?),
            ("PUT", ["2021-10-31", "functions", function, "url"]) => {
                urls::update(self, call, &named(function)?)
            }
            ("DELETE", ["2021-10-31", "functions", function, "url"]) => urls::delete(self, &named(function)?),
            ("GET", ["2021-10-31", "functions", function, "urls"]) => urls::list(self, &named(function)?),
            ("GET", ["2016-08-19", "account-settings" | "account-settings/"]) => functions::account(self),
            ("GET", ["2016-08-19", "account-settings", ""]) => functions::account(self),
            _ => {
                let shown: String = call.parts.uri.path().chars().take(120).collect();
                Err(ApiError::new(
                    404,
                    "UnknownOperationException",
                    format!("{method} {shown} is not supported here"),
                ))
            }
        }
    }

    /// Where clients reach the API.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The function that a path names, of the version that a query names.
fn named(text: &str, call: &Call) -> Result<String, ApiError> {
    let name = name::parse(text)?;
    match call.query("Qualifier") {
        Some(version) if version != "$LATEST" => Err(name::no_such_version(&name, &version)),
        _ => Ok(name),
    }
}

/// The API can run any code. A page in a browser on this machine must not reach it, so requests that a browser has
/// made for a page of another origin, or that call this machine by another name, are refused.
fn refuse_browsers(parts: &Parts) -> Result<(), ApiError> {
    let denied = |text: &str| Err(ApiError::new(403, "AccessDeniedException", text));
    if parts.headers.contains_key("origin") {
        return denied("requests of web pages are not allowed");
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
        BodyError::TooSlow => {
            ApiError::new(408, "RequestTimeoutException", "the body did not arrive in time")
        }
        BodyError::Broken => ApiError::invalid_content("the body is incomplete"),
        BodyError::NoRoom => {
            ApiError::throttled("CallerRateLimitExceeded", "too many large requests at once")
        }
    }
}
