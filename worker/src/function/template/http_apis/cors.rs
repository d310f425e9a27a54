//! `Cors` of a REST API, `CorsConfiguration` of an HTTP API.

use serde_json::{Map, Value as Json};

use super::text_of;
use crate::function::http_api::{Cors, Options};

/// SAM has the values of headers in quotes of their own.
pub fn unquoted(value: &Json) -> String {
    let text = text_of(value);
    let inner = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
    inner.map_or_else(|| text.clone(), str::to_string)
}

/// The answer to `OPTIONS`.
pub fn of_rest(value: &Json) -> Option<Options> {
    let (mut options, mut set) = (Options::default(), Map::new());
    match value {
        Json::String(_) => drop(set.insert("AllowOrigin".into(), value.clone())),
        Json::Object(given) => set.clone_from(given),
        _ => return None,
    }
    options.methods = set.get("AllowMethods").map(unquoted);
    let mut add = |header: &str, text: String| drop(options.headers.insert(header.into(), text));
    add("access-control-allow-origin", set.get("AllowOrigin").map_or_else(|| "*".into(), unquoted));
    for (key, header) in
        [("AllowHeaders", "access-control-allow-headers"), ("MaxAge", "access-control-max-age")]
    {
        if let Some(value) = set.get(key) {
            add(header, unquoted(value));
        }
    }
    if set.get("AllowCredentials").is_some_and(|value| unquoted(value) == "true") {
        add("access-control-allow-credentials", "true".into());
    }
    Some(options)
}

/// Cross-origin requests of an HTTP API; `true` allows all origins and methods.
pub fn of_http(value: &Json) -> Option<Cors> {
    match value {
        Json::Bool(true) => {
            let all = || vec!["*".to_string()];
            Some(Cors { allow_origins: all(), allow_methods: all(), ..Cors::default() })
        }
        Json::Object(given) => {
            // OpenAPI writes the same names with a small letter.
            let value = |key: &str| {
                given.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value)
            };
            let texts = |key: &str| match value(key) {
                Some(Json::Array(list)) => list.iter().map(text_of).collect(),
                Some(Json::String(text)) => text.split(',').map(|one| one.trim().to_string()).collect(),
                _ => Vec::new(),
            };
            Some(Cors {
                allow_credentials: value("AllowCredentials").is_some_and(|value| text_of(value) == "true"),
                allow_headers: texts("AllowHeaders"),
                allow_methods: texts("AllowMethods"),
                allow_origins: texts("AllowOrigins"),
                expose_headers: texts("ExposeHeaders"),
                max_age: value("MaxAge").and_then(|value| text_of(value).parse().ok()),
            })
        }
        _ => None,
    }
}
