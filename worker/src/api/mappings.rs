//! Calls about event source mappings: the queues that functions are called from.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::{Api, Call, paging};
use crate::base::error::ApiError;
use crate::base::name::Target;
use crate::function::queue_source::{Given, Mapping};
use crate::function::tenancy;
use crate::http::{self, Answer};
use worker_system::text::shown;

/// What the body of a call gives.
struct Wanted {
    function: Option<Target>,
    given: Given,
    tags: BTreeMap<String, String>,
}

/// Settings for other kinds of sources and for what this worker lacks; without a value they are passed over.
fn is_absent(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_absent),
        Value::Number(_) | Value::Bool(true) => false,
    }
}

impl Wanted {
    /// Reads the body of a call about this source, or about the one that it names.
    fn read(call: &Call, source: Option<&str>) -> Result<Wanted, ApiError> {
        const KNOWN: [&str; 7] = [
            "EventSourceArn",
            "Enabled",
            "BatchSize",
            "MaximumBatchingWindowInSeconds",
            "FunctionResponseTypes",
            "ScalingConfig",
            "FilterCriteria",
        ];
        let mut body: Map<String, Value> = call.json()?;
        let function = body.remove("FunctionName").filter(|name| !name.is_null());
        let function =
            function.map(|name| Target::new(name.as_str().unwrap_or_default(), None)).transpose()?;
        let tags = body.remove("Tags").filter(|tags| !tags.is_null()).unwrap_or_else(|| json!({}));
        let wrong = |error: serde_json::Error| ApiError::invalid_parameter(error.to_string());
        let tags = serde_json::from_value(tags).map_err(wrong)?;
        body.retain(|key, value| KNOWN.contains(&key.as_str()) || !is_absent(value));
        if let Some(other) = body.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            let text = format!("{} is not supported here: sources are queues", shown(other));
            return Err(ApiError::invalid_parameter(text));
        }
        body.retain(|_, value| !value.is_null());
        if let Some(arn) = source {
            body.insert("EventSourceArn".into(), arn.into());
        }
        let given = serde_json::from_value(Value::Object(body)).map_err(wrong)?;
        Ok(Wanted { function, given, tags })
    }
}

fn none() -> ApiError {
    ApiError::not_found("The resource you requested does not exist.")
}

/// Checks that the function is there, and the settings.
fn check(api: &Api, target: &Target, given: &Given) -> Result<(), ApiError> {
    let deployment = api.worker.target(target)?;
    tenancy::refuse(deployment.settings.per_tenant, "An event source mapping")?;
    given.source().map(drop).map_err(ApiError::invalid_parameter)
}

pub fn create(api: &Api, call: &Call) -> Result<Answer, ApiError> {
    if api.worker.options.queues.is_none() {
        return Err(ApiError::invalid_parameter(
            "CreateEventSourceMapping needs a server that speaks SQS' API: mayfly up --queues ADDRESS",
        ));
    }
    let Wanted { function, given, tags } = Wanted::read(call, None)?;
    let target = function.ok_or_else(|| ApiError::invalid_parameter("FunctionName is needed"))?;
    check(api, &target, &given)?;
    let (id, target) = (uuid::Uuid::new_v4().to_string(), target.to_string());
    let mapping = Mapping { target, given, modified: SystemTime::now(), tags, of_template: false };
    let described = mapping.description(&id, mapping.state());
    api.worker.change_mappings(|known| {
        let same = |known: &Mapping| {
            (&known.target, &known.given.event_source_arn) == (&mapping.target, &mapping.given.event_source_arn)
        };
        if let Some((other, known)) = known.iter().find(|(_, known)| same(known)) {
            return Err(ApiError::conflict(format!(
                "An event source mapping with SQS arn (\" {} \") and function (\" {} \") already exists. Please \
                 update or delete the existing mapping with UUID {other}",
                known.given.event_source_arn, known.target
            )));
        }
        known.insert(id, mapping);
        Ok(())
    })?;
    Ok(http::json(202, &described))
}

pub fn get(api: &Api, id: &str) -> Result<Answer, ApiError> {
    api.worker.mappings(|known| {
        let mapping = known.get(id).ok_or_else(none)?;
        Ok(http::json(200, &mapping.description(id, mapping.state())))
    })
}

pub fn update(api: &Api, call: &Call, id: &str) -> Result<Answer, ApiError> {
    let known = api.worker.mappings(|known| known.get(id).cloned()).ok_or_else(none)?;
    let wanted = Wanted::read(call, Some(&known.given.event_source_arn))?;
    if let Some(target) = &wanted.function {
        api.worker.target(target)?;
    }
    let target = wanted.function.map_or_else(|| known.target.clone(), |target| target.to_string());
    let described = api.worker.change_mappings(|all| {
        let mapping = all.get_mut(id).ok_or_else(none)?;
        let given = mapping.given.clone().updated(wanted.given);
        given.source().map_err(ApiError::invalid_parameter)?;
        *mapping = Mapping { target, given, modified: SystemTime::now(), ..mapping.clone() };
        Ok(mapping.description(id, mapping.state()))
    })?;
    Ok(http::json(202, &described))
}

pub fn delete(api: &Api, id: &str) -> Result<Answer, ApiError> {
    let mapping = api.worker.change_mappings(|known| known.remove(id).ok_or_else(none))?;
    Ok(http::json(202, &mapping.description(id, "Deleting")))
}

pub fn list(api: &Api, call: &Call) -> Result<Answer, ApiError> {
    let function = call.query("FunctionName").filter(|name| !name.is_empty());
    let function =
        function.map(|name| Target::new(&name, None)).transpose()?.map(|target| target.to_string());
    let source = call.query("EventSourceArn").filter(|arn| !arn.is_empty());
    let list = api.worker.mappings(|known| {
        let chosen = known.iter().filter(|(_, mapping)| {
            function.as_ref().is_none_or(|wanted| *wanted == mapping.target)
                && source.as_ref().is_none_or(|wanted| *wanted == mapping.given.event_source_arn)
        });
        chosen.map(|(id, mapping)| (id.clone(), mapping.description(id, mapping.state()))).collect()
    });
    paging::page(call, "EventSourceMappings", list)
}
