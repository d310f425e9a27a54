//! Levels of log lines, as Lambda names them.

use serde::{Deserialize, Serialize};

/// A level; a higher one matters more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// Each step.
    Trace,
    /// For finding faults.
    Debug,
    /// The usual.
    Info,
    /// What may be a fault.
    Warn,
    /// A fault.
    Error,
    /// The last line before an end.
    Fatal,
}

impl Level {
    /// Those of a function's lines.
    pub const ALL: [Level; 6] =
        [Level::Trace, Level::Debug, Level::Info, Level::Warn, Level::Error, Level::Fatal];
    /// Those of Lambda's own.
    pub const OF_SYSTEM: [Level; 3] = [Level::Debug, Level::Info, Level::Warn];

    /// Its name in settings and variables.
    pub fn name(self) -> &'static str {
        match self {
            Level::Trace => "TRACE",
            Level::Debug => "DEBUG",
            Level::Info => "INFO",
            Level::Warn => "WARN",
            Level::Error => "ERROR",
            Level::Fatal => "FATAL",
        }
    }

    /// The level of a line in JSON: its member `level`, in whatever case. Info without one.
    pub fn of_line(line: &str) -> Level {
        /// What of a line matters here.
        #[derive(Deserialize)]
        struct Leveled {
            level: String,
        }
        let object = line.trim_start().starts_with('{').then(|| serde_json::from_str::<Leveled>(line).ok());
        let text = object.flatten().map(|line| line.level.to_ascii_uppercase()).unwrap_or_default();
        match text.as_str() {
            "WARNING" => Level::Warn,
            "CRITICAL" => Level::Fatal,
            text => Level::ALL.into_iter().find(|level| level.name() == text).unwrap_or(Level::Info),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_their_level() {
        for (line, level) in [
            (r#"{"level": "debug", "msg": "a"}"#, Level::Debug),
            (r#"  {"level":"WARNING"}"#, Level::Warn),
            (r#"{"level":"critical"}"#, Level::Fatal),
            (r#"{"level":"loud"}"#, Level::Info),
            (r#"{"level":3}"#, Level::Info),
            (r#"{"level":"debug""#, Level::Info),
            ("level: debug", Level::Info),
        ] {
            assert_eq!(Level::of_line(line), level, "{line}");
        }
        assert!(Level::Trace < Level::Debug && Level::Warn < Level::Fatal);
    }
}
