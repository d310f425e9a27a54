//! The text of a template as values: YAML as SAM's reader has it, or JSON.
//!
//! SAM's tools read YAML 1.1 (`yes`, `0123`), take the last of equal keys, merge `<<`, and write a tag as the
//! intrinsic function that it is short for. No crate's values do all of that, so this builds them from a
//! parser's events.

use std::collections::HashMap;

use anyhow::{Result, anyhow, bail, ensure};
use saphyr_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::{Map, Value as Json};

use super::{indentation, scalars};

/// Lists and mappings in one another, at most; evaluation recurses as deep.
const DEPTH: usize = 100;
/// Values of a template, at most: aliases of aliases multiply. What an alias copies counts by its text, too.
const VALUES: usize = 1_000_000;

/// Reads a template's text.
///
/// # Errors
/// It is neither YAML nor JSON, and where.
pub fn read(text: &str) -> Result<Json> {
    if text.trim_start().starts_with('{')
        && let Ok(json) = serde_json::from_str::<Json>(text)
        && measure(&json).1 <= DEPTH
    {
        return Ok(json);
    }
    indentation::lenient(text, parsed)
}

/// The values of YAML's text; a fault of the parser's stays one.
fn parsed(text: &str) -> Result<Json> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event?;
        if let Event::DocumentEnd = event {
            break;
        }
        builder.event(event).map_err(|error| error.context(format!("line {}", span.start.line())))?;
    }
    Ok(builder.root.unwrap_or_default())
}

/// A list or mapping that is being read.
struct Open {
    value: Kind,
    anchor: usize,
    tag: Option<String>,
}

enum Kind {
    List(Vec<Json>),
    Mapping { own: Map<String, Json>, merged: Vec<Json>, key: Option<Key> },
}

enum Key {
    Name(String),
    Merge,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Json>,
    root: Option<Json>,
    values: usize,
}

impl Builder {
    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                if self.wants_key() {
                    let key = if plain && text == "<<" { Key::Merge } else { Key::Name(text.to_string()) };
                    self.anchors.insert(anchor, Json::String(text.into_owned()));
                    return self.key(key);
                }
                let is_core = tag.as_ref().is_some_and(|tag| tag.is_yaml_core_schema());
                let is_text = is_core && tag.as_ref().is_some_and(|tag| tag.suffix == "str");
                let tag = tag.and_then(|tag| function(&tag));
                let value = match plain && tag.is_none() && !is_text {
                    true => scalars::plain(&text),
                    false => Json::String(text.into_owned()),
                };
                self.add(called(tag, value), anchor)
            }
            Event::SequenceStart(anchor, tag) => self.open(Kind::List(Vec::new()), anchor, tag.as_deref()),
            Event::MappingStart(anchor, tag) => {
                let empty = Kind::Mapping { own: Map::new(), merged: Vec::new(), key: None };
                self.open(empty, anchor, tag.as_deref())
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Open { value, anchor, tag }) = self.open.pop() else { return Ok(()) };
                let value = match value {
                    Kind::List(list) => Json::Array(list),
                    Kind::Mapping { own, merged, .. } => Json::Object(merge(own, merged)?),
                };
                self.add(called(tag, value), anchor)
            }
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned();
                let value = value.ok_or_else(|| anyhow!("an alias lies within its own anchor"))?;
                if self.wants_key() {
                    ensure!(value.is_string(), "a key must be a text");
                    return self.key(Key::Name(text_of(&value)));
                }
                let (values, depth) = measure(&value);
                self.values += values;
                ensure!(self.values <= VALUES, "there are more than {VALUES} values");
                ensure!(depth + self.open.len() <= DEPTH, "values lie too deep in one another");
                self.add(value, 0)
            }
            _ => Ok(()),
        }
    }

    fn wants_key(&self) -> bool {
        matches!(self.open.last(), Some(Open { value: Kind::Mapping { key: None, .. }, .. }))
    }

    fn key(&mut self, name: Key) -> Result<()> {
        match self.open.last_mut() {
            Some(Open { value: Kind::Mapping { key, .. }, .. }) => *key = Some(name),
            _ => bail!("a key lies outside a mapping"),
        }
        Ok(())
    }

    fn open(&mut self, value: Kind, anchor: usize, tag: Option<&Tag>) -> Result<()> {
        ensure!(!self.wants_key(), "a key must be a text");
        ensure!(self.open.len() < DEPTH, "values lie too deep in one another");
        self.open.push(Open { value, anchor, tag: tag.and_then(function) });
        Ok(())
    }

    fn add(&mut self, value: Json, anchor: usize) -> Result<()> {
        self.values += 1;
        ensure!(self.values <= VALUES, "there are more than {VALUES} values");
        if anchor != 0 {
            self.values += measure(&value).0;
            self.anchors.insert(anchor, value.clone());
        }
        match self.open.last_mut() {
            None => self.root = Some(value),
            Some(Open { value: Kind::List(list), .. }) => list.push(value),
            Some(Open { value: Kind::Mapping { own, merged, key }, .. }) => match key.take() {
                Some(Key::Merge) => merged.push(value),
                // The last of equal keys counts.
                Some(Key::Name(name)) => drop(own.insert(name, value)),
                None => bail!("a key must be a text"),
            },
        }
        Ok(())
    }
}

/// A mapping's own keys over those that it merges, of which the first counts.
fn merge(mut own: Map<String, Json>, merged: Vec<Json>) -> Result<Map<String, Json>> {
    let each = merged.into_iter().flat_map(|value| match value {
        Json::Array(list) => list,
        one => vec![one],
    });
    for value in each {
        let Json::Object(map) = value else { bail!("<<: a mapping is needed") };
        for (key, value) in map {
            own.entry(key).or_insert(value);
        }
    }
    Ok(own)
}

/// The intrinsic function that a tag is short for.
fn function(tag: &Tag) -> Option<String> {
    (tag.handle == "!" && !tag.suffix.is_empty()).then(|| tag.suffix.clone())
}

fn called(function: Option<String>, value: Json) -> Json {
    let Some(function) = function else { return value };
    let (name, value) = match function.as_str() {
        "Ref" | "Condition" => (function, value),
        "GetAtt" => {
            let parts = value.as_str().map(|text| match text.split_once('.') {
                Some((id, attribute)) => Json::from(vec![id, attribute]),
                None => Json::from(vec![text]),
            });
            ("Fn::GetAtt".to_string(), parts.unwrap_or(value))
        }
        other => (format!("Fn::{other}"), value),
    };
    Json::Object(Map::from_iter([(name, value)]))
}

/// How many values a text of this length counts as: a long one takes as much memory as several.
pub fn weight_of(bytes: usize) -> usize {
    bytes / 16
}

/// How many values there are, with their texts, and how deep they lie.
pub fn measure(value: &Json) -> (usize, usize) {
    let of = |values: &mut dyn Iterator<Item = &Json>| {
        values.map(measure).fold((1, 1), |(count, deep), (more, depth)| (count + more, deep.max(depth + 1)))
    };
    match value {
        Json::Array(list) => of(&mut list.iter()),
        Json::Object(map) => {
            let (count, deep) = of(&mut map.values());
            (count + map.keys().map(|key| weight_of(key.len())).sum::<usize>(), deep)
        }
        Json::String(text) => (1 + weight_of(text.len()), 0),
        _ => (1, 0),
    }
}

/// A value where a text is needed, as the environment has it.
pub fn text_of(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tags_are_the_long_form_of_intrinsic_functions() {
        for (text, wanted) in [
            ("!Ref A", json!({ "Ref": "A" })),
            ("!GetAtt A.B.C", json!({ "Fn::GetAtt": ["A", "B.C"] })),
            ("!GetAtt [A, B]", json!({ "Fn::GetAtt": ["A", "B"] })),
            ("!Sub 012", json!({ "Fn::Sub": "012" })),
            ("!Join ['-', [1, !Ref B]]", json!({ "Fn::Join": ["-", [1, { "Ref": "B" }]] })),
            (
                "!If [c, {a: 1}, !Ref AWS::NoValue]",
                json!({ "Fn::If": ["c", { "a": 1 }, { "Ref": "AWS::NoValue" }] }),
            ),
            ("!Not [!Condition A]", json!({ "Fn::Not": [{ "Condition": "A" }] })),
            ("!!str 12", json!("12")),
            ("{\"a\": {\"Ref\": \"B\"}}", json!({ "a": { "Ref": "B" } })),
        ] {
            assert_eq!(read(text).unwrap(), wanted, "{text}");
        }
    }

    #[test]
    fn mappings_are_merged_and_the_last_of_equal_keys_counts() {
        let text = "
            one: &one { a: 1, b: 1 }
            two: &two { b: 2, c: 2 }
            both: { <<: [*one, *two], c: 3, d: 4, d: 5 }
            late: { a: 9, <<: *one }
            no: '<<'";
        let read = read(text).unwrap();
        assert_eq!(read["both"], json!({ "a": 1, "b": 1, "c": 3, "d": 5 }));
        assert_eq!(read["late"], json!({ "a": 9, "b": 1 }));
        assert_eq!(read["no"], json!("<<"));
    }

    #[test]
    fn numbers_of_values_and_their_depth_are_bounded() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_string();
        for level in 1..9 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            text += &format!("a{level}: &a{level} [{aliases}]\n");
        }
        assert!(format!("{:#}", read(&text).unwrap_err()).contains("more than 1000000 values"));
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        // The parser may have a lower limit.
        assert!(read(&deep).is_err());
        let long = format!("a: &a {}\nb: [{}]", "x".repeat(100_000), "*a, ".repeat(1000));
        assert!(format!("{:#}", read(&long).unwrap_err()).contains("more than 1000000 values"));
        let chain: String = (1..300).map(|n| format!("- &a{n} [*a{}]\n", n - 1)).collect();
        let chain = format!("- &a0 x\n{chain}");
        assert!(format!("{:#}", read(&chain).unwrap_err()).contains("too deep"));
    }
}
