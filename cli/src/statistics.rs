//! The statistics the heap writes when a program ends: one JSON object with flat dotted keys, or a table.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use serde_json::{Map, Value};

use crate::quantity;

/// The statistics in `text`; `origin` is for messages.
///
/// # Errors
/// Text that is no JSON object.
pub fn parse(text: &str, origin: &Path) -> Result<Map<String, Value>> {
    match serde_json::from_str(text) {
        Ok(Value::Object(statistics)) => Ok(statistics),
        Ok(_) => bail!("{}: the heap's statistics are not a JSON object", origin.display()),
        Err(error) => bail!("{}: the heap's statistics are not JSON: {error}", origin.display()),
    }
}

/// The integer under `key`.
///
/// # Errors
/// There is no such key, or no number under it; the key is named.
pub fn whole_number(statistics: &Map<String, Value>, key: &str) -> Result<u64> {
    let value = statistics.get(key).ok_or_else(|| anyhow!("the heap's statistics lack the key {key}"))?;
    value.as_u64().ok_or_else(|| anyhow!("the heap's statistics have {key} = {value}, not a whole number"))
}

/// A table of two columns, with numbers formatted for people.
pub fn table(statistics: &Map<String, Value>) -> String {
    let width = statistics.keys().map(|key| key.len()).max().unwrap_or(0);
    let rows = statistics.iter().map(|(key, value)| format!("{key:width$}  {:>14}\n", readable(key, value)));
    rows.collect()
}

/// One line: which part of the process's memory at its end is malloc's, and so the heap's to save. `None` for
/// statistics that lack it.
pub fn share_of_malloc(statistics: &Map<String, Value>) -> Option<String> {
    let bytes = |key| statistics.get(key).and_then(Value::as_f64);
    let (heap, process) = (bytes("heap.resident_bytes")?, bytes("process.resident_bytes")?);
    let share = (100.0 * heap / process).min(100.0);
    let is_known = process > 0.0;
    is_known.then(|| {
        format!("malloc has {share:.0}% of the {} that were resident at the end\n", quantity::bytes(process))
    })
}

fn readable(key: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => {
            let float = number.as_f64().unwrap_or(0.0);
            match number.as_u64() {
                Some(_) if key.ends_with("_bytes") => quantity::bytes(float),
                Some(_) if key.ends_with("_ns") => quantity::duration(float),
                Some(whole) => quantity::count(whole),
                None => format!("{float:.3}"),
            }
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_units_and_keeps_the_order() {
        let text = r#"{"heap.live_bytes": 1536, "heap.huge_pages.live": 12345, "heap.ratio": 1.25, "heap.pages": "thp"}"#;
        let statistics = parse(text, Path::new("s.json")).unwrap();
        let table = table(&statistics);
        let rows: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["heap.live_bytes", "1.5", "KiB"]);
        assert_eq!(rows[1], ["heap.huge_pages.live", "12,345"]);
        assert_eq!(rows[2], ["heap.ratio", "1.250"]);
        assert_eq!(rows[3], ["heap.pages", "thp"]);
    }

    #[test]
    fn shows_the_share_of_malloc() {
        let share = |text| share_of_malloc(&parse(text, Path::new("s.json")).unwrap());
        let line = share(r#"{"heap.resident_bytes": 1048576, "process.resident_bytes": 4194304}"#);
        assert_eq!(line.unwrap(), "malloc has 25% of the 4.0 MiB that were resident at the end\n");
        assert!(share(r#"{"heap.resident_bytes": 1, "process.resident_bytes": 0}"#).is_none());
        assert!(share("{}").is_none());
    }

    #[test]
    fn names_missing_keys_and_bad_values() {
        let statistics = parse(r#"{"heap.live_bytes": "many"}"#, Path::new("s.json")).unwrap();
        let error = |key| whole_number(&statistics, key).unwrap_err().to_string();
        assert_eq!(error("heap.mapped_bytes"), "the heap's statistics lack the key heap.mapped_bytes");
        assert!(error("heap.live_bytes").contains("heap.live_bytes = \"many\""));
        assert!(parse("{", Path::new("s.json")).unwrap_err().to_string().starts_with("s.json: "));
        assert!(parse("[]", Path::new("s.json")).is_err());
    }
}
