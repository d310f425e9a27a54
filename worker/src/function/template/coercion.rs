//! Types, as CloudFormation takes them: a text of digits where a number is needed, a number where a text is.

use serde_json::{Map, Value as Json};

use super::yaml::text_of;

const NUMBERS: [&str; 9] = [
    "MemorySize",
    "Timeout",
    "ReservedConcurrentExecutions",
    "Size",
    "MaximumRetryAttempts",
    "MaximumEventAgeInSeconds",
    "BatchSize",
    "MaximumBatchingWindowInSeconds",
    "MaximumConcurrency",
];
const TEXTS: [&str; 6] = ["Handler", "Runtime", "Description", "Role", "PackageType", "WorkingDirectory"];
const LISTS: [&str; 5] = ["Layers", "Architectures", "Command", "EntryPoint", "FunctionResponseTypes"];
const TRUTHS: [&str; 1] = ["Enabled"];

/// Gives the properties that the worker reads the types they need, and drops those without a value.
pub fn properties(map: &mut Map<String, Json>) {
    map.retain(|_, value| !value.is_null());
    for (key, value) in map.iter_mut() {
        let key = key.as_str();
        if key == "Environment" || key == "Tags" {
            continue;
        }
        match value {
            Json::Object(inner) => properties(inner),
            Json::String(text) if NUMBERS.contains(&key) => {
                if let Ok(number) = text.trim().parse::<u64>() {
                    *value = number.into();
                }
            }
            Json::Number(number) if NUMBERS.contains(&key) => {
                if let Some(whole) = number.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0)
                {
                    *value = (whole as u64).into();
                }
            }
            Json::String(text) if TRUTHS.contains(&key) => match text.as_str() {
                "true" => *value = true.into(),
                "false" => *value = false.into(),
                _ => {}
            },
            Json::Bool(_) | Json::Number(_) if TEXTS.contains(&key) => *value = text_of(value).into(),
            Json::String(_) if LISTS.contains(&key) => *value = Json::Array(vec![value.take()]),
            Json::Array(list) if LISTS.contains(&key) => {
                let flat = list.drain(..).flat_map(|item| match item {
                    Json::Array(inner) => inner,
                    one => vec![one],
                });
                *value = flat.map(|item| Json::from(text_of(&item))).collect();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_and_numbers_take_the_type_that_is_needed() {
        let Json::Object(mut map) = json!({
            "MemorySize": "256", "Timeout": 30.0, "Handler": 1, "Layers": [["a"], "b"], "Role": null,
            "Architectures": "x86_64", "EphemeralStorage": { "Size": "512" }, "Enabled": "false",
            "Environment": { "Variables": { "Size": "1", "Gap": null } }, "Description": true,
        }) else {
            panic!("an object")
        };
        properties(&mut map);
        let wanted = json!({
            "MemorySize": 256, "Timeout": 30, "Handler": "1", "Layers": ["a", "b"],
            "Architectures": ["x86_64"], "EphemeralStorage": { "Size": 512 }, "Enabled": false,
            "Environment": { "Variables": { "Size": "1", "Gap": null } }, "Description": "true",
        });
        assert_eq!(Json::Object(map), wanted);
    }
}
