//! `Invoke`, waiting for the answer or not.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper::header::HeaderValue;

use super::{Api, Call};
use crate::base::error::ApiError;
use crate::base::limits;
use crate::base::name::{self, Target};
use crate::function::definition::Deployment;
use crate::function::tenancy;
use crate::http::{self, Answer, header};
use crate::invocation::request::Invocation;
use crate::invocation::traces;

/// The most bytes of a decoded client context.
const CLIENT_CONTEXT_BYTES: usize = 3583;

/// The name of a durable execution: a caller shall not believe to have one.
const DURABLE: &str = "x-amz-durable-execution-name";
const TENANT: &str = "x-amz-tenant-id";

pub async fn invoke(api: &Api, call: &Call, target: &Target) -> Result<Answer, ApiError> {
    let headers = &call.parts.headers;
    let kind = header(headers, "x-amz-invocation-type").unwrap_or("RequestResponse");
    let deployment = api.worker.target(target)?;
    let invocation = invocation(call, target, &deployment)?;
    let id = invocation.id;
    let mut answer = match kind {
        "RequestResponse" => {
            let tail = header(headers, "x-amz-log-type") == Some("Tail");
            let outcome = api.worker.invoke(target, invocation).await?;
            let mut answer = http::answer(200, "application/json", outcome.payload);
            if outcome.failed {
                answer.headers_mut().insert("x-amz-function-error", HeaderValue::from_static("Unhandled"));
            }
            if tail {
                let text = BASE64.encode(&outcome.log_tail);
                let text = HeaderValue::from_str(&text).expect("base64 is a header");
                answer.headers_mut().insert("x-amz-log-result", text);
            }
            answer
        }
        "Event" => {
            check_event(call)?;
            api.events.accept(target, invocation).await?;
            http::empty(202)
        }
        "DryRun" => http::empty(204),
        _ => {
            return Err(ApiError::invalid_parameter(
                "InvocationType must be RequestResponse, Event or DryRun",
            ));
        }
    };
    let headers = answer.headers_mut();
    headers.insert("x-amzn-requestid", id.header());
    headers.insert(
        "x-amz-executed-version",
        HeaderValue::from_str(&deployment.version).expect("a version is a header"),
    );
    Ok(answer)
}

/// InvokeAsync, which Lambda keeps for old clients: an event, whose payload is the whole body.
pub async fn invoke_async(api: &Api, call: &Call, target: &Target) -> Result<Answer, ApiError> {
    let deployment = api.worker.target(target)?;
    check_event(call)?;
    api.events.accept(target, invocation(call, target, &deployment)?).await?;
    Ok(http::json(202, &serde_json::json!({ "Status": 202 })))
}

/// An event's payload is shorter than that of other calls.
fn check_event(call: &Call) -> Result<(), ApiError> {
    let (bytes, limit) = (call.body.len(), limits::EVENT_PAYLOAD_BYTES);
    if bytes <= limit {
        return Ok(());
    }
    Err(ApiError::too_large(format!(
        "{bytes} byte payload is too large for the Event invocation type (limit {limit} bytes)"
    )))
}

/// What the function is called with.
///
/// # Errors
/// The call is malformed, or asks for what the function does not have.
pub fn invocation(call: &Call, target: &Target, deployment: &Deployment) -> Result<Invocation, ApiError> {
    let headers = &call.parts.headers;
    if headers.contains_key(DURABLE) {
        let text = "DurableExecutionName is not served here: there are no durable executions";
        return Err(ApiError::invalid_parameter(text));
    }
    // As a header's bytes may be no text, and then no id.
    let tenant = headers.get(TENANT).map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned());
    tenancy::check(deployment.settings.per_tenant, tenant.as_deref())?;
    let trace = header(headers, "x-amzn-trace-id").map(str::to_string);
    let trace = trace.or_else(|| traces::of_traceparent(header(headers, "traceparent")?));
    let context = client_context(header(headers, "x-amz-client-context"))?;
    let arn = name::arn(&target.to_string());
    Ok(Invocation { tenant, ..Invocation::new(arn, payload(call)?, context, trace.as_deref()) })
}

/// The body, which must be JSON; none is an empty object.
fn payload(call: &Call) -> Result<bytes::Bytes, ApiError> {
    if call.body.is_empty() {
        return Ok(bytes::Bytes::from_static(b"{}"));
    }
    check_json(&call.body).map_err(|error| {
        ApiError::invalid_content(format!("Could not parse request body into json: {error}"))
    })?;
    Ok(call.body.clone())
}

/// serde_json does not check the text of ignored values, so UTF-8 is checked first.
fn check_json(body: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).map(drop).map_err(|error| error.to_string())
}

fn client_context(text: Option<&str>) -> Result<Option<String>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    let wrong = |what: &str| ApiError::invalid_content(format!("Client context must be {what}"));
    let decoded = BASE64.decode(text).map_err(|_| wrong("base64"))?;
    if decoded.len() > CLIENT_CONTEXT_BYTES {
        return Err(wrong("at most 3583 bytes"));
    }
    let value: serde_json::Value = serde_json::from_slice(&decoded).map_err(|_| wrong("JSON"))?;
    // Serialised again without line breaks, since it is sent on as a header; characters outside ASCII are
    // escaped.
    let text = value.to_string().chars().fold(String::new(), |mut text, c| {
        if c.is_ascii() {
            text.push(c);
        } else {
            let mut units = [0; 2];
            text.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
        text
    });
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;

    #[test]
    fn a_client_context_travels_as_plain_ascii() {
        let encoded = BASE64.encode("{\"custom\":\n {\"a\": \"é😀\"}}");
        let text = client_context(Some(&encoded)).unwrap().unwrap();
        assert_eq!(text, r#"{"custom":{"a":"\u00e9\ud83d\ude00"}}"#);
        assert_eq!(client_context(None), Ok(None));
        assert!(client_context(Some("!")).is_err());
        assert!(client_context(Some(&BASE64.encode("{"))).is_err());
        assert!(client_context(Some(&BASE64.encode("\"".to_string() + &"x".repeat(4000) + "\""))).is_err());
    }

    #[test]
    fn refuses_payload_that_is_no_json_in_utf_8() {
        let parsed = |body: &'static [u8]| {
            let parts = hyper::Request::new(()).into_parts().0;
            payload(&Call::of_tests(parts, body)).map_err(|error| error.kind)
        };
        let refused = Err(ErrorKind::InvalidRequestContent);
        assert_eq!(parsed(b""), Ok("{}".into()));
        assert_eq!(parsed("\"é\"".as_bytes()), Ok("\"é\"".into()));
        assert_eq!(parsed(b"{"), refused);
        assert_eq!(parsed(b"\"\xff\""), refused);
    }
}
