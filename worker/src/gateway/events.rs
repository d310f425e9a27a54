//! The events that functions receive: payload formats 1.0 and 2.0 of API Gateway's guide.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::request::{Received, is_binary, is_text, joined, listed, titled};
use super::routes::{Parameters, decoded};
use crate::base::name::ACCOUNT;
use crate::base::time::{access_log_time, epoch_ms};
use crate::function::http_api::{HttpApi, Kind, Route};
use crate::invocation::id::InvocationId;

/// Everything beside the request that an event has.
pub struct Context<'a> {
    /// The request's id.
    pub id: InvocationId,
    /// Its `X-Amzn-Trace-Id`.
    pub trace: &'a str,
    /// The API.
    pub api: &'a HttpApi,
    /// The route.
    pub route: &'a Route,
    /// The values of the route's path.
    pub parameters: &'a Parameters,
    /// What an authoriser has added.
    pub authorizer: Option<&'a Value>,
}

/// Null instead of an empty mapping.
fn or_null(map: &BTreeMap<String, String>) -> Value {
    if map.is_empty() { Value::Null } else { json!(map) }
}

/// The key of a route: `GET /path`, or `$default`.
pub fn route_key(route: &Route) -> String {
    if route.path.starts_with('/') { format!("{} {}", route.method, route.path) } else { route.path.clone() }
}

/// Payload format 1.0, without a body.
pub fn one_without_body(received: &Received<'_>, context: &Context<'_>) -> Value {
    let (api, route) = (context.api, context.route);
    let headers = received.headers(context.trace);
    let (headers, all_headers) =
        listed(headers.into_iter().map(|(name, value)| (titled(&name), value)).collect());
    let (query, all_query) = listed(received.query());
    let is_rest = api.kind == Kind::Rest;
    // REST APIs keep the encoding of a path, HTTP APIs do not.
    let whole = if is_rest { received.path.clone() } else { decoded(&received.path).unwrap_or_default() };
    let path = if is_rest { super::routes::without_stage(&whole, &api.stage) } else { &whole };
    let mut event = json!({
        "resource": route.path,
        "path": path,
        "httpMethod": received.parts.method.as_str(),
        "headers": headers,
        "multiValueHeaders": all_headers,
        "queryStringParameters": query,
        "multiValueQueryStringParameters": all_query,
        "pathParameters": or_null(context.parameters),
        "stageVariables": or_null(&api.variables),
        "requestContext": {
            "accountId": ACCOUNT,
            "apiId": api.id,
            "domainName": received.domain(),
            "domainPrefix": api.id,
            "extendedRequestId": context.id,
            "httpMethod": received.parts.method.as_str(),
            "identity": {
                "accessKey": null,
                "accountId": null,
                "caller": null,
                "cognitoAuthenticationProvider": null,
                "cognitoAuthenticationType": null,
                "cognitoIdentityId": null,
                "cognitoIdentityPoolId": null,
                "principalOrgId": null,
                "sourceIp": received.peer.to_string(),
                "user": null,
                "userAgent": received.header("user-agent"),
                "userArn": null,
            },
            "path": whole,
            "protocol": "HTTP/1.1",
            "requestId": context.id,
            "requestTime": access_log_time(received.time),
            "requestTimeEpoch": epoch_ms(received.time),
            "resourceId": null,
            "resourcePath": route.path,
            "stage": api.stage,
        },
        "body": null,
        "isBase64Encoded": false,
    });
    if is_rest {
        event["requestContext"]["resourceId"] = resource_id(&route.path).into();
    } else {
        event["version"] = "1.0".into();
        event["requestContext"]["authorizer"] = json!({ "claims": null, "scopes": null });
    }
    if let Some(authorizer) = context.authorizer {
        event["requestContext"]["authorizer"] = authorizer.clone();
    }
    event
}

/// Six letters that stand for a resource of a REST API.
fn resource_id(path: &str) -> String {
    let digest = Sha256::digest(path.as_bytes());
    digest
        .iter()
        .take(6)
        .map(|byte| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte % 32)]))
        .collect()
}

/// Payload format 1.0.
pub fn one(received: &Received<'_>, context: &Context<'_>) -> Value {
    let mut event = one_without_body(received, context);
    let api = context.api;
    let (body, encoded) = received.body(|kind| match api.kind {
        Kind::Rest => !is_binary(&api.binary, kind),
        Kind::Http => is_text(kind),
    });
    event["body"] = body.into();
    event["isBase64Encoded"] = encoded.into();
    event
}

/// Payload format 2.0 of an HTTP API.
pub fn two(received: &Received<'_>, context: &Context<'_>) -> Value {
    let mut event = two_without_body(received, context);
    add_body(&mut event, received);
    event
}

/// The same without a body.
pub fn two_without_body(received: &Received<'_>, context: &Context<'_>) -> Value {
    let (api, path) = (context.api, decoded(&received.path).unwrap_or_default());
    let key = route_key(context.route);
    let raw = path.clone();
    let named = Named { account: ACCOUNT, api: &api.id, stage: &api.stage, key, raw, path };
    let mut event = named.event(received, context.id, context.trace);
    if !context.parameters.is_empty() {
        event["pathParameters"] = json!(context.parameters);
    }
    if !api.variables.is_empty() {
        event["stageVariables"] = json!(api.variables);
    }
    if let Some(authorizer) = context.authorizer {
        event["requestContext"]["authorizer"] = json!({ "lambda": authorizer });
    }
    event
}

/// Payload format 2.0 of a function URL, whose `rawPath` keeps the encoding of the path.
pub fn of_url(received: &Received<'_>, url_id: &str, id: InvocationId, trace: &str) -> Value {
    let raw = received.path.clone();
    let path = decoded(&raw).unwrap_or_else(|| raw.clone());
    let key = "$default".to_string();
    let named = Named { account: "anonymous", api: url_id, stage: "$default", key, raw, path };
    let mut event = named.event(received, id, trace);
    add_body(&mut event, received);
    event
}

fn add_body(event: &mut Value, received: &Received<'_>) {
    let (body, encoded) = received.body(is_text);
    if let Some(body) = body {
        event["body"] = body.into();
    }
    event["isBase64Encoded"] = encoded.into();
}

/// Names in an event of format 2.0.
struct Named<'a> {
    account: &'a str,
    api: &'a str,
    stage: &'a str,
    key: String,
    /// `rawPath`.
    raw: String,
    path: String,
}

impl Named<'_> {
    fn event(self, received: &Received<'_>, id: InvocationId, trace: &str) -> Value {
        let (cookies, headers): (Vec<_>, Vec<_>) =
            received.headers(trace).into_iter().partition(|(name, _)| name == "cookie");
        let cookies = cookies.iter().flat_map(|(_, value)| value.split(';')).map(str::trim);
        let cookies: Vec<&str> = cookies.filter(|cookie| !cookie.is_empty()).collect();
        let query = joined(received.query());
        let mut event = json!({
            "version": "2.0",
            "routeKey": self.key,
            "rawPath": self.raw,
            "rawQueryString": received.parts.uri.query().unwrap_or_default(),
            "headers": joined(headers),
            "requestContext": {
                "accountId": self.account,
                "apiId": self.api,
                "domainName": received.domain(),
                "domainPrefix": self.api,
                "http": {
                    "method": received.parts.method.as_str(),
                    "path": self.path,
                    "protocol": "HTTP/1.1",
                    "sourceIp": received.peer.to_string(),
                    "userAgent": received.header("user-agent").unwrap_or_default(),
                },
                "requestId": id,
                "routeKey": self.key,
                "stage": self.stage,
                "time": access_log_time(received.time),
                "timeEpoch": epoch_ms(received.time),
            },
            "isBase64Encoded": false,
        });
        if !cookies.is_empty() {
            event["cookies"] = json!(cookies);
        }
        if !query.is_empty() {
            event["queryStringParameters"] = json!(query);
        }
        event
    }
}
