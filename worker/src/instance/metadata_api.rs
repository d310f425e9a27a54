//! Lambda's metadata endpoint, as programs inside an instance see it on AWS_LAMBDA_METADATA_API.
//!
//! `GET /2026-01-15/metadata/execution-environment`, with the instance's token.

use hyper::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Request};
use serde_json::json;

use crate::http::{self, Answer};
use crate::instance::Instance;

/// Where its paths begin.
pub(crate) const ROOT: &str = "/2026-01-15/metadata/";
const ENVIRONMENT: &str = "execution-environment";
/// An instance stays where it is.
const CACHED: &str = "private, max-age=43200, immutable";

/// Answers a request; `below` is its path below [`ROOT`].
pub(crate) fn answer<B>(instance: &Instance, below: &str, request: &Request<B>) -> Answer {
    if below != ENVIRONMENT {
        return message(404, "UnknownPath", "the metadata endpoint has no such path");
    }
    if request.method() != Method::GET {
        let mut answer = message(405, "MethodNotAllowed", "metadata is read with GET");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return answer;
    }
    let given = http::header(request.headers(), AUTHORIZATION.as_str());
    if given.and_then(|text| text.strip_prefix("Bearer ")) != Some(&*instance.metadata_token) {
        let text = "the header Authorization must be 'Bearer' and AWS_LAMBDA_METADATA_TOKEN";
        let mut answer = message(401, "Unauthorized", text);
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return answer;
    }
    let mut answer = http::json(200, &json!({ "AvailabilityZoneID": instance.context.zone }));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(CACHED));
    answer
}

fn message(status: u16, kind: &str, text: &str) -> Answer {
    http::json(status, &json!({ "errorType": kind, "errorMessage": text }))
}
