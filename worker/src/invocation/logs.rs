//! What functions have printed lately, by function and instance, in CloudWatch Logs' terms: a group for
//! each function, a stream for each instance. In memory, as much of each function as [`BYTES`] holds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use crate::base::time::now_ms;
use worker_system::lock::lock;

/// The most bytes of one group.
const BYTES: usize = 1 << 20;
/// Counted for each line beside its text.
const LINE_BYTES: usize = 64;
/// The most characters of a filter pattern, as in CloudWatch: every line is compared with every term.
const PATTERN: usize = 1024;
/// Groups at once; then the one that was silent for longest is removed.
const GROUPS: usize = 1000;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Counts up in its group.
    pub number: u64,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// The instance's log.
    pub stream: Arc<str>,
    /// Without the line break.
    pub text: String,
}

/// The lines of one function.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// The oldest first.
    pub lines: VecDeque<Line>,
    /// The bytes that they take.
    pub bytes: usize,
    next: u64,
}

/// The logs of all functions; those of one that was deleted stay.
#[derive(Debug, Default)]
pub struct Logs(Mutex<BTreeMap<String, Group>>);

/// Stores an instance's lines.
#[derive(Clone, Debug)]
pub struct Stream {
    logs: Arc<Logs>,
    group: String,
    name: Arc<str>,
}

impl Logs {
    /// The log of an instance.
    pub fn stream(self: &Arc<Self>, group: &str, name: &str) -> Stream {
        Stream { logs: self.clone(), group: group.into(), name: name.into() }
    }

    /// Calls `look` with all groups.
    pub fn all<T>(&self, look: impl FnOnce(&BTreeMap<String, Group>) -> T) -> T {
        look(&lock(&self.0))
    }

    /// Calls `look` with one group.
    pub fn group<T>(&self, name: &str, look: impl FnOnce(&Group) -> T) -> Option<T> {
        lock(&self.0).get(name).map(look)
    }

    fn keep(&self, group: &str, stream: &Arc<str>, text: &str, time_ms: u64) {
        let mut groups = lock(&self.0);
        if !groups.contains_key(group) {
            if groups.len() >= GROUPS {
                let last = |group: &Group| group.lines.back().map_or(0, |line| line.time_ms);
                let silent = groups.iter().min_by_key(|(_, group)| last(group)).map(|(name, _)| name.clone());
                silent.map(|name| groups.remove(&name));
            }
            groups.insert(group.to_string(), Group { created_ms: time_ms, ..Group::default() });
        }
        let group = groups.get_mut(group).expect("just made");
        let line = Line { number: group.next, time_ms, stream: stream.clone(), text: text.to_string() };
        group.next += 1;
        group.bytes += line.text.len() + LINE_BYTES;
        group.lines.push_back(line);
        while group.bytes > BYTES {
            let Some(oldest) = group.lines.pop_front() else { break };
            group.bytes -= oldest.text.len() + LINE_BYTES;
        }
    }
}

impl Stream {
    /// Adds a line.
    pub fn keep(&self, text: &str) {
        self.logs.keep(&self.group, &self.name, text, now_ms());
    }
}

/// CloudWatch's filter patterns of terms: `a "b c"` has all of them, `?a ?b` one at least, `-a` none.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    all: Vec<String>,
    any: Vec<String>,
    none: Vec<String>,
}

impl Pattern {
    /// # Errors
    /// A pattern for JSON, columns or regular expressions.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        if text.chars().count() > PATTERN {
            return Err(format!("filterPattern: at most {PATTERN} letters are allowed"));
        }
        let mut pattern = Pattern::default();
        let mut rest = text.trim();
        if rest.starts_with(['{', '[', '%']) {
            return Err(
                "filterPattern: only terms are supported here, as in: error -debug \"timed out\"".into()
            );
        }
        while !rest.is_empty() {
            let (kind, term) = match rest.strip_prefix(['?', '-']) {
                Some(term) => (rest.as_bytes()[0], term),
                None => (b' ', rest),
            };
            let (term, after) = match term.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').ok_or("filterPattern: a quotation mark is missing")?,
                None => term.split_at(term.find(char::is_whitespace).unwrap_or(term.len())),
            };
            let list = match kind {
                b'?' => &mut pattern.any,
                b'-' => &mut pattern.none,
                _ => &mut pattern.all,
            };
            list.push(term.to_string());
            rest = after.trim_start();
        }
        Ok(pattern)
    }

    /// Whether a line matches.
    pub fn matches(&self, text: &str) -> bool {
        let has = |term: &String| text.contains(term.as_str());
        self.all.iter().all(has)
            && !self.none.iter().any(has)
            && (self.any.is_empty() || self.any.iter().any(has))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_of_a_group_go_and_no_other_groups() {
        let (logs, name) = (Logs::default(), Arc::from("s"));
        let text = "x".repeat(1000);
        logs.keep("quiet", &name, "here", 1);
        (0..2000).for_each(|_| logs.keep("noisy", &name, &text, 2));
        let (first, count, bytes) =
            logs.group("noisy", |group| (group.lines[0].number, group.lines.len(), group.bytes)).unwrap();
        assert!(bytes <= BYTES && bytes > BYTES - 2000 && first as usize == 2000 - count);
        assert_eq!(logs.group("quiet", |group| group.lines.len()), Some(1));
        (0..GROUPS).for_each(|number| logs.keep(&number.to_string(), &name, "x", 3));
        assert_eq!(logs.all(BTreeMap::len), GROUPS);
        assert_eq!(
            logs.group("quiet", |group| group.lines.len()),
            None,
            "the one that was silent for longest"
        );
    }

    #[test]
    fn terms_are_all_any_or_none() {
        for (pattern, text, wanted) in [
            ("", "x", true),
            ("a b", "b and a", true),
            ("a b", "a", false),
            ("\"a b\"", "b a", false),
            ("\"a b\" -c", "x a b", true),
            ("\"a b\" -c", "x a b c", false),
            ("?ERROR ?WARN", "a WARN", true),
            ("?ERROR ?WARN", "INFO", false),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().matches(text), wanted, "{pattern}");
        }
        assert!(Pattern::parse(&"a ".repeat(PATTERN / 2)).is_ok());
        let long = "a ".repeat(PATTERN);
        for refused in [&*long, "{ $.a = 1 }", "[a, b]", "%a%", "\"open"] {
            assert!(Pattern::parse(refused).unwrap_err().contains("filterPattern"));
        }
    }
}
