//! HTTP APIs of a template: events of Type `Api` and `HttpApi`, and the resources of APIs that they name.
//!
//! All values are resolved. What is not served is a note, and hinders nothing else.

mod authorizers;
pub mod cors;
mod declared;
mod definition_file;
mod openapi;
pub mod parts;

pub use self::declared::declared;

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use crate::base::name::{self, Target};
use crate::function::http_api::{ANY, DEFAULT, Format, Guard, HttpApi, Kind, Route};

/// SAM's ids of APIs that no resource declares.
const IMPLICIT_REST: &str = "ServerlessRestApi";
const IMPLICIT_HTTP: &str = "ServerlessHttpApi";
/// The stage of the implicit REST API.
const STAGE: &str = "Prod";

/// The parts of a template that declare APIs.
#[derive(Debug, Default)]
pub struct Declaration {
    /// `Globals.Api`.
    pub rest_globals: Map<String, Json>,
    /// `Globals.HttpApi`.
    pub http_globals: Map<String, Json>,
    /// Resources that [`is_api`] accepts: id, type, properties.
    pub resources: Vec<(String, String, Map<String, Json>)>,
    /// Parts of these that are resources of their own.
    pub parts: Vec<parts::Part>,
    /// Each function's `Events`: its name in log lines, what they call, events by name.
    pub functions: Vec<(String, Target, Map<String, Json>)>,
}

/// Whether a resource of this type declares an API.
pub fn is_api(kind: &str) -> bool {
    kind == "AWS::Serverless::WebSocketApi" || kind_of(kind).is_some()
}

fn kind_of(kind: &str) -> Option<Kind> {
    match kind {
        "AWS::Serverless::Api" | "AWS::ApiGateway::RestApi" => Some(Kind::Rest),
        "AWS::Serverless::HttpApi" | "AWS::ApiGatewayV2::Api" => Some(Kind::Http),
        _ => None,
    }
}

/// Whether events of this type are routes of an API.
pub fn is_route(kind: &str) -> bool {
    matches!(kind, "Api" | "HttpApi")
}

/// The APIs, and notes of what is not served.
pub fn read(declaration: &Declaration) -> (Vec<HttpApi>, Vec<String>) {
    let mut reader =
        Reader { declaration, apis: BTreeMap::new(), defaults: BTreeMap::new(), notes: Vec::new() };
    for (id, kind, properties) in &declaration.resources {
        reader.resource(id, kind, properties);
    }
    parts::read(&declaration.parts, &mut reader.apis, &mut reader.notes);
    for (function, target, events) in &declaration.functions {
        for (event, declared) in events {
            if declared.get("Type").and_then(Json::as_str).is_some_and(is_route) {
                let place = format!("{function}.Events.{event}");
                if let Err(reason) = reader.event(&place, target, declared) {
                    reader.notes.push(format!("{place}: {reason}: it is not served"));
                }
            }
        }
    }
    for api in reader.apis.values() {
        for route in &api.routes {
            if let Guard::Unsupported(kind) = &route.guard {
                let (method, path) = (&route.method, &route.path);
                reader.notes.push(format!(
                    "{}: {method} {path} needs {kind}, which the worker cannot check: it answers 401",
                    api.id
                ));
            }
        }
    }
    let served = reader.apis.into_values().filter(|api| !api.routes.is_empty());
    (served.collect(), reader.notes)
}

struct Reader<'a> {
    declaration: &'a Declaration,
    apis: BTreeMap<String, HttpApi>,
    /// `Auth` of each API: what guards a route that names nothing itself.
    defaults: BTreeMap<String, authorizers::Auth>,
    notes: Vec<String>,
}

impl Reader<'_> {
    fn resource(&mut self, id: &str, kind: &str, own: &Map<String, Json>) {
        let is_socket = own.get("ProtocolType").and_then(Json::as_str) == Some("WEBSOCKET");
        let Some(of) = kind_of(kind).filter(|_| !is_socket) else {
            self.notes.push(format!("{id}: WebSocket APIs are not supported: its routes call no function"));
            return;
        };
        let mut properties = match kind {
            "AWS::Serverless::Api" => self.declaration.rest_globals.clone(),
            "AWS::Serverless::HttpApi" => self.declaration.http_globals.clone(),
            _ => Map::new(),
        };
        merge(&mut properties, own);
        self.api(id, of, &properties);
        match (kind == "AWS::ApiGatewayV2::Api").then(|| parts::quick(own)).flatten() {
            Some(Ok(route)) => {
                let api = self.apis.get_mut(id).expect("it was just added");
                add(api, route, &mut self.notes);
            }
            Some(Err(reason)) => self.notes.push(format!("{id}: {reason}: it is not served")),
            None => {}
        }
        let body = properties.get("DefinitionBody").or(properties.get("Body"));
        if let Some(body) = body {
            self.definition(id, body);
        } else if properties.contains_key("DefinitionUri") || properties.contains_key("BodyS3Location") {
            self.notes.push(format!("{id}: its definition is no file here: only events have routes"));
        }
    }

    /// Adds an API without routes.
    fn api(&mut self, id: &str, kind: Kind, properties: &Map<String, Json>) {
        let text = |key: &str| properties.get(key).and_then(Json::as_str).map(str::to_string);
        let texts = |key: &str| {
            let map = properties.get(key).and_then(Json::as_object).into_iter().flatten();
            map.map(|(name, value)| (name.clone(), text_of(value))).collect::<BTreeMap<_, _>>()
        };
        let default = if kind == Kind::Rest { STAGE } else { DEFAULT };
        let binary = properties.get("BinaryMediaTypes").and_then(Json::as_array).into_iter().flatten();
        let (cors, options) = match kind {
            Kind::Rest => (None, properties.get("Cors").and_then(cors::of_rest)),
            Kind::Http => (properties.get("CorsConfiguration").and_then(cors::of_http), None),
        };
        let (known, auth) = authorizers::read(kind, properties.get("Auth"), id, &mut self.notes);
        let api = HttpApi {
            id: id.into(),
            kind,
            stage: text("StageName").unwrap_or_else(|| default.into()),
            variables: texts(if kind == Kind::Rest { "Variables" } else { "StageVariables" }),
            binary: binary.filter_map(Json::as_str).map(|kind| kind.replace("~1", "/")).collect(),
            cors,
            options,
            routes: Vec::new(),
            authorizers: known,
        };
        self.apis.insert(id.into(), api);
        self.defaults.insert(id.into(), auth);
    }

    fn definition(&mut self, id: &str, body: &Json) {
        let Some(api) = self.apis.get_mut(id) else { return };
        let auth = &self.defaults[id];
        openapi::add_routes(api, auth, body, &mut self.notes);
    }

    fn event(&mut self, place: &str, target: &Target, event: &Json) -> Result<(), String> {
        let empty = Json::Object(Map::new());
        let properties = event.get("Properties").unwrap_or(&empty);
        let text = |key: &str| properties.get(key).and_then(Json::as_str);
        let (kind, key, implicit) = match event.get("Type").and_then(Json::as_str) {
            Some("HttpApi") => (Kind::Http, "ApiId", IMPLICIT_HTTP),
            _ => (Kind::Rest, "RestApiId", IMPLICIT_REST),
        };
        let id = match properties.get(key) {
            None => implicit.to_string(),
            Some(Json::String(id)) => id.clone(),
            // `!Ref` as JSON, of an id that is known by its resource alone.
            Some(_) => return Err(format!("{key} is no id of an API here")),
        };
        if !self.apis.contains_key(&id) {
            let globals = match kind {
                Kind::Rest => &self.declaration.rest_globals,
                Kind::Http => &self.declaration.http_globals,
            };
            if id != implicit {
                self.notes.push(format!("{place}: no resource is the API {id}: it has this event's routes"));
            }
            self.api(&id, kind, &globals.clone());
        }
        let auth = &self.defaults[&id];
        let api = self.apis.get_mut(&id).expect("it was just added");
        if api.kind != kind {
            return Err(format!("{id} is an API of the other kind"));
        }
        let (path, method) = match (text("Path"), text("Method")) {
            (None | Some(DEFAULT), _) if kind == Kind::Http => (DEFAULT.to_string(), ANY.to_string()),
            (Some(path), method) => (
                path_of(kind, path)?,
                method_of(method.unwrap_or(if kind == Kind::Http { ANY } else { "" }))?,
            ),
            (None, _) => return Err("Path is needed".into()),
        };
        let format = match properties.get("PayloadFormatVersion").map(text_of).as_deref() {
            _ if kind == Kind::Rest => Format::One,
            None | Some("2.0" | "2") => Format::Two,
            Some("1.0" | "1") => Format::One,
            Some(other) => {
                return Err(format!(
                    "PayloadFormatVersion is '{}' and must be 1.0 or 2.0",
                    other.escape_debug()
                ));
            }
        };
        let guard = auth.guard(properties.get("Auth"), api)?;
        let own = properties.get("Auth").and_then(Json::as_object);
        for key in authorizers::unsupported(own) {
            self.notes.push(format!("{place}: Auth.{key} is not supported and passed over"));
        }
        let timeout_ms = properties.get("TimeoutInMillis").and_then(|value| text_of(value).parse().ok());
        let route = Route { method, path, target: target.clone(), format, guard, timeout_ms };
        add(api, route, &mut self.notes);
        Ok(())
    }
}

/// Adds a route; of two equal ones the first counts.
fn add(api: &mut HttpApi, route: Route, notes: &mut Vec<String>) {
    let known = api.routes.iter().find(|known| (&known.method, &known.path) == (&route.method, &route.path));
    if known.is_some_and(|known| known.target != route.target) {
        notes.push(format!("{}: {} {} is there twice: the first counts", api.id, route.method, route.path));
    }
    if known.is_none() {
        api.routes.push(route);
    }
}

fn path_of(kind: Kind, path: &str) -> Result<String, String> {
    let path = if path.starts_with('/') { path.to_string() } else { format!("/{path}") };
    if path.split('/').rev().skip(1).any(|part| part.ends_with("+}")) {
        return Err(format!("Path {}: only the last part may have a +", path.escape_debug()));
    }
    // REST APIs ignore a slash at the end.
    let short = path.strip_suffix('/').filter(|short| kind == Kind::Rest && !short.is_empty());
    Ok(short.map_or_else(|| path.clone(), str::to_string))
}

fn method_of(method: &str) -> Result<String, String> {
    let method = method.to_ascii_uppercase();
    match method.as_str() {
        "*" | "X-AMAZON-APIGATEWAY-ANY-METHOD" => Ok(ANY.into()),
        "ANY" | "DELETE" | "GET" | "HEAD" | "OPTIONS" | "PATCH" | "POST" | "PUT" => Ok(method),
        other => Err(format!("Method is '{}', which APIs do not have", other.escape_debug())),
    }
}

fn text_of(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// The function in a text that has its ARN, such as an integration's URI.
fn target_of(text: &str) -> Option<Target> {
    let arn = &text[text.find("arn:aws:lambda:")?..];
    name::parse(arn.split('/').next().unwrap_or(arn)).ok()
}

/// As SAM merges globals: mappings key by key, lists one after another, everything else as a whole.
fn merge(known: &mut Map<String, Json>, own: &Map<String, Json>) {
    for (key, value) in own {
        match (known.get_mut(key), value) {
            (Some(Json::Object(known)), Json::Object(own)) => merge(known, own),
            (Some(Json::Array(known)), Json::Array(own)) => known.extend(own.clone()),
            _ => drop(known.insert(key.clone(), value.clone())),
        }
    }
}

#[cfg(test)]
mod tests;
