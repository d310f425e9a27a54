//! The parts of a template that declare APIs, with intrinsic functions resolved.

use serde_json::{Map, Value as Json};

use super::super::scope::Scope;
use super::{Declaration, is_api};

/// All but the events of functions.
pub fn declared(scope: &Scope) -> Declaration {
    let globals = |key: &str| {
        let globals = scope.template.get("Globals").and_then(|globals| globals.get(key));
        globals.map(|globals| of_api(globals, scope, &format!("Globals.{key}"))).unwrap_or_default()
    };
    let resources = scope.part("Resources").filter_map(|(id, resource)| {
        let kind = resource.get("Type")?.as_str().filter(|kind| is_api(kind))?;
        let own = resource.get("Properties").unwrap_or(&Json::Null);
        let own = of_api(own, scope, &format!("Resources.{id}.Properties"));
        Some((id.clone(), kind.to_string(), own))
    });
    Declaration {
        rest_globals: globals("Api"),
        http_globals: globals("HttpApi"),
        resources: resources.collect(),
        functions: Vec::new(),
    }
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
