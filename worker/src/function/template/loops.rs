//! `Fn::ForEach`, which `sam build` leaves in place: one copy of its body for each value.

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value as Json};

use super::yaml::{text_of, weight_of};

const PREFIX: &str = "Fn::ForEach::";
/// Copies in a template, at most: loops within loops multiply.
const COPIES: usize = 10_000;

type List<'a> = &'a dyn Fn(&Json) -> Result<Vec<String>>;
type Spend<'a> = &'a dyn Fn(usize) -> Result<()>;

/// Replaces every loop by its copies. `list` evaluates a loop's collection, `spend` counts values that are
/// made.
///
/// # Errors
/// A loop is wrong, and which; or there are too many values.
pub fn expand(value: Json, list: List, spend: Spend) -> Result<Json> {
    expand_within(value, list, spend, &mut 0)
}

fn expand_within(value: Json, list: List, spend: Spend, made: &mut usize) -> Result<Json> {
    Ok(match value {
        Json::Array(items) => {
            items.into_iter().map(|item| expand_within(item, list, spend, made)).collect::<Result<_>>()?
        }
        Json::Object(map) => {
            let mut whole = Map::new();
            for (key, value) in map {
                if key.starts_with(PREFIX) {
                    whole.extend(copies(&value, list, spend, made).context(key)?);
                } else {
                    whole.insert(key, expand_within(value, list, spend, made)?);
                }
            }
            Json::Object(whole)
        }
        plain => plain,
    })
}

fn copies(of: &Json, list: List, spend: Spend, made: &mut usize) -> Result<Map<String, Json>> {
    let parts = of.as_array().map(Vec::as_slice);
    let Some([Json::String(name), collection, Json::Object(body)]) = parts else {
        anyhow::bail!("needs an identifier, a list and a mapping")
    };
    let mut all = Map::new();
    for item in list(collection)? {
        *made += 1;
        ensure!(*made <= COPIES, "loops make more than {COPIES} copies");
        let copy = body.iter().map(|(key, value)| {
            Ok((in_text(key, name, &item, spend)?, substituted(value, name, &item, spend)?))
        });
        let copy = Json::Object(copy.collect::<Result<_>>()?);
        if let Json::Object(copy) = expand_within(copy, list, spend, made)? {
            all.extend(copy);
        }
    }
    Ok(all)
}

/// A copy of a value of the body, with this item in place of the identifier.
fn substituted(value: &Json, name: &str, item: &str, spend: Spend) -> Result<Json> {
    spend(1)?;
    Ok(match value {
        Json::String(text) => in_text(text, name, item, spend)?.into(),
        Json::Array(items) => {
            items.iter().map(|each| substituted(each, name, item, spend)).collect::<Result<_>>()?
        }
        Json::Object(map) => {
            if map.len() == 1 && map.get("Ref").is_some_and(|to| text_of(to) == name) {
                return Ok(item.into());
            }
            let each = map.iter().map(|(key, value)| {
                Ok((in_text(key, name, item, spend)?, substituted(value, name, item, spend)?))
            });
            Json::Object(each.collect::<Result<_>>()?)
        }
        plain => plain.clone(),
    })
}

/// The same of a text: `${NAME}` stands for the item, `&{NAME}` for its letters and digits.
fn in_text(text: &str, name: &str, item: &str, spend: Spend) -> Result<String> {
    let (whole, plain) = (format!("${{{name}}}"), format!("&{{{name}}}"));
    spend(weight_of(text.len() + text.matches(&whole).count().saturating_mul(item.len())))?;
    let text = text.replace(&whole, item);
    spend(weight_of(text.matches(&plain).count().saturating_mul(item.len())))?;
    let letters: String = item.chars().filter(char::is_ascii_alphanumeric).collect();
    Ok(text.replace(&plain, &letters))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;

    fn expand(value: Json) -> Result<Json> {
        let spent = Cell::new(0);
        let spend = |values: usize| -> Result<()> {
            spent.set(spent.get() + values);
            ensure!(spent.get() <= 1_000_000, "too many values");
            Ok(())
        };
        super::expand(value, &words, &spend)
    }

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
        assert_eq!(expand(template).unwrap(), wanted);
    }

    #[test]
    fn loops_that_multiply_are_refused() {
        let many: Vec<String> = (0..200).map(|number| number.to_string()).collect();
        let inner = json!({ "Fn::ForEach::I": ["B", many, { "${A}${B}": 1 }] });
        let error = expand(json!({ "Fn::ForEach::O": ["A", many, inner] })).unwrap_err();
        assert!(format!("{error:#}").contains("more than 10000 copies"), "{error:#}");
        assert!(expand(json!({ "Fn::ForEach::O": ["A", ["x"]] })).is_err());
    }

    #[test]
    fn texts_that_grow_in_loops_within_loops_are_refused() {
        let mut body = json!({ "Text": "${N0}" });
        for number in (0..24).rev() {
            let items = [format!("${{N{0}}}${{N{0}}}", number + 1)];
            body = json!({ format!("Fn::ForEach::L{number}"): [format!("N{number}"), items, body] });
        }
        let error = expand(body).unwrap_err();
        assert!(format!("{error:#}").contains("too many values"), "{error:#}");
        let large = json!({ "a": vec!["x"; 1000] });
        let many: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
        assert!(expand(json!({ "Fn::ForEach::L": ["N", many, large] })).is_err());
    }
}
