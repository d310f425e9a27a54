//! Operations for what this worker does not have: code signing, capacity providers, durable executions,
//! provisioned concurrency, scaling settings, choices of a runtime's patch. As there is none of these, reads
//! answer so in Lambda's words; what would make one is refused with its name and with what there is instead.

use serde::Deserialize;
use serde_json::json;

use super::operations::{Named, Operation};
use super::{Api, Call};
use crate::base::error::{ApiError, ErrorKind};
use crate::base::name::{self, Target};
use crate::http::{self, Answer};
use worker_system::text::shown;

const SIGNING: &str =
    "signatures of code are not checked; --code-from and --image-registry bound where code is from";
const CAPACITY: &str = "all instances run on this machine, in the memory that --memory gives them";
const PROVISIONED: &str = "an instance starts when a request needs it, and stays for --keep-alive seconds";
const SCALING: &str = "it is for capacity providers; reserved concurrency bounds a function's instances";
const DURABLE: &str = "there are no durable executions: a function runs for its Timeout at most";
const RUNTIME: &str = "a function's runtime is the host's, or its image's; UpdateRuntimeOn may be Auto";

/// Answers an operation that nothing else answers.
pub fn answer(api: &Api, call: &Call, named: Named<'_>) -> Result<Answer, ApiError> {
    use Operation as Op;
    let operation = named.operation;
    let first = named.values[0];
    let target = || Target::new(first, call.query("Qualifier"));
    // The function must exist, as for any call about it.
    let function = || {
        let target = target()?;
        api.worker.target(&target).map(|_| name::arn(&target.to_string()))
    };
    match operation {
        Op::CreateCodeSigningConfig => Err(refusal(operation, SIGNING)),
        Op::ListCodeSigningConfigs => Ok(http::json(200, &json!({ "CodeSigningConfigs": [] }))),
        Op::PutFunctionCodeSigningConfig => {
            function()?;
            let text = format!("The code signing configuration cannot be found: {SIGNING}");
            Err(ErrorKind::CodeSigningConfigNotFound.with(text))
        }
        Op::GetFunctionCodeSigningConfig => {
            function()?;
            Ok(http::json(200, &json!({ "FunctionName": target()?.name })))
        }
        Op::DeleteFunctionCodeSigningConfig => function().map(|_| http::empty(204)),

        Op::CreateCapacityProvider => Err(refusal(operation, CAPACITY)),
        Op::ListCapacityProviders => Ok(http::json(200, &json!({ "CapacityProviders": [] }))),

        Op::PutProvisionedConcurrencyConfig => {
            function()?;
            Err(refusal(operation, PROVISIONED))
        }
        Op::GetProvisionedConcurrencyConfig => {
            function()?;
            let text = "No Provisioned Concurrency Config found for this function";
            Err(ErrorKind::ProvisionedConcurrencyConfigNotFound.with(text))
        }
        Op::DeleteProvisionedConcurrencyConfig => function().map(|_| http::empty(204)),
        Op::ListProvisionedConcurrencyConfigs => {
            function().map(|_| http::json(200, &json!({ "ProvisionedConcurrencyConfigs": [] })))
        }

        Op::PutFunctionScalingConfig => {
            function()?;
            Err(refusal(operation, SCALING))
        }
        Op::GetFunctionScalingConfig => function().map(|arn| http::json(200, &json!({ "FunctionArn": arn }))),
        Op::PutRuntimeManagementConfig => {
            function()?;
            let wanted: RuntimeManagement = call.json()?;
            if wanted.update_runtime_on != "Auto" {
                return Err(refusal(operation, RUNTIME));
            }
            function().map(|arn| http::json(200, &automatic(&arn)))
        }
        Op::GetRuntimeManagementConfig => function().map(|arn| http::json(200, &automatic(&arn))),

        Op::CheckpointDurableExecution
        | Op::DeleteDurableExecution
        | Op::GetDurableExecution
        | Op::GetDurableExecutionHistory
        | Op::GetDurableExecutionState
        | Op::ListDurableExecutionsByFunction
        | Op::PauseDurableExecution
        | Op::ResumeDurableExecution
        | Op::SendDurableExecutionCallbackFailure
        | Op::SendDurableExecutionCallbackHeartbeat
        | Op::SendDurableExecutionCallbackSuccess
        | Op::StopDurableExecution => Err(refusal(operation, DURABLE)),
        _ => Err(ApiError::not_found(format!("The resource you requested does not exist: {}", shown(first)))),
    }
}

/// The body of PutRuntimeManagementConfig.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RuntimeManagement {
    update_runtime_on: String,
}

fn automatic(arn: &str) -> serde_json::Value {
    json!({ "UpdateRuntimeOn": "Auto", "FunctionArn": arn })
}

fn refusal(operation: Operation, reason: &str) -> ApiError {
    ApiError::invalid_parameter(format!("{} is not served here: {reason}", operation.name()))
}
