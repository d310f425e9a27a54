//! `/functions/NAME/event-invoke-config`: how a function's `Event` invocations are retried, and where their
//! results go.

use serde_json::{Value, json};

use super::{Api, Call};
use crate::base::error::ApiError;
use crate::base::name;
use crate::base::time::since_1970;
use crate::function::event_config::EventConfig;
use crate::http::{self, Answer};

/// Puts, updates, gets and deletes a function's configuration; `name` has no qualifier.
pub fn call(api: &Api, call: &Call, name: &str) -> Result<Answer, ApiError> {
    let absent = || {
        ApiError::not_found(format!(
            "The function {} doesn't have an EventInvokeConfig",
            name::arn(&format!("{name}:{}", name::LATEST))
        ))
    };
    let known = api.worker.function(name)?.events;
    let answered = |config: &EventConfig| Ok(http::json(200, &described(name, config)));
    match call.parts.method.as_str() {
        "GET" => answered(&known.ok_or_else(absent)?),
        "DELETE" => {
            known.ok_or_else(absent)?;
            api.worker.change_events(name, None)?;
            Ok(http::empty(204))
        }
        method @ ("PUT" | "POST") => {
            let given: EventConfig = call.json()?;
            given.check()?;
            let config = if method == "PUT" { given } else { known.unwrap_or_default().updated(given) };
            api.worker.change_events(name, Some(config.clone()))?;
            answered(&config)
        }
        method => Err(super::unknown_operation(method, call)),
    }
}

/// All configurations of a function: one, or none.
pub fn list(api: &Api, name: &str) -> Result<Answer, ApiError> {
    let configs: Vec<Value> =
        api.worker.function(name)?.events.iter().map(|config| described(name, config)).collect();
    Ok(http::json(200, &json!({ "FunctionEventInvokeConfigs": configs })))
}

fn described(name: &str, config: &EventConfig) -> Value {
    let mut described = json!(config);
    described["FunctionArn"] = name::arn(&format!("{name}:{}", name::LATEST)).into();
    described["LastModified"] = since_1970().as_secs().into();
    described
}
