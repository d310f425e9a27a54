//! An API's definition in OpenAPI: the routes whose integration is a function, and their authorisers.

use serde_json::Value as Json;

use super::authorizers::Auth;
use super::{add, cors, method_of, path_of, target_of, text_of};
use crate::function::http_api::{
    Authorizer, AuthorizerEvent, DEFAULT, Format, Guard, HttpApi, Identity, Kind, Route,
};

const INTEGRATION: &str = "x-amazon-apigateway-integration";
/// What kind of authoriser a scheme is.
const AUTH_TYPE: &str = "x-amazon-apigateway-authtype";
/// The extension that makes an authoriser of a scheme.
pub const AUTHORIZER: &str = "x-amazon-apigateway-authorizer";

/// Adds the routes of a definition.
pub fn add_routes(api: &mut HttpApi, auth: &Auth, body: &Json, notes: &mut Vec<String>) {
    let mut auth = auth.clone();
    if api.cors.is_none() && api.kind == Kind::Http {
        api.cors = body.get("x-amazon-apigateway-cors").and_then(cors::of_http);
    }
    let types = body.get("x-amazon-apigateway-binary-media-types").and_then(Json::as_array);
    api.binary.extend(types.into_iter().flatten().map(text_of));
    for (name, scheme) in schemes(body).and_then(Json::as_object).into_iter().flatten() {
        if api.kind == Kind::Rest && is_key(scheme) {
            notes.push(format!("{}: the API keys of {name} are not supported and passed over", api.id));
            continue;
        }
        match authorizer(api.kind, scheme) {
            Some(read) => drop(api.authorizers.insert(name.clone(), read)),
            None => drop(auth.unsupported.insert(name.clone(), kind_of(scheme).into())),
        }
    }
    for (path, methods) in body.get("paths").and_then(Json::as_object).into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let Some(integration) = operation.get(INTEGRATION) else { continue };
            let place = format!("{}: {} {path}", api.id, method.to_ascii_uppercase());
            match route(api, &auth, path, method, operation, integration, body) {
                Ok(route) => add(api, route, notes),
                Err(reason) => notes.push(format!("{place}: {reason}: it is not served")),
            }
        }
    }
}

fn schemes(body: &Json) -> Option<&Json> {
    body.get("securityDefinitions").or_else(|| body.get("components")?.get("securitySchemes"))
}

/// Whether a scheme asks for one of a REST API's keys. Other schemes of this type are authorisers.
fn is_key(scheme: &Json) -> bool {
    let is = |key: &str, wanted: &str| {
        scheme.get(key).and_then(Json::as_str).is_some_and(|text| text.eq_ignore_ascii_case(wanted))
    };
    is("type", "apiKey")
        && is("name", "x-api-key")
        && scheme.get(AUTHORIZER).is_none()
        && scheme.get(AUTH_TYPE).is_none()
}

/// What guards an operation that names this scheme; nothing, if it asks for a key.
fn guard(name: &str, auth: &Auth, api: &HttpApi, body: &Json) -> Option<Result<Guard, String>> {
    let scheme = schemes(body).and_then(|schemes| schemes.get(name));
    if api.kind == Kind::Rest && scheme.is_some_and(is_key) {
        return None;
    }
    let kind = scheme.and_then(|scheme| scheme.get(AUTH_TYPE)?.as_str());
    Some(if kind == Some("awsSigv4") { Ok(Guard::Iam) } else { auth.named(name, api) })
}

/// What a scheme that is no Lambda authoriser asks for.
fn kind_of(scheme: &Json) -> &'static str {
    match scheme.get("type").and_then(Json::as_str) {
        Some("apiKey") if scheme.get(AUTHORIZER).is_none() => "an API key",
        _ => "a token that no function checks",
    }
}

fn route(
    api: &HttpApi,
    auth: &Auth,
    path: &str,
    method: &str,
    operation: &Json,
    integration: &Json,
    body: &Json,
) -> Result<Route, String> {
    let uri = integration.get("uri").map(text_of).unwrap_or_default();
    let target = target_of(&uri).ok_or("its integration is no function")?;
    let is_default = path.trim_start_matches('/') == DEFAULT;
    let path = if is_default { DEFAULT.to_string() } else { path_of(api.kind, path)? };
    let format = match integration.get("payloadFormatVersion").map(text_of).as_deref() {
        _ if api.kind == Kind::Rest => Format::One,
        Some("1.0" | "1") => Format::One,
        _ => Format::Two,
    };
    let security = operation.get("security").or(body.get("security")).and_then(Json::as_array);
    let guard = match security {
        None => auth.guard(None, api)?,
        Some(list) => {
            let names = list.iter().filter_map(Json::as_object).flat_map(|one| one.keys());
            let guards = names.filter_map(|name| guard(name, auth, api, body));
            let guards = guards.collect::<Result<Vec<_>, _>>()?;
            guards.into_iter().next().unwrap_or(Guard::Open)
        }
    };
    let timeout_ms = integration.get("timeoutInMillis").and_then(|value| text_of(value).parse().ok());
    Ok(Route { method: method_of(method)?, path, target, format, guard, timeout_ms })
}

/// The Lambda authoriser that a scheme is, if it is one.
pub fn authorizer(kind: Kind, scheme: &Json) -> Option<Authorizer> {
    let own = scheme.get(AUTHORIZER)?;
    let text = |key: &str| own.get(key).map(text_of);
    let target = target_of(&text("authorizerUri")?)?;
    let version = text("authorizerPayloadFormatVersion");
    let event = match (kind, text("type")?.to_ascii_lowercase().as_str()) {
        (Kind::Rest, "token") => AuthorizerEvent::Token,
        (Kind::Rest, "request") => AuthorizerEvent::Request,
        (Kind::Http, "request") if version.is_some_and(|version| version.starts_with('1')) => {
            AuthorizerEvent::HttpOne
        }
        (Kind::Http, "request") => AuthorizerEvent::HttpTwo,
        _ => return None,
    };
    let sources = text("identitySource");
    let mut identity: Vec<Identity> =
        sources.iter().flat_map(|text| text.split(',')).filter_map(|text| source(text.trim())).collect();
    if event == AuthorizerEvent::Token {
        let name = scheme.get("name").and_then(Json::as_str).unwrap_or("Authorization");
        identity = vec![Identity::Header(name.into())];
    }
    let simple = own.get("enableSimpleResponses").is_some_and(|value| text_of(value) == "true");
    let validation = text("identityValidationExpression");
    Some(Authorizer { target, event, identity, validation, simple: simple && kind == Kind::Http })
}

/// `method.request.header.NAME` of a REST API, `$request.header.NAME` of an HTTP API.
fn source(text: &str) -> Option<Identity> {
    let text = text.trim_start_matches('$').trim_start_matches("method.");
    let (kind, name) = match text.strip_prefix("request.") {
        Some(rest) => rest.split_once('.')?,
        None => text.split_once('.')?,
    };
    let name = name.to_string();
    match kind {
        "header" => Some(Identity::Header(name)),
        "querystring" => Some(Identity::Query(name)),
        "stageVariables" => Some(Identity::Variable(name)),
        "context" => Some(Identity::Context(name)),
        _ => None,
    }
}
