//! Calls about the policies of layers' versions, which the worker keeps and shows.

use serde_json::json;

use super::layers;
use super::{Api, Call};
use crate::base::error::ApiError;
use crate::base::name;
use crate::base::resource_policy::{self, Permission, ResourcePolicy, check_revision};
use crate::http::{self, Answer};

/// The number of a version in a path.
fn number(version: &str) -> Result<u64, ApiError> {
    version.parse().map_err(|_| ApiError::invalid_parameter("VersionNumber must be a number"))
}

pub fn add(api: &Api, call: &Call, layer: &str, version: &str) -> Result<Answer, ApiError> {
    let (name, number, wanted) = (layers::named(layer)?, number(version)?, call.json::<Permission>()?);
    let statement = wanted.statement(&name::layer_arn(&format!("{name}:{number}")))?;
    let (shown, expected) = (statement.to_string(), call.query("RevisionId"));
    let revision = api.worker.change_layer_policy(name, number, |known| {
        check_revision(expected.as_deref(), known.as_ref())?;
        ResourcePolicy::with(known, statement).map(Some)
    })?;
    let revision = revision.map(|policy| policy.revision);
    Ok(http::json(201, &json!({ "Statement": shown, "RevisionId": revision })))
}

pub fn get(api: &Api, layer: &str, version: &str) -> Result<Answer, ApiError> {
    let (name, number) = (layers::named(layer)?, number(version)?);
    let found = api.worker.layers(|layers| layers.get(name, number));
    let policy = found.and_then(|layer| layer.policy.clone()).ok_or_else(resource_policy::none)?;
    Ok(http::json(200, &policy.described()))
}

pub fn remove(
    api: &Api,
    call: &Call,
    layer: &str,
    version: &str,
    statement: &str,
) -> Result<Answer, ApiError> {
    let (name, number, expected) = (layers::named(layer)?, number(version)?, call.query("RevisionId"));
    api.worker.change_layer_policy(name, number, |known| {
        let known = known.ok_or_else(resource_policy::none)?;
        check_revision(expected.as_deref(), Some(&known))?;
        known.without(statement)
    })?;
    Ok(http::empty(204))
}
