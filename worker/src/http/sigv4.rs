//! AWS Signature Version 4: whether a request was signed with the configured credentials.
//!
//! "Create a signed AWS API request" in the IAM guide defines the signed text and its key.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use hmac::{Hmac, KeyInit, Mac};
use hyper::HeaderMap;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode, utf8_percent_encode};
use sha2::{Digest, Sha256};

use crate::base::error::{ApiError, ErrorKind};
use crate::http::header;

/// How far the clocks of the two sides may differ.
const SKEW: Duration = Duration::from_secs(15 * 60);
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// All characters except RFC 3986's unreserved ones.
const RESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const IN_PATHS: AsciiSet = RESERVED.remove(b'/');

/// The credentials that requests must be signed with.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// `AWS_ACCESS_KEY_ID` of the clients.
    pub access_key_id: String,
    /// `AWS_SECRET_ACCESS_KEY` of the clients.
    pub secret_access_key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({}, the secret is not shown)", self.access_key_id)
    }
}

impl Credentials {
    /// Hexadecimal digits that every holder of the key can derive from a text, and no one else.
    pub fn derive(&self, text: &str) -> String {
        hex(&keyed(self.secret_access_key.as_bytes(), text))
    }
}

/// A request, as far as it is signed.
pub struct Signed<'a> {
    /// `GET`.
    pub method: &'a str,
    /// As it was sent, still percent-encoded.
    pub path: &'a str,
    /// As it was sent, without `?`.
    pub query: &'a str,
    /// All headers.
    pub headers: &'a HeaderMap,
    /// The whole body.
    pub body: &'a [u8],
}

/// What an `Authorization` header claims; all that can be checked of it without the body is right.
pub struct Claim<'a> {
    time: &'a str,
    scope: &'a str,
    signed_headers: &'a str,
    signature: &'a str,
}

/// Reads what a request claims, and checks all of it that needs no body: a request that cannot be right is
/// not read.
///
/// # Errors
/// It has no signature, one of other credentials, for another service, or an old one.
pub fn claim<'a>(
    headers: &'a HeaderMap,
    credentials: &Credentials,
    service: &str,
    now: SystemTime,
) -> Result<Claim<'a>, ApiError> {
    let denied = |kind: ErrorKind, text: &str| kind.with(text);
    let Some(authorization) = header(headers, "authorization") else {
        return Err(denied(ErrorKind::MissingAuthenticationToken, "Missing Authentication Token"));
    };
    let incomplete =
        |what: &str| denied(ErrorKind::IncompleteSignature, &format!("Authorization header: {what}"));
    let fields =
        authorization.strip_prefix(ALGORITHM).ok_or_else(|| incomplete("it is not AWS4-HMAC-SHA256"))?;
    let field = |name: &str| {
        let mut parts = fields.split(',').filter_map(|part| part.trim().split_once('='));
        parts.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let credential = field("Credential").ok_or_else(|| incomplete("Credential is missing"))?;
    let signed_headers = field("SignedHeaders").ok_or_else(|| incomplete("SignedHeaders is missing"))?;
    let signature = field("Signature").ok_or_else(|| incomplete("Signature is missing"))?;
    let Some((key_id, scope)) = credential.split_once('/') else {
        return Err(incomplete("Credential is cut short"));
    };
    if key_id != credentials.access_key_id {
        let text = "The security token included in the request is invalid.";
        return Err(denied(ErrorKind::UnrecognizedClient, text));
    }
    let parts: Vec<&str> = scope.split('/').collect();
    let [day, _region, signed_for, "aws4_request"] = parts[..] else {
        return Err(incomplete("its scope is wrong"));
    };
    if signed_for != service {
        let text = format!("Credential should be scoped to correct service: '{service}'.");
        return Err(denied(ErrorKind::InvalidSignature, &text));
    }
    let time = header(headers, "x-amz-date").ok_or_else(|| incomplete("X-Amz-Date is missing"))?;
    if !time.starts_with(day) || !is_near(time, now) {
        return Err(denied(ErrorKind::InvalidSignature, &format!("Signature expired: {time} is not now")));
    }
    if !signed_headers.split(';').any(|name| name == "host") {
        return Err(incomplete("host is not signed"));
    }
    // Each name once: a repeated header would lengthen the hashed text with each repetition.
    if !signed_headers.split(';').is_sorted_by(|one, next| one < next) {
        return Err(incomplete("SignedHeaders are not in order"));
    }
    Ok(Claim { time, scope, signed_headers, signature })
}

impl Claim<'_> {
    /// Checks the signature itself.
    ///
    /// # Errors
    /// It is wrong.
    pub fn verify(&self, request: &Signed<'_>, credentials: &Credentials) -> Result<(), ApiError> {
        let canonical = canonical_request(request, self.signed_headers);
        let text = format!("{ALGORITHM}\n{}\n{}\n{}", self.time, self.scope, hex(&Sha256::digest(canonical)));
        let mut key = format!("AWS4{}", credentials.secret_access_key).into_bytes();
        for part in self.scope.split('/') {
            key = keyed(&key, part);
        }
        let mut expected = Hmac::<Sha256>::new_from_slice(&key).expect("any length will do");
        expected.update(text.as_bytes());
        // Compares in constant time.
        match unhex(self.signature).map(|bytes| expected.verify_slice(&bytes)) {
            Some(Ok(())) => Ok(()),
            _ => Err(ErrorKind::InvalidSignature.with("The request signature we calculated does not match the signature you provided. Check your AWS Secret \
                 Access Key and signing method.",
            )),
        }
    }
}

fn canonical_request(request: &Signed<'_>, signed_headers: &str) -> String {
    let mut query: Vec<(String, String)> = request
        .query
        .split('&')
        .filter(|part| !part.is_empty())
        .map(|part| part.split_once('=').unwrap_or((part, "")))
        .map(|(name, value)| (encoded(name), encoded(value)))
        .collect();
    query.sort();
    let query: Vec<String> = query.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut headers = String::new();
    for name in signed_headers.split(';') {
        let values: Vec<String> = request
            .headers
            .get_all(name)
            .iter()
            .map(|value| {
                String::from_utf8_lossy(value.as_bytes()).split_whitespace().collect::<Vec<_>>().join(" ")
            })
            .collect();
        writeln!(headers, "{name}:{}", values.join(",")).expect("strings take all");
    }
    // The request is encoded once, its signed form once more (all services but S3).
    let path = utf8_percent_encode(request.path, &IN_PATHS);
    let body = hex(&Sha256::digest(request.body));
    format!("{}\n{path}\n{}\n{headers}\n{signed_headers}\n{body}", request.method, query.join("&"))
}

fn encoded(text: &str) -> String {
    percent_encode(&percent_decode_str(text).collect::<Vec<u8>>(), &RESERVED).to_string()
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length will do");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.bytes().map(|byte| (byte as char).to_digit(16).map(|d| d as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// Whether `20150830T123600Z` is near enough to now.
fn is_near(time: &str, now: SystemTime) -> bool {
    let now = |shift: i64| {
        let shifted = if shift < 0 { now.checked_sub(SKEW) } else { now.checked_add(SKEW) };
        // Lambda's text of a time, without its marks, sorts as this one does.
        let text = crate::base::time::lambda_time(shifted.unwrap_or(now));
        text.chars().take(19).filter(|c| !matches!(c, '-' | ':')).collect::<String>() + "Z"
    };
    let well_formed =
        time.len() == 16 && time.is_ascii() && time.as_bytes()[8] == b'T' && time.ends_with('Z');
    well_formed && *time >= *now(-1) && *time <= *now(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example `get-vanilla-query-order-key-case` of AWS's signature test suite.
    fn example() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("host", "example.amazonaws.com".parse().unwrap());
        headers.insert("x-amz-date", "20150830T123600Z".parse().unwrap());
        let authorization = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                             SignedHeaders=host;x-amz-date, \
                             Signature=b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500";
        headers.insert("authorization", authorization.parse().unwrap());
        headers
    }

    fn credentials() -> Credentials {
        Credentials {
            access_key_id: "AKIDEXAMPLE".into(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".into(),
        }
    }

    fn checked(headers: &HeaderMap, query: &str, body: &[u8], seconds: u64) -> Result<(), &'static str> {
        let request = Signed { method: "GET", path: "/", query, headers, body };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let claim = claim(headers, &credentials(), "service", now).map_err(|error| error.kind.name())?;
        claim.verify(&request, &credentials()).map_err(|error| error.kind.name())
    }

    const QUERY: &str = "Param2=value2&Param1=value1";
    const THEN: u64 = 1_440_938_160;

    #[test]
    fn the_published_example_is_accepted() {
        assert_eq!(checked(&example(), QUERY, b"", THEN), Ok(()));
        assert_eq!(checked(&example(), QUERY, b"", THEN + 899), Ok(()));
    }

    #[test]
    fn denies_changed_and_old_requests() {
        let invalid = Err("InvalidSignatureException");
        assert_eq!(checked(&example(), QUERY, b"x", THEN), invalid);
        assert_eq!(checked(&example(), "Param2=value2&Param1=value2", b"", THEN), invalid);
        assert_eq!(checked(&example(), QUERY, b"", THEN + 901), invalid);
        assert_eq!(checked(&example(), QUERY, b"", THEN - 901), invalid);
        let mut other_host = example();
        other_host.insert("host", "example.com".parse().unwrap());
        assert_eq!(checked(&other_host, QUERY, b"", THEN), invalid);
    }

    #[test]
    fn other_credentials_and_broken_headers_are_denied() {
        assert_eq!(checked(&HeaderMap::new(), "", b"", 0), Err("MissingAuthenticationTokenException"));
        let with = |from: &str, to: &str| {
            let mut headers = example();
            let text = headers["authorization"].to_str().unwrap().replace(from, to);
            headers.insert("authorization", text.parse().unwrap());
            checked(&headers, QUERY, b"", THEN)
        };
        assert_eq!(with("AKIDEXAMPLE", "AKIDOTHER"), Err("UnrecognizedClientException"));
        assert_eq!(with("AWS4-HMAC-SHA256", "Bearer"), Err("IncompleteSignatureException"));
        assert_eq!(with("/aws4_request", ""), Err("IncompleteSignatureException"));
        assert_eq!(with("/service/", "/s3/"), Err("InvalidSignatureException"));
        assert_eq!(with("=host;x", "=x"), Err("IncompleteSignatureException"));
        assert_eq!(with("=host;x", "=host;host;x"), Err("IncompleteSignatureException"));
        assert_eq!(with("b97d", "zzzz"), Err("InvalidSignatureException"));
        assert_eq!(with("b97d", "b97"), Err("InvalidSignatureException"));
    }
}
