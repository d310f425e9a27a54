//! Cross-origin requests: the answer to a preflight request, and headers of all other answers.

use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};

use crate::function::http_api::{ANY, Cors, Options};
use crate::http::{self, Answer, header};

const ORIGIN: HeaderName = HeaderName::from_static("access-control-allow-origin");
const CREDENTIALS: HeaderName = HeaderName::from_static("access-control-allow-credentials");
const METHODS: HeaderName = HeaderName::from_static("access-control-allow-methods");
const HEADERS: HeaderName = HeaderName::from_static("access-control-allow-headers");
const EXPOSED: HeaderName = HeaderName::from_static("access-control-expose-headers");
const MAX_AGE: HeaderName = HeaderName::from_static("access-control-max-age");

/// Whether a browser asks by this request what a page of another origin may do.
fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS
        && parts.headers.contains_key("origin")
        && parts.headers.contains_key("access-control-request-method")
}

/// The answer to a preflight request, if it is one.
pub fn preflight(cors: &Cors, parts: &Parts, status: u16) -> Option<Answer> {
    if !is_preflight(parts) {
        return None;
    }
    let mut answer = http::empty(status);
    let wanted = header(&parts.headers, "access-control-request-method").unwrap_or_default();
    let methods = &cors.allow_methods;
    let is_wanted = |method: &String| method == "*" || method.eq_ignore_ascii_case(wanted);
    let allows = methods.is_empty() || methods.iter().any(is_wanted);
    if allows && add_origin(cors, parts, answer.headers_mut()) {
        let headers = answer.headers_mut();
        set(headers, METHODS, &cors.allow_methods.join(","));
        set(headers, HEADERS, &cors.allow_headers.join(","));
        set(headers, MAX_AGE, &cors.max_age.map(|seconds| seconds.to_string()).unwrap_or_default());
    }
    Some(answer)
}

/// Adds to a function's answer what pages of other origins may read. The function's own headers for that
/// are removed.
pub fn allow(cors: &Cors, parts: &Parts, answer: &mut Answer) {
    let headers = answer.headers_mut();
    for name in [ORIGIN, CREDENTIALS, METHODS, HEADERS, EXPOSED, MAX_AGE] {
        headers.remove(name);
    }
    if add_origin(cors, parts, headers) {
        set(headers, EXPOSED, &cors.expose_headers.join(","));
    }
}

/// Adds the origin, if it is allowed.
fn add_origin(cors: &Cors, parts: &Parts, headers: &mut HeaderMap) -> bool {
    let Some(origin) = header(&parts.headers, "origin") else { return false };
    let Some(allowed) = cors.allow_origins.iter().find(|allowed| matches(allowed, origin)) else {
        return false;
    };
    // With credentials a browser accepts the origin itself only.
    let any = allowed == "*" && !cors.allow_credentials;
    set(headers, ORIGIN, if any { "*" } else { origin });
    if !any {
        let _ = headers.try_append("vary", HeaderValue::from_static("Origin"));
    }
    if cors.allow_credentials {
        set(headers, CREDENTIALS, "true");
    }
    true
}

/// `*`, `https://*`, or an origin.
fn matches(allowed: &str, origin: &str) -> bool {
    match allowed.strip_suffix('*') {
        Some(begin) => origin.starts_with(begin),
        None => allowed == origin,
    }
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let (false, Ok(value)) = (value.is_empty(), HeaderValue::from_str(value)) {
        let _ = headers.try_insert(name, value);
    }
}

/// A REST API's answer to `OPTIONS` on a path with these methods.
pub fn options(options: &Options, methods: &[String]) -> Answer {
    let mut answer = http::answer(200, "application/json", "");
    let all = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];
    let mut allowed: Vec<&str> = if methods.iter().any(|method| method == ANY) {
        all.into()
    } else {
        methods.iter().map(String::as_str).chain(["OPTIONS"]).collect()
    };
    allowed.sort_unstable();
    allowed.dedup();
    let methods = options.methods.clone().unwrap_or_else(|| allowed.join(","));
    set(answer.headers_mut(), METHODS, &methods);
    for (name, value) in &options.headers {
        if let Ok(name) = HeaderName::try_from(name.as_str()) {
            set(answer.headers_mut(), name, value);
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors() -> Cors {
        Cors {
            allow_origins: vec!["https://a.example".into(), "http://*".into()],
            allow_methods: vec!["GET".into()],
            allow_headers: vec!["x-own".into()],
            expose_headers: vec!["x-seen".into()],
            max_age: Some(60),
            allow_credentials: true,
        }
    }

    fn parts(method: &str, origin: &str, wanted: &str) -> Parts {
        let request = hyper::Request::builder().method(method).header("origin", origin);
        request.header("access-control-request-method", wanted).body(()).unwrap().into_parts().0
    }

    #[test]
    fn preflight_is_answered_for_allowed_origins_and_methods() {
        let asked = |origin: &str, wanted: &str| {
            let answer = preflight(&cors(), &parts("OPTIONS", origin, wanted), 204).unwrap();
            let names =
                answer.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
            names.collect::<Vec<_>>().join("; ")
        };
        let allowed = asked("https://a.example", "GET");
        assert_eq!(
            allowed,
            "access-control-allow-origin: https://a.example; vary: Origin; \
             access-control-allow-credentials: true; access-control-allow-methods: GET; \
             access-control-allow-headers: x-own; access-control-max-age: 60"
        );
        assert_eq!(asked("https://a.example", "PUT"), "");
        assert_eq!(asked("https://b.example", "GET"), "");
        assert!(
            asked("http://b.example", "GET").starts_with("access-control-allow-origin: http://b.example")
        );
        assert!(preflight(&cors(), &parts("GET", "https://a.example", "GET"), 204).is_none());
    }

    #[test]
    fn headers_of_the_function_are_replaced() {
        let mut answer = http::empty(200);
        answer.headers_mut().insert(ORIGIN, HeaderValue::from_static("*"));
        allow(&cors(), &parts("GET", "https://b.example", ""), &mut answer);
        assert!(!answer.headers().contains_key(ORIGIN));
        allow(&cors(), &parts("GET", "https://a.example", ""), &mut answer);
        assert_eq!(answer.headers()[ORIGIN], "https://a.example");
        assert_eq!(answer.headers()[EXPOSED], "x-seen");
    }
}
