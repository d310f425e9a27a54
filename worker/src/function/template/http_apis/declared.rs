//! The parts of a template that declare APIs, with intrinsic functions resolved.

use serde_json::{Map, Value as Json};

use super::super::scope::Scope;
use super::{Declaration, definition_file, is_api, parts};

/// All but the events of functions.
pub fn declared(scope: &Scope) -> Declaration {
    let globals = |key: &str| {
        let globals = scope.template.get("Globals").and_then(|globals| globals.get(key));
        globals.map(|globals| of_api(globals, scope, &format!("Globals.{key}"))).unwrap_or_default()
    };
    let mut declaration = Declaration {
        rest_globals: globals("Api"),
        http_globals: globals("HttpApi"),
        ..Declaration::default()
    };
    for (id, resource) in scope.part("Resources") {
        let Some(kind) = resource.get("Type").and_then(Json::as_str) else { continue };
        let part = parts::kind_of(kind);
        if part.is_none() && !is_api(kind) {
            continue;
        }
        // What cannot be evaluated is noted elsewhere.
        let condition = resource.get("Condition").and_then(Json::as_str);
        let is_there = condition.is_none_or(|name| scope.condition(name, id).unwrap_or(true));
        if !is_there {
            continue;
        }
        let own = resource.get("Properties").unwrap_or(&Json::Null);
        let place = format!("Resources.{id}.Properties");
        let own = of_api(&definition_file::included(own, scope, &place), scope, &place);
        match part {
            Some(part) => declaration.parts.push((id.clone(), part.into(), own)),
            None => declaration.resources.push((id.clone(), kind.into(), own)),
        }
    }
    declaration
}

/// The properties of an API; what cannot be resolved is left out, with a warning.
fn of_api(properties: &Json, scope: &Scope, place: &str) -> Map<String, Json> {
    let resolved = properties.as_object().into_iter().flatten().filter_map(|(key, value)| {
        let value = scope.resolve(value, &format!("{place}.{key}"));
        let value = value.inspect_err(|error| scope.note(format!("{place}.{key} is passed over: {error:#}")));
        Some((key.clone(), value.ok()??))
    });
    resolved.collect()
}
