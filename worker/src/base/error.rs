//! Errors of the Lambda API: a name that clients switch on, an HTTP status and a line for people.

use std::fmt;

/// An error answer of the Lambda API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Lambda's name for it, sent as `x-amzn-ErrorType`.
    pub name: &'static str,
    /// What is wrong, and where.
    pub message: String,
    /// `Reason` of a `TooManyRequestsException`.
    pub reason: Option<&'static str>,
}

impl ApiError {
    /// An error with this status and name.
    pub fn new(status: u16, name: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, name, message: message.into(), reason: None }
    }

    /// 400: a parameter has a value that is not allowed.
    pub fn invalid_parameter(message: impl Into<String>) -> ApiError {
        ApiError::new(400, "InvalidParameterValueException", message)
    }

    /// 400: the request's body is not what it should be.
    pub fn invalid_content(message: impl Into<String>) -> ApiError {
        ApiError::new(400, "InvalidRequestContentException", message)
    }

    /// 404: there is no such function, or no such part of it.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(404, "ResourceNotFoundException", message)
    }

    /// 409: it exists already, or is being changed.
    pub fn conflict(message: impl Into<String>) -> ApiError {
        ApiError::new(409, "ResourceConflictException", message)
    }

    /// 413: longer than the limit.
    pub fn too_large(message: impl Into<String>) -> ApiError {
        ApiError::new(413, "RequestTooLargeException", message)
    }

    /// 429 with the reason that Lambda's clients know.
    pub fn throttled(reason: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { reason: Some(reason), ..ApiError::new(429, "TooManyRequestsException", message) }
    }

    /// 500: the worker's own failure.
    pub fn service(message: impl Into<String>) -> ApiError {
        ApiError::new(500, "ServiceException", message)
    }

    /// The answer's body.
    pub fn body(&self) -> Vec<u8> {
        let side = if self.status >= 500 { "Service" } else { "User" };
        let mut body = serde_json::json!({ "Type": side, "Message": self.message });
        if let Some(reason) = self.reason {
            body["Reason"] = reason.into();
        }
        body.to_string().into_bytes()
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.message)
    }
}

impl std::error::Error for ApiError {}
