//! Calls about layers.

use std::sync::Arc;
use std::time::SystemTime;

use serde::Deserialize;
use serde_json::json;

use super::functions::WantedCode;
use super::{Api, Call, paging};
use crate::base::error::ApiError;
use crate::base::name;
use crate::code::lambda_layers::Layer;
use crate::http::{self, Answer};
use worker_system::text::shown;

/// The body of PublishLayerVersion.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Publish {
    content: WantedCode,
    #[serde(default)]
    description: String,
    #[serde(default)]
    license_info: String,
    #[serde(default)]
    compatible_runtimes: Vec<String>,
    #[serde(default)]
    compatible_architectures: Vec<String>,
}

/// The name of a layer, which a path gives by that name or by its ARN.
pub fn named(text: &str) -> Result<&str, ApiError> {
    let name = match text.strip_prefix("arn:aws:lambda:") {
        Some(rest) => rest.split(':').nth(3).unwrap_or_default(),
        None => text,
    };
    if !name::is_layer(name) {
        return Err(ApiError::invalid_parameter("LayerName: 1 to 140 letters, digits, - and _"));
    }
    Ok(name)
}

pub async fn publish(api: &Api, call: &Call, layer: &str) -> Result<Answer, ApiError> {
    let name = named(layer)?;
    let wanted: Publish = call.json_beside_zip()?;
    if let Some(other) = wanted.compatible_architectures.iter().find(|one| *one != "x86_64") {
        return Err(ApiError::invalid_parameter(format!(
            "CompatibleArchitectures is '{}' and must be x86_64",
            shown(other)
        )));
    }
    let layer = api.worker.publish_layer(Layer {
        name: name.into(),
        version: 0,
        code: wanted.content.fetch(api, false).await?,
        description: wanted.description,
        license: wanted.license_info,
        runtimes: wanted.compatible_runtimes,
        created: SystemTime::now(),
        policy: None,
    });
    Ok(http::json(201, &layer.description()))
}

/// Whether a layer is for the runtime that the query names, if it names one.
fn is_wanted(call: &Call, layer: &Layer) -> bool {
    let runtime = call.query("CompatibleRuntime");
    layer.runtimes.is_empty() || runtime.is_none_or(|runtime| layer.runtimes.contains(&runtime))
}

pub fn get_by_arn(api: &Api, call: &Call) -> Result<Answer, ApiError> {
    let arn = call.query("Arn").unwrap_or_default();
    let found = name::parse_layer_arn(&arn)
        .and_then(|(name, version)| api.worker.layers(|layers| layers.get(name, version)));
    found.map(|layer| http::json(200, &layer.description())).ok_or_else(|| none(&arn))
}

pub fn list(api: &Api, call: &Call) -> Result<Answer, ApiError> {
    let layers: Vec<Arc<Layer>> = api.worker.layers(|layers| layers.all());
    let of = |layer: &Arc<Layer>| {
        json!({
            "LayerName": layer.name,
            "LayerArn": name::layer_arn(&layer.name),
            "LatestMatchingVersion": layer.summary(),
        })
    };
    let chosen = layers.iter().filter(|layer| is_wanted(call, layer));
    paging::page(call, "Layers", chosen.map(|layer| (layer.name.clone(), of(layer))).collect())
}

pub fn list_versions(api: &Api, call: &Call, layer: &str) -> Result<Answer, ApiError> {
    let versions = api.worker.layers(|layers| named(layer).map(|name| layers.versions(name)))?;
    let chosen = versions.iter().filter(|layer| is_wanted(call, layer));
    // The latest comes first.
    let key = |layer: &Layer| paging::key_of(u64::MAX - layer.version);
    paging::page(call, "LayerVersions", chosen.map(|layer| (key(layer), layer.summary())).collect())
}

fn none(what: &str) -> ApiError {
    ApiError::not_found(format!("The resource you requested does not exist: {}", shown(what)))
}

pub fn get(api: &Api, layer: &str, version: &str) -> Result<Answer, ApiError> {
    let name = named(layer)?;
    let number = version.parse().ok();
    let found = number.and_then(|number| api.worker.layers(|layers| layers.get(name, number)));
    let found = found.ok_or_else(|| none(&name::layer_arn(&format!("{name}:{version}"))))?;
    Ok(http::json(200, &found.description()))
}

/// As on Lambda, it is no error if there is none.
pub fn delete(api: &Api, layer: &str, version: &str) -> Result<Answer, ApiError> {
    let number =
        version.parse().map_err(|_| ApiError::invalid_parameter("VersionNumber must be a number"))?;
    api.worker.delete_layer(named(layer)?, number);
    Ok(http::empty(204))
}
