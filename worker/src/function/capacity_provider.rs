//! `CapacityProviderConfig`: on Lambda, the machines that a function's instances run on. Here it is read for
//! its figure alone: how many requests one instance serves at once.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::error::ApiError;
use worker_system::text::shown;

/// Requests at once that are allowed (`PerExecutionEnvironmentMaxConcurrency`).
pub const AT_ONCE: std::ops::RangeInclusive<u32> = 1..=1600;
/// As many as Lambda's default for Python on one processor, where no figure is given.
const DEFAULT: u32 = 16;

/// `CapacityProviderConfig`, as the API has it. SAM's names are accepted, too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct CapacityProviderConfig {
    /// The only kind there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lambda_managed_instances_capacity_provider_config: Option<ManagedInstances>,
    #[serde(default, skip_serializing, rename = "Arn")]
    arn: Option<Value>,
    #[serde(default, skip_serializing, rename = "PerExecutionEnvironmentMaxConcurrency")]
    at_once: Option<Value>,
    #[serde(default, skip_serializing, rename = "ExecutionEnvironmentMemoryGiBPerVCpu")]
    gib_per_vcpu: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct ManagedInstances {
    #[serde(default)]
    capacity_provider_arn: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    per_execution_environment_max_concurrency: Option<Value>,
    #[serde(
        default,
        rename = "ExecutionEnvironmentMemoryGiBPerVCpu",
        skip_serializing_if = "Option::is_none"
    )]
    execution_environment_memory_gib_per_vcpu: Option<Value>,
}

/// How many requests an instance of a function serves at once, and where that is said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Several {
    /// The most requests of one instance.
    pub at_once: u32,
    /// `CapacityProviderConfig`, for `GetFunction`; none where the template's `Metadata` says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Value>,
}

impl CapacityProviderConfig {
    /// What it asks for.
    ///
    /// # Errors
    /// It names no provider, or a figure is out of range.
    pub fn several(&self) -> Result<Several, ApiError> {
        let of_sam = || ManagedInstances {
            capacity_provider_arn: self.arn.clone().unwrap_or_default(),
            per_execution_environment_max_concurrency: self.at_once.clone(),
            execution_environment_memory_gib_per_vcpu: self.gib_per_vcpu.clone(),
        };
        let given = self.lambda_managed_instances_capacity_provider_config.clone();
        let Some(config) = given.or_else(|| self.arn.is_some().then(of_sam)) else {
            let needed = "'CapacityProviderConfig' must name its provider: \
                LambdaManagedInstancesCapacityProviderConfig with CapacityProviderArn, or Arn in SAM";
            return Err(ApiError::invalid_parameter(needed));
        };
        let at_once = match &config.per_execution_environment_max_concurrency {
            None => DEFAULT,
            Some(value) => figure(value).ok_or_else(|| {
                ApiError::invalid_parameter(format!(
                    "'CapacityProviderConfig.PerExecutionEnvironmentMaxConcurrency' is {} and must be 1 to 1600",
                    shown(&value.to_string())
                ))
            })?,
        };
        let provider = json!({ "LambdaManagedInstancesCapacityProviderConfig": config });
        Ok(Several { at_once, provider: Some(provider) })
    }
}

/// A number of requests at once, also as a text of digits, as templates may have it.
pub fn figure(value: &Value) -> Option<u32> {
    let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())?;
    u32::try_from(number).ok().filter(|number| AT_ONCE.contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn several(config: Value) -> Result<Several, String> {
        let config: CapacityProviderConfig =
            serde_json::from_value(config).map_err(|error| error.to_string())?;
        config.several().map_err(|error| error.message)
    }

    #[test]
    fn figure_is_read_from_each_form() {
        let arn = "arn:aws:lambda:us-east-1:000000000000:capacity-provider:p";
        let of_api = |more: Value| {
            let mut config = json!({ "CapacityProviderArn": arn });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "LambdaManagedInstancesCapacityProviderConfig": config })
        };
        let given = of_api(json!({
            "PerExecutionEnvironmentMaxConcurrency": 4, "ExecutionEnvironmentMemoryGiBPerVCpu": 4.0
        }));
        let read = several(given.clone()).unwrap();
        assert_eq!((read.at_once, read.provider), (4, Some(given)));
        assert_eq!(several(of_api(json!({}))).unwrap().at_once, DEFAULT);
        let of_sam = json!({ "Arn": arn, "PerExecutionEnvironmentMaxConcurrency": "8" });
        assert_eq!(several(of_sam).unwrap().at_once, 8);
        for none in [json!({}), json!({ "PerExecutionEnvironmentMaxConcurrency": 4 })] {
            assert!(several(none).unwrap_err().contains("must name its provider"));
        }
        for wrong in [json!(0), json!(1601), json!("many"), json!(-1)] {
            let error = several(of_api(json!({ "PerExecutionEnvironmentMaxConcurrency": wrong })));
            assert!(error.unwrap_err().contains("1 to 1600"));
        }
        assert!(several(of_api(json!({ "Other": 1 }))).unwrap_err().contains("Other"));
    }
}
