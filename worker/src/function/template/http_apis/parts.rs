//! The parts of an API that CloudFormation's own resources declare, as CDK writes them: methods of the
//! resources of a REST API, routes and integrations of an HTTP API, their authorisers and stages.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::super::scope::ROOT;
use super::openapi::{self, AUTHORIZER};
use super::{add, authorizers, cors, method_of, path_of, target_of, text_of};
use crate::function::http_api::{ANY, DEFAULT, Format, Guard, HttpApi, Kind, Options, Route};

/// A resource: its id, its type after `AWS::`, its properties.
pub type Part = (String, String, Map<String, Json>);

const RESOURCE: &str = "ApiGateway::Resource";
const METHOD: &str = "ApiGateway::Method";
const REST_AUTHORIZER: &str = "ApiGateway::Authorizer";
const REST_STAGE: &str = "ApiGateway::Stage";
const ROUTE: &str = "ApiGatewayV2::Route";
const INTEGRATION: &str = "ApiGatewayV2::Integration";
const HTTP_AUTHORIZER: &str = "ApiGatewayV2::Authorizer";
const HTTP_STAGE: &str = "ApiGatewayV2::Stage";
const KINDS: [&str; 8] =
    [RESOURCE, METHOD, REST_AUTHORIZER, REST_STAGE, ROUTE, INTEGRATION, HTTP_AUTHORIZER, HTTP_STAGE];

/// The most resources that a path has.
const DEPTH: usize = 64;
const HEADER: &str = "method.response.header.";

/// The type after `AWS::`, if it is that of a part.
pub fn kind_of(kind: &str) -> Option<&str> {
    kind.strip_prefix("AWS::").filter(|kind| KINDS.contains(kind))
}

/// Adds what the parts declare to their APIs.
pub fn read(parts: &[Part], apis: &mut BTreeMap<String, HttpApi>, notes: &mut Vec<String>) {
    // A route names its authoriser, which may be declared later.
    for (id, kind, own) in parts {
        let Some(api) = api_of(own, apis) else { continue };
        match kind.as_str() {
            REST_STAGE | HTTP_STAGE => stage(api, own),
            REST_AUTHORIZER | HTTP_AUTHORIZER => {
                let known = openapi::authorizer(api.kind, &scheme(own));
                drop(known.map(|known| api.authorizers.insert(id.clone(), known)));
            }
            _ => {}
        }
    }
    for (id, kind, own) in parts {
        let Some(api) = api_of(own, apis) else {
            let name = text(own, "RestApiId").or_else(|| text(own, "ApiId")).unwrap_or_default();
            if matches!(kind.as_str(), METHOD | ROUTE) {
                notes.push(format!("the API {name} is not served here: its routes call no function"));
            }
            continue;
        };
        let found = match kind.as_str() {
            METHOD => method(api, own, parts),
            ROUTE => route(api, own, parts).map(Some),
            _ => Ok(None),
        };
        if found.as_ref().is_ok_and(Option::is_some) {
            for key in authorizers::unsupported(Some(own)) {
                notes.push(format!("{id}: {key} is not supported and passed over"));
            }
        }
        match found {
            Ok(found) => found.into_iter().for_each(|route| add(api, route, notes)),
            Err(reason) => notes.push(format!("{id}: {reason}: it is not served")),
        }
    }
}

/// The API that a part is of. One that a template only names, or whose kind is not served, has none here.
fn api_of<'a>(own: &Map<String, Json>, apis: &'a mut BTreeMap<String, HttpApi>) -> Option<&'a mut HttpApi> {
    apis.get_mut(&text(own, "RestApiId").or_else(|| text(own, "ApiId"))?)
}

fn text(own: &Map<String, Json>, key: &str) -> Option<String> {
    own.get(key).map(text_of)
}

fn of<'a>(parts: &'a [Part], kind: &str, id: &str) -> Option<&'a Map<String, Json>> {
    parts.iter().find(|(known, of, _)| known == id && of == kind).map(|(_, _, own)| own)
}

fn stage(api: &mut HttpApi, own: &Map<String, Json>) {
    if let Some(name) = text(own, "StageName") {
        api.stage = name;
    }
    let variables = own.get("Variables").or_else(|| own.get("StageVariables")).and_then(Json::as_object);
    let variables = variables.into_iter().flatten().map(|(name, value)| (name.clone(), text_of(value)));
    api.variables.extend(variables);
}

/// An authoriser as OpenAPI declares it.
fn scheme(own: &Map<String, Json>) -> Json {
    let sources = match own.get("IdentitySource") {
        Some(Json::Array(list)) => list.iter().map(text_of).collect::<Vec<_>>().join(","),
        Some(text) => text_of(text),
        None => String::new(),
    };
    // Without a cache of answers it is asked whatever the request has.
    let is_optional = text(own, "AuthorizerResultTtlInSeconds").as_deref() == Some("0");
    let kind = text(own, "AuthorizerType").or_else(|| text(own, "Type")).unwrap_or_default();
    let is_token = kind == "TOKEN";
    let mut scheme = json!({ AUTHORIZER: {
        "type": kind,
        "authorizerUri": own.get("AuthorizerUri"),
        "authorizerPayloadFormatVersion": text(own, "AuthorizerPayloadFormatVersion").unwrap_or_default(),
        "enableSimpleResponses": own.get("EnableSimpleResponses").unwrap_or(&Json::Bool(false)),
        "identitySource": if is_optional && !is_token { "" } else { &sources },
    } });
    if let Some(pattern) = own.get("IdentityValidationExpression") {
        scheme[AUTHORIZER]["identityValidationExpression"] = pattern.clone();
    }
    if let Some(header) = sources.rsplit_once("header.") {
        scheme["name"] = header.1.into();
    }
    scheme
}

/// What guards a method or a route.
fn guard(own: &Map<String, Json>, api: &HttpApi) -> Guard {
    let unsupported = |kind: &str| Guard::Unsupported(kind.into());
    let authorizer = text(own, "AuthorizerId").unwrap_or_default();
    match text(own, "AuthorizationType").as_deref() {
        None | Some("NONE") => Guard::Open,
        Some("AWS_IAM") => Guard::Iam,
        Some("COGNITO_USER_POOLS") => unsupported("a token of Cognito"),
        Some("JWT") => unsupported("a JSON web token"),
        _ if api.authorizers.contains_key(&authorizer) => Guard::Authorizer(authorizer),
        _ => unsupported("an authorizer that is no function here"),
    }
}

/// A route of a REST API; none is one that only answers `OPTIONS`.
fn method(api: &mut HttpApi, own: &Map<String, Json>, parts: &[Part]) -> Result<Option<Route>, String> {
    let none = Map::new();
    let integration = own.get("Integration").and_then(Json::as_object).unwrap_or(&none);
    let method = method_of(&text(own, "HttpMethod").unwrap_or_default())?;
    let kind = text(integration, "Type").unwrap_or_default();
    if method == "OPTIONS" && kind == "MOCK" {
        let options = integration.get("IntegrationResponses").and_then(preflight);
        api.options = api.options.take().or(options);
        return Ok(None);
    }
    let resource = text(own, "ResourceId").unwrap_or_default();
    let path = path_of(Kind::Rest, &path(&resource, parts, DEPTH)?)?;
    let target = target(integration, &kind, "Uri")?;
    let timeout_ms = milliseconds(integration);
    Ok(Some(Route { method, path, target, format: Format::One, guard: guard(own, api), timeout_ms }))
}

/// The path of a resource, without a slash at the end.
fn path(id: &str, parts: &[Part], depth: usize) -> Result<String, String> {
    if id.split_once('.').is_some_and(|(_, attribute)| attribute == ROOT) {
        return Ok(String::new());
    }
    let none = || format!("its resource '{}' is not there", id.escape_debug());
    let own = of(parts, RESOURCE, id).filter(|_| depth > 0).ok_or_else(none)?;
    let (parent, part) =
        (text(own, "ParentId").unwrap_or_default(), text(own, "PathPart").unwrap_or_default());
    Ok(format!("{}/{part}", path(&parent, parts, depth - 1)?))
}

/// The route of an HTTP API that names its only function itself, AWS' quick create.
pub fn quick(own: &Map<String, Json>) -> Option<Result<Route, String>> {
    let uri = text(own, "Target")?;
    let route = || {
        let (method, path) = key_of(&text(own, "RouteKey").unwrap_or_else(|| DEFAULT.into()))?;
        let target = target_of(&uri).ok_or("its Target is no function")?;
        Ok(Route { method, path, target, format: Format::Two, guard: Guard::Open, timeout_ms: None })
    };
    Some(route())
}

/// Method and path of a route's key.
fn key_of(key: &str) -> Result<(String, String), String> {
    match key.split_once(' ') {
        Some((method, path)) => Ok((method_of(method)?, path_of(Kind::Http, path)?)),
        None if key == DEFAULT => Ok((ANY.into(), DEFAULT.into())),
        None => Err(format!("RouteKey is '{}' and must be METHOD PATH", key.escape_debug())),
    }
}

fn route(api: &HttpApi, own: &Map<String, Json>, parts: &[Part]) -> Result<Route, String> {
    let (method, path) = key_of(&text(own, "RouteKey").unwrap_or_default())?;
    let named = text(own, "Target").unwrap_or_default();
    let integration = named.strip_prefix("integrations/").and_then(|id| of(parts, INTEGRATION, id));
    let integration = integration.ok_or("its integration is not there")?;
    let kind = text(integration, "IntegrationType").unwrap_or_default();
    let target = target(integration, &kind, "IntegrationUri")?;
    let is_two = text(integration, "PayloadFormatVersion").is_some_and(|version| version.starts_with('2'));
    let format = if is_two { Format::Two } else { Format::One };
    Ok(Route { method, path, target, format, guard: guard(own, api), timeout_ms: milliseconds(integration) })
}

fn target(
    integration: &Map<String, Json>,
    kind: &str,
    key: &str,
) -> Result<crate::base::name::Target, String> {
    if kind != "AWS_PROXY" {
        return Err(format!(
            "its integration is '{}', and only AWS_PROXY calls a function here",
            kind.escape_debug()
        ));
    }
    let uri = text(integration, key).unwrap_or_default();
    target_of(&uri).ok_or_else(|| "its integration is no function".into())
}

fn milliseconds(integration: &Map<String, Json>) -> Option<u64> {
    text(integration, "TimeoutInMillis")?.parse().ok()
}

/// The headers of an integration that answers `OPTIONS` without a function.
fn preflight(responses: &Json) -> Option<Options> {
    let set = responses.as_array()?.first()?.get("ResponseParameters")?.as_object()?;
    let mut options = Options::default();
    for (name, value) in set {
        let Some(header) = name.strip_prefix(HEADER) else { continue };
        let header = header.to_ascii_lowercase();
        if header == "access-control-allow-methods" {
            options.methods = Some(cors::unquoted(value));
        } else {
            options.headers.insert(header, cors::unquoted(value));
        }
    }
    Some(options)
}
