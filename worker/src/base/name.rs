//! Names of functions: a plain name, a partial ARN (`ACCOUNT:function:NAME`) or a whole one, and a version
//! or an alias; names of layers.

use crate::base::error::{ApiError, ErrorKind};
use crate::base::limits;
use worker_system::text::shown;

/// The region that ARNs name. Requests may be signed for any.
pub const REGION: &str = "us-east-1";
/// The account that ARNs name.
pub const ACCOUNT: &str = "000000000000";

/// The version that changes.
pub const LATEST: &str = "$LATEST";

/// The id of a region's first availability zone: `use1-az1` of us-east-1.
pub fn zone_of(region: &str) -> String {
    let of_word = |(at, word): (usize, &str)| match word {
        _ if at == 0 => word.to_string(),
        "northeast" => "ne".into(),
        "northwest" => "nw".into(),
        "southeast" => "se".into(),
        "southwest" => "sw".into(),
        _ if word.starts_with(|letter: char| letter.is_ascii_digit()) => word.into(),
        _ => word.chars().take(1).collect(),
    };
    let short: String = region.split('-').enumerate().map(of_word).collect();
    format!("{short}-az1")
}

/// The ARN of a function; `NAME:QUALIFIER` is a version or an alias of it.
pub fn arn(name: &str) -> String {
    format!("arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}")
}

/// The ARN of a layer; `NAME:VERSION` is a version of it.
pub fn layer_arn(name: &str) -> String {
    format!("arn:aws:lambda:{REGION}:{ACCOUNT}:layer:{name}")
}

/// The layer and the version that an ARN names, of whatever region and account.
pub fn parse_layer_arn(text: &str) -> Option<(&str, u64)> {
    let parts: Vec<&str> = text.strip_prefix("arn:aws:lambda:")?.split(':').collect();
    match parts[..] {
        [_region, account, "layer", name, version] if is_account(account) && is_layer(name) => {
            Some((name, version.parse().ok()?))
        }
        _ => None,
    }
}

/// Whether it is a plain name of a layer.
pub fn is_layer(name: &str) -> bool {
    (1..=140).contains(&name.len()) && name.bytes().all(is_letter)
}

/// What a request calls: a function, or a version or an alias of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The function's name.
    pub name: String,
    /// A version's number or an alias; none is `$LATEST`.
    pub qualifier: Option<String>,
}

impl Target {
    /// The function that the path names, with the version or alias that the query names.
    ///
    /// # Errors
    /// The name is invalid, or path and query name different versions or aliases.
    pub fn new(text: &str, queried: Option<String>) -> Result<Target, ApiError> {
        let target = parse(text)?;
        let Some(queried) = queried.filter(|text| !text.is_empty()) else { return Ok(target) };
        let queried = parse(&format!("{}:{queried}", target.name))?;
        if target.qualifier.is_some() && target != queried {
            return Err(ApiError::invalid_parameter(
                "The derived qualifier from the function name does not match the specified qualifier.",
            ));
        }
        Ok(queried)
    }

    /// The function's name, where a call takes no version or alias.
    ///
    /// # Errors
    /// A version or an alias is named.
    pub fn unqualified(self) -> Result<String, ApiError> {
        match self.qualifier {
            None => Ok(self.name),
            Some(qualifier) => Err(ApiError::invalid_parameter(format!(
                "name the function '{}' without the version or alias '{qualifier}' here",
                self.name
            ))),
        }
    }
}

/// `NAME`, or `NAME:QUALIFIER`.
impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.qualifier {
            Some(qualifier) => write!(f, "{}:{qualifier}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Parses the name of a function that a request gives, with its version or alias.
///
/// # Errors
/// It has characters that names must not have.
pub fn parse(text: &str) -> Result<Target, ApiError> {
    let (rest, whole) = match text.strip_prefix("arn:aws:lambda:") {
        Some(rest) => (rest.split_once(':').map_or("", |(_region, rest)| rest), true),
        None => (text, false),
    };
    let parts: Vec<&str> = rest.split(':').collect();
    let (name, qualifier) = match parts[..] {
        [account, "function", name] if is_account(account) => (name, None),
        [account, "function", name, qualifier] if is_account(account) => (name, Some(qualifier)),
        [name] if !whole => (name, None),
        [name, qualifier] if !whole => (name, Some(qualifier)),
        _ => return Err(invalid(text)),
    };
    let qualifier = qualifier.filter(|qualifier| *qualifier != LATEST);
    if !is_plain(name) || !qualifier.is_none_or(is_qualifier) {
        return Err(invalid(text));
    }
    Ok(Target { name: name.to_string(), qualifier: qualifier.map(str::to_string) })
}

/// Whether it is a plain name: 1 to 64 of the letters that Lambda allows.
pub fn is_plain(name: &str) -> bool {
    (1..=limits::FUNCTION_NAME).contains(&name.len()) && name.bytes().all(is_letter)
}

/// Whether it may name an alias: a number would be a version.
pub fn is_alias(name: &str) -> bool {
    is_qualifier(name) && !name.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_qualifier(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(is_letter)
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

fn is_account(part: &str) -> bool {
    part.len() == 12 && part.bytes().all(|byte| byte.is_ascii_digit())
}

fn invalid(text: &str) -> ApiError {
    ErrorKind::Validation.with(format!(
        "1 validation error detected: Value '{}' at 'functionName' failed to satisfy constraint: Member must \
             be a name of 1 to 64 letters, digits, - and _, or an ARN with one",
        shown(text)
    ))
}

/// 404 in the words that Lambda uses for a function.
pub fn no_such_function(name: &str) -> ApiError {
    ApiError::not_found(format!("Function not found: {}", arn(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_have_the_short_names_of_their_regions() {
        let short = ["use1-az1", "apse2-az1", "usgw1-az1", "euc1-az1", "apne3-az1"];
        let regions = ["us-east-1", "ap-southeast-2", "us-gov-west-1", "eu-central-1", "ap-northeast-3"];
        assert_eq!(regions.map(zone_of), short);
    }

    #[test]
    fn names_and_arns_are_read() {
        let whole = "arn:aws:lambda:eu-west-1:123456789012:function:hello";
        for text in
            ["hello", "hello:$LATEST", "123456789012:function:hello", whole, &format!("{whole}:$LATEST")]
        {
            assert_eq!(parse(text).unwrap().to_string(), "hello", "{text}");
        }
        assert_eq!(parse(&arn("a-B_9")).unwrap().to_string(), "a-B_9");
        for text in ["hello:3", "hello:live", &format!("{whole}:live")] {
            let target = parse(text).unwrap();
            assert_eq!(target.name, "hello");
            assert!(target.qualifier.is_some() && target.unqualified().is_err(), "{text}");
        }
        assert_eq!(Target::new("hello", Some("7".into())).unwrap().to_string(), "hello:7");
        assert_eq!(Target::new("hello:7", Some("7".into())).unwrap().to_string(), "hello:7");
        assert_eq!(
            Target::new("hello:7", Some("8".into())).unwrap_err().kind,
            ErrorKind::InvalidParameterValue
        );
        assert!(is_alias("live") && !is_alias("12") && !is_alias("a b"));
        assert_eq!(parse_layer_arn(&layer_arn("libs:2")), Some(("libs", 2)));
        for text in ["libs:2", "arn:aws:lambda:r:12:layer:libs:2", &layer_arn("libs"), &layer_arn("libs:x")] {
            assert_eq!(parse_layer_arn(text), None, "{text}");
        }
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
            "hello:a b",
            "hello:",
        ] {
            assert_eq!(parse(text).unwrap_err().kind, ErrorKind::Validation, "{text}");
        }
    }
}
