//! Function URLs: plain HTTP in, the function's own HTTP out (payload format 2.0 of Lambda's guide).
//!
//! A URL is a path here, `http://127.0.0.1:8080/lambda-url/ID/`, since not every resolver knows names below
//! localhost. `http://ID.lambda-url.localhost:8080/` is the same URL.

use std::time::SystemTime;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use serde::Deserialize;
use serde_json::{Value, json};

use super::endpoint::{Endpoint, URL};
use super::{Api, Call, body_error, forward, streams};
use crate::base::error::{ApiError, ErrorKind};
use crate::base::limits;
use crate::base::name::{self, Target};
use crate::base::time::lambda_time;
use crate::control::stopping;
use crate::function::definition::FunctionUrl;
use crate::function::http_api::Cors;
use crate::function::tenancy;
use crate::gateway::request::Received;
use crate::gateway::{answer, cors, events};
use crate::http::connections::Connection;
use crate::http::sigv4;
use crate::http::{self, Answer, header};
use crate::invocation::request::Invocation;

/// `InvokeMode`: the worker sends the function's answer once it is whole.
pub const BUFFERED: &str = "BUFFERED";
/// `InvokeMode`: the worker sends the answer while the function makes it.
pub const RESPONSE_STREAM: &str = "RESPONSE_STREAM";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wanted {
    auth_type: Option<String>,
    invoke_mode: Option<String>,
    cors: Option<Cors>,
}

impl Wanted {
    fn check(&self) -> Result<(), ApiError> {
        if let Some(other) = self.auth_type.as_deref().filter(|kind| !matches!(*kind, "NONE" | "AWS_IAM")) {
            return Err(ApiError::invalid_parameter(format!(
                "AuthType is '{other}' and must be NONE or AWS_IAM"
            )));
        }
        if let Some(other) =
            self.invoke_mode.as_deref().filter(|mode| !matches!(*mode, BUFFERED | RESPONSE_STREAM))
        {
            return Err(ApiError::invalid_parameter(format!(
                "InvokeMode is '{other}' and must be {BUFFERED} or {RESPONSE_STREAM}"
            )));
        }
        Ok(())
    }
}

fn describe(api: &Api, name: &str, url: &FunctionUrl) -> Value {
    let target = of(name, url);
    let mut described = json!({
        "FunctionUrl": format!("http://{}/{URL}/{}/", api.address(), url.id),
        "FunctionArn": name::arn(&target.to_string()),
        "AuthType": url.auth_type,
        "CreationTime": url.created,
        "LastModifiedTime": url.modified,
        "InvokeMode": if url.streams { RESPONSE_STREAM } else { BUFFERED },
    });
    if let Some(cors) = &url.cors {
        described["Cors"] = json!(cors);
    }
    described
}

fn none(name: &str) -> ApiError {
    ApiError::not_found(format!("The resource you requested does not exist: {name} has no function URL"))
}

/// What a URL calls.
fn of(name: &str, url: &FunctionUrl) -> Target {
    Target { name: name.into(), qualifier: url.alias.clone() }
}

/// A new URL of a function, or of an alias of it.
pub fn new(auth_type: &str, streams: bool, alias: Option<String>) -> FunctionUrl {
    let now = lambda_time(SystemTime::now());
    let id = uuid::Uuid::new_v4().simple().to_string();
    let auth_type = auth_type.to_string();
    FunctionUrl { id, alias, streams, auth_type, cors: None, created: now.clone(), modified: now }
}

pub fn create(api: &Api, call: &Call, target: &Target) -> Result<Answer, ApiError> {
    let wanted: Wanted = call.json()?;
    wanted.check()?;
    let name = target.name.as_str();
    let function = api.worker.function(name)?;
    tenancy::refuse(function.deployment.settings.per_tenant, "A function URL")?;
    if let Some(other) = target.qualifier.as_ref().filter(|alias| !function.aliases.contains_key(*alias)) {
        return Err(ApiError::not_found(format!("Qualifier: {name} has no alias {other}")));
    }
    let kind = wanted.auth_type.ok_or_else(|| ApiError::invalid_parameter("AuthType is needed"))?;
    let streams = wanted.invoke_mode.as_deref() == Some(RESPONSE_STREAM);
    let url = api.worker.change_url(name, |known| match known {
        Some(_) => {
            Err(ApiError::conflict(format!("Failed to create function url config for {name}: it has one")))
        }
        None => Ok(Some(FunctionUrl { cors: wanted.cors, ..new(&kind, streams, target.qualifier.clone()) })),
    })?;
    Ok(http::json(201, &describe(api, name, &url.expect("just made"))))
}

/// The URL, if it is of the alias that the request names.
fn found(url: Option<FunctionUrl>, target: &Target) -> Result<FunctionUrl, ApiError> {
    url.filter(|url| url.alias == target.qualifier).ok_or_else(|| none(&target.to_string()))
}

pub fn get(api: &Api, target: &Target) -> Result<Answer, ApiError> {
    let url = found(api.worker.function(&target.name)?.url, target)?;
    Ok(http::json(200, &describe(api, &target.name, &url)))
}

pub fn update(api: &Api, call: &Call, target: &Target) -> Result<Answer, ApiError> {
    let wanted: Wanted = call.json()?;
    wanted.check()?;
    let name = target.name.as_str();
    let url = api.worker.change_url(name, |known| {
        let mut url = found(known, target)?;
        url.auth_type = wanted.auth_type.unwrap_or(url.auth_type);
        url.streams = wanted.invoke_mode.as_deref().map_or(url.streams, |mode| mode == RESPONSE_STREAM);
        url.cors = wanted.cors.or(url.cors);
        url.modified = lambda_time(SystemTime::now());
        Ok(Some(url))
    })?;
    Ok(http::json(200, &describe(api, name, &url.expect("just set"))))
}

pub fn delete(api: &Api, target: &Target) -> Result<Answer, ApiError> {
    api.worker.change_url(&target.name, |known| found(known, target).map(|_| None))?;
    Ok(http::empty(204))
}

pub fn list(api: &Api, name: &str) -> Result<Answer, ApiError> {
    let url = api.worker.function(name)?.url;
    let list: Vec<Value> = url.iter().map(|url| describe(api, name, url)).collect();
    Ok(http::json(200, &json!({ "FunctionUrlConfigs": list })))
}

/// The secret id of a template's URL where requests are signed: every worker with the same key has the same
/// one, so that a proxy may send its requests to any of them.
pub fn id_of_key(known: &sigv4::Credentials, name: &str, auth_type: &str, alias: Option<&str>) -> String {
    let text = json!(["function URL", name, auth_type, alias]).to_string();
    known.derive(&text).chars().take(32).collect()
}

/// Answers a request to a function's URL.
pub async fn answer(
    api: &Api,
    connection: &Connection,
    endpoint: &Endpoint,
    parts: Parts,
    body: Incoming,
) -> Result<Answer, ApiError> {
    let none = || match api.worker.is_closing() {
        true => stopping(),
        false => ErrorKind::ResourceNotFound.with("there is no such function URL"),
    };
    let find =
        || api.worker.function_at(&endpoint.id).and_then(|function| Some((function.url.clone()?, function)));
    let (url, _) = find().ok_or_else(none)?;
    if let Some(preflight) = url.cors.as_ref().and_then(|cors| cors::preflight(cors, &parts, 200)) {
        return Ok(preflight);
    }
    let limit = limits::PAYLOAD_BYTES;
    let (body, _memory) = api.bodies.read(body, limit).await.map_err(|error| body_error(&error, limit))?;
    connection.works();
    let call = Call { parts, body, client: connection.client().clone() };
    // A successor may have started to serve while the body arrived, or the URL may be another function's.
    if api.is_over() {
        return forward::forward(api, call).await;
    }
    let (url, function) = find().ok_or_else(none)?;
    let mut answer = self::call(api, &call, endpoint, &url, &function.deployment.name).await?;
    if let Some(cors) = &url.cors {
        cors::allow(cors, &call.parts, &mut answer);
    }
    endpoint.lead_back(&mut answer);
    Ok(answer)
}

async fn call(
    api: &Api,
    call: &Call,
    endpoint: &Endpoint,
    url: &FunctionUrl,
    function: &str,
) -> Result<Answer, ApiError> {
    if url.auth_type == "AWS_IAM" {
        let forbidden = || ErrorKind::AccessDenied.with("Forbidden");
        let credentials = api.worker.options.credentials.as_ref().ok_or_else(forbidden)?;
        sigv4::claim(&call.parts.headers, credentials, super::SERVICE, SystemTime::now())?
            .verify(&call.signed(), credentials)?;
    }
    let target = of(function, url);
    let trace = header(&call.parts.headers, "x-amzn-trace-id");
    let mut invocation = Invocation::new(name::arn(&target.to_string()), Bytes::new(), None, trace);
    invocation.payload = payload(call, endpoint, &invocation)?;
    if url.streams {
        return streams::url(api, call, target, invocation).await;
    }
    Ok(answer::whole(&api.worker.invoke(&target, invocation).await?))
}

/// The event for the function. In JSON a body can be six times its length.
fn payload(call: &Call, endpoint: &Endpoint, invocation: &Invocation) -> Result<Bytes, ApiError> {
    let received = Received {
        parts: &call.parts,
        body: call.body.clone(),
        path: endpoint.path.clone(),
        peer: call.client.peer(),
        time: SystemTime::now(),
    };
    let event = events::of_url(&received, &endpoint.id, invocation.id, &invocation.trace_id);
    let payload = event.to_string();
    if payload.len() > limits::PAYLOAD_BYTES {
        let limit = limits::PAYLOAD_BYTES;
        return Err(ApiError::too_large(format!("the event must be smaller than {limit} bytes")));
    }
    Ok(payload.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_no_longer_than_lambdas_may_be() {
        let of = |kind: &str, body: Vec<u8>| {
            let request = hyper::Request::post("/lambda-url/x/").header("content-type", kind).body(());
            let call = Call::of_tests(request.unwrap().into_parts().0, body);
            let endpoint = Endpoint::of(&call.parts).unwrap();
            payload(&call, &endpoint, &Invocation::new(String::new(), Bytes::new(), None, None))
        };
        let part = limits::PAYLOAD_BYTES / 2;
        assert!(of("text/plain", vec![b'x'; part]).is_ok());
        assert!(of("image/png", vec![0xff; part]).is_ok());
        assert_eq!(of("text/plain", vec![0; part]).unwrap_err().kind, ErrorKind::RequestTooLarge);
        assert_eq!(of("image/png", vec![0xff; 2 * part]).unwrap_err().kind, ErrorKind::RequestTooLarge);
    }
}
