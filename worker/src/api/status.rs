//! The HTTP status and the answer of each kind of error.

use hyper::header::HeaderValue;
use serde_json::json;

use crate::base::error::{ApiError, ErrorKind};
use crate::http::{self, Answer};

/// The status of an error of this kind, as Lambda has it.
pub fn status(kind: ErrorKind) -> u16 {
    match kind {
        ErrorKind::InvalidParameter
        | ErrorKind::InvalidParameterValue
        | ErrorKind::InvalidRequestContent
        | ErrorKind::PolicyLengthExceeded
        | ErrorKind::Validation => 400,
        ErrorKind::Unauthenticated => 401,
        ErrorKind::AccessDenied
        | ErrorKind::IncompleteSignature
        | ErrorKind::InvalidSignature
        | ErrorKind::MissingAuthenticationToken
        | ErrorKind::UnrecognizedClient => 403,
        ErrorKind::CodeSigningConfigNotFound
        | ErrorKind::ProvisionedConcurrencyConfigNotFound
        | ErrorKind::ResourceNotFound
        | ErrorKind::UnknownOperation => 404,
        ErrorKind::RequestTimeout => 408,
        ErrorKind::ResourceConflict => 409,
        ErrorKind::PreconditionFailed => 412,
        ErrorKind::RequestTooLarge => 413,
        ErrorKind::TooManyRequests(_) => 429,
        ErrorKind::Service => 500,
        ErrorKind::Stopping => 503,
    }
}

/// The answer to a call that ends with an error.
pub fn error_answer(error: &ApiError) -> Answer {
    let side = if error.kind.is_of_service() { "Service" } else { "User" };
    let mut body = json!({ "Type": side, "Message": error.message });
    if let ErrorKind::TooManyRequests(reason) = error.kind {
        body["Reason"] = reason.into();
    }
    let mut answer = http::answer(status(error.kind), "application/json", body.to_string());
    let headers = answer.headers_mut();
    headers.insert("x-amzn-errortype", HeaderValue::from_static(error.kind.name()));
    if matches!(error.kind, ErrorKind::TooManyRequests(_) | ErrorKind::Stopping) {
        headers.insert("retry-after", HeaderValue::from_static("1"));
    }
    if error.kind == ErrorKind::Unauthenticated {
        headers.insert("www-authenticate", HeaderValue::from_static("Basic realm=\"mayfly\""));
    }
    answer
}
