//! Tenant isolation: a function may have an instance for each of its callers' tenants, who share nothing.

use serde::Deserialize;

use crate::base::error::{ApiError, ErrorKind};
use worker_system::text::shown;

/// `TenancyConfig`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TenancyConfig {
    /// `PER_TENANT`, the only mode.
    pub tenant_isolation_mode: String,
}

impl TenancyConfig {
    /// Checks the mode.
    ///
    /// # Errors
    /// There is no such mode.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.tenant_isolation_mode == PER_TENANT {
            return Ok(());
        }
        Err(ApiError::invalid_parameter(format!(
            "'TenancyConfig.TenantIsolationMode' is '{}' and must be {PER_TENANT}",
            shown(&self.tenant_isolation_mode)
        )))
    }
}

/// The mode in which an instance serves one tenant.
pub const PER_TENANT: &str = "PER_TENANT";

/// The most bytes of a tenant's id.
const ID_BYTES: usize = 256;

/// Whether a call that names this tenant, or none, may call the function.
///
/// # Errors
/// The function needs a tenant, or has none; or the id is malformed.
pub fn check(per_tenant: bool, tenant: Option<&str>) -> Result<(), ApiError> {
    match (per_tenant, tenant) {
        (true, None | Some("")) => Err(ApiError::invalid_parameter(
            "The invoked function is enabled with tenancy configuration. Add a valid tenant ID in your request \
             and try again.",
        )),
        (false, Some(_)) => Err(ApiError::invalid_parameter(
            "The invoked function is not enabled with tenancy configuration. Remove the tenant ID from your \
             request and try again.",
        )),
        (true, Some(id)) => check_id(id),
        (false, None) => Ok(()),
    }
}

fn check_id(id: &str) -> Result<(), ApiError> {
    let must = if id.len() > ID_BYTES {
        "have length less than or equal to 256"
    } else if id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:/=+-@ ".contains(&byte)) {
        return Ok(());
    } else {
        r"satisfy regular expression pattern: [a-zA-Z0-9\._:\/=+\-@ ]+"
    };
    let text = format!(
        "1 validation error detected: Value '{}' at 'tenantId' failed to satisfy constraint: Member must {must}",
        shown(id)
    );
    Err(ErrorKind::Validation.with(text))
}

/// Refuses what Lambda does not have for functions with tenant isolation.
///
/// # Errors
/// The function has it.
pub fn refuse(per_tenant: bool, what: &str) -> Result<(), ApiError> {
    if !per_tenant {
        return Ok(());
    }
    Err(ApiError::invalid_parameter(format!(
        "{what} is not supported for functions with TenancyConfig: only calls that name a tenant reach them"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_names_a_tenant_where_the_function_has_them() {
        let refusal = |per_tenant, id: Option<&str>| check(per_tenant, id).map_err(|error| error.kind);
        let (wrong, malformed) = (Err(ErrorKind::InvalidParameterValue), Err(ErrorKind::Validation));
        assert_eq!(refusal(false, None), Ok(()));
        assert_eq!(refusal(true, Some("Blue 1._:/=+-@")), Ok(()));
        assert_eq!(refusal(true, Some(&"x".repeat(256))), Ok(()));
        assert_eq!((refusal(true, None), refusal(true, Some(""))), (wrong, wrong));
        assert_eq!(refusal(false, Some("blue")), wrong);
        for id in ["blü", "a,b", "a\"", "a\\", "a\t", &"x".repeat(257)] {
            assert_eq!(refusal(true, Some(id)), malformed, "{id}");
        }
    }
}
