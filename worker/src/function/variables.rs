//! The variables that a function may set.

use std::collections::BTreeMap;

use crate::base::error::ApiError;
use crate::base::limits;
use worker_system::text::shown;

/// Variables that Lambda sets and a function may not (Lambda's guide, "Defined runtime environment
/// variables").
const RESERVED_VARIABLES: [&str; 19] = [
    "_HANDLER",
    "_X_AMZN_TRACE_ID",
    "AWS_DEFAULT_REGION",
    "AWS_REGION",
    "AWS_EXECUTION_ENV",
    "AWS_LAMBDA_FUNCTION_NAME",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
    "AWS_LAMBDA_FUNCTION_VERSION",
    "AWS_LAMBDA_INITIALIZATION_TYPE",
    "AWS_LAMBDA_LOG_GROUP_NAME",
    "AWS_LAMBDA_LOG_STREAM_NAME",
    "AWS_LAMBDA_RUNTIME_API",
    "AWS_LAMBDA_METADATA_API",
    "AWS_LAMBDA_METADATA_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "LAMBDA_TASK_ROOT",
    "LAMBDA_RUNTIME_DIR",
];

/// With it, runtimes ask for several requests at once. The worker sets it, by the function's own setting.
pub const MAX_CONCURRENCY: &str = "AWS_LAMBDA_MAX_CONCURRENCY";

/// Checks a function's own variables.
///
/// # Errors
/// They are too large together, or one is named as Lambda's are.
pub fn check(variables: &BTreeMap<String, String>) -> Result<(), ApiError> {
    let bytes: usize = variables.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > limits::ENVIRONMENT_BYTES {
        return Err(ApiError::invalid_parameter(format!(
            "Environment variables have {bytes} bytes and must have at most {}",
            limits::ENVIRONMENT_BYTES
        )));
    }
    for (name, value) in variables {
        if let Some(must) = fault_of(name) {
            return Err(wrong(name, must));
        }
        if value.contains('\0') {
            return Err(wrong(name, "hold no zero byte"));
        }
    }
    Ok(())
}

/// The rule of Lambda's that a variable's name breaks.
pub fn fault_of(name: &str) -> Option<&'static str> {
    let mut bytes = name.bytes();
    let letters = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic())
        && name.len() >= 2
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !letters {
        return Some("name variables by a letter, then letters, digits and _");
    }
    if name == MAX_CONCURRENCY {
        return Some("ask for several requests at once by CapacityProviderConfig, which sets it");
    }
    RESERVED_VARIABLES.contains(&name).then_some("not set what Lambda itself sets")
}

fn wrong(name: &str, must: &str) -> ApiError {
    ApiError::invalid_parameter(format!("'Environment' is '{}' and must {must}", shown(name)))
}
