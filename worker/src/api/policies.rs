//! Calls about the policies of functions. The worker keeps and shows them, and refuses no call by them: who
//! may call it is the operator's setting.

use serde::Deserialize;
use serde_json::json;

use super::{Api, Call};
use crate::base::error::ApiError;
use crate::base::name::{self, Target};
use crate::base::resource_policy::{self, Permission, ResourcePolicy, check_revision};
use crate::function::attached::key;
use crate::http::{self, Answer};

/// The function that the whole ARN of a resource names.
pub fn named(arn: &str) -> Result<Target, ApiError> {
    if !arn.starts_with("arn:") {
        return Err(ApiError::invalid_parameter("ResourceArn must be the whole ARN of a function"));
    }
    name::parse(arn)
}

pub fn add(api: &Api, call: &Call, target: &Target) -> Result<Answer, ApiError> {
    let wanted: Permission = call.json()?;
    let statement = wanted.statement(&name::arn(&target.to_string()))?;
    let shown = statement.to_string();
    api.worker.change_attached(target, |attached| {
        let known = attached.policies.get(&key(target));
        check_revision(wanted.revision_id.as_deref(), known)?;
        let policy = ResourcePolicy::with(known.cloned(), statement)?;
        attached.policies.insert(key(target), policy);
        Ok(())
    })?;
    Ok(http::json(201, &json!({ "Statement": shown })))
}

pub fn get(api: &Api, target: &Target) -> Result<Answer, ApiError> {
    let function = api.worker.function(&target.name)?;
    function.qualified(target.qualifier.as_deref())?;
    let policy = function.attached.policies.get(&key(target)).ok_or_else(resource_policy::none)?;
    Ok(http::json(200, &policy.described()))
}

pub fn remove(api: &Api, call: &Call, target: &Target, statement: &str) -> Result<Answer, ApiError> {
    let revision = call.query("RevisionId");
    api.worker.change_attached(target, |attached| {
        let known = attached.policies.remove(&key(target)).ok_or_else(resource_policy::none)?;
        check_revision(revision.as_deref(), Some(&known))?;
        if let Some(policy) = known.without(statement)? {
            attached.policies.insert(key(target), policy);
        }
        Ok(())
    })?;
    Ok(http::empty(204))
}

/// The body of PutResourcePolicy.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Whole {
    policy: String,
    revision_id: Option<String>,
}

pub fn put_whole(api: &Api, call: &Call, arn: &str) -> Result<Answer, ApiError> {
    let (target, wanted) = (named(arn)?, call.json::<Whole>()?);
    let policy = ResourcePolicy::whole(&wanted.policy)?;
    let shown = policy.described();
    api.worker.change_attached(&target, |attached| {
        check_revision(wanted.revision_id.as_deref(), attached.policies.get(&key(&target)))?;
        attached.policies.insert(key(&target), policy);
        Ok(())
    })?;
    Ok(http::json(200, &shown))
}

pub fn delete_whole(api: &Api, call: &Call, arn: &str) -> Result<Answer, ApiError> {
    let (target, revision) = (named(arn)?, call.query("RevisionId"));
    api.worker.change_attached(&target, |attached| {
        let known = attached.policies.remove(&key(&target)).ok_or_else(resource_policy::none)?;
        check_revision(revision.as_deref(), Some(&known))
    })?;
    Ok(http::empty(204))
}
