//! Lists in brackets, mappings in braces and quoted texts whose next lines begin further left than the
//! standard allows. SAM's reader takes them, and people write the closing bracket there.

use std::borrow::Cow;

use anyhow::{Result, anyhow};
use saphyr_parser::ScanError;

/// The parser's words, in a list or mapping and in a quoted text.
const FLOW: [&str; 2] = ["invalid indentation", "invalid indentation in flow construct"];
const QUOTED: &str = "invalid indentation in quoted scalar";
/// Lines that are moved, at most.
const LINES: usize = 1000;
/// Deeper than any list or mapping of a template begins.
const INDENT: &str = match std::str::from_utf8(&[b' '; 256]) {
    Ok(spaces) => spaces,
    Err(_) => "",
};

/// What `parse` makes of a text, after lines that it refuses for their indentation alone were moved to the
/// right: inside brackets and quotes the spaces before a line have no meaning.
///
/// # Errors
/// What `parse` says of the text as it is.
pub fn lenient<T>(text: &str, parse: impl Fn(&str) -> Result<T>) -> Result<T> {
    let mut current = Cow::Borrowed(text);
    let (mut first, mut quoted) = (None, (0, 0));
    for _ in 0..LINES {
        let error = match parse(&current) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let line = error.downcast_ref::<ScanError>().and_then(|fault| {
            let line = fault.marker().line();
            match fault.info() {
                info if FLOW.contains(&info) => Some(line),
                // It names the line in which the text begins: each line after that has its turn.
                QUOTED => {
                    quoted = (line, if quoted.0 == line { quoted.1 + 1 } else { 1 });
                    Some(line + quoted.1)
                }
                _ => None,
            }
        });
        let moved = line.and_then(|line| moved(&current, line));
        let Some(moved) = moved else { return Err(first.unwrap_or(error)) };
        first.get_or_insert(error);
        current = Cow::Owned(moved);
    }
    Err(first.unwrap_or_else(|| anyhow!("a quote or bracket does not end")))
}

/// The text with one of its lines, counted from 1, further to the right.
fn moved(text: &str, line: usize) -> Option<String> {
    let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
    let start = starts.take(line).last().filter(|_| line > 0)?;
    // A line that was moved and is still refused has another fault.
    let (before, rest) = text.split_at(start);
    (!rest.is_empty() && !rest.starts_with(INDENT)).then(|| format!("{before}{INDENT}{rest}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::yaml::read;

    #[test]
    fn brackets_and_quotes_may_close_where_their_key_begins() {
        let text = "
a:
    b: [
      1, {
  c: 2
    },
]
    d: {
      e: 3
    }
    f: \"{
      x: 1,
  y
    }\"
    g: 'one
two'
# left
h: 4
";
        let wanted = json!({
            "a": { "b": [1, { "c": 2 }], "d": { "e": 3 }, "f": "{ x: 1, y }", "g": "one two" },
            "h": 4
        });
        assert_eq!(read(text).unwrap(), wanted);
    }

    #[test]
    fn other_faults_are_reported_as_they_are() {
        for (text, line) in [("a:\n  - [1\nb: 2\nc: 3\n", 3), ("a: 'x\n", 1), ("a:\n  b: [\n", 3)] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(&format!("line {line}")), "{error}");
        }
    }
}
