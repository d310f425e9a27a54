//! Tags of functions and event source mappings, by the ARN of what has them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

use super::{Api, Call};
use crate::base::error::ApiError;
use crate::base::name::Target;
use crate::function::queue_source::id_of;
use crate::http::{self, Answer};
use worker_system::text::shown;

/// The body of TagResource.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Tags {
    tags: BTreeMap<String, String>,
}

fn function(arn: &str) -> Result<String, ApiError> {
    Target::new(arn, None)?.unqualified()
}

pub fn list(api: &Api, arn: &str) -> Result<Answer, ApiError> {
    let tags = match id_of(arn) {
        Some(id) => api.worker.mappings(|all| all.get(id).map(|mapping| mapping.tags.clone())),
        None => Some(api.worker.function(&function(arn)?)?.tags),
    };
    Ok(http::json(200, &json!({ "Tags": tags.ok_or_else(|| none(arn))? })))
}

fn none(arn: &str) -> ApiError {
    ApiError::not_found(format!("The resource you requested does not exist: {}", shown(arn)))
}

fn change(
    api: &Api,
    arn: &str,
    change: impl FnOnce(&mut BTreeMap<String, String>),
) -> Result<Answer, ApiError> {
    match id_of(arn) {
        Some(id) => api.worker.change_mappings(|all| {
            let mapping = all.get_mut(id).ok_or_else(|| none(arn))?;
            change(&mut mapping.tags);
            Ok(())
        })?,
        None => api.worker.change_tags(&function(arn)?, change)?,
    }
    Ok(http::empty(204))
}

pub fn tag(api: &Api, call: &Call, arn: &str) -> Result<Answer, ApiError> {
    let wanted: Tags = call.json()?;
    change(api, arn, |tags| tags.extend(wanted.tags))
}

pub fn untag(api: &Api, call: &Call, arn: &str) -> Result<Answer, ApiError> {
    let keys = call.queries("tagKeys");
    change(api, arn, |tags| tags.retain(|key, _| !keys.contains(key)))
}
