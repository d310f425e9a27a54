//! A function's answer to a request at its URL, as HTTP: status, headers, cookies and body if it gives
//! them, or else its answer in JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue, SET_COOKIE};
use serde_json::{Map, Value, json};

use crate::http::{self, Answer};
use crate::invocation::request::Outcome;

/// The HTTP answer of a URL for a function's outcome.
pub fn whole(outcome: &Outcome) -> Answer {
    let answer = if outcome.failed { None } else { answer(&outcome.payload) };
    answer.unwrap_or_else(broken)
}

/// The answer if the function has failed, or has returned no valid answer.
pub fn broken() -> Answer {
    http::json(502, &json!({ "Message": "Internal Server Error" }))
}

/// The function's payload as an HTTP answer; `None` if it is no valid one.
fn answer(payload: &Bytes) -> Option<Answer> {
    let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(payload) else {
        return Some(http::answer(200, "application/json", payload.clone()));
    };
    if !fields.contains_key("statusCode") {
        return Some(http::answer(200, "application/json", payload.clone()));
    }
    let body = match fields.get("body") {
        None | Some(Value::Null) => Bytes::new(),
        Some(Value::String(text)) if fields.get("isBase64Encoded") == Some(&Value::Bool(true)) => {
            BASE64.decode(text).ok()?.into()
        }
        Some(Value::String(text)) => text.clone().into(),
        Some(other) => other.to_string().into(),
    };
    let mut answer = http::answer(200, "application/json", body);
    describe_answer(&mut answer, &fields)?;
    Some(answer)
}

/// Sets the status, headers and cookies that the function gives; `None` if they are invalid.
pub fn describe_answer(answer: &mut Answer, fields: &Map<String, Value>) -> Option<()> {
    if let Some(status) = fields.get("statusCode") {
        let status = status.as_u64().or_else(|| status.as_str()?.parse().ok())?;
        let status = u16::try_from(status).ok().filter(|status| (200..600).contains(status))?;
        *answer.status_mut() = StatusCode::from_u16(status).ok()?;
    }
    let empty = Map::new();
    let headers = fields.get("headers").and_then(Value::as_object).unwrap_or(&empty);
    for (name, value) in headers {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let name = HeaderName::try_from(name.as_str()).ok()?;
        // The worker frames the answer, not the function.
        if !matches!(name.as_str(), "content-length" | "transfer-encoding" | "connection") {
            // `insert` would panic if the map is full.
            answer.headers_mut().try_insert(name, HeaderValue::try_from(text).ok()?).ok()?;
        }
    }
    for cookie in fields.get("cookies").and_then(Value::as_array).into_iter().flatten() {
        answer.headers_mut().try_append(SET_COOKIE, HeaderValue::try_from(cookie.as_str()?).ok()?).ok()?;
    }
    // This leaves room for the worker's own headers.
    http::are_bounded(answer.headers()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(payload: &str) -> Option<Answer> {
        answer(&Bytes::from(payload.to_string()))
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
