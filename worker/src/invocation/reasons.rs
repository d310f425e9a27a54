//! Why calls of a function fail: the latest reasons, each once, with how often.

use std::time::Instant;

use serde::Deserialize;

use crate::base::error::ApiError;
use crate::invocation::request::Outcome;

/// The most reasons of a function; the one that is oldest goes.
const MOST: usize = 16;
/// The most characters of a reason.
const LENGTH: usize = 200;
/// A longer answer is not parsed: it is no description of an error.
const PARSED_BYTES: usize = 1024 * 1024;

/// A reason, as it was the last time.
#[derive(Clone, Debug)]
pub struct Reason {
    pub text: String,
    pub count: u64,
    pub last: Instant,
    /// What is the same each time.
    key: String,
}

/// The latest reasons.
#[derive(Debug, Default)]
pub struct Reasons(Vec<Reason>);

/// An error as functions answer it.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Described {
    error_type: Option<String>,
    error_message: Option<String>,
}

impl Reasons {
    /// Counts an outcome, unless the call was answered well.
    pub fn count(&mut self, outcome: &Result<Outcome, ApiError>) {
        let text = match outcome {
            Ok(outcome) if !outcome.failed => return,
            Ok(outcome) => described(&outcome.payload),
            Err(error) => format!("{}: {}", error.kind.name(), error.message),
        };
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LENGTH).collect();
        let key = key(&text);
        let count = match self.0.iter().position(|known| known.key == key) {
            Some(at) => self.0.remove(at).count + 1,
            None => 1,
        };
        self.0.push(Reason { text, count, last: Instant::now(), key });
        if self.0.len() > MOST {
            self.0.remove(0);
        }
    }

    /// All of them, the latest last.
    pub fn all(&self) -> &[Reason] {
        &self.0
    }
}

fn described(payload: &[u8]) -> String {
    let payload = if payload.len() > PARSED_BYTES { &[][..] } else { payload };
    let Described { error_type, error_message } = serde_json::from_slice(payload).unwrap_or_default();
    match (error_type, error_message) {
        (Some(kind), Some(message)) => format!("{kind}: {message}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "the function failed without a description".into(),
    }
}

/// A reason without its numbers and ids, which are others each time.
fn key(text: &str) -> String {
    let mut key = String::new();
    for word in text.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '-')) {
        let has_digit = word.chars().any(|c| c.is_ascii_digit());
        key.push_str(if has_digit { "#" } else { word });
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_reasons_are_one_apart_from_ids_and_numbers() {
        let mut reasons = Reasons::default();
        let failed = |kind: &str, message: &str| Ok(Outcome::error(kind, message));
        for number in 0..3 {
            let id = uuid::Uuid::new_v4();
            reasons.count(&failed("Runtime.ExitError", &format!("RequestId: {id} Error: exit {number}")));
        }
        reasons.count(&failed("ValueError", "no"));
        reasons.count(&Err(ApiError::throttled("x", "1500 MB are in use")));
        reasons.count(&Err(ApiError::throttled("x", "1400 MB are in use")));
        let all: Vec<_> = reasons.all().iter().map(|reason| (reason.text.as_str(), reason.count)).collect();
        assert_eq!(all.len(), 3);
        assert!(all[0].0.ends_with("exit 2") && all[0].1 == 3, "{all:?}");
        assert_eq!(all[1], ("ValueError: no", 1));
        assert_eq!(all[2], ("TooManyRequestsException: 1400 MB are in use", 2));
    }

    #[test]
    fn reasons_are_bounded() {
        let mut reasons = Reasons::default();
        for letter in 'a'..='z' {
            let long = letter.to_string().repeat(1000);
            reasons.count(&Ok(Outcome::error("E", &long)));
        }
        assert_eq!(reasons.all().len(), MOST);
        assert!(reasons.all().iter().all(|reason| reason.text.len() == LENGTH));
        let odd = |payload: &'static [u8]| Outcome { payload: payload.into(), ..Outcome::error("", "") };
        for payload in [&b"[]"[..], b"{", b"null", b"\xff"] {
            reasons.count(&Ok(odd(payload)));
        }
        assert_eq!(reasons.all().last().unwrap().count, 4);
        reasons.count(&Ok(Outcome { failed: false, ..odd(b"1") }));
        assert_eq!(reasons.all().last().unwrap().count, 4, "a call that went well");
    }
}
