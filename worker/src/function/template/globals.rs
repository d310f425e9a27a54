//! `Globals.Function`, as SAM puts it into each function: mappings are merged, lists follow one another,
//! everything else is replaced.

use serde_json::{Map, Value as Json};

use super::intrinsics::call_of;

/// Properties that images must not have.
const OF_FOLDERS: [&str; 5] = ["Runtime", "Handler", "Layers", "CodeUri", "InlineCode"];
/// A list of one.
const SINGLE: &str = "Architectures";

/// A function's properties over those of all functions.
pub fn merged(globals: &Map<String, Json>, own: &Map<String, Json>) -> Map<String, Json> {
    let mut all = globals.clone();
    if own.get("PackageType").or(globals.get("PackageType")).is_some_and(|kind| kind == "Image") {
        // Globals for functions of the other package type.
        OF_FOLDERS.iter().for_each(|key| drop(all.remove(*key)));
    }
    for (key, value) in own {
        merge(&mut all, key, value);
    }
    all
}

fn merge(into: &mut Map<String, Json>, key: &str, value: &Json) {
    let is_call = |map: &Map<String, Json>| call_of(map).is_some();
    match (into.get_mut(key), value) {
        (Some(Json::Array(known)), Json::Array(own)) if key != SINGLE => known.extend(own.clone()),
        (Some(Json::Object(known)), Json::Object(own)) if !is_call(known) && !is_call(own) => {
            own.iter().for_each(|(key, value)| merge(known, key, value));
        }
        (_, value) => drop(into.insert(key.into(), value.clone())),
    }
}
