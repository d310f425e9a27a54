//! `SnapStart`: whether instances are restored from a snapshot.

use serde::Deserialize;

use crate::base::error::ApiError;
use crate::code::runtime::Runtime;
use crate::function::tenancy;
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

/// Whether a function can be restored: its runtime's client must wait to be taken. Lambda has no SnapStart
/// for functions of tenants.
///
/// # Errors
/// It cannot.
pub fn check(runtime: &Runtime, per_tenant: bool) -> Result<(), ApiError> {
    tenancy::refuse(per_tenant, "SnapStart")?;
    match runtime {
        Runtime::Python(..) | Runtime::Node(..) => Ok(()),
        _ => Err(ApiError::invalid_parameter(
            "SnapStart is for functions in Python and Node.js that are no images",
        )),
    }
}
