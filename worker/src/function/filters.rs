//! `FilterCriteria` of an event source: which messages the function is called with. The patterns are
//! EventBridge's, as far as Lambda has them for queues.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The most filters of a source, as Lambda's quota has it after an increase.
const MOST: usize = 10;
/// The most bytes of a pattern.
const PATTERN_BYTES: usize = 4096;
/// How deep a pattern may be.
const MOST_DEPTH: usize = 64;

/// A source without filters takes every message; with some, those that one of them matches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Filters {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    filters: Vec<Filter>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Filter {
    pattern: String,
}

/// Checked patterns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patterns(Vec<Map<String, Value>>);

impl Filters {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// The patterns.
    ///
    /// # Errors
    /// One is no pattern, and why.
    pub fn patterns(&self) -> Result<Patterns, String> {
        if self.filters.len() > MOST {
            return Err(format!("FilterCriteria has {} Filters and may have {MOST}", self.filters.len()));
        }
        let parse = |filter: &Filter| {
            let text = &filter.pattern;
            let wrong =
                |reason: String| format!("FilterCriteria: Pattern '{}': {reason}", text.escape_debug());
            if text.len() > PATTERN_BYTES {
                return Err(format!("FilterCriteria: a Pattern has at most {PATTERN_BYTES} bytes"));
            }
            let pattern: Map<String, Value> =
                serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
            check_object(&pattern, 0).and_then(|()| check_keys(&pattern)).map_err(wrong)?;
            Ok(pattern)
        };
        self.filters.iter().map(parse).collect::<Result<_, _>>().map(Patterns)
    }
}

/// Messages of queues are filtered by their bodies alone.
fn check_keys(pattern: &Map<String, Value>) -> Result<(), String> {
    for (key, value) in pattern {
        match (key.as_str(), value) {
            ("body", _) => {}
            ("$or", Value::Array(list)) => {
                list.iter().filter_map(Value::as_object).try_for_each(check_keys)?
            }
            _ => {
                return Err(format!(
                    "messages of queues are filtered by body, and not by {}",
                    key.escape_debug()
                ));
            }
        }
    }
    Ok(())
}

fn check_object(pattern: &Map<String, Value>, depth: usize) -> Result<(), String> {
    if depth > MOST_DEPTH {
        return Err("it is too deep".into());
    }
    if pattern.is_empty() {
        return Err("an empty object matches nothing".into());
    }
    for (key, value) in pattern {
        match value {
            Value::Array(list) if key == "$or" => {
                let objects = list.iter().map(Value::as_object);
                for alternative in objects {
                    check_object(alternative.ok_or("$or needs a list of objects")?, depth + 1)?;
                }
                if list.is_empty() {
                    return Err("$or needs a list of objects".into());
                }
            }
            Value::Object(inner) if key != "$or" => check_object(inner, depth + 1)?,
            Value::Array(list) if !list.is_empty() => list.iter().try_for_each(check_rule)?,
            _ => return Err(format!("the value of {key} must be an object or a list that is not empty")),
        }
    }
    Ok(())
}

fn check_rule(rule: &Value) -> Result<(), String> {
    let Value::Object(map) = rule else {
        return if rule.is_array() { Err("a list within a list".into()) } else { Ok(()) };
    };
    let mut entries = map.iter();
    let (Some((name, value)), None) = (entries.next(), entries.next()) else {
        return Err(format!("{rule} must have one operator"));
    };
    let is_scalar = |value: &Value| value.is_string() || value.is_number();
    let fits = match (name.as_str(), value) {
        ("prefix" | "suffix" | "equals-ignore-case", Value::String(_)) | ("exists", Value::Bool(_)) => true,
        ("numeric", Value::Array(list)) => comparisons(list).is_some(),
        ("anything-but", Value::Array(list)) => !list.is_empty() && list.iter().all(is_scalar),
        ("anything-but", value) => is_scalar(value),
        ("prefix" | "suffix" | "equals-ignore-case" | "exists" | "numeric", _) => false,
        _ => return Err(format!("there is no operator {}", name.escape_debug())),
    };
    if fits { Ok(()) } else { Err(format!("{value} does not go with {name}")) }
}

/// The comparisons of `numeric`: one, or the two ends of a range.
fn comparisons(list: &[Value]) -> Option<Vec<(&str, f64)>> {
    fn pair(pair: &[Value]) -> Option<(&str, f64)> {
        Some((pair[0].as_str()?, pair[1].as_f64()?))
    }
    if !matches!(list.len(), 2 | 4) {
        return None;
    }
    let pairs: Option<Vec<_>> = list.chunks(2).map(pair).collect();
    let known = |operator: &str| matches!(operator, "=" | "<" | "<=" | ">" | ">=");
    pairs.filter(|pairs| {
        let is_range = pairs.len() == 1 || (pairs[0].0.starts_with('>') && pairs[1].0.starts_with('<'));
        is_range && pairs.iter().all(|(operator, _)| known(operator))
    })
}

impl Patterns {
    /// Whether the function is called with this record. Where a pattern has an object for `body`, the body
    /// must be JSON; where it has a list, the body is text and must be no JSON.
    pub fn match_record(&self, record: &Value) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let parsed = record.get("body").and_then(Value::as_str).and_then(|body| {
            serde_json::from_str::<Value>(body).ok().filter(|value| value.is_object() || value.is_array())
        });
        let mut record = record.clone();
        let wants_text = |pattern: &Map<String, Value>| pattern.get("body").is_some_and(Value::is_array);
        let is_json = parsed.is_some();
        if let Some(body) = parsed {
            record["body"] = body;
        }
        self.0.iter().any(|pattern| !(is_json && wants_text(pattern)) && matches_object(pattern, &record))
    }
}

fn matches_object(pattern: &Map<String, Value>, data: &Value) -> bool {
    if let Value::Array(list) = data {
        return list.iter().any(|one| one.is_object() && matches_object(pattern, one));
    }
    pattern.iter().all(|(key, wanted)| match wanted {
        Value::Array(alternatives) if key == "$or" => {
            alternatives.iter().any(|one| one.as_object().is_some_and(|one| matches_object(one, data)))
        }
        Value::Object(inner) => match data.get(key) {
            Some(value) => matches_object(inner, value),
            None => matches_object(inner, &Value::Null),
        },
        Value::Array(rules) => rules.iter().any(|rule| matches_field(rule, data.get(key))),
        _ => false,
    })
}

/// Whether a field satisfies a rule; of a list, one of its elements.
fn matches_field(rule: &Value, field: Option<&Value>) -> bool {
    if let Some(exists) = rule.get("exists").and_then(Value::as_bool) {
        return field.is_some_and(|value| !value.is_object()) == exists;
    }
    match field {
        None => false,
        Some(Value::Array(list)) => list.iter().any(|value| matches_value(rule, value)),
        Some(value) => matches_value(rule, value),
    }
}

fn matches_value(rule: &Value, value: &Value) -> bool {
    let Value::Object(map) = rule else { return is_equal(rule, value) };
    let Some((name, wanted)) = map.iter().next() else { return false };
    let texts = || Some((value.as_str()?, wanted.as_str()?));
    match name.as_str() {
        "prefix" => texts().is_some_and(|(text, wanted)| text.starts_with(wanted)),
        "suffix" => texts().is_some_and(|(text, wanted)| text.ends_with(wanted)),
        "equals-ignore-case" => {
            texts().is_some_and(|(text, wanted)| text.to_lowercase() == wanted.to_lowercase())
        }
        "anything-but" => match wanted {
            _ if value.is_object() => false,
            Value::Array(list) => !list.iter().any(|one| is_equal(one, value)),
            one => !is_equal(one, value),
        },
        "numeric" => {
            let (Some(number), Some(list)) = (value.as_f64(), wanted.as_array()) else { return false };
            comparisons(list).unwrap_or_default().into_iter().all(|(operator, bound)| match operator {
                "<" => number < bound,
                "<=" => number <= bound,
                ">" => number > bound,
                ">=" => number >= bound,
                _ => (number - bound).abs() == 0.0,
            })
        }
        _ => false,
    }
}

fn is_equal(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => (one - other).abs() == 0.0,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patterns(patterns: &[Value]) -> Result<Patterns, String> {
        let filters: Vec<_> =
            patterns.iter().map(|pattern| json!({ "Pattern": pattern.to_string() })).collect();
        serde_json::from_value::<Filters>(json!({ "Filters": filters })).unwrap().patterns()
    }

    #[track_caller]
    fn check(pattern: &Value, bodies: &[(Value, bool)]) {
        let made = patterns(&[json!({ "body": pattern })]).unwrap();
        for (body, wanted) in bodies {
            let record = json!({ "messageId": "m", "body": body.to_string() });
            assert_eq!(made.match_record(&record), *wanted, "{pattern} {body}");
        }
    }

    #[test]
    fn operators_are_lambdas() {
        let of = |value: Value| json!({ "a": value });
        check(
            &json!({ "a": ["x", 1] }),
            &[
                (of(json!("x")), true),
                (of(json!(1.0)), true),
                (of(json!("1")), false),
                (json!({}), false),
                (of(json!(["y", "x"])), true),
            ],
        );
        check(&json!({ "a": [null] }), &[(of(json!(null)), true), (json!({}), false)]);
        check(&json!({ "a": [""] }), &[(of(json!("")), true), (of(json!("x")), false)]);
        check(&json!({ "a": [{ "prefix": "ab" }] }), &[(of(json!("abc")), true), (of(json!("Abc")), false)]);
        check(&json!({ "a": [{ "suffix": ".png" }] }), &[(of(json!("a.png")), true), (of(json!(1)), false)]);
        check(
            &json!({ "a": [{ "equals-ignore-case": "Straße" }] }),
            &[(of(json!("STRAßE")), true), (of(json!("Strasse")), false)],
        );
        check(
            &json!({ "a": [{ "anything-but": ["x", 2] }] }),
            &[(of(json!("y")), true), (of(json!("x")), false), (of(json!(2)), false), (json!({}), false)],
        );
        check(&json!({ "a": [{ "anything-but": "x" }] }), &[(of(json!("x")), false), (of(json!(1)), true)]);
        check(
            &json!({ "a": [{ "numeric": [">", 10, "<=", 20] }] }),
            &[
                (of(json!(10)), false),
                (of(json!(10.5)), true),
                (of(json!(20)), true),
                (of(json!("15")), false),
            ],
        );
        check(&json!({ "a": [{ "numeric": ["=", 1.5] }] }), &[(of(json!(1.5)), true), (of(json!(1)), false)]);
        check(&json!({ "a": [{ "exists": true }] }), &[(of(json!(null)), true), (json!({}), false)]);
        check(&json!({ "a": [{ "exists": false }] }), &[(of(json!(1)), false), (json!({}), true)]);
        check(
            &json!({ "a": { "b": [{ "exists": false }] } }),
            &[(json!({}), true), (json!({ "a": { "b": 1 } }), false)],
        );
        check(
            &json!({ "a": { "b": [1] }, "c": [2] }),
            &[
                (json!({ "a": { "b": 1 }, "c": 2 }), true),
                (json!({ "a": { "b": 1 } }), false),
                (json!({ "a": [{ "b": 0 }, { "b": 1 }], "c": 2 }), true),
            ],
        );
        check(
            &json!({ "$or": [{ "a": [1] }, { "b": [2], "c": [3] }], "d": [4] }),
            &[
                (json!({ "a": 1, "d": 4 }), true),
                (json!({ "b": 2, "c": 3, "d": 4 }), true),
                (json!({ "b": 2, "d": 4 }), false),
                (json!({ "a": 1 }), false),
            ],
        );
    }

    #[test]
    fn texts_match_lists_and_json_matches_objects() {
        let matches = |pattern: Value, body: &str| {
            patterns(&[pattern]).unwrap().match_record(&json!({ "messageId": "m", "body": body }))
        };
        assert!(matches(json!({ "body": ["go"] }), "go") && !matches(json!({ "body": ["go"] }), "stay"));
        assert!(!matches(json!({ "body": { "a": [1] } }), "go"));
        assert!(!matches(json!({ "body": [{ "prefix": "{" }] }), r#"{"a": 1}"#));
        let two = patterns(&[json!({ "body": ["a"] }), json!({ "body": { "b": [1] } })]).unwrap();
        assert!(
            two.match_record(&json!({ "body": "a" })) && two.match_record(&json!({ "body": "{\"b\": 1}" }))
        );
        assert!(Patterns::default().match_record(&json!({})));
    }

    #[test]
    fn faulty_patterns_are_refused() {
        for wrong in [
            json!({}),
            json!({ "body": 1 }),
            json!({ "messageId": ["m"] }),
            json!({ "$or": [{ "body": ["a"] }, { "messageId": ["m"] }] }),
            json!({ "body": [] }),
            json!({ "body": {} }),
            json!({ "body": [["a"]] }),
            json!({ "body": [{ "wildcard": "*" }] }),
            json!({ "body": [{ "prefix": 1 }] }),
            json!({ "body": [{ "prefix": "a", "suffix": "b" }] }),
            json!({ "body": [{ "numeric": [">", "1"] }] }),
            json!({ "body": [{ "numeric": ["<", 1, ">", 0] }] }),
            json!({ "body": [{ "numeric": [">", 1, "<"] }] }),
            json!({ "body": [{ "anything-but": [] }] }),
            json!({ "body": { "$or": [] } }),
            json!({ "body": { "$or": [1] } }),
        ] {
            assert!(
                patterns(std::slice::from_ref(&wrong)).unwrap_err().starts_with("FilterCriteria"),
                "{wrong}"
            );
        }
        let deep = (0..200).fold(json!([1]), |inner, _| json!({ "a": inner }));
        assert!(patterns(&[deep]).is_err());
        assert!(patterns(&vec![json!({ "body": ["a"] }); 11]).is_err());
        assert!(
            serde_json::from_value::<Filters>(json!({})).unwrap().patterns().unwrap() == Patterns::default()
        );
    }
}
