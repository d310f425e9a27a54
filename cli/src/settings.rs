//! The heap's configuration: flags before `MAYFLY_HEAP_*` before a TOML file before the heap's own defaults.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};
use lifetime::profile::label::CLASS_NAMES;
use serde::Deserialize;

use crate::failure::plain_reason;

/// The file that is read if it exists and `--config` names no other.
const DEFAULT_FILE: &str = "mayfly.toml";

/// The source of lifetime classes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Lifetimes {
    /// Learned from sampled allocations while the program runs.
    Online,
    /// Predicted by the trained model.
    Model {
        /// Corrected by online learning while the program runs.
        online: bool,
    },
    /// One class for every object.
    Fixed(u8),
    /// The true lifetimes of an earlier run, from its trace.
    Oracle(PathBuf),
}

impl FromStr for Lifetimes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fixed = |name: &str| {
            CLASS_NAMES.iter().position(|class| *class == name).map(|class| Lifetimes::Fixed(class as u8))
        };
        match text.split_once([':', '=']) {
            None if text == "online" => Some(Lifetimes::Online),
            None if text == "model" => Some(Lifetimes::Model { online: false }),
            None if text == "model+online" => Some(Lifetimes::Model { online: true }),
            None if text == "fixed" => fixed("inf"),
            Some(("fixed", class)) => fixed(class),
            Some(("oracle", file)) if !file.is_empty() => Some(Lifetimes::Oracle(file.into())),
            _ => None,
        }
        .ok_or_else(|| {
            format!(
                "use online, model, model+online, fixed, fixed:CLASS (CLASS is one of {}) or oracle=TRACE",
                CLASS_NAMES.join(" ")
            )
        })
    }
}

impl TryFrom<String> for Lifetimes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|reason| format!("lifetimes = \"{text}\": {reason}"))
    }
}

/// Layout of block spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spans {
    /// Cells of one size.
    Cells,
    /// The paper's: bump allocation and lines of 128 B (LLAMA §6.6).
    Lines,
}

/// The source of free blocks for small spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recycle {
    /// Longer-lived pages, then those of the request's own class.
    Fill,
    /// The longest-lived page, as in the paper.
    Longest,
}

/// How the heap allocates huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pages {
    /// Transparent huge pages, by madvise.
    Thp,
    /// Reserved huge pages (MAP_HUGETLB).
    Hugetlb,
    /// Base pages of 4 KiB.
    Base,
}

/// Settings of the heap; those that are `None` are left to the next layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeapSettings {
    /// Source of lifetime classes: online, model, model+online, fixed, fixed:CLASS or oracle=TRACE [default:
    /// online, or model+online with --model]
    ///
    /// With online, the heap learns each allocation site's class while the program runs. With model, it
    /// predicts the class from the file that --model names, by the calling context; with model+online, it
    /// also corrects the model. With fixed:CLASS, every object has one class, of 10ms 100ms 1s 10s 100s 1000s
    /// inf (fixed alone: inf). With oracle=TRACE, objects have the true lifetimes of an earlier run that
    /// `mayfly trace` recorded: for evaluation.
    #[arg(long, value_name = "SOURCE")]
    pub lifetimes: Option<Lifetimes>,
    /// The model that `mayfly train` made, to predict lifetimes with
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Layout of small objects in block spans [default: cells]
    #[arg(long)]
    pub spans: Option<Spans>,
    /// Pages whose free blocks are reused for small objects [default: fill]
    #[arg(long)]
    pub recycle: Option<Recycle>,
    /// A huge page's deadline is FACTOR x its lifetime class: 2 and 4 are the paper's, from 1 to 1000
    /// [default: 2]
    #[arg(long, alias = "k", value_name = "FACTOR", value_parser = deadline_factor)]
    #[serde(default, alias = "k", deserialize_with = "deadline_factor_in_file")]
    pub deadline_factor: Option<u32>,
    /// How the heap allocates huge pages [default: thp]
    #[arg(long)]
    pub pages: Option<Pages>,
    /// Empty huge pages that stay mapped; with 0 all are released at once, as in the paper [default: a
    /// quarter of those in use]
    #[arg(long, value_name = "N")]
    pub retain: Option<u32>,
}

fn deadline_factor(text: &str) -> Result<u32, String> {
    let factor = text.parse().ok().filter(|factor| (1..=1000).contains(factor));
    factor.ok_or_else(|| "the deadline factor is a number from 1 to 1000".into())
}

fn deadline_factor_in_file<'a, D: serde::Deserializer<'a>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let number = u32::deserialize(deserializer)?;
    deadline_factor(&number.to_string()).map(Some).map_err(serde::de::Error::custom)
}

/// The content of a configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigurationFile {
    #[serde(default)]
    heap: HeapSettings,
}

impl HeapSettings {
    /// Reads `[heap]` of a TOML file: `given`, or else `mayfly.toml` in the current directory if it exists.
    ///
    /// # Errors
    /// A given file that does not exist, or a file with an error; the line is named.
    pub fn from_file(given: Option<&Path>) -> Result<HeapSettings> {
        let path = given.unwrap_or(Path::new(DEFAULT_FILE));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if given.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(HeapSettings::default());
            }
            Err(error) => bail!("{}: {}", path.display(), plain_reason(&error)),
        };
        let file: ConfigurationFile = toml::from_str(&text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = text[..start.min(text.len())].matches('\n').count() + 1;
            anyhow!("{}: line {line}: {}", path.display(), error.message().replace('\n', " "))
        })?;
        Ok(file.heap)
    }

    /// The variables to set for the heap, where `self` are the flags: a flag wins over a variable that `set`
    /// finds in the environment, and that over the file. An oracle is returned as its trace, not yet as a
    /// table.
    pub fn variables(&self, file: &HeapSettings, set: impl Fn(&str) -> bool) -> Vec<(&'static str, Value)> {
        let mut variables = Vec::new();
        let mut layer = |name: &'static str, flag: Option<Value>, file: Option<Value>| {
            if let Some(value) = flag.or(if set(name) { None } else { file }) {
                variables.push((name, value));
            }
        };
        let lifetimes = |settings: &HeapSettings| settings.lifetimes.clone().map(Value::from);
        layer("MAYFLY_HEAP_LIFETIMES", lifetimes(self), lifetimes(file));
        // The program may change its directory before the heap reads it.
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let model =
            |settings: &HeapSettings| settings.model.as_ref().map(|path| Value::Text(absolute(path).into()));
        layer("MAYFLY_HEAP_MODEL", model(self), model(file));
        layer("MAYFLY_HEAP_SPANS", name_of(self.spans), name_of(file.spans));
        layer("MAYFLY_HEAP_RECYCLE", name_of(self.recycle), name_of(file.recycle));
        // Old name of the variable: accepted for one release, and like the new one it wins over the file.
        let file_factor = file.deadline_factor.filter(|_| !set("MAYFLY_HEAP_K"));
        layer("MAYFLY_HEAP_DEADLINE_FACTOR", self.deadline_factor.map(number), file_factor.map(number));
        layer("MAYFLY_HEAP_PAGES", name_of(self.pages), name_of(file.pages));
        layer("MAYFLY_HEAP_RETAIN", self.retain.map(number), file.retain.map(number));
        variables
    }
}

/// The value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Its text.
    Text(OsString),
    /// `oracle:TABLE`, with the table made from this trace.
    OracleOf(PathBuf),
}

impl From<Lifetimes> for Value {
    fn from(lifetimes: Lifetimes) -> Value {
        match lifetimes {
            Lifetimes::Online => Value::Text("online".into()),
            Lifetimes::Model { online: false } => Value::Text("model".into()),
            Lifetimes::Model { online: true } => Value::Text("model+online".into()),
            Lifetimes::Fixed(class) => Value::Text(format!("fixed:{}", CLASS_NAMES[class as usize]).into()),
            Lifetimes::Oracle(trace) => Value::OracleOf(trace),
        }
    }
}

fn name_of(choice: Option<impl ValueEnum>) -> Option<Value> {
    let name = choice?.to_possible_value()?.get_name().to_string();
    Some(Value::Text(name.into()))
}

fn number(value: u32) -> Value {
    Value::Text(value.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<HeapSettings> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        HeapSettings::from_file(Some(file.path()))
    }

    fn refusal(text: &str) -> String {
        let line = file(text).expect_err("must be refused").to_string();
        assert!(!line.contains('\n'), "{line}");
        line.split_once(": ").unwrap().1.to_string()
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let file =
            file("[heap]\nspans = 'lines'\npages = 'base'\nretain = 3\nlifetimes = 'fixed'\n").unwrap();
        let flags =
            HeapSettings { spans: Some(Spans::Cells), deadline_factor: Some(4), ..HeapSettings::default() };
        let set = |name: &str| name == "MAYFLY_HEAP_PAGES" || name == "MAYFLY_HEAP_SPANS";
        let text = |text: &str| Value::Text(text.into());
        assert_eq!(
            flags.variables(&file, set),
            [
                ("MAYFLY_HEAP_LIFETIMES", text("fixed:inf")),
                ("MAYFLY_HEAP_SPANS", text("cells")),
                ("MAYFLY_HEAP_DEADLINE_FACTOR", text("4")),
                ("MAYFLY_HEAP_RETAIN", text("3")),
            ]
        );
    }

    #[test]
    fn old_spellings_of_the_deadline_factor_are_accepted() {
        for text in ["[heap]\nk = 4\n", "[heap]\ndeadline_factor = 4\n"] {
            assert_eq!(file(text).unwrap().deadline_factor, Some(4), "{text}");
        }
        let (flags, file) = (HeapSettings::default(), file("[heap]\nk = 4\n").unwrap());
        let variables = flags.variables(&file, |name| name == "MAYFLY_HEAP_K");
        assert!(variables.is_empty(), "the environment wins over the file");
    }

    #[test]
    fn lifetimes_are_read_and_refused() {
        assert_eq!("online".parse(), Ok(Lifetimes::Online));
        assert_eq!("fixed:10s".parse(), Ok(Lifetimes::Fixed(3)));
        assert_eq!("oracle=a.trace".parse(), Ok(Lifetimes::Oracle("a.trace".into())));
        for text in ["", "learned", "fixed:11s", "oracle=", "oracle", "online:1s"] {
            assert!(text.parse::<Lifetimes>().is_err(), "{text}");
        }
    }

    #[test]
    fn errors_in_the_file_name_the_line() {
        assert!(refusal("[heap]\n\nspan = 'lines'\n").starts_with("line 3: unknown field `span`"));
        assert!(refusal("[heap]\nspans = 'rows'\n").starts_with("line 2: unknown variant `rows`"));
        assert!(refusal("[heap]\nlifetimes = 'soon'\n").contains("line 2: lifetimes = \"soon\": use online"));
        assert_eq!(
            refusal("[heap]\ndeadline_factor = 0\n"),
            "line 2: the deadline factor is a number from 1 to 1000"
        );
        assert!(refusal("[heap\n").starts_with("line 1: "));
        let missing = HeapSettings::from_file(Some(Path::new("/nowhere/mayfly.toml"))).unwrap_err();
        assert_eq!(missing.to_string(), "/nowhere/mayfly.toml: No such file or directory");
    }
}
