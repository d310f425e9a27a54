//! A function's answer as HTTP, in payload formats 1.0 and 2.0.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, SET_COOKIE};
use serde_json::{Map, Value, json};

use super::request::{Received, is_binary};
use crate::function::http_api::{HttpApi, Kind};
use crate::http::{self, Answer};
use crate::invocation::request::Outcome;

/// The HTTP answer of a function URL for a function's outcome.
pub fn whole(outcome: &Outcome) -> Answer {
    let answer = if outcome.failed { None } else { two(&outcome.payload, "application/json").ok() };
    answer.unwrap_or_else(broken)
}

/// The answer of a function URL if the function has failed, or has returned no valid answer.
pub fn broken() -> Answer {
    http::json(502, &json!({ "Message": "Internal Server Error" }))
}

/// An answer in format 2.0: `content_type` is that of an answer whose headers name none.
///
/// # Errors
/// It is no valid one, and why.
pub fn two(payload: &Bytes, content_type: &str) -> Result<Answer, String> {
    let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(payload) else {
        return Ok(http::answer(200, "application/json", payload.clone()));
    };
    if !fields.contains_key("statusCode") {
        return Ok(http::answer(200, "application/json", payload.clone()));
    }
    let text = match fields.get("body") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let body = if is_encoded(&fields)? { bytes_of(&text)? } else { text.into() };
    let mut answer = http::answer(200, content_type, body);
    describe_answer(&mut answer, &fields)?;
    Ok(answer)
}

/// The fields of an answer in format 1.0.
const FIELDS: [&str; 5] = ["statusCode", "headers", "multiValueHeaders", "body", "isBase64Encoded"];

/// An answer in format 1.0.
///
/// # Errors
/// It is no valid one, and why.
pub fn one(payload: &Bytes, api: &HttpApi, received: &Received<'_>) -> Result<Answer, String> {
    let is_rest = api.kind == Kind::Rest;
    let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(payload) else {
        return Err("it should be an object with statusCode, headers and body".into());
    };
    if let Some(other) = fields.keys().find(|key| is_rest && !FIELDS.contains(&key.as_str())) {
        return Err(format!("'{}' is none of {}", other.escape_debug(), FIELDS.join(", ")));
    }
    let text = match fields.get("body") {
        None | Some(Value::Null) => "",
        Some(Value::String(text)) => text,
        Some(_) => return Err("body should be a text".into()),
    };
    let mut answer = http::answer(200, "application/json", Bytes::new());
    describe_answer(&mut answer, &fields)?;
    add_lists(&mut answer, &fields)?;
    let kind = http::header(answer.headers(), CONTENT_TYPE.as_str()).unwrap_or_default();
    let accepted = received.header("accept").unwrap_or_default().split(',').next().unwrap_or_default();
    // A REST API decodes only what the request asks for, or the answer declares, as a binary media type.
    let decodes = !is_rest || is_binary(&api.binary, accepted) || is_binary(&api.binary, kind);
    let body = if is_encoded(&fields)? && decodes { bytes_of(text)? } else { text.to_string().into() };
    Ok(http::replace_body(answer, body))
}

fn is_encoded(fields: &Map<String, Value>) -> Result<bool, String> {
    match fields.get("isBase64Encoded") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(encoded)) => Ok(*encoded),
        Some(Value::String(text)) if text == "true" || text == "false" => Ok(text == "true"),
        Some(_) => Err("isBase64Encoded should be true or false".into()),
    }
}

fn bytes_of(text: &str) -> Result<Bytes, String> {
    BASE64.decode(text).map(Bytes::from).map_err(|error| format!("body is not base64: {error}"))
}

/// The worker frames the answer, not the function.
fn is_framing(name: &HeaderName) -> bool {
    matches!(name.as_str(), "content-length" | "transfer-encoding" | "connection" | "keep-alive" | "upgrade")
}

fn header_of(name: &str, value: &Value) -> Result<(HeaderName, HeaderValue), String> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let wrong =
        || format!("headers: '{}' has a name or a value that no header may have", name.escape_debug());
    let name = HeaderName::try_from(name).map_err(|_| wrong())?;
    Ok((name, HeaderValue::try_from(text).map_err(|_| wrong())?))
}

/// `multiValueHeaders`: all values of each, and of `headers` only those that are not among them.
fn add_lists(answer: &mut Answer, fields: &Map<String, Value>) -> Result<(), String> {
    let lists = match fields.get("multiValueHeaders") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(lists)) => lists,
        Some(_) => return Err("multiValueHeaders should be an object".into()),
    };
    let mut all: BTreeMap<String, Vec<HeaderValue>> = BTreeMap::new();
    for (name, values) in lists {
        let values = values.as_array().ok_or("multiValueHeaders: each should be a list")?;
        for value in values {
            let (name, value) = header_of(name, value)?;
            all.entry(name.as_str().to_string()).or_default().push(value);
        }
    }
    let given = fields.get("headers").and_then(Value::as_object);
    let has = |name: &str| given.is_some_and(|given| given.keys().any(|key| key.eq_ignore_ascii_case(name)));
    for (name, mut values) in all {
        let name = HeaderName::try_from(name).map_err(|_| "a header's name")?;
        if is_framing(&name) {
            continue;
        }
        if has(name.as_str()) {
            let known = answer.headers().get(&name).filter(|known| !values.contains(known)).cloned();
            values.splice(0..0, known);
        }
        let headers = answer.headers_mut();
        headers.remove(&name);
        for value in values {
            headers.try_append(&name, value).map_err(|_| TOO_MANY)?;
        }
    }
    if http::are_bounded(answer.headers()) { Ok(()) } else { Err(TOO_MANY.into()) }
}

const TOO_MANY: &str = "its headers are longer than 65536 bytes";

/// Sets the status, headers and cookies that the function gives.
///
/// # Errors
/// They are invalid, and why.
pub fn describe_answer(answer: &mut Answer, fields: &Map<String, Value>) -> Result<(), String> {
    if let Some(status) = fields.get("statusCode") {
        let number = status.as_u64().or_else(|| status.as_str()?.parse().ok());
        let number = number.and_then(|number| u16::try_from(number).ok());
        let number = number.filter(|number| (200..600).contains(number));
        let number = number.ok_or_else(|| format!("statusCode is {status} and must be 200 to 599"))?;
        *answer.status_mut() = StatusCode::from_u16(number).map_err(|error| error.to_string())?;
    }
    match fields.get("headers") {
        None | Some(Value::Null) => {}
        Some(Value::Object(headers)) => {
            for (name, value) in headers {
                let (name, value) = header_of(name, value)?;
                if !is_framing(&name) {
                    // `insert` would panic if the map is full.
                    answer.headers_mut().try_insert(name, value).map_err(|_| TOO_MANY)?;
                }
            }
        }
        Some(_) => return Err("headers should be an object".into()),
    }
    for cookie in fields.get("cookies").and_then(Value::as_array).into_iter().flatten() {
        let cookie = cookie.as_str().and_then(|text| HeaderValue::try_from(text).ok());
        let cookie = cookie.ok_or("cookies: one is no text that a header may have")?;
        answer.headers_mut().try_append(SET_COOKIE, cookie).map_err(|_| TOO_MANY)?;
    }
    // This leaves room for the worker's own headers.
    if http::are_bounded(answer.headers()) { Ok(()) } else { Err(TOO_MANY.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(payload: &str) -> Option<Answer> {
        two(&Bytes::from(payload.to_string()), "application/json").ok()
    }

    #[test]
    fn plain_values_are_answered_as_json() {
        for payload in ["1", "\"x\"", "[1]", "{\"a\":1}"] {
            let answer = answered(payload).unwrap();
            assert_eq!(answer.status().as_u16(), 200);
            assert_eq!(answer.headers()["content-type"], "application/json");
        }
    }

    #[test]
    fn status_headers_and_cookies_are_the_functions() {
        let answer = answered(
            r#"{"statusCode": 404, "headers": {"Content-Type": "text/html", "X-N": 1, "Content-Length": "999"},
                "cookies": ["a=1", "b=2"], "body": "eA==", "isBase64Encoded": true}"#,
        )
        .unwrap();
        assert_eq!(answer.status().as_u16(), 404);
        assert_eq!(answer.headers()["content-type"], "text/html");
        assert_eq!(answer.headers()["content-length"], "1");
        assert_eq!(answer.headers().get_all("set-cookie").iter().count(), 2);
    }

    #[test]
    fn refuses_payload_that_is_no_http_answer() {
        for payload in [
            r#"{"statusCode": 99}"#,
            r#"{"statusCode": "x"}"#,
            r#"{"statusCode": 200, "headers": {"a b": "c"}}"#,
            r#"{"statusCode": 200, "headers": {"a": "x\r\ny: z"}}"#,
            r#"{"statusCode": 200, "body": "!", "isBase64Encoded": true}"#,
        ] {
            assert!(answered(payload).is_none(), "{payload}");
        }
    }

    #[test]
    fn more_headers_than_a_map_holds_are_refused() {
        let with = |count: usize| {
            let headers: Map<String, Value> =
                (0..count).map(|number| (format!("h{number}"), "".into())).collect();
            answered(&json!({ "statusCode": 200, "headers": headers }).to_string())
        };
        assert!(with(1000).is_some());
        // As many headers as the map holds: the worker's own would be too many.
        for count in [24_574, 30_000] {
            assert!(with(count).is_none(), "{count}");
        }
        let cookies = vec!["a=1".repeat(100); 300];
        assert!(answered(&json!({ "statusCode": 200, "cookies": cookies }).to_string()).is_none());
    }
}
