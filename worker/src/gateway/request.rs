//! A request as events of both formats have it: headers, cookies, parameters, body.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::http::request::Parts;
use serde_json::Value;

use crate::http::header;

/// A request to an API or a function URL.
pub struct Received<'a> {
    /// Method, URI, headers.
    pub parts: &'a Parts,
    /// All of the body.
    pub body: Bytes,
    /// The path as it was called: percent-encoded, with the stage, without what names the API.
    pub path: String,
    /// The client's address.
    pub peer: IpAddr,
    /// When it arrived.
    pub time: SystemTime,
}

/// Headers that are the connection's and not the request's.
const OF_THE_CONNECTION: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

impl Received<'_> {
    /// The text of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.parts.headers, name)
    }

    /// The name and port that the request has called.
    pub fn host(&self) -> &str {
        self.header("host").unwrap_or_default()
    }

    /// The same without the port.
    pub fn domain(&self) -> &str {
        without_port(self.host())
    }

    /// All headers, with names in small letters, and those that API Gateway adds.
    pub fn headers(&self, trace: &str) -> Vec<(String, String)> {
        let mut headers = Vec::new();
        for (name, value) in &self.parts.headers {
            let name = name.as_str();
            if !OF_THE_CONNECTION.contains(&name) && !is_added(name) {
                headers.push((name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
            }
        }
        if !self.body.is_empty() && self.header("content-length").is_none() {
            headers.push(("content-length".into(), self.body.len().to_string()));
        }
        let port = self.host().rsplit_once(':').map(|(_, port)| port).filter(|port| is_number(port));
        let earlier = self.header("x-forwarded-for").map(|text| format!("{text}, ")).unwrap_or_default();
        // A proxy that ends TLS before the worker names the scheme and port that its client has used.
        let scheme = self.header("x-forwarded-proto").filter(|text| matches!(*text, "http" | "https"));
        let given = self.header("x-forwarded-port").filter(|port| is_number(port));
        headers.push(("x-forwarded-for".into(), format!("{earlier}{}", self.peer)));
        headers.push(("x-forwarded-proto".into(), scheme.unwrap_or("http").into()));
        headers.push(("x-forwarded-port".into(), given.or(port).unwrap_or("80").into()));
        headers.push(("x-amzn-trace-id".into(), trace.into()));
        headers
    }

    /// Query parameters, decoded.
    pub fn query(&self) -> Vec<(String, String)> {
        let query = self.parts.uri.query().unwrap_or_default();
        form_urlencoded::parse(query.as_bytes()).into_owned().collect()
    }

    /// The body as an event has it, and whether it is in base64; `is_text` decides by the content type.
    pub fn body(&self, is_text: impl Fn(&str) -> bool) -> (Option<String>, bool) {
        if self.body.is_empty() {
            return (None, false);
        }
        match std::str::from_utf8(&self.body) {
            Ok(text) if is_text(self.header("content-type").unwrap_or_default()) => {
                (Some(text.into()), false)
            }
            _ => (Some(BASE64.encode(&self.body)), true),
        }
    }
}

/// Whether the worker sets this header of an event.
fn is_added(name: &str) -> bool {
    matches!(name, "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-port" | "x-amzn-trace-id")
}

fn is_number(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

/// A host without its port.
pub fn without_port(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(name, port)| if port.contains(']') { host } else { name })
}

/// Values of one name as one text, with commas.
pub fn joined(pairs: Vec<(String, String)>) -> BTreeMap<String, String> {
    let mut joined = BTreeMap::<String, String>::new();
    for (name, value) in pairs {
        match joined.get_mut(&name) {
            Some(known) => *known = format!("{known},{value}"),
            None => drop(joined.insert(name, value)),
        }
    }
    joined
}

/// The last value of each name, and all values.
pub fn listed(pairs: Vec<(String, String)>) -> (Value, Value) {
    if pairs.is_empty() {
        return (Value::Null, Value::Null);
    }
    let (mut last, mut all) = (BTreeMap::new(), BTreeMap::<String, Vec<String>>::new());
    for (name, value) in pairs {
        all.entry(name.clone()).or_default().push(value.clone());
        last.insert(name, value);
    }
    (serde_json::json!(last), serde_json::json!(all))
}

/// A header's name as events of format 1.0 have it: `X-Forwarded-For`.
pub fn titled(name: &str) -> String {
    let mut starts = true;
    let letter = |letter: char| {
        let title = if starts { letter.to_ascii_uppercase() } else { letter };
        starts = letter == '-';
        title
    };
    name.chars().map(letter).collect()
}

/// Whether API Gateway's HTTP APIs and function URLs pass bodies of this content type on as text.
pub fn is_text(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind.starts_with("text/")
        || kind.ends_with("+json")
        || matches!(kind.as_str(), "application/json" | "application/xml" | "application/javascript")
}

/// Whether a content type is one of a REST API's binary media types.
pub fn is_binary(types: &[String], content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    types.iter().map(|known| known.to_ascii_lowercase()).any(|known| {
        known == "*/*" || known == kind || known.strip_suffix('*').is_some_and(|main| kind.starts_with(main))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_types_and_hosts_are_read() {
        assert_eq!(titled("x-forwarded-for"), "X-Forwarded-For");
        assert_eq!(
            [without_port("a:80"), without_port("[::1]"), without_port("[::1]:8")],
            ["a", "[::1]", "[::1]"]
        );
        assert!(is_text("Text/html; charset=x") && is_text("application/json") && !is_text("image/png"));
        let types = ["image/*".to_string(), "application/pdf".into()];
        assert!(is_binary(&types, "image/png; q=1") && is_binary(&types, "application/PDF"));
        assert!(!is_binary(&types, "text/plain") && is_binary(&["*/*".into()], ""));
    }
}
