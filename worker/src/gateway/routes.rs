//! Finds a request's route: by the most specific path, then by the method.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;

use crate::function::http_api::{ANY, DEFAULT, HttpApi, Kind, Options, Route};

/// Values of path parameters, by name.
pub type Parameters = BTreeMap<String, String>;

/// What a method and a path lead to.
#[derive(Debug)]
pub enum Found<'a> {
    /// A route, with its path parameters.
    Route(&'a Route, Parameters),
    /// No route, but a REST API's own answer to `OPTIONS`, with the methods of that path.
    Options(&'a Options, Vec<String>),
    /// Nothing.
    None,
}

/// How specific a part of a route's path is; the less, the later in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Text,
    Parameter,
    Rest,
    Default,
}

/// The path without its stage, if it begins with that one.
pub fn without_stage<'a>(path: &'a str, stage: &str) -> &'a str {
    let rest = path.strip_prefix('/').and_then(|path| path.strip_prefix(stage));
    match rest {
        Some("") => "/",
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    }
}

/// Percent-encoding decoded; `None` if it is invalid, or no UTF-8.
pub fn decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let is_digit = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_hexdigit());
        if byte == b'%' && !(is_digit(bytes.next()) && is_digit(bytes.next())) {
            return None;
        }
    }
    percent_decode_str(text).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// The route of a path without stage, which is percent-encoded.
pub fn find<'a>(api: &'a HttpApi, method: &str, path: &str) -> Found<'a> {
    // REST APIs ignore a slash at the end.
    let path = if api.kind == Kind::Rest { path.strip_suffix('/').unwrap_or(path) } else { path };
    let parts: Vec<String> = path.split('/').skip(1).filter_map(decoded).collect();
    let takes = |route: &Route| route.method == ANY || route.method == method;
    let matching = api.routes.iter().filter_map(|route| Some((route, rank(&route.path, &parts)?)));
    match api.kind {
        Kind::Http => {
            let best = matching
                .filter(|(route, _)| takes(route))
                .min_by_key(|(route, (rank, _))| (rank.clone(), route.method == ANY));
            best.map_or(Found::None, |(route, (_, parameters))| Found::Route(route, parameters))
        }
        Kind::Rest => {
            let matching: Vec<_> = matching.collect();
            let Some(best) = matching.iter().map(|(_, (rank, _))| rank.clone()).min() else {
                return Found::None;
            };
            let here: Vec<_> = matching.into_iter().filter(|(_, (rank, _))| *rank == best).collect();
            let exact = here.iter().find(|(route, _)| route.method == method);
            if let (None, "OPTIONS", Some(options)) = (exact, method, &api.options) {
                return Found::Options(options, here.iter().map(|(route, _)| route.method.clone()).collect());
            }
            let found = exact.or_else(|| here.iter().find(|(route, _)| route.method == ANY));
            found.map_or(Found::None, |(route, (_, parameters))| Found::Route(route, parameters.clone()))
        }
    }
}

/// How a route's path matches these parts of a request's, if it does.
fn rank(path: &str, parts: &[String]) -> Option<(Vec<Rank>, Parameters)> {
    if path == DEFAULT {
        return Some((vec![Rank::Default], Parameters::new()));
    }
    let path = path.strip_suffix('/').filter(|rest| parts.is_empty() && rest.is_empty()).unwrap_or(path);
    let (mut ranks, mut parameters, mut rest) = (Vec::new(), Parameters::new(), parts);
    for own in path.split('/').skip(1) {
        let (part, after) = rest.split_first()?;
        match own.strip_prefix('{').and_then(|own| own.strip_suffix('}')) {
            None if own == part => ranks.push(Rank::Text),
            None => return None,
            Some(name) => match name.strip_suffix('+') {
                Some(name) => {
                    let all = rest.join("/");
                    ranks.push(Rank::Rest);
                    parameters.insert(name.into(), all.clone());
                    return (!all.is_empty()).then_some((ranks, parameters));
                }
                None if part.is_empty() => return None,
                None => {
                    ranks.push(Rank::Parameter);
                    parameters.insert(name.into(), part.clone());
                }
            },
        }
        rest = after;
    }
    rest.is_empty().then_some((ranks, parameters))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::http_api::{Format, Guard};

    fn api(kind: Kind, routes: &[&str]) -> HttpApi {
        let route = |text: &&str| {
            let (method, path) = text.split_once(' ').unwrap();
            Route {
                method: method.into(),
                path: path.into(),
                target: crate::base::name::parse("f").unwrap(),
                format: Format::Two,
                guard: Guard::Open,
                timeout_ms: None,
            }
        };
        HttpApi {
            id: "a".into(),
            kind,
            stage: "Prod".into(),
            variables: BTreeMap::new(),
            binary: Vec::new(),
            cors: None,
            options: Some(Options::default()),
            routes: routes.iter().map(route).collect(),
            authorizers: BTreeMap::new(),
        }
    }

    fn found(api: &HttpApi, request: &str) -> String {
        let (method, path) = request.split_once(' ').unwrap();
        match find(api, method, path) {
            Found::Route(route, parameters) => {
                let parameters = parameters.iter().map(|(name, value)| format!(" {name}={value}"));
                format!("{} {}{}", route.method, route.path, parameters.collect::<String>())
            }
            Found::Options(_, methods) => format!("options {}", methods.join(",")),
            Found::None => "none".into(),
        }
    }

    const ROUTES: [&str; 7] = [
        "GET /pets/dog/1",
        "GET /pets/dog/{id}",
        "GET /pets/{proxy+}",
        "ANY /{proxy+}",
        "ANY $default",
        "POST /pets",
        "GET /",
    ];

    #[test]
    fn http_api_takes_the_most_specific_route_with_the_method() {
        let api = api(Kind::Http, &ROUTES);
        for (request, wanted) in [
            ("GET /pets/dog/1", "GET /pets/dog/1"),
            ("GET /pets/dog/2", "GET /pets/dog/{id} id=2"),
            ("GET /pets/dog/a%2Fb%20c", "GET /pets/dog/{id} id=a/b c"),
            ("GET /pets/cat/1", "GET /pets/{proxy+} proxy=cat/1"),
            ("POST /pets/dog/1", "ANY /{proxy+} proxy=pets/dog/1"),
            ("POST /pets", "POST /pets"),
            ("POST /pets/", "ANY /{proxy+} proxy=pets/"),
            ("GET /", "GET /"),
            ("PUT /", "ANY $default"),
        ] {
            assert_eq!(found(&api, request), wanted, "{request}");
        }
    }

    #[test]
    fn rest_api_takes_the_path_first() {
        let api = api(Kind::Rest, &["GET /a", "ANY /{proxy+}", "ANY /", "POST /a/{b}", "ANY /a/{b}"]);
        for (request, wanted) in [
            ("GET /a", "GET /a"),
            ("GET /a/", "GET /a"),
            ("POST /a", "none"),
            ("OPTIONS /a", "options GET"),
            ("POST /a/x", "POST /a/{b} b=x"),
            ("PUT /a/x", "ANY /a/{b} b=x"),
            ("OPTIONS /a/x", "options POST,ANY"),
            ("PUT /a/x/y", "ANY /{proxy+} proxy=a/x/y"),
            ("GET /", "ANY /"),
        ] {
            assert_eq!(found(&api, request), wanted, "{request}");
        }
    }

    #[test]
    fn stage_and_encoding_are_read_exactly() {
        assert_eq!(without_stage("/Prod/a", "Prod"), "/a");
        assert_eq!(without_stage("/Prod", "Prod"), "/");
        assert_eq!(without_stage("/Product", "Prod"), "/Product");
        assert_eq!(without_stage("/a", "$default"), "/a");
        assert_eq!(decoded("a%20%C3%A9+"), Some("a é+".into()));
        for wrong in ["%", "%2", "%zz", "%ff", "%+1"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }
}
