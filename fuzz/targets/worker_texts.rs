//! Small texts that callers and functions give the worker: filters of queues, schedules, names, patterns of
//! logs, policies, and what a function answers to an HTTP request.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use worker::fuzzing::{filter, schedule, texts, url_answer};

#[derive(Debug, Arbitrary)]
enum Input {
    Filter(String, String),
    Rules(Vec<Rule>, String, f64),
    Schedule(String, u32),
    Cron([Field; 6], u32),
    Answer(Vec<u8>),
    Fields { status: i32, headers: Vec<(String, String)>, cookies: Vec<String>, body: String, encoded: bool },
    Text(String),
}

#[derive(Debug, Arbitrary)]
enum Rule {
    Prefix(String),
    Suffix(String),
    AnythingBut(String),
    Numeric(bool, f64),
    Exists(bool),
    Text(String),
}

#[derive(Debug, Arbitrary)]
enum Field {
    All,
    Any,
    Number(u8),
    Range(u8, u8),
    Steps(u8, u8),
    Last(u8),
    Nth(u8, u8),
    Working(u8),
    Word(u8),
    Year(u8),
}

impl Field {
    fn text(&self) -> String {
        match self {
            Field::All => "*".into(),
            Field::Any => "?".into(),
            Field::Number(number) => number.to_string(),
            Field::Range(first, last) => format!("{first}-{last}"),
            Field::Steps(first, step) => format!("{first}/{step}"),
            Field::Last(number) => {
                if number % 2 == 0 {
                    "L".into()
                } else {
                    format!("L-{}", number % 32)
                }
            }
            Field::Nth(day, nth) => format!("{}#{}", day % 9, nth % 7),
            Field::Working(day) => {
                if *day == 0 {
                    "LW".into()
                } else {
                    format!("{}W", day % 33)
                }
            }
            Field::Word(word) => {
                ["MON", "FRI", "JAN", "DEC", "SUN-SAT", "2L", "FRIL"][usize::from(word % 7)].into()
            }
            Field::Year(year) => (1965 + u32::from(*year)).to_string(),
        }
    }
}

fn times(text: &str, after: u32) {
    if let Some(times) = schedule(text, after.into(), 5) {
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(!text.trim_start().starts_with("cron") || times.iter().all(|time| time % 60 == 0));
    }
}

fuzz_target!(|input: Input| match input {
    Input::Filter(pattern, body) => drop(filter(&pattern, &body)),
    Input::Rules(rules, text, number) => {
        let mut wanted = rules.is_empty();
        let rules: Vec<_> = rules
            .iter()
            .map(|rule| {
                let (rule, matches) = match rule {
                    Rule::Prefix(part) => (json!({ "prefix": part }), text.starts_with(part)),
                    Rule::Suffix(part) => (json!({ "suffix": part }), text.ends_with(part)),
                    Rule::AnythingBut(other) => (json!({ "anything-but": other }), text != *other),
                    Rule::Numeric(below, bound) => {
                        let operator = if *below { "<" } else { ">=" };
                        (json!({ "numeric": [operator, bound] }), false)
                    }
                    Rule::Exists(exists) => (json!({ "exists": exists }), *exists),
                    Rule::Text(other) => (json!(other), text == *other),
                };
                wanted |= matches;
                rule
            })
            .collect();
        let body = json!({ "a": text, "n": number }).to_string();
        if let Some(matches) = filter(&json!({ "body": { "a": rules } }).to_string(), &body) {
            assert_eq!(matches, wanted);
        }
    }
    Input::Schedule(text, after) => times(&text, after),
    Input::Cron(fields, after) => {
        let fields: Vec<String> = fields.iter().map(Field::text).collect();
        times(&format!("cron({})", fields.join(" ")), after);
    }
    Input::Answer(payload) => drop(url_answer(&payload)),
    Input::Fields { status, headers, cookies, body, encoded } => {
        let headers: serde_json::Map<_, _> =
            headers.into_iter().map(|(key, value)| (key, json!(value))).collect();
        let answer = json!({
            "statusCode": status, "headers": headers, "cookies": cookies,
            "body": body, "isBase64Encoded": encoded,
        });
        let status_of_answer = url_answer(answer.to_string().as_bytes());
        assert!(i32::from(status_of_answer) == status || status_of_answer == 502);
    }
    Input::Text(text) => texts(&text),
});
