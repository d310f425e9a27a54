//! Errors of Lambda's APIs: a kind, whose name clients switch on, and a line for people. Which HTTP status a
//! kind has is known to the API alone (`api/status.rs`).

/// An error answer of the Lambda API.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", kind.name())]
pub struct ApiError {
    /// What kind of error it is.
    pub kind: ErrorKind,
    /// What is wrong, and where.
    pub message: String,
}

macro_rules! kinds {
    ($($(#[doc = $what:literal])+ $kind:ident $(($reason:ty))? = $name:literal,)+) => {
        /// The kinds of errors, by Lambda's names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ErrorKind {
            $($(#[doc = $what])+ $kind $(($reason))?,)+
        }

        impl ErrorKind {
            /// Lambda's name for it, sent as `x-amzn-ErrorType`.
            pub fn name(self) -> &'static str {
                match self {
                    $(ErrorKind::$kind { .. } => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// A call is not allowed.
    AccessDenied = "AccessDeniedException",
    /// No code signing configuration.
    CodeSigningConfigNotFound = "CodeSigningConfigNotFoundException",
    /// The header with a signature lacks a part.
    IncompleteSignature = "IncompleteSignatureException",
    /// A parameter of a call for logs has a value that is not allowed.
    InvalidParameter = "InvalidParameterException",
    /// A parameter has a value that is not allowed.
    InvalidParameterValue = "InvalidParameterValueException",
    /// The request's body is not what it should be.
    InvalidRequestContent = "InvalidRequestContentException",
    /// The signature is another one.
    InvalidSignature = "InvalidSignatureException",
    /// The request has no signature.
    MissingAuthenticationToken = "MissingAuthenticationTokenException",
    /// A function's policy is too long.
    PolicyLengthExceeded = "PolicyLengthExceededException",
    /// The function has changed since.
    PreconditionFailed = "PreconditionFailedException",
    /// No provisioned concurrency.
    ProvisionedConcurrencyConfigNotFound = "ProvisionedConcurrencyConfigNotFoundException",
    /// The request did not arrive in time.
    RequestTimeout = "RequestTimeoutException",
    /// Longer than the limit.
    RequestTooLarge = "RequestTooLargeException",
    /// It exists already, or is being changed.
    ResourceConflict = "ResourceConflictException",
    /// There is no such function, or no such part of it.
    ResourceNotFound = "ResourceNotFoundException",
    /// The worker's own failure.
    Service = "ServiceException",
    /// The worker is being stopped.
    Stopping = "ServiceException",
    /// Refused for now, with the reason that Lambda's clients know.
    TooManyRequests(&'static str) = "TooManyRequestsException",
    /// A browser must ask for the key.
    Unauthenticated = "MissingAuthenticationTokenException",
    /// There is no such operation.
    UnknownOperation = "UnknownOperationException",
    /// The key is not the worker's.
    UnrecognizedClient = "UnrecognizedClientException",
    /// A parameter is malformed.
    Validation = "ValidationException",
}

impl ErrorKind {
    /// An error of this kind.
    pub fn with(self, message: impl Into<String>) -> ApiError {
        ApiError { kind: self, message: message.into() }
    }

    /// Whether it was refused for now because there are too many requests.
    pub fn is_throttle(self) -> bool {
        matches!(self, ErrorKind::TooManyRequests(_))
    }

    /// Whether the worker has failed, and not its caller.
    pub fn is_of_service(self) -> bool {
        matches!(self, ErrorKind::Service | ErrorKind::Stopping)
    }

    /// The reason that Lambda's clients know, or else its name.
    pub fn reason(self) -> &'static str {
        match self {
            ErrorKind::TooManyRequests(reason) => reason,
            other => other.name(),
        }
    }
}

impl ApiError {
    /// A parameter has a value that is not allowed.
    pub fn invalid_parameter(message: impl Into<String>) -> ApiError {
        ErrorKind::InvalidParameterValue.with(message)
    }

    /// The request's body is not what it should be.
    pub fn invalid_content(message: impl Into<String>) -> ApiError {
        ErrorKind::InvalidRequestContent.with(message)
    }

    /// There is no such function, or no such part of it.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ErrorKind::ResourceNotFound.with(message)
    }

    /// It exists already, or is being changed.
    pub fn conflict(message: impl Into<String>) -> ApiError {
        ErrorKind::ResourceConflict.with(message)
    }

    /// Longer than the limit.
    pub fn too_large(message: impl Into<String>) -> ApiError {
        ErrorKind::RequestTooLarge.with(message)
    }

    /// Refused for now, with the reason that Lambda's clients know.
    pub fn throttled(reason: &'static str, message: impl Into<String>) -> ApiError {
        ErrorKind::TooManyRequests(reason).with(message)
    }

    /// The worker's own failure.
    pub fn service(message: impl Into<String>) -> ApiError {
        ErrorKind::Service.with(message)
    }
}
