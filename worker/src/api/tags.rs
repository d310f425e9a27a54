//! Tags of functions, by the ARN of what has them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

use super::{Api, Call};
use crate::base::error::ApiError;
use crate::base::name::Target;
use crate::http::{self, Answer};

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
    Ok(http::json(200, &json!({ "Tags": api.worker.function(&function(arn)?)?.tags })))
}

pub fn tag(api: &Api, call: &Call, arn: &str) -> Result<Answer, ApiError> {
    let wanted: Tags = call.json()?;
    api.worker.change_tags(&function(arn)?, |tags| tags.extend(wanted.tags))?;
    Ok(http::empty(204))
}

pub fn untag(api: &Api, call: &Call, arn: &str) -> Result<Answer, ApiError> {
    let keys = call.queries("tagKeys");
    api.worker.change_tags(&function(arn)?, |tags| tags.retain(|key, _| !keys.contains(key)))?;
    Ok(http::empty(204))
}
