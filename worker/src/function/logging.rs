//! `LoggingConfig`: the format of a function's log, its levels and its group.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::error::ApiError;
use crate::base::level::Level;
use worker_system::text::shown;

/// The most bytes of a log group's name.
const GROUP_BYTES: usize = 512;

/// `LoggingConfig` as a request or a template gives it; what is absent stays as it is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct WantedLogging {
    log_format: Option<String>,
    application_log_level: Option<String>,
    system_log_level: Option<String>,
    log_group: Option<String>,
}

/// How a function's log is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logging {
    /// The least levels of a log in JSON; none of one in plain text.
    pub json: Option<Levels>,
    /// Its group, if it is not the function's own.
    pub group: Option<String>,
}

/// The least levels that a log shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    /// Of the function's lines.
    pub application: Level,
    /// Of Lambda's own.
    pub system: Level,
}

impl Logging {
    /// With the requested changes.
    ///
    /// # Errors
    /// A value that Lambda does not know, or levels of a log in plain text.
    pub fn changed(&self, wanted: &WantedLogging) -> Result<Logging, ApiError> {
        let mut logging = self.clone();
        match wanted.log_format.as_deref() {
            None => {}
            Some("Text") => logging.json = None,
            Some("JSON") => {
                let info = Levels { application: Level::Info, system: Level::Info };
                logging.json.get_or_insert(info);
            }
            Some(other) => return Err(wrong("LogFormat", other, "be JSON or Text")),
        }
        let application = level("ApplicationLogLevel", wanted.application_log_level.as_deref(), &Level::ALL)?;
        let system = level("SystemLogLevel", wanted.system_log_level.as_deref(), &Level::OF_SYSTEM)?;
        match &mut logging.json {
            Some(levels) => {
                levels.application = application.unwrap_or(levels.application);
                levels.system = system.unwrap_or(levels.system);
            }
            None if application.is_some() || system.is_some() => {
                let text = "ApplicationLogLevel and SystemLogLevel need LogFormat JSON";
                return Err(ApiError::invalid_parameter(text));
            }
            None => {}
        }
        if let Some(group) = &wanted.log_group {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_/#".contains(&byte);
            if group.len() > GROUP_BYTES || group.is_empty() || !group.bytes().all(fits) {
                return Err(wrong("LogGroup", group, "have 1 to 512 letters, digits, and . - _ / #"));
            }
            logging.group = Some(group.clone());
        }
        Ok(logging)
    }

    /// As the API describes it, of a function whose log this group has.
    pub fn described(&self, group: &str) -> Value {
        match self.json {
            None => json!({ "LogFormat": "Text", "LogGroup": group }),
            Some(Levels { application, system }) => json!({
                "LogFormat": "JSON",
                "ApplicationLogLevel": application.name(),
                "SystemLogLevel": system.name(),
                "LogGroup": group,
            }),
        }
    }
}

fn level(what: &str, given: Option<&str>, allowed: &[Level]) -> Result<Option<Level>, ApiError> {
    let Some(text) = given else { return Ok(None) };
    let known = allowed.iter().find(|level| level.name() == text);
    let names: Vec<_> = allowed.iter().map(|level| level.name()).collect();
    known.map_or_else(
        || Err(wrong(what, text, &format!("be one of {}", names.join(", ")))),
        |it| Ok(Some(*it)),
    )
}

fn wrong(what: &str, value: &str, must: &str) -> ApiError {
    ApiError::invalid_parameter(format!("'LoggingConfig.{what}' is '{}' and must {must}", shown(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(known: &Logging, wanted: Value) -> Result<Logging, String> {
        let wanted = serde_json::from_value(wanted).map_err(|error| error.to_string())?;
        known.changed(&wanted).map_err(|error| error.message)
    }

    #[test]
    fn settings_read_back_as_they_were_given() {
        let text = Logging::default();
        assert_eq!(text.described("g"), json!({ "LogFormat": "Text", "LogGroup": "g" }));
        let given = json!({
            "LogFormat": "JSON", "ApplicationLogLevel": "DEBUG", "SystemLogLevel": "WARN", "LogGroup": "/my/group",
        });
        let json = changed(&text, given.clone()).unwrap();
        assert_eq!(json.described(json.group.as_ref().unwrap()), given);
        let louder = changed(&json, json!({ "SystemLogLevel": "DEBUG" })).unwrap();
        let levels = Levels { application: Level::Debug, system: Level::Debug };
        assert_eq!((louder.json, louder.group), (Some(levels), json.group.clone()));
        let info = changed(&text, json!({ "LogFormat": "JSON" })).unwrap().json;
        assert_eq!(info, Some(Levels { application: Level::Info, system: Level::Info }));
        assert_eq!(changed(&json, json!({ "LogFormat": "Text" })).unwrap().json, None);
    }

    #[test]
    fn other_values_are_refused() {
        for (wanted, named) in [
            (json!({ "LogFormat": "XML" }), "LogFormat"),
            (json!({ "SystemLogLevel": "INFO" }), "need LogFormat JSON"),
            (json!({ "LogFormat": "JSON", "ApplicationLogLevel": "LOUD" }), "ApplicationLogLevel"),
            (json!({ "LogFormat": "JSON", "SystemLogLevel": "ERROR" }), "SystemLogLevel"),
            (json!({ "LogGroup": "a b" }), "LogGroup"),
            (json!({ "Other": 1 }), "Other"),
        ] {
            let error = changed(&Logging::default(), wanted).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
