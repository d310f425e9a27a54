//! How `Event` invocations of a function, or of a version or an alias of it, are retried, and where their
//! results go.

use serde_json::{Value, json};

use super::{Api, Call, paging};
use crate::base::error::ApiError;
use crate::base::name::{self, Target};
use crate::base::time::epoch_ms;
use crate::function::attached::{EventInvoke, key};
use crate::function::event_config::EventConfig;
use crate::http::{self, Answer};

fn none(target: &Target) -> ApiError {
    ApiError::not_found(format!(
        "The function {} doesn't have an EventInvokeConfig",
        arn(&target.name, &key(target))
    ))
}

fn arn(name: &str, qualifier: &str) -> String {
    name::arn(&format!("{name}:{qualifier}"))
}

pub fn put(api: &Api, call: &Call, target: &Target) -> Result<Answer, ApiError> {
    change(api, call, target, |_, given| Ok(given))
}

pub fn update(api: &Api, call: &Call, target: &Target) -> Result<Answer, ApiError> {
    change(api, call, target, |known, given| {
        known.map_or_else(|| Err(none(target)), |known| Ok(known.updated(given)))
    })
}

fn change(
    api: &Api,
    call: &Call,
    target: &Target,
    made: impl FnOnce(Option<EventConfig>, EventConfig) -> Result<EventConfig, ApiError>,
) -> Result<Answer, ApiError> {
    let given: EventConfig = call.json()?;
    given.check()?;
    let set = api.worker.change_attached(target, |attached| {
        let known = attached.events.remove(&key(target)).map(|known| known.config);
        let set = EventInvoke::now(made(known, given)?);
        attached.events.insert(key(target), set.clone());
        Ok(set)
    })?;
    Ok(http::json(200, &described(&target.name, &key(target), &set)))
}

pub fn get(api: &Api, target: &Target) -> Result<Answer, ApiError> {
    let function = api.worker.function(&target.name)?;
    let known = function.attached.events.get(&key(target)).ok_or_else(|| none(target))?;
    Ok(http::json(200, &described(&target.name, &key(target), known)))
}

pub fn delete(api: &Api, target: &Target) -> Result<Answer, ApiError> {
    api.worker.change_attached(target, |attached| {
        attached.events.remove(&key(target)).map(drop).ok_or_else(|| none(target))
    })?;
    Ok(http::empty(204))
}

/// Those of a function, its versions and aliases.
pub fn list(api: &Api, call: &Call, name: &str) -> Result<Answer, ApiError> {
    let function = api.worker.function(name)?;
    let configs = function.attached.events.iter();
    let configs = configs.map(|(key, known)| (key.clone(), described(name, key, known))).collect();
    paging::page(call, "FunctionEventInvokeConfigs", configs)
}

fn described(name: &str, qualifier: &str, known: &EventInvoke) -> Value {
    let mut described = json!(known.config);
    described["FunctionArn"] = arn(name, qualifier).into();
    described["LastModified"] = (epoch_ms(known.modified) as f64 / 1000.0).into();
    described
}
