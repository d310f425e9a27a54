//! What an extension asks of the Telemetry API: types, destination, buffer.

use std::time::Duration;

use hyper::Uri;
use serde::Deserialize;

/// The versions of the events' schema.
const VERSIONS: [&str; 3] = ["2022-07-01", "2022-12-13", "2025-01-29"];
/// Since this one, a line that is JSON is an object in a log in JSON.
const OBJECTS_SINCE: &str = "2022-12-13";
/// The names of the instance itself in a destination.
const HOSTS: [&str; 2] = ["sandbox.localdomain", "sandbox"];
/// The longest time for which events wait, and other bounds of the documentation, each with its default.
const ITEMS: Bound = Bound { name: "maxItems", least: 1000, most: 10_000, default: 1000 };
const BYTES: Bound = Bound { name: "maxBytes", least: 262_144, most: 1_048_576, default: 262_144 };
const TIMEOUT_MS: Bound = Bound { name: "timeoutMs", least: 25, most: 30_000, default: 1000 };

struct Bound {
    name: &'static str,
    least: u64,
    most: u64,
    default: u64,
}

impl Bound {
    fn check(&self, given: Option<u64>) -> Result<u64, String> {
        let value = given.unwrap_or(self.default);
        match (self.least..=self.most).contains(&value) {
            true => Ok(value),
            false => Err(format!("buffering.{} must be {} to {}", self.name, self.least, self.most)),
        }
    }
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// Lambda's own.
    Platform,
    /// A line of the runtime's.
    Function,
    /// A line of an extension's.
    Extension,
}

impl Type {
    pub(super) fn name(self) -> &'static str {
        match self {
            Type::Platform => "platform",
            Type::Function => "function",
            Type::Extension => "extension",
        }
    }

    fn parse(text: &str) -> Result<Type, String> {
        let all = [Type::Platform, Type::Function, Type::Extension];
        let found = all.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| "types must be platform, function, or extension".into())
    }
}

/// Where events go, inside the instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    pub port: u16,
    /// The path of a server of HTTP. Without one, events are lines of a TCP connection.
    pub path: Option<String>,
}

/// A checked request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subscription {
    pub(super) types: Vec<Type>,
    pub(super) destination: Destination,
    pub(super) max_items: usize,
    pub(super) max_bytes: usize,
    pub(super) timeout: Duration,
    /// Whether lines in JSON are objects.
    pub(super) objects: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wanted {
    schema_version: String,
    types: Vec<String>,
    destination: WantedDestination,
    #[serde(default)]
    buffering: Buffering,
}

#[derive(Deserialize)]
struct WantedDestination {
    protocol: String,
    #[serde(rename = "URI")]
    uri: Option<String>,
    port: Option<u16>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Buffering {
    max_items: Option<u64>,
    max_bytes: Option<u64>,
    timeout_ms: Option<u64>,
}

impl Subscription {
    /// # Errors
    /// What is wrong with the request.
    pub(crate) fn parse(body: &[u8]) -> Result<Subscription, String> {
        let wanted: Wanted = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        if !VERSIONS.contains(&wanted.schema_version.as_str()) {
            return Err(format!("schemaVersion must be one of {}", VERSIONS.join(", ")));
        }
        if wanted.types.is_empty() {
            return Err("types must name one at least".into());
        }
        let types = wanted.types.iter().map(|text| Type::parse(text)).collect::<Result<_, _>>()?;
        let buffering = &wanted.buffering;
        Ok(Subscription {
            types,
            destination: destination(&wanted.destination)?,
            max_items: ITEMS.check(buffering.max_items)? as usize,
            max_bytes: BYTES.check(buffering.max_bytes)? as usize,
            timeout: Duration::from_millis(TIMEOUT_MS.check(buffering.timeout_ms)?),
            objects: wanted.schema_version.as_str() >= OBJECTS_SINCE,
        })
    }
}

fn destination(wanted: &WantedDestination) -> Result<Destination, String> {
    match wanted.protocol.as_str() {
        "TCP" => {
            let port = wanted.port.filter(|port| *port > 0).ok_or("destination.port must be 1 to 65535")?;
            Ok(Destination { port, path: None })
        }
        "HTTP" => {
            let must = || "destination.URI must be http://sandbox.localdomain:PORT".to_string();
            let uri: Uri = wanted.uri.as_deref().unwrap_or_default().parse().map_err(|_| must())?;
            let is_inside = uri.host().is_some_and(|host| HOSTS.contains(&host));
            if uri.scheme_str() != Some("http") || !is_inside || uri.port_u16() == Some(0) {
                return Err(must());
            }
            let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_string();
            Ok(Destination { port: uri.port_u16().unwrap_or(80), path: Some(path) })
        }
        _ => Err("destination.protocol must be HTTP or TCP".into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wanted() -> Value {
        json!({
            "schemaVersion": "2025-01-29",
            "types": ["platform", "extension"],
            "destination": { "protocol": "HTTP", "URI": "http://sandbox.localdomain:4243/here?a" },
            "buffering": { "maxItems": 2000, "maxBytes": 1_048_576, "timeoutMs": 25 },
        })
    }

    fn parse(wanted: &Value) -> Result<Subscription, String> {
        Subscription::parse(wanted.to_string().as_bytes())
    }

    #[test]
    fn subscriptions_are_read() {
        let read = parse(&wanted()).unwrap();
        assert_eq!(read.types, [Type::Platform, Type::Extension]);
        assert_eq!(read.destination, Destination { port: 4243, path: Some("/here?a".into()) });
        let buffer = (read.max_items, read.max_bytes, read.timeout);
        assert_eq!(buffer, (2000, 1 << 20, Duration::from_millis(25)));
        let mut plain = json!({ "schemaVersion": "2022-07-01", "types": ["function"] });
        plain["destination"] = json!({ "protocol": "TCP", "port": 1 });
        let read = parse(&plain).unwrap();
        assert_eq!(read.destination, Destination { port: 1, path: None });
        let buffer = (read.max_items, read.max_bytes, read.timeout, read.objects);
        assert_eq!(buffer, (1000, 1 << 18, Duration::from_secs(1), false));
    }

    #[test]
    fn undocumented_values_are_refused() {
        for (key, value, named) in [
            ("schemaVersion", json!("2020-01-01"), "schemaVersion"),
            ("types", json!([]), "types"),
            ("types", json!(["other"]), "types"),
            ("destination", json!({ "protocol": "UDP" }), "protocol"),
            ("destination", json!({ "protocol": "TCP", "port": 0 }), "port"),
            ("destination", json!({ "protocol": "HTTP", "URI": "http://10.0.0.1:80" }), "URI"),
            ("destination", json!({ "protocol": "HTTP", "URI": "https://sandbox:80" }), "URI"),
            ("destination", json!({ "protocol": "HTTP" }), "URI"),
            ("buffering", json!({ "maxItems": 999 }), "maxItems"),
            ("buffering", json!({ "maxBytes": 1_048_577 }), "maxBytes"),
            ("buffering", json!({ "timeoutMs": 24 }), "timeoutMs"),
        ] {
            let mut wrong = wanted();
            wrong[key] = value;
            let error = parse(&wrong).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
        assert!(Subscription::parse(b"[").is_err());
    }
}
