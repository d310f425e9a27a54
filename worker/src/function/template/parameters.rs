//! The values of a template's parameters: the user's, those of `samconfig.toml`, or their `Default`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value as Json;

use super::yaml::text_of;

/// The file with a project's settings, beside its template.
const CONFIG: &str = "samconfig.toml";
/// The tables of it that concern serving, the later over the earlier.
const TABLES: [&str; 3] = ["global", "local_start_api", "local_start_lambda"];

/// Reads `KEY=VALUE` or `ParameterKey=KEY,ParameterValue=VALUE`, several separated by spaces.
///
/// # Errors
/// A word is neither.
pub fn overrides(text: &str) -> Result<BTreeMap<String, String>> {
    let pair = |word: String| {
        let long = word.strip_prefix("ParameterKey=").and_then(|rest| rest.split_once(",ParameterValue="));
        let pair = long.or_else(|| word.split_once('=')).filter(|(key, _)| !key.is_empty());
        let (key, value) = pair.with_context(|| format!("'{word}' is not of the form NAME=VALUE"))?;
        Ok((key.to_string(), value.to_string()))
    };
    words(text).into_iter().map(pair).collect()
}

/// The words of a text, at spaces outside quotes, without the quotes.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (Some('"') | None, '\\') => word.get_or_insert_default().extend(letters.next()),
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// The parameters in the `samconfig.toml` of a folder, if there is one.
///
/// # Errors
/// It is no TOML, or a parameter in it is none.
pub fn of_config(folder: &Path) -> Result<BTreeMap<String, String>> {
    let path = folder.join(CONFIG);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(BTreeMap::new()) };
    let shown = path.display();
    let config: toml::Table =
        toml::from_str(&text).map_err(|error| anyhow!("{shown}: {}", error.message()))?;
    let mut found = BTreeMap::new();
    for table in TABLES {
        let given = config
            .get("default")
            .and_then(|environment| environment.get(table)?.get("parameters")?.get("parameter_overrides"));
        let lines: Vec<&str> = match given {
            Some(toml::Value::String(text)) => vec![text],
            Some(toml::Value::Array(list)) => list.iter().filter_map(toml::Value::as_str).collect(),
            _ => Vec::new(),
        };
        for line in lines {
            found.extend(overrides(line).with_context(|| format!("{shown}: parameter_overrides"))?);
        }
    }
    Ok(found)
}

/// A parameter's value, from its declaration and the text that was given for it.
pub fn value(declared: &Json, given: Option<&Json>) -> Option<Json> {
    let kind = declared.get("Type").and_then(Json::as_str).unwrap_or("String");
    let value = given.or_else(|| declared.get("Default"))?;
    let is_list = kind == "CommaDelimitedList" || kind.contains("List<");
    Some(match value {
        Json::Array(_) => value.clone(),
        one if is_list => text_of(one).split(',').map(|item| Json::from(item.trim())).collect(),
        one => one.clone(),
    })
}

/// The `--env-vars` file of `sam local`: variables by function, and those of all in `Parameters`.
///
/// # Errors
/// It cannot be read, or is something else.
pub fn variables(path: &Path) -> Result<BTreeMap<String, BTreeMap<String, Json>>> {
    let read = || -> Result<BTreeMap<String, BTreeMap<String, Json>>> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| anyhow!("{}", worker_system::text::plain_reason(&error)))?;
        let flat: BTreeMap<String, Json> = serde_json::from_str(&text)?;
        let nested = |(function, own): (String, Json)| {
            let own =
                own.as_object().with_context(|| format!("{function} should be an object of variables"))?;
            Ok((function, own.clone().into_iter().collect()))
        };
        let all = flat.into_iter().map(nested).collect::<Result<BTreeMap<_, BTreeMap<_, _>>>>()?;
        ensure!(!all.is_empty(), "there are no variables");
        Ok(all)
    };
    read().with_context(|| format!("--env-vars {}", path.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn overrides_are_read_in_both_forms() {
        let read = |text: &str| overrides(text).map(|map| map.into_iter().collect::<Vec<_>>());
        let pairs = |list: &[(&str, &str)]| -> Vec<(String, String)> {
            list.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
        };
        assert_eq!(read("A=1  B=x=y").unwrap(), pairs(&[("A", "1"), ("B", "x=y")]));
        assert_eq!(read(r#"A="two words" B='"'"#).unwrap(), pairs(&[("A", "two words"), ("B", "\"")]));
        assert_eq!(read("ParameterKey=A,ParameterValue=1,2 B=").unwrap(), pairs(&[("A", "1,2"), ("B", "")]));
        assert!(format!("{:#}", read("A").unwrap_err()).contains("'A' is not of the form NAME=VALUE"));
    }

    #[test]
    fn lists_are_split_and_other_values_stay() {
        let list = json!({ "Type": "CommaDelimitedList", "Default": "a, b" });
        assert_eq!(value(&list, None), Some(json!(["a", "b"])));
        assert_eq!(value(&list, Some(&json!("c"))), Some(json!(["c"])));
        assert_eq!(value(&json!({ "Type": "Number", "Default": "256" }), None), Some(json!("256")));
        assert_eq!(value(&json!({ "Type": "String" }), None), None);
    }

    #[test]
    fn samconfig_gives_parameters() {
        let folder = tempfile::tempdir().unwrap();
        assert!(of_config(folder.path()).unwrap().is_empty());
        let write = |text: &str| std::fs::write(folder.path().join(CONFIG), text).unwrap();
        write(
            "version = 0.1\n[default.global.parameters]\nparameter_overrides = 'A=1 B=1'\n\
             [default.local_start_lambda.parameters]\nparameter_overrides = ['B=2']\n\
             [prod.global.parameters]\nparameter_overrides = 'A=3'\n",
        );
        let read = of_config(folder.path()).unwrap();
        assert_eq!(read, BTreeMap::from([("A".into(), "1".into()), ("B".into(), "2".into())]));
        write("[");
        assert!(of_config(folder.path()).is_err());
    }
}
