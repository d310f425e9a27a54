//! `SnapStart`: whether instances are restored from a snapshot.

use serde::Deserialize;

use crate::base::error::ApiError;
use worker_system::text::shown;

/// `SnapStart`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SnapStart {
    /// `PublishedVersions`, or `None`.
    pub apply_on: Option<String>,
}

impl SnapStart {
    /// Whether it applies to published versions.
    ///
    /// # Errors
    /// It applies to something else.
    pub fn applies(&self) -> Result<bool, ApiError> {
        match self.apply_on.as_deref() {
            None | Some("None") => Ok(false),
            Some("PublishedVersions") => Ok(true),
            Some(other) => Err(ApiError::invalid_parameter(format!(
                "'SnapStart.ApplyOn' is '{}' and must be PublishedVersions or None",
                shown(other)
            ))),
        }
    }
}
