//! What a container asks for: `mayfly.dev/…` annotations of its pod.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The annotation that asks for the heap.
pub const HEAP: &str = "mayfly.dev/heap";
/// The annotation that asks for page sharing.
pub const SHARE: &str = "mayfly.dev/share";
/// The annotation that asks for a profile.
pub const PROFILE: &str = "mayfly.dev/profile";

const LONGEST_NAME: usize = 63;
const LONGEST_PROFILE_SECONDS: u64 = 86_400;

/// A name that is safe as a file's: letters, digits, `.`, `_` and `-`, at most 63, and a letter or digit first.
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
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if begins && text.len() <= LONGEST_NAME && text.chars().all(is_plain) {
            return Ok(Name(text.to_owned()));
        }
        let shown: String = text.chars().take(LONGEST_NAME).collect();
        Err(format!("{shown:?} is no name: letters, digits, . _ -, at most {LONGEST_NAME}"))
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

/// With whom pages are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share {
    /// The containers of one pod.
    Pod,
    /// The namespace's pods that ask for it.
    Namespace,
    /// The namespace's pods that say the same name.
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

/// What a container asks for. Nothing is given that was not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The lifetime-aware heap.
    pub heap: Option<Heap>,
    /// Page sharing.
    pub share: Option<Share>,
    /// How long its lifetimes shall be sampled.
    pub profile: Option<Duration>,
}

impl Ask {
    /// Reads annotations. What cannot be read is not given; the lines say why.
    pub fn read(annotations: &HashMap<String, String>) -> (Ask, Vec<String>) {
        let mut wrong = Vec::new();
        let ask = Ask {
            heap: field(annotations, HEAP, str::parse, &mut wrong),
            share: field(annotations, SHARE, str::parse, &mut wrong),
            profile: field(annotations, PROFILE, seconds, &mut wrong),
        };
        (ask, wrong)
    }

    /// Whether nothing is asked for.
    pub fn is_nothing(&self) -> bool {
        *self == Ask::default()
    }

    /// What needs the heap: a profile is the heap's.
    pub fn needs_heap(&self) -> bool {
        self.heap.is_some() || self.profile.is_some()
    }
}

fn field<T>(
    annotations: &HashMap<String, String>,
    key: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
    wrong: &mut Vec<String>,
) -> Option<T> {
    let text = annotations.get(key)?;
    match read(text) {
        Ok(value) => Some(value),
        Err(why) => {
            wrong.push(format!("{key}: {why}"));
            None
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds @ 1..=LONGEST_PROFILE_SECONDS) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!(
            "{:?} is no number of seconds from 1 to {LONGEST_PROFILE_SECONDS}",
            text.chars().take(80).collect::<String>()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pairs: &[(&str, &str)]) -> (Ask, Vec<String>) {
        Ask::read(&pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect())
    }

    #[test]
    fn each_annotation_says_one_thing() {
        let (ask, wrong) =
            read(&[(HEAP, "model=web-7"), (SHARE, "namespace"), (PROFILE, "60"), ("other", "x")]);
        assert_eq!(wrong, Vec::<String>::new());
        assert_eq!(ask.heap, Some(Heap::Model("web-7".parse().unwrap())));
        assert_eq!((ask.share, ask.profile), (Some(Share::Namespace), Some(Duration::from_secs(60))));
        assert!(read(&[("mayfly.dev/else", "online")]).0.is_nothing());
    }

    #[test]
    fn what_is_wrong_is_named_and_the_rest_is_given() {
        let (ask, wrong) = read(&[(HEAP, "on"), (SHARE, "../../etc"), (PROFILE, "0")]);
        assert!(ask.is_nothing());
        assert_eq!(wrong.len(), 3);
        assert!(wrong[0].starts_with("mayfly.dev/heap: \"on\""), "{}", wrong[0]);
        let (ask, wrong) = read(&[(HEAP, "online"), (SHARE, "a b")]);
        assert_eq!((ask.heap, ask.share, wrong.len()), (Some(Heap::Online), None, 1));
    }

    proptest! {
        #[test]
        fn no_text_leaves_the_folder(text in ".{0,80}") {
            if let Ok(name) = text.parse::<Name>() {
                prop_assert!(!name.as_str().contains('/') && !name.as_str().starts_with('.'));
            }
            let _ = (text.parse::<Heap>(), text.parse::<Share>(), seconds(&text));
        }
    }
}
