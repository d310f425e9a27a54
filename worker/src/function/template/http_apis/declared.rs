//! The parts of a template that declare APIs, with intrinsic functions resolved.

use serde_json::{Map, Value as Json};
use serde_yaml_ng::Value as Yaml;

use super::super::intrinsics::Scope;
use super::{Declaration, is_api};

/// All but the events of functions.
pub fn declared(template: &Yaml, scope: &Scope) -> Declaration {
    let globals = |key: &str| {
        let globals = template.get("Globals").and_then(|globals| globals.get(key));
        globals.map(|globals| of_api(globals, scope, &format!("Globals.{key}"))).unwrap_or_default()
    };
    let resources = template.get("Resources").and_then(Yaml::as_mapping).into_iter().flatten();
    let resources = resources.filter_map(|(id, resource)| {
        let (id, kind) = (id.as_str()?, resource.get("Type")?.as_str().filter(|kind| is_api(kind))?);
        let own = resource.get("Properties").unwrap_or(&Yaml::Null);
        let own = of_api(own, scope, &format!("Resources.{id}.Properties"));
        Some((id.to_string(), kind.to_string(), own))
    });
    Declaration {
        rest_globals: globals("Api"),
        http_globals: globals("HttpApi"),
        resources: resources.collect(),
        functions: Vec::new(),
    }
}

/// The properties of an API; what cannot be resolved is left out, with a warning.
fn of_api(properties: &Yaml, scope: &Scope, place: &str) -> Map<String, Json> {
    let mapping = properties.as_mapping().into_iter().flatten();
    let resolved = mapping.filter_map(|(key, value)| {
        let key = key.as_str()?;
        let value = scope.resolve(value, &format!("{place}.{key}"));
        let value = value.inspect_err(|error| tracing::warn!("{place}.{key} is passed over: {error:#}"));
        Some((key.to_string(), value.ok()??))
    });
    resolved.collect()
}
