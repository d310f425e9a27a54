//! `Fn::ForEach`, which `sam build` leaves in place: one copy of its body for each value.

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value as Json};

use super::yaml::text_of;

const PREFIX: &str = "Fn::ForEach::";
/// Copies in a template, at most: loops within loops multiply.
const COPIES: usize = 10_000;

/// Replaces every loop by its copies. `list` evaluates a loop's collection.
///
/// # Errors
/// A loop is wrong, and which.
pub fn expand(value: Json, list: &dyn Fn(&Json) -> Result<Vec<String>>) -> Result<Json> {
    expand_within(value, list, &mut 0)
}

fn expand_within(value: Json, list: &dyn Fn(&Json) -> Result<Vec<String>>, made: &mut usize) -> Result<Json> {
    Ok(match value {
        Json::Array(items) => {
            items.into_iter().map(|item| expand_within(item, list, made)).collect::<Result<_>>()?
        }
        Json::Object(map) => {
            let mut whole = Map::new();
            for (key, value) in map {
                if key.starts_with(PREFIX) {
                    whole.extend(copies(&value, list, made).context(key)?);
                } else {
                    whole.insert(key, expand_within(value, list, made)?);
                }
            }
            Json::Object(whole)
        }
        plain => plain,
    })
}

fn copies(
    of: &Json,
    list: &dyn Fn(&Json) -> Result<Vec<String>>,
    made: &mut usize,
) -> Result<Map<String, Json>> {
    let parts = of.as_array().map(Vec::as_slice);
    let Some([Json::String(name), collection, Json::Object(body)]) = parts else {
        anyhow::bail!("needs an identifier, a list and a mapping")
    };
    let mut all = Map::new();
    for item in list(collection)? {
        *made += 1;
        ensure!(*made <= COPIES, "loops make more than {COPIES} copies");
        let copy = substituted(&Json::Object(body.clone()), name, &item);
        if let Json::Object(copy) = expand_within(copy, list, made)? {
            all.extend(copy);
        }
    }
    Ok(all)
}

/// A copy of the body, with this item in place of the identifier.
fn substituted(value: &Json, name: &str, item: &str) -> Json {
    let letters: String = item.chars().filter(char::is_ascii_alphanumeric).collect();
    let in_text =
        |text: &str| text.replace(&format!("${{{name}}}"), item).replace(&format!("&{{{name}}}"), &letters);
    match value {
        Json::String(text) => in_text(text).into(),
        Json::Array(items) => items.iter().map(|each| substituted(each, name, item)).collect(),
        Json::Object(map) => {
            if map.len() == 1 && map.get("Ref").is_some_and(|to| text_of(to) == name) {
                return item.into();
            }
            map.iter().map(|(key, value)| (in_text(key), substituted(value, name, item))).collect()
        }
        plain => plain.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(value: &Json) -> Result<Vec<String>> {
        Ok(value.as_array().context("no list")?.iter().map(text_of).collect())
    }

    #[test]
    fn loops_within_loops_are_expanded_in_names_and_values() {
        let template = json!({ "Fn::ForEach::Outer": ["A", ["x-1", "y"], {
            "Is&{A}": { "Name": { "Ref": "A" }, "Text": "${A}!" },
            "Fn::ForEach::Inner": ["B", ["1"], { "Of${A}${B}": { "Ref": "B" } }],
        }], "Kept": 1 });
        let wanted = json!({
            "Isx1": { "Name": "x-1", "Text": "x-1!" }, "Ofx-11": "1",
            "Isy": { "Name": "y", "Text": "y!" }, "Ofy1": "1",
            "Kept": 1,
        });
        assert_eq!(expand(template, &words).unwrap(), wanted);
    }

    #[test]
    fn loops_that_multiply_are_refused() {
        let many: Vec<String> = (0..200).map(|number| number.to_string()).collect();
        let inner = json!({ "Fn::ForEach::I": ["B", many, { "${A}${B}": 1 }] });
        let error = expand(json!({ "Fn::ForEach::O": ["A", many, inner] }), &words).unwrap_err();
        assert!(format!("{error:#}").contains("more than 10000 copies"), "{error:#}");
        assert!(expand(json!({ "Fn::ForEach::O": ["A", ["x"]] }), &words).is_err());
    }
}
