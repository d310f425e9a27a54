//! Injection requests: the `mayfly.dev/…` annotations of a container's pod.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The annotation that requests the heap.
pub const HEAP: &str = "mayfly.dev/heap";
/// The annotation that requests page sharing.
pub const SHARE: &str = "mayfly.dev/share";
/// The annotation that requests a profile.
pub const PROFILE: &str = "mayfly.dev/profile";

const MAX_NAME_CHARACTERS: usize = 63;
const MAX_PROFILE_SECONDS: u64 = 86_400;

/// A name that is safe as a file's and a CDI device's: letters, digits, `.`, `_` and `-`, at most 63, the
/// first and the last a letter or digit. Engines refuse a whole CDI file for one device of another name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        let is_end = |c: char| c.is_ascii_alphanumeric();
        let is_plain = |c: char| is_end(c) || matches!(c, '.' | '_' | '-');
        if text.starts_with(is_end)
            && text.ends_with(is_end)
            && text.len() <= MAX_NAME_CHARACTERS
            && text.chars().all(is_plain)
        {
            return Ok(Name(text.to_owned()));
        }
        let shown: String = text.chars().take(MAX_NAME_CHARACTERS).collect();
        Err(format!(
            "{shown:?} is no name: letters, digits, . _ -, at most {MAX_NAME_CHARACTERS}; a letter or digit at both ends"
        ))
    }
}

/// Where the heap's lifetimes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heap {
    /// Learned while the program runs.
    Online,
    /// Predicted by a model that the node has under that name.
    Model(Name),
}

impl fmt::Display for Heap {
    /// As an annotation requests it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Heap::Online => f.write_str("online"),
            Heap::Model(name) => write!(f, "model={name}"),
        }
    }
}

impl FromStr for Heap {
    type Err = String;

    fn from_str(text: &str) -> Result<Heap, String> {
        match text.split_once('=') {
            None if text == "online" => Ok(Heap::Online),
            Some(("model", name)) => name.parse().map(Heap::Model),
            _ => Err(format!(
                "{:?} is neither online nor model=NAME",
                text.chars().take(80).collect::<String>()
            )),
        }
    }
}

/// The containers that share pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share {
    /// The containers of one pod.
    Pod,
    /// The namespace's pods that request it.
    Namespace,
    /// The namespace's pods that request it by the same name.
    Named(Name),
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        match text {
            "pod" => Ok(Share::Pod),
            "namespace" => Ok(Share::Namespace),
            name => name.parse().map(Share::Named),
        }
    }
}

/// What a container requests; the agent injects nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InjectionRequest {
    /// The lifetime-aware heap.
    pub heap: Option<Heap>,
    /// Page sharing.
    pub share: Option<Share>,
    /// How long to sample its lifetimes.
    pub profile: Option<Duration>,
}

impl InjectionRequest {
    /// Parses annotations. One that is invalid requests nothing; the second value has the reasons, a line
    /// each.
    pub fn from_annotations(annotations: &HashMap<String, String>) -> (InjectionRequest, Vec<String>) {
        let mut errors = Vec::new();
        let request = InjectionRequest {
            heap: field(annotations, HEAP, str::parse, &mut errors),
            share: field(annotations, SHARE, str::parse, &mut errors),
            profile: field(annotations, PROFILE, seconds, &mut errors),
        };
        (request, errors)
    }

    /// Whether it requests nothing.
    pub fn is_empty(&self) -> bool {
        *self == InjectionRequest::default()
    }

    /// Whether it needs the heap: profiles sample it.
    pub fn needs_heap(&self) -> bool {
        self.heap.is_some() || self.profile.is_some()
    }
}

fn field<T>(
    annotations: &HashMap<String, String>,
    key: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
    errors: &mut Vec<String>,
) -> Option<T> {
    let text = annotations.get(key)?;
    match parse(text) {
        Ok(value) => Some(value),
        Err(why) => {
            errors.push(format!("{key}: {why}"));
            None
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds @ 1..=MAX_PROFILE_SECONDS) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!(
            "{:?} is no number of seconds from 1 to {MAX_PROFILE_SECONDS}",
            text.chars().take(80).collect::<String>()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pairs: &[(&str, &str)]) -> (InjectionRequest, Vec<String>) {
        InjectionRequest::from_annotations(
            &pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        )
    }

    #[test]
    fn annotations_are_parsed() {
        let (request, errors) =
            read(&[(HEAP, "model=web-7"), (SHARE, "namespace"), (PROFILE, "60"), ("other", "x")]);
        assert_eq!(errors, Vec::<String>::new());
        assert_eq!(request.heap, Some(Heap::Model("web-7".parse().unwrap())));
        assert_eq!(request.heap.map(|heap| heap.to_string()).as_deref(), Some("model=web-7"));
        assert_eq!((request.share, request.profile), (Some(Share::Namespace), Some(Duration::from_secs(60))));
        assert!(read(&[("mayfly.dev/else", "online")]).0.is_empty());
    }

    #[test]
    fn invalid_annotations_are_reported_and_the_others_kept() {
        let (request, errors) = read(&[(HEAP, "on"), (SHARE, "../../etc"), (PROFILE, "0")]);
        assert!(request.is_empty());
        assert_eq!(errors.len(), 3);
        assert!(errors[0].starts_with("mayfly.dev/heap: \"on\""), "{}", errors[0]);
        let (request, errors) = read(&[(HEAP, "online"), (SHARE, "a b")]);
        assert_eq!((request.heap, request.share, errors.len()), (Some(Heap::Online), None, 1));
    }

    #[test]
    fn names_are_those_of_cdi_devices() {
        for (text, is_name) in [("web", true), ("7", true), ("a.b_c-9", true), ("web-", false), ("a.", false)]
        {
            assert_eq!(text.parse::<Name>().is_ok(), is_name, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_leaves_the_folder(text in ".{0,80}") {
            if let Ok(name) = text.parse::<Name>() {
                prop_assert!(!name.as_str().contains('/') && !name.as_str().starts_with('.'));
                prop_assert!(name.as_str().ends_with(|c: char| c.is_ascii_alphanumeric()));
            }
            let _ = (text.parse::<Heap>(), text.parse::<Share>(), seconds(&text));
        }
    }
}
