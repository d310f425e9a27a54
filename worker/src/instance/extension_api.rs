//! Lambda's Extensions API, as an extension inside an instance sees it on AWS_LAMBDA_RUNTIME_API.
//!
//! `POST /2020-01-01/extension/register`, `GET .../event/next`, `POST .../init/error`, `.../exit/error`.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request};
use serde::Deserialize;
use serde_json::json;

use crate::base::name;
use crate::http::{self, Answer};
use crate::instance::{ExtensionId, Instance, Refused, Subscription, SubscriptionError, Wishes};

/// Where its paths begin.
pub(crate) const ROOT: &str = "/2020-01-01/extension/";
const NAME: &str = "lambda-extension-name";
const ID: &str = "lambda-extension-identifier";
const ERROR: &str = "lambda-extension-function-error-type";
const EVENT: &str = "lambda-extension-event-identifier";
const NAME_BYTES: usize = 128;
const REGISTRATION_BYTES: usize = 4096;
const ERROR_BYTES: usize = 256 * 1024;

/// Answers one request of an extension; `below` is its path below [`ROOT`].
pub(crate) async fn handle(instance: Arc<Instance>, below: &str, request: Request<Incoming>) -> Answer {
    let needs_id = matches!(below, "event/next" | "init/error" | "exit/error");
    let id = match identifier(&request) {
        Err((kind, reason)) if needs_id => return message(403, kind, reason),
        id => id.ok(),
    };
    match (request.method(), below, id) {
        (&Method::POST, "register", _) => register(&instance, request).await,
        (&Method::GET, "event/next", Some(id)) => next(&instance, id).await,
        (&Method::POST, "init/error", Some(id)) => {
            failed(&instance, id, request, "Extension.InitError").await
        }
        (&Method::POST, "exit/error", Some(id)) => {
            failed(&instance, id, request, "Extension.ExitError").await
        }
        _ => message(404, "UnknownPath", "the Extensions API has no such path"),
    }
}

/// The extension that makes the request, or the kind and the reason of the refusal of one that does not name
/// itself by a UUID.
fn identifier(request: &Request<Incoming>) -> Result<ExtensionId, (&'static str, &'static str)> {
    let missing = ("Extension.MissingExtensionIdentifier", "the header names no extension");
    let invalid = ("Extension.InvalidExtensionIdentifier", "the identifier is no UUID");
    ExtensionId::parse(http::header(request.headers(), ID).ok_or(missing)?).ok_or(invalid)
}

/// Answers a request to the Telemetry API, or to the Logs API, its predecessor, if the path is of one.
pub(crate) async fn subscribe(
    instance: &Instance,
    request: Request<Incoming>,
) -> Result<Answer, Request<Incoming>> {
    match (request.method(), request.uri().path().trim_end_matches('/')) {
        (&Method::PUT, "/2022-07-01/telemetry") => Ok(telemetry(instance, request).await),
        (&Method::PUT, "/2020-08-15/logs") => Ok(not_supported(instance, request, "Logs").await),
        _ => Err(request),
    }
}

async fn telemetry(instance: &Instance, request: Request<Incoming>) -> Answer {
    let id = match identifier(&request) {
        Ok(id) => id,
        Err((kind, reason)) => return message(403, kind, reason),
    };
    let name = match instance.extension(id) {
        Ok(name) => name,
        Err(wrong) => return refused(&wrong),
    };
    let body = http::read_alone(request.into_body(), REGISTRATION_BYTES).await.unwrap_or_default();
    let wanted = match Subscription::parse(&body) {
        Ok(wanted) => wanted,
        Err(wrong) => return message(400, "ValidationError", &wrong),
    };
    match instance.subscribe(&name, wanted) {
        Ok(()) => http::json(200, &json!("OK")),
        Err(SubscriptionError::NotSupported) => unavailable(instance, "Telemetry"),
        Err(SubscriptionError::Closed) => {
            message(403, "Telemetry.SubscriptionClosed", "extensions subscribe while the instance starts")
        }
    }
}

async fn not_supported(instance: &Instance, request: Request<Incoming>, kind: &str) -> Answer {
    let _ = http::read_alone(request.into_body(), REGISTRATION_BYTES).await;
    unavailable(instance, kind)
}

/// An extension that subscribes receives this API's NotSupported error, as from the emulator that AWS
/// publishes, and goes on without it.
fn unavailable(instance: &Instance, kind: &str) -> Answer {
    tracing::warn!("{}: an extension asks for the {kind} API, which is not supported", instance.label());
    message(202, &format!("{kind}.NotSupported"), &format!("{kind} API is not supported"))
}

#[derive(Deserialize)]
struct Registration {
    #[serde(default)]
    events: Vec<String>,
}

async fn register(instance: &Instance, request: Request<Incoming>) -> Answer {
    let fits = |name: &&str| (1..=NAME_BYTES).contains(&name.len());
    let Some(name) = http::header(request.headers(), NAME).filter(fits).map(String::from) else {
        return message(403, "Extension.InvalidExtensionName", "the header Lambda-Extension-Name is needed");
    };
    let body = http::read_alone(request.into_body(), REGISTRATION_BYTES).await.unwrap_or_default();
    let Ok(registration) = serde_json::from_slice::<Registration>(&body) else {
        return message(403, "InvalidRequestFormat", "the body should be {\"events\": [...]}");
    };
    let mut wishes = Wishes::default();
    for event in &registration.events {
        match event.as_str() {
            "INVOKE" => wishes.invoke = true,
            "SHUTDOWN" => wishes.shutdown = true,
            _ => return message(403, "Extension.InvalidEventType", "events are INVOKE and SHUTDOWN"),
        }
    }
    let id = match instance.register_extension(&name, wishes) {
        Ok(id) => id,
        Err(wrong) => return refused(&wrong),
    };
    let deployment = &instance.deployment;
    let registered = json!({
        "functionName": deployment.name,
        "functionVersion": deployment.version,
        "handler": deployment.settings.handler,
        "accountId": name::ACCOUNT,
    });
    with_header(http::json(200, &registered), ID, &id.to_string())
}

async fn next(instance: &Instance, id: ExtensionId) -> Answer {
    let next = match instance.next_for_extension(id) {
        Ok(next) => next,
        Err(wrong) => return refused(&wrong),
    };
    match next.await {
        Ok(event) => with_header(http::json(200, &event), EVENT, &uuid::Uuid::new_v4().to_string()),
        // The extension asks on another connection, or the instance is being ended.
        Err(_) => std::future::pending().await,
    }
}

async fn failed(instance: &Instance, id: ExtensionId, request: Request<Incoming>, kind: &str) -> Answer {
    let name = match instance.extension(id) {
        Ok(name) => name,
        Err(wrong) => return refused(&wrong),
    };
    let Some(error) = http::header(request.headers(), ERROR).map(String::from) else {
        return message(
            403,
            "Extension.MissingHeader",
            "the header Lambda-Extension-Function-Error-Type is needed",
        );
    };
    // The body is in its own format, and in the log.
    let _ = http::read_alone(request.into_body(), ERROR_BYTES).await;
    let error: String = error.chars().take(NAME_BYTES).collect();
    instance.extension_failed(kind, &format!("Error: {name}: {error}"));
    http::json(202, &json!({ "status": "OK" }))
}

fn with_header(mut answer: Answer, name: &'static str, id: &str) -> Answer {
    answer.headers_mut().insert(name, HeaderValue::from_str(id).expect("a UUID is a header"));
    answer
}

fn refused(wrong: &Refused) -> Answer {
    match wrong {
        Refused::Registration(kind, reason) => message(403, kind, reason),
        Refused::Unknown => message(403, "Extension.UnknownExtensionIdentifier", "register first"),
    }
}

fn message(status: u16, kind: &str, text: &str) -> Answer {
    http::json(status, &json!({ "errorType": kind, "errorMessage": text }))
}
