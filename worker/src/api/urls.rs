//! Function URLs: plain HTTP in, the function's own HTTP out (payload format 2.0 of Lambda's guide).
//!
//! A URL is a path here, `http://127.0.0.1:8080/lambda-url/ID/`, because a name per function would need a
//! resolver.

use std::collections::BTreeMap;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Api, Call, streams, url_answer};
use crate::base::error::ApiError;
use crate::base::limits;
use crate::base::name::{self, Target};
use crate::base::time::{lambda_time, now_ms};
use crate::function::definition::{Function, FunctionUrl};
use crate::http::sigv4;
use crate::http::{self, Answer, header};
use crate::invocation::request::Invocation;

/// First part of the path.
pub const PREFIX: &str = "lambda-url";

/// `InvokeMode`: the worker sends the function's answer once it is whole.
pub const BUFFERED: &str = "BUFFERED";
/// `InvokeMode`: the worker sends the answer while the function makes it.
pub const RESPONSE_STREAM: &str = "RESPONSE_STREAM";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wanted {
    auth_type: Option<String>,
    invoke_mode: Option<String>,
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
    json!({
        "FunctionUrl": format!("http://{}/{PREFIX}/{}/", api.address(), url.id),
        "FunctionArn": name::arn(&target.to_string()),
        "AuthType": url.auth_type,
        "CreationTime": url.created,
        "LastModifiedTime": url.modified,
        "InvokeMode": if url.streams { RESPONSE_STREAM } else { BUFFERED },
    })
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
    FunctionUrl { id, alias, streams, auth_type: auth_type.into(), created: now.clone(), modified: now }
}

pub fn create(api: &Api, call: &Call, target: &Target) -> Result<Answer, ApiError> {
    let wanted: Wanted = call.json()?;
    wanted.check()?;
    let name = target.name.as_str();
    let function = api.worker.function(name)?;
    if let Some(other) = target.qualifier.as_ref().filter(|alias| !function.aliases.contains_key(*alias)) {
        return Err(ApiError::not_found(format!("Qualifier: {name} has no alias {other}")));
    }
    let kind = wanted.auth_type.ok_or_else(|| ApiError::invalid_parameter("AuthType is needed"))?;
    let streams = wanted.invoke_mode.as_deref() == Some(RESPONSE_STREAM);
    let url = api.worker.change_url(name, |known| match known {
        Some(_) => {
            Err(ApiError::conflict(format!("Failed to create function url config for {name}: it has one")))
        }
        None => Ok(Some(new(&kind, streams, target.qualifier.clone()))),
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

/// The function of a URL.
///
/// # Errors
/// There is no such URL.
pub fn named(api: &Api, segments: &[&str]) -> Result<Function, ApiError> {
    let id = segments.first().copied().unwrap_or_default();
    let none = || ApiError::new(404, "ResourceNotFoundException", "there is no such function URL");
    api.worker.function_at(id).ok_or_else(none)
}

/// Answers a request to a function's URL.
pub async fn call(api: &Api, call: &Call, segments: &[&str]) -> Result<Answer, ApiError> {
    let function = named(api, segments)?;
    let id = segments.first().copied().unwrap_or_default();
    if function.url.as_ref().is_some_and(|url| url.auth_type == "AWS_IAM") {
        let forbidden = || ApiError::new(403, "AccessDeniedException", "Forbidden");
        let credentials = api.worker.options.credentials.as_ref().ok_or_else(forbidden)?;
        sigv4::claim(&call.parts.headers, credentials, super::SERVICE, SystemTime::now())?
            .verify(&call.signed(), credentials)?;
    }
    let alias = function.url.as_ref().and_then(|url| url.alias.clone());
    let target = Target { name: function.deployment.name.clone(), qualifier: alias };
    let trace = header(&call.parts.headers, "x-amzn-trace-id");
    let mut invocation = Invocation::new(name::arn(&target.to_string()), Bytes::new(), None, trace);
    invocation.payload = payload(call, id, &invocation.id)?;
    if function.url.as_ref().is_some_and(|url| url.streams) {
        return streams::url(api, call, target, invocation).await;
    }
    Ok(url_answer::whole(&api.worker.invoke(&target, invocation).await?))
}

/// The event for the function. In JSON a body can be six times its length.
fn payload(call: &Call, id: &str, request_id: &str) -> Result<Bytes, ApiError> {
    let payload = event(call, id, request_id).to_string();
    if payload.len() > limits::PAYLOAD_BYTES {
        let limit = limits::PAYLOAD_BYTES;
        return Err(ApiError::too_large(format!("the event must be smaller than {limit} bytes")));
    }
    Ok(payload.into())
}

fn event(call: &Call, id: &str, request_id: &str) -> Value {
    let parts = &call.parts;
    let begin = PREFIX.len() + id.len() + 2;
    let path = parts.uri.path().get(begin..).filter(|path| !path.is_empty()).unwrap_or("/");
    let query = parts.uri.query().unwrap_or_default();
    let (mut headers, mut cookies) = (BTreeMap::<String, String>::new(), Vec::new());
    for (name, value) in &parts.headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        if name == "cookie" {
            cookies.extend(value.split("; ").map(str::to_string));
            continue;
        }
        add(&mut headers, name.as_str(), &value);
    }
    let mut parameters = BTreeMap::<String, String>::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        add(&mut parameters, &name, &value);
    }
    let host = headers.get("host").cloned().unwrap_or_default();
    let mut event = json!({
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": headers,
        "requestContext": {
            "accountId": "anonymous",
            "apiId": id,
            "domainName": host,
            "domainPrefix": id,
            "http": {
                "method": parts.method.as_str(),
                "path": path,
                "protocol": "HTTP/1.1",
                "sourceIp": "127.0.0.1",
                "userAgent": headers.get("user-agent").cloned().unwrap_or_default(),
            },
            "requestId": request_id,
            "routeKey": "$default",
            "stage": "$default",
            "time": lambda_time(SystemTime::now()),
            "timeEpoch": now_ms(),
        },
        "isBase64Encoded": false,
    });
    if !cookies.is_empty() {
        event["cookies"] = json!(cookies);
    }
    if !parameters.is_empty() {
        event["queryStringParameters"] = json!(parameters);
    }
    if !call.body.is_empty() {
        let kind = header(&parts.headers, "content-type").unwrap_or_default();
        match std::str::from_utf8(&call.body) {
            Ok(text) if is_text(kind) => event["body"] = text.into(),
            _ => {
                event["body"] = BASE64.encode(&call.body).into();
                event["isBase64Encoded"] = true.into();
            }
        }
    }
    event
}

fn is_text(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    kind.starts_with("text/")
        || kind.ends_with("+json")
        || matches!(kind, "application/json" | "application/xml" | "application/javascript")
}

/// Several values of one name are one text, with commas.
fn add(to: &mut BTreeMap<String, String>, name: &str, value: &str) {
    let known = to.entry(name.into()).and_modify(|known| known.push(',')).or_default();
    known.push_str(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_no_longer_than_lambdas_may_be() {
        let of = |kind: &str, body: Vec<u8>| {
            let request = hyper::Request::post("/lambda-url/x/").header("content-type", kind).body(());
            payload(&Call::of_tests(request.unwrap().into_parts().0, body), "x", "id")
        };
        let part = limits::PAYLOAD_BYTES / 2;
        assert!(of("text/plain", vec![b'x'; part]).is_ok());
        assert!(of("image/png", vec![0xff; part]).is_ok());
        assert_eq!(of("text/plain", vec![0; part]).unwrap_err().status, 413);
        assert_eq!(of("image/png", vec![0xff; 2 * part]).unwrap_err().status, 413);
    }
}
