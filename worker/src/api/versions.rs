//! Calls about versions of functions, and about aliases, which name them.

use serde::Deserialize;
use serde_json::{Value, json};

use super::configuration::configuration;
use super::{Api, Call, paging};
use crate::base::error::{ApiError, ErrorKind};
use crate::base::name;
use crate::function::definition::Alias;
use crate::function::wanted::refuse;
use crate::http::{self, Answer};

/// The body of PublishVersion.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Publish {
    code_sha256: Option<String>,
    description: Option<String>,
    revision_id: Option<String>,
    #[serde(default)]
    publish_to: Value,
}

pub fn list(api: &Api, call: &Call, name: &str) -> Result<Answer, ApiError> {
    let function = api.worker.function(name)?;
    // $LATEST comes first.
    let key = |version: &str| paging::key_of(version.parse().unwrap_or(0));
    let versions = function.deployments();
    let list = versions.map(|version| (key(&version.version), configuration(api, version))).collect();
    paging::page(call, "Versions", list)
}

pub fn publish(api: &Api, call: &Call, name: &str) -> Result<Answer, ApiError> {
    let wanted: Publish = call.json()?;
    refuse("PublishTo", &wanted.publish_to)?;
    let version = api.worker.publish(name, wanted.description, |now| {
        check_revision(wanted.revision_id.as_deref(), &now.revision)?;
        match wanted.code_sha256.filter(|sha256| *sha256 != now.code.sha256) {
            None => Ok(()),
            Some(other) => Err(ApiError::invalid_parameter(format!(
                "CodeSha256 ({other}) is different from current CodeSHA256 in $LATEST ({})",
                now.code.sha256
            ))),
        }
    })?;
    Ok(http::json(201, &configuration(api, &version)))
}

/// `RevisionId` of a request, if given, must be the current one.
///
/// # Errors
/// The request names another revision.
pub fn check_revision(wanted: Option<&str>, now: &str) -> Result<(), ApiError> {
    if wanted.is_none_or(|wanted| wanted == now) {
        return Ok(());
    }
    Err(ErrorKind::PreconditionFailed.with("The RevisionId provided does not match the latest RevisionId. Call GetFunction or GetAlias to get it.",
    ))
}

/// The body of CreateAlias and UpdateAlias.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wanted {
    name: Option<String>,
    function_version: Option<String>,
    description: Option<String>,
    routing_config: Option<Routing>,
    revision_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Routing {
    #[serde(default)]
    additional_version_weights: Option<serde_json::Map<String, Value>>,
}

impl Wanted {
    fn read(call: &Call) -> Result<Wanted, ApiError> {
        let wanted: Wanted = call.json()?;
        let weights =
            wanted.routing_config.as_ref().and_then(|config| config.additional_version_weights.as_ref());
        if weights.is_some_and(|weights| !weights.is_empty()) {
            return Err(ApiError::invalid_parameter(
                "RoutingConfig is not supported here: an alias names one version",
            ));
        }
        Ok(wanted)
    }

    fn change(&self, known: Alias) -> Alias {
        Alias {
            version: self.function_version.clone().unwrap_or(known.version),
            description: self.description.clone().unwrap_or(known.description),
            revision: uuid::Uuid::new_v4().to_string(),
        }
    }
}

fn describe(name: &str, alias: &str, known: &Alias) -> Value {
    json!({
        "AliasArn": name::arn(&format!("{name}:{alias}")),
        "Name": alias,
        "FunctionVersion": known.version,
        "Description": known.description,
        "RevisionId": known.revision,
    })
}

fn none(name: &str, alias: &str) -> ApiError {
    ApiError::not_found(format!("Cannot find alias arn: {}", name::arn(&format!("{name}:{alias}"))))
}

pub fn list_aliases(api: &Api, call: &Call, name: &str) -> Result<Answer, ApiError> {
    let wanted = call.query("FunctionVersion");
    let function = api.worker.function(name)?;
    let aliases = function.aliases.iter();
    let chosen = aliases.filter(|(_, alias)| wanted.as_ref().is_none_or(|wanted| alias.version == *wanted));
    let list = chosen.map(|(alias, known)| (alias.clone(), describe(name, alias, known))).collect();
    paging::page(call, "Aliases", list)
}

pub fn create_alias(api: &Api, call: &Call, name: &str) -> Result<Answer, ApiError> {
    let wanted = Wanted::read(call)?;
    let needed = |what| ApiError::invalid_parameter(format!("{what} is needed"));
    let alias = wanted.name.as_deref().ok_or_else(|| needed("Name"))?;
    if !name::is_alias(alias) {
        return Err(ApiError::invalid_parameter(
            "Name of an alias: 1 to 128 letters, digits, - and _, and not digits alone",
        ));
    }
    wanted.function_version.as_ref().ok_or_else(|| needed("FunctionVersion"))?;
    let made = api.worker.change_alias(name, alias, |known| match known {
        Some(_) => Err(ApiError::conflict(format!("Alias already exists: {name}:{alias}"))),
        None => {
            let empty = Alias { version: String::new(), description: String::new(), revision: String::new() };
            Ok(Some(wanted.change(empty)))
        }
    })?;
    Ok(http::json(201, &describe(name, alias, &made.expect("just made"))))
}

pub fn get_alias(api: &Api, name: &str, alias: &str) -> Result<Answer, ApiError> {
    let function = api.worker.function(name)?;
    let known = function.aliases.get(alias).ok_or_else(|| none(name, alias))?;
    Ok(http::json(200, &describe(name, alias, known)))
}

pub fn update_alias(api: &Api, call: &Call, name: &str, alias: &str) -> Result<Answer, ApiError> {
    let wanted = Wanted::read(call)?;
    let changed = api.worker.change_alias(name, alias, |known| {
        let known = known.ok_or_else(|| none(name, alias))?;
        check_revision(wanted.revision_id.as_deref(), &known.revision)?;
        Ok(Some(wanted.change(known)))
    })?;
    Ok(http::json(200, &describe(name, alias, &changed.expect("just changed"))))
}

pub fn delete_alias(api: &Api, name: &str, alias: &str) -> Result<Answer, ApiError> {
    api.worker.change_alias(name, alias, |_| Ok(None))?;
    Ok(http::empty(204))
}
