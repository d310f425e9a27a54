//! Requests that are none of the Lambda API's: those to function URLs and HTTP APIs, which a name
//! (`ID.lambda-url.localhost`, `ID.execute-api.localhost`) or the beginning of the path names.

use hyper::http::request::Parts;

use crate::gateway::request::without_port;
use crate::http::{Answer, header};

/// The beginning of a function URL's path.
pub const URL: &str = "lambda-url";
/// The beginning of an HTTP API's path.
pub const API: &str = "execute-api";

/// Which of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A function URL.
    Url,
    /// An HTTP API.
    Api,
}

/// What a request is for.
#[derive(Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Which of both.
    pub of: Of,
    /// Its id.
    pub id: String,
    /// The rest of the path, as the function sees it.
    pub path: String,
    /// The beginning of the path, if that named it.
    pub prefix: Option<String>,
}

impl Endpoint {
    /// The endpoint that a request names, if it names one.
    pub fn of(parts: &Parts) -> Option<Endpoint> {
        let path = parts.uri.path();
        // A target without a path, which `OPTIONS *` has.
        let path = if path.starts_with('/') { path } else { "/" };
        let host = header(&parts.headers, "host").unwrap_or_default();
        if let Some((of, id)) = by_host(without_port(host)) {
            return Some(Endpoint { of, id: id.to_string(), path: path.to_string(), prefix: None });
        }
        let (first, rest) = path[1..].split_once('/').unwrap_or((&path[1..], ""));
        let of = match first {
            URL => Of::Url,
            API => Of::Api,
            _ => return None,
        };
        let (id, end) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let path = if end.is_empty() { "/" } else { end };
        Some(Endpoint { of, id: id.into(), path: path.into(), prefix: Some(format!("/{first}/{id}")) })
    }

    /// Leads a redirect to a path of this endpoint there, if the request's path begins with its name: the
    /// function does not know of that.
    pub fn lead_back(&self, answer: &mut Answer) {
        let Some(prefix) = &self.prefix else { return };
        let target = header(answer.headers(), "location").filter(|target| is_path(target));
        if let Some(target) = target.filter(|target| !target.starts_with(&format!("{prefix}/")))
            && let Ok(target) = format!("{prefix}{target}").parse()
        {
            answer.headers_mut().insert("location", target);
        }
    }
}

fn is_path(target: &str) -> bool {
    target.starts_with('/') && !target.starts_with("//")
}

/// `ID.execute-api.localhost`, and AWS' own names for clients that send those here.
fn by_host(host: &str) -> Option<(Of, &str)> {
    let (id, rest) = host.split_once('.')?;
    let (kind, domain) = rest.split_once('.')?;
    let of = match kind {
        URL => Of::Url,
        API => Of::Api,
        _ => return None,
    };
    let known = match of {
        Of::Url => domain.ends_with(".on.aws"),
        Of::Api => domain.ends_with(".amazonaws.com"),
    };
    (known || domain == "localhost").then_some((of, id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http;

    fn of(host: &str, path: &str) -> Option<(Of, String, String)> {
        let request = hyper::Request::get(path).header("host", host).body(()).unwrap();
        Endpoint::of(&request.into_parts().0).map(|endpoint| (endpoint.of, endpoint.id, endpoint.path))
    }

    #[test]
    fn names_and_paths_lead_to_apis_and_urls() {
        let wanted = |of, id: &str, path: &str| Some((of, id.to_string(), path.to_string()));
        assert_eq!(of("a.execute-api.localhost:80", "/b"), wanted(Of::Api, "a", "/b"));
        assert_eq!(of("a.execute-api.eu-west-1.amazonaws.com", "/"), wanted(Of::Api, "a", "/"));
        assert_eq!(of("a.lambda-url.localhost", "/lambda-url/b"), wanted(Of::Url, "a", "/lambda-url/b"));
        assert_eq!(of("a.lambda-url.eu-west-1.on.aws", "/"), wanted(Of::Url, "a", "/"));
        assert_eq!(of("localhost", "/execute-api/a/b%2Fc/"), wanted(Of::Api, "a", "/b%2Fc/"));
        assert_eq!(of("127.0.0.1:1", "/lambda-url/a"), wanted(Of::Url, "a", "/"));
        assert_eq!(of("127.0.0.1:1", "/lambda-url"), wanted(Of::Url, "", "/"));
        assert_eq!(of("a.execute-api.example.com", "/b"), None);
        assert_eq!(of("127.0.0.1:1", "/2015-03-31/functions"), None);
    }

    #[test]
    fn redirects_stay_below_the_path_that_names_the_api() {
        let led = |endpoint: &str, target: &str| {
            let request = hyper::Request::get(endpoint).header("host", "localhost").body(()).unwrap();
            let mut answer = http::empty(302);
            answer.headers_mut().insert("location", target.parse().unwrap());
            Endpoint::of(&request.into_parts().0).unwrap().lead_back(&mut answer);
            answer.headers()["location"].to_str().unwrap().to_string()
        };
        assert_eq!(led("/execute-api/a/b", "/login?x=1"), "/execute-api/a/login?x=1");
        for other in ["//b", "http://c/", "login", "/execute-api/a/login"] {
            assert_eq!(led("/execute-api/a/b", other), other);
        }
    }
}
