//! HTTP APIs as API Gateway has them: a route for each request, its authoriser, the event for its function,
//! and the function's answer as HTTP.

pub mod answer;
mod authorizers;
pub mod cors;
pub mod events;
pub mod policy;
pub mod request;
mod routes;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use serde_json::{Value, json};

use self::authorizers::Refusal;
use self::events::Context;
use self::request::Received;
use self::routes::{Found, Parameters};
use crate::base::error::ErrorKind;
use crate::base::limits;
use crate::base::name::{self, Target};
use crate::control::Worker;
use crate::function::http_api::{Format, Guard, HttpApi, Kind, Route};
use crate::http::sigv4;
use crate::http::{self, Answer};
use crate::invocation::request::{Invocation, Outcome};

/// The service that requests of `AWS_IAM` routes are signed for.
const SERVICE: &str = "execute-api";

/// A request that will reach a function.
pub struct Matched {
    route: Route,
    parameters: Parameters,
}

/// An error as this kind of API answers it.
pub fn error(kind: Kind, status: u16, message: &str) -> Answer {
    // REST APIs write a space there.
    let message = Value::from(message);
    let text = match kind {
        Kind::Rest => format!("{{\"message\": {message}}}"),
        Kind::Http => format!("{{\"message\":{message}}}"),
    };
    http::answer(status, "application/json", text)
}

/// The answer if a function or an authoriser has failed.
fn broken(kind: Kind) -> Answer {
    match kind {
        Kind::Rest => error(kind, 502, "Internal server error"),
        Kind::Http => error(kind, 502, "Internal Server Error"),
    }
}

/// The answer if a function takes too long.
fn too_late(kind: Kind) -> Answer {
    match kind {
        Kind::Rest => error(kind, 504, "Endpoint request timed out"),
        Kind::Http => error(kind, 503, "Service Unavailable"),
    }
}

/// The answer to a request that is too long.
pub fn too_long(kind: Kind) -> Answer {
    match kind {
        Kind::Rest => error(kind, 413, "Request Too Long"),
        Kind::Http => error(kind, 413, "Request Entity Too Large"),
    }
}

/// Finds the route of a request.
///
/// # Errors
/// The answer, if no function is called.
pub fn find(api: &HttpApi, parts: &Parts, path: &str) -> Result<Matched, Box<Answer>> {
    let answered = |answer: Answer| Err(Box::new(answer));
    if routes::decoded(path).is_none() {
        return answered(error(api.kind, 400, "Bad Request"));
    }
    if let Some(preflight) = api.cors.as_ref().and_then(|cors| cors::preflight(cors, parts, 204)) {
        return answered(preflight);
    }
    let path = routes::without_stage(path, &api.stage);
    match (routes::find(api, parts.method.as_str(), path), api.kind) {
        (Found::Route(route, parameters), _) => Ok(Matched { route: route.clone(), parameters }),
        (Found::Options(own, methods), _) => answered(cors::options(own, &methods)),
        (Found::None, Kind::Rest) => answered(error(api.kind, 403, "Missing Authentication Token")),
        (Found::None, Kind::Http) => answered(error(api.kind, 404, "Not Found")),
    }
}

/// Calls the function of a route, after its authoriser.
pub async fn call(worker: &Arc<Worker>, api: &HttpApi, matched: &Matched, received: &Received<'_>) -> Answer {
    let request = Call { worker, api, matched, received };
    let mut invocation =
        Invocation::new(String::new(), Bytes::new(), None, received.header("x-amzn-trace-id"));
    let id = invocation.id.header();
    let answer = match request.authorize(&invocation).await {
        Ok(authorizer) => request.answer(&mut invocation, authorizer).await,
        Err(refused) => Err(refused),
    };
    let mut answer = answer.unwrap_or_else(|refused| refused);
    if let Some(cors) = &api.cors {
        cors::allow(cors, received.parts, &mut answer);
    }
    let name = if api.kind == Kind::Rest { "x-amzn-requestid" } else { "apigw-requestid" };
    let _ = answer.headers_mut().try_insert(name, id);
    answer
}

struct Call<'a> {
    worker: &'a Arc<Worker>,
    api: &'a HttpApi,
    matched: &'a Matched,
    received: &'a Received<'a>,
}

impl<'a> Call<'a> {
    fn context(&self, invocation: &'a Invocation, authorizer: Option<&'a Value>) -> Context<'a> {
        Context {
            id: invocation.id,
            trace: &invocation.trace_id,
            api: self.api,
            route: &self.matched.route,
            parameters: &self.matched.parameters,
            authorizer,
        }
    }

    /// What the route's authoriser adds to the event.
    async fn authorize(&self, invocation: &Invocation) -> Result<Option<Value>, Answer> {
        let (kind, parts) = (self.api.kind, self.received.parts);
        let unauthorized = || error(kind, 401, "Unauthorized");
        match &self.matched.route.guard {
            Guard::Open => Ok(None),
            Guard::Iam => {
                let refused = |_| match kind {
                    Kind::Rest => error(kind, 403, "Missing Authentication Token"),
                    Kind::Http => error(kind, 403, "Forbidden"),
                };
                let none = || ErrorKind::AccessDenied.with("no credentials");
                let known = self.worker.options.credentials.as_ref().ok_or_else(none).map_err(refused)?;
                let claim =
                    sigv4::claim(&parts.headers, known, SERVICE, SystemTime::now()).map_err(refused)?;
                let signed = sigv4::Signed {
                    method: parts.method.as_str(),
                    path: parts.uri.path(),
                    query: parts.uri.query().unwrap_or_default(),
                    headers: &parts.headers,
                    body: &self.received.body,
                };
                claim.verify(&signed, known).map_err(refused).map(|()| None)
            }
            Guard::Unsupported(_) => Err(unauthorized()),
            Guard::Authorizer(name) => {
                let Some(authorizer) = self.api.authorizers.get(name) else { return Err(unauthorized()) };
                let context = self.context(invocation, None);
                let event = authorizers::event(authorizer, self.received, &context);
                let asked = async {
                    let event = Bytes::from(event?.to_string());
                    let answer = self.invoke(&authorizer.target, event).await?;
                    authorizers::consent(authorizer, &answer, &authorizers::arn(self.received, self.api))
                };
                asked.await.map(Some).map_err(|refusal| match refusal {
                    Refusal::Unauthorized => unauthorized(),
                    Refusal::Denied(explicitly) => denied(kind, explicitly),
                    Refusal::Broken(reason) => {
                        tracing::warn!("[{}] authorizer {name}: {reason}", authorizer.target);
                        match kind {
                            Kind::Rest => http::json(500, &json!({ "message": null })),
                            Kind::Http => error(kind, 500, "Internal Server Error"),
                        }
                    }
                })
            }
        }
    }

    /// Runs an authoriser.
    async fn invoke(&self, target: &Target, event: Bytes) -> Result<Bytes, Refusal> {
        let invocation = Invocation::new(name::arn(&target.to_string()), event, None, None);
        let outcome = tokio::time::timeout(self.limit(), self.worker.invoke(target, invocation)).await;
        match outcome {
            Ok(Ok(Outcome { failed: false, payload, .. })) => Ok(payload),
            Ok(Ok(outcome)) => {
                let failure: Value = serde_json::from_slice(&outcome.payload).unwrap_or_default();
                let message = failure["errorMessage"].as_str().unwrap_or("it has failed");
                // By this message an authoriser of a REST API refuses a token.
                if message == "Unauthorized" {
                    return Err(Refusal::Unauthorized);
                }
                Err(Refusal::Broken(message.chars().take(500).collect()))
            }
            Ok(Err(error)) => Err(Refusal::Broken(error.message)),
            Err(_) => Err(Refusal::Broken("it takes too long".into())),
        }
    }

    /// How long the route's function may take.
    fn limit(&self) -> Duration {
        let most = match self.api.kind {
            Kind::Rest => limits::REST_API,
            Kind::Http => limits::HTTP_API,
        };
        self.matched.route.timeout_ms.map_or(most, Duration::from_millis)
    }

    async fn answer(&self, invocation: &mut Invocation, authorizer: Option<Value>) -> Result<Answer, Answer> {
        let (kind, route) = (self.api.kind, &self.matched.route);
        let context = self.context(invocation, authorizer.as_ref());
        let event = match route.format {
            Format::One => events::one(self.received, &context),
            Format::Two => events::two(self.received, &context),
        };
        let event = event.to_string();
        if event.len() > limits::PAYLOAD_BYTES {
            return Err(too_long(kind));
        }
        let invocation = Invocation {
            id: invocation.id,
            payload: event.into(),
            client_context: None,
            arn: name::arn(&route.target.to_string()),
            trace_id: invocation.trace_id.clone(),
            tenant: None,
            stream: None,
        };
        let invoked = tokio::time::timeout(self.limit(), self.worker.invoke(&route.target, invocation)).await;
        let outcome = match invoked {
            Err(_) => return Err(too_late(kind)),
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) if error.kind.is_throttle() => {
                let mut answer = self::error(kind, 429, "Too Many Requests");
                answer.headers_mut().insert("retry-after", HeaderValue::from_static("1"));
                return Err(answer);
            }
            Ok(Err(error)) => {
                tracing::warn!("[{}] {}", route.target, error.message);
                return Err(broken(kind));
            }
        };
        if outcome.failed {
            return Err(broken(kind));
        }
        let answer = match route.format {
            Format::One => answer::one(&outcome.payload, self.api, self.received),
            Format::Two => answer::two(&outcome.payload, "text/plain;charset=UTF-8"),
        };
        answer.map_err(|reason| {
            tracing::warn!("[{}] its answer is no HTTP answer: {reason}", route.target);
            broken(kind)
        })
    }
}

fn denied(kind: Kind, explicitly: bool) -> Answer {
    match kind {
        Kind::Http => error(kind, 403, "Forbidden"),
        Kind::Rest => {
            let end = if explicitly { " with an explicit deny" } else { "" };
            let message = format!("User is not authorized to access this resource{end}");
            http::json(403, &json!({ "Message": message }))
        }
    }
}
