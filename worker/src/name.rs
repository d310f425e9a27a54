//! Names of functions: a plain name, a partial ARN (`ACCOUNT:function:NAME`) or a whole one, and a version.

use crate::error::ApiError;

/// The region that ARNs name. Requests may be signed for any.
pub const REGION: &str = "us-east-1";
/// The account that ARNs name.
pub const ACCOUNT: &str = "000000000000";

/// The ARN of a function.
pub fn arn(name: &str) -> String {
    format!("arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}")
}

/// The function's name out of what a request calls it. Only the version `$LATEST` exists.
///
/// # Errors
/// Characters that no name has, or another version.
pub fn parse(text: &str) -> Result<String, ApiError> {
    let (rest, whole) = match text.strip_prefix("arn:aws:lambda:") {
        Some(rest) => (rest.split_once(':').map_or("", |(_region, rest)| rest), true),
        None => (text, false),
    };
    let parts: Vec<&str> = rest.split(':').collect();
    let is_account = |part: &str| part.len() == 12 && part.bytes().all(|byte| byte.is_ascii_digit());
    let (name, version) = match parts[..] {
        [account, "function", name] if is_account(account) => (name, None),
        [account, "function", name, version] if is_account(account) => (name, Some(version)),
        [name] if !whole => (name, None),
        [name, version] if !whole => (name, Some(version)),
        _ => return Err(invalid(text)),
    };
    if !is_plain(name) {
        return Err(invalid(text));
    }
    match version {
        None | Some("$LATEST") => Ok(name.to_string()),
        Some(version) => Err(no_such_version(name, version)),
    }
}

/// There are no versions but `$LATEST`, and no aliases.
pub fn no_such_version(name: &str, version: &str) -> ApiError {
    ApiError::not_found(format!("Function not found: {}:{version}", arn(name)))
}

/// Whether it is a plain name: 1 to 64 of the letters that Lambda allows.
pub fn is_plain(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=64).contains(&name.len()) && name.bytes().all(allowed)
}

fn invalid(text: &str) -> ApiError {
    let shown: String = text.chars().take(80).collect();
    ApiError::new(
        400,
        "ValidationException",
        format!(
            "1 validation error detected: Value '{}' at 'functionName' failed to satisfy constraint: Member must \
             be a name of 1 to 64 letters, digits, - and _, or an ARN with one",
            shown.escape_debug()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_arns_are_read() {
        let whole = "arn:aws:lambda:eu-west-1:123456789012:function:hello";
        for text in
            ["hello", "hello:$LATEST", "123456789012:function:hello", whole, &format!("{whole}:$LATEST")]
        {
            assert_eq!(parse(text).as_deref(), Ok("hello"), "{text}");
        }
        assert_eq!(parse(&arn("a-B_9")).as_deref(), Ok("a-B_9"));
    }

    #[test]
    fn other_names_are_refused() {
        let long = "x".repeat(65);
        for text in [
            "",
            "..",
            "a/b",
            "a b",
            "é",
            &long,
            "a:b:c",
            "12:function:hello",
            "arn:aws:lambda:r:hello",
            "a\0b",
        ] {
            assert_eq!(parse(text).unwrap_err().name, "ValidationException", "{text}");
        }
        assert_eq!(parse("hello:3").unwrap_err().name, "ResourceNotFoundException");
    }
}
