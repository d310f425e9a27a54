//! Reads the properties of a template's function.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value as Json};
use serde_yaml_ng::Value as Yaml;

use super::{Declared, Package, http_apis};
use crate::base::name;
use crate::code::runtime::Runtime;
use crate::function::event_config::EventConfig;
use crate::function::http_api::Cors;
use crate::function::settings::{Settings, Wanted};

/// A function's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredUrl {
    /// `AuthType`.
    pub auth_type: String,
    /// Whether its `InvokeMode` streams.
    pub streams: bool,
    /// `Cors`.
    pub cors: Option<Cors>,
}

/// A VM's whole name has 40 characters, of which the worker takes some.
const LONGEST_VM: usize = 20;

/// Settings without a property in SAM: `Metadata.Mayfly` of a resource.
pub fn of_mayfly(resource: &Yaml, settings: &mut Settings) -> Result<()> {
    let given = |key: &str| resource.get("Metadata")?.get("Mayfly")?.get(key);
    if let Some(value) = given("Cpus") {
        // A ceiling, which HotMem's functions have (HotMem Table 1).
        let number = value.as_f64().filter(|number| (0.01..=256.0).contains(number));
        ensure!(number.is_some(), "Metadata.Mayfly.Cpus must be a number of processors, 0.01 to 256");
        settings.processors = number;
    }
    if let Some(value) = given("Vm") {
        let name = value.as_str().filter(|text| text.len() <= LONGEST_VM && name::is_plain(text));
        settings.vm = Some(name.map(str::to_string).with_context(|| {
            format!("Metadata.Mayfly.Vm must be a name of at most {LONGEST_VM} letters, digits, '-' and '_'")
        })?);
    }
    if let Some(value) = given("PageOutAfter") {
        let seconds = value.as_u64().filter(|seconds| (1..=86_400).contains(seconds));
        ensure!(seconds.is_some(), "Metadata.Mayfly.PageOutAfter must be a number of seconds, 1 to 86400");
        settings.page_out_after_s = seconds.map(|seconds| seconds as u32);
    }
    if let Some(value) = given("Network") {
        settings.outside = match value.as_str() {
            Some("outside") => Some(true),
            Some("none") => Some(false),
            _ => bail!("Metadata.Mayfly.Network must be outside or none"),
        };
    }
    Ok(())
}

/// Whether the template's functions run on the nearest version of their language where this host lacks
/// theirs: `Metadata.Mayfly.NearestRuntime` of the template. For functions that run on any version.
pub fn takes_nearest_runtime(template: &Yaml) -> Result<bool> {
    let given = template.get("Metadata").and_then(|all| all.get("Mayfly")?.get("NearestRuntime"));
    match given {
        None => Ok(false),
        Some(value) => value.as_bool().context("Metadata.Mayfly.NearestRuntime must be true or false"),
    }
}

/// Replaces a `Runtime` that this host lacks by the nearest that it has.
pub fn take_nearest_runtime(resource: &str, properties: &mut Map<String, Json>) {
    let Some(Json::String(text)) = properties.get_mut("Runtime") else { return };
    let nearest = Runtime::nearest(text);
    if nearest != *text {
        tracing::info!("Resources.{resource}: this host has no {text}: the function runs on {nearest}");
        *text = nearest;
    }
}

/// Reads a function from its own properties and those of Globals.
pub fn function(resource: &str, mut properties: Map<String, Json>, folder: &Path) -> Result<Declared> {
    let mut take = |key: &str| properties.remove(key);
    let text = |key: &str, value: Option<Json>| match value {
        None => Ok(None),
        Some(Json::String(text)) => Ok(Some(text)),
        Some(other) => Err(anyhow!("{key}: {other} is no text")),
    };
    let function_name = text("FunctionName", take("FunctionName"))?.unwrap_or_else(|| resource.to_string());
    ensure!(name::is_plain(&function_name), "FunctionName: '{function_name}' is no name of a function");
    let (code, image) = (text("CodeUri", take("CodeUri"))?, text("ImageUri", take("ImageUri"))?);
    let reserved = match take("ReservedConcurrentExecutions") {
        None => None,
        Some(value) => {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            Some(number.with_context(|| format!("ReservedConcurrentExecutions: {value} is no number"))?)
        }
    };
    let alias = text("AutoPublishAlias", take("AutoPublishAlias"))?;
    ensure!(alias.as_deref().is_none_or(name::is_alias), "AutoPublishAlias: not a name of an alias");
    let events = take("EventInvokeConfig").map(|config| serde_json::from_value(only_functions(config)));
    let events: Option<EventConfig> = events.transpose().context("EventInvokeConfig")?;
    if let Some(events) = &events {
        events.check().map_err(|error| anyhow!("EventInvokeConfig: {}", error.message))?;
    }
    let tags = take("Tags").map(serde_json::from_value).transpose().context("Tags: not texts by name")?;
    let url = match take("FunctionUrlConfig") {
        None => None,
        Some(config) => {
            let Some(kind @ ("NONE" | "AWS_IAM")) = config.get("AuthType").and_then(Json::as_str) else {
                bail!("FunctionUrlConfig.AuthType must be NONE or AWS_IAM")
            };
            let streams = match config.get("InvokeMode").map(|mode| mode.as_str().unwrap_or_default()) {
                None | Some("BUFFERED") => false,
                Some("RESPONSE_STREAM") => true,
                Some(_) => bail!("FunctionUrlConfig.InvokeMode must be BUFFERED or RESPONSE_STREAM"),
            };
            let cors = config.get("Cors").and_then(http_apis::cors::of_http);
            Some(DeclaredUrl { auth_type: kind.to_string(), streams, cors })
        }
    };
    if let Some(variables) = properties.get_mut("Environment").and_then(|e| e.get_mut("Variables")) {
        // YAML has numbers, but the environment has texts.
        for value in variables.as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
            if !value.is_string() {
                *value = Json::String(value.to_string());
            }
        }
    }
    let wanted: Wanted = serde_json::from_value(Json::Object(properties))?;
    let settings = Settings::new(&wanted).map_err(|error| anyhow!("{}", error.message))?;
    let (package, tags) = (package(&settings, code, image, folder)?, tags.unwrap_or_default());
    Ok(Declared {
        name: function_name,
        settings,
        package,
        reserved,
        url,
        alias,
        tags,
        events,
        sources: Vec::new(),
    })
}

/// Removes destinations that the worker does not support, and logs each.
fn only_functions(mut config: Json) -> Json {
    let destinations = config.get_mut("DestinationConfig").and_then(Json::as_object_mut);
    for (name, destination) in destinations.into_iter().flatten() {
        let kind = destination.get("Type").and_then(Json::as_str).unwrap_or("Lambda");
        if kind != "Lambda" {
            tracing::warn!("EventInvokeConfig: {name} of Type {kind} is not supported and passed over");
            *destination = Json::Object(Map::new());
        }
    }
    config
}

fn package(
    settings: &Settings,
    code: Option<String>,
    image: Option<String>,
    folder: &Path,
) -> Result<Package> {
    if settings.runtime == Runtime::Image {
        let image = image.context(
            "ImageUri is needed: podman save --format oci-archive -o image.tar NAME, then ImageUri: image.tar",
        )?;
        ensure!(code.is_none(), "CodeUri: an image has none");
        return Ok(Package::Image(image, folder.into()));
    }
    ensure!(image.is_none(), "ImageUri needs PackageType: Image");
    let code = code.context("CodeUri is needed: the folder with the code")?;
    ensure!(!code.starts_with("s3:"), "CodeUri: '{code}': S3 is not supported, give a folder");
    Ok(Package::Folder(folder.join(code)))
}
