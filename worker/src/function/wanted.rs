//! The settings that a request or a template asks for, and those of Lambda's that are refused.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::base::error::ApiError;
use crate::function::capacity_provider::CapacityProviderConfig;
use crate::function::logging::WantedLogging;
use crate::function::snap_start::SnapStart;
use crate::function::tenancy::TenancyConfig;
use worker_image::ImageConfig;
use worker_system::text::shown;

/// Settings as a request or a template gives them; what is absent stays as it is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Wanted {
    /// Free text.
    pub description: Option<String>,
    /// `python3.N` or `provided.*`.
    pub runtime: Option<String>,
    /// Where the function is in the code.
    pub handler: Option<String>,
    /// MiB.
    pub memory_size: Option<u32>,
    /// Seconds.
    pub timeout: Option<u32>,
    /// Variables.
    pub environment: Option<Environment>,
    /// Size of /tmp.
    pub ephemeral_storage: Option<EphemeralStorage>,
    /// Stored for `GetFunction`; the worker acts in no role.
    pub role: Option<String>,
    /// `Zip` or `Image`.
    pub package_type: Option<String>,
    /// `x86_64`.
    pub architectures: Option<Vec<String>>,
    /// ARNs of versions of layers, the later over the earlier.
    pub layers: Option<Vec<String>>,
    /// Overrides of the image's own configuration.
    pub image_config: Option<ImageConfig>,
    /// How the log is written.
    pub logging_config: Option<WantedLogging>,
    /// Whether each tenant has instances of its own; only a new function may choose.
    pub tenancy_config: Option<TenancyConfig>,
    /// Read for its figure alone.
    pub capacity_provider_config: Option<CapacityProviderConfig>,
    /// Whether instances of published versions are restored from a snapshot.
    pub snap_start: Option<SnapStart>,
    /// Other properties of a request; [`REFUSED`] lists those that are not supported.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// The properties of the call, and not of the function.
pub const OF_THE_CALL: [&str; 2] = ["Publish", "RevisionId"];

/// Settings that are not supported, and why. They are refused, as are unknown ones, so that no caller
/// believes to have them; their default is accepted.
const REFUSED: [(&str, &str); 9] = [
    ("DeadLetterConfig", "events that failed are only logged"),
    ("VpcConfig", "there is no such network"),
    ("TracingConfig", "there is no X-Ray"),
    ("KMSKeyArn", "nothing is encrypted at rest"),
    ("FileSystemConfigs", "there is no EFS"),
    ("CodeSigningConfigArn", "signatures of code are not checked"),
    ("RuntimeManagementConfig", "the runtime is the host's"),
    ("DurableConfig", "there are no durable executions"),
    ("PublishTo", "a version is published by its number alone"),
];

/// Settings that ask for something by being there, with all their values left to Lambda.
const ASKED_FOR_BY_NAME: [&str; 1] = ["DurableConfig"];

/// `Environment`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Environment {
    /// Names and values.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
}

/// `EphemeralStorage`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct EphemeralStorage {
    /// MiB.
    pub size: u32,
}

impl Wanted {
    /// Refuses the other properties, as far as they ask for something.
    ///
    /// # Errors
    /// One of them does.
    pub fn refuse_others(&self) -> Result<(), ApiError> {
        let mut others = self.other.iter().filter(|(name, _)| !OF_THE_CALL.contains(&name.as_str()));
        others.try_for_each(|(name, value)| refuse(name, value))
    }
}

/// Refuses a setting that is not supported, unless its value asks for nothing.
///
/// # Errors
/// The value asks for something.
pub fn refuse(name: &str, value: &Value) -> Result<(), ApiError> {
    if value.is_null() || (is_default(value) && !ASKED_FOR_BY_NAME.contains(&name)) {
        return Ok(());
    }
    let known = REFUSED.iter().find(|(refused, _)| *refused == name);
    let reason = known.map_or_else(String::new, |(_, reason)| format!(": {reason}"));
    Err(ApiError::invalid_parameter(format!("{} is not supported here{reason}", shown(name))))
}

/// Whether a value asks for nothing: clients that fill in every field send such values.
fn is_default(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => matches!(text.as_str(), "" | "PassThrough" | "None" | "Text"),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_default),
        Value::Bool(true) | Value::Number(_) => false,
    }
}
