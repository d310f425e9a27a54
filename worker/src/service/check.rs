//! What a worker would serve of a template: read as at a start, but nothing is installed and nothing starts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::base::{limits, name};
use crate::code::{Code, handler, public_layers, python_packages};
use crate::function::failed::{Failed, ReasonCode, Refused};
use crate::function::http_api::{Format, HttpApi, Kind};
use crate::function::queue_source::Mapping;
use crate::function::template::{Declared, DeclaredUrl, LATEST_OF_LAYER, Package};
use crate::function::worker_options::TemplateOptions;
use crate::service::stack::{Offer, Stack};

/// What of a template is served, and what is not.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Checked {
    /// Its functions, those that cannot be served last.
    pub functions: Vec<CheckedFunction>,
    /// Its HTTP APIs.
    pub http_apis: Vec<Value>,
    /// The queues that functions are called from, if the worker has a server for them.
    pub queues: Vec<Value>,
    /// The schedules that call functions.
    pub schedules: Vec<Value>,
    /// Lines about what else cannot be had.
    pub missing: Vec<String>,
    /// Lines about what is different here.
    pub notes: Vec<String>,
}

/// A function of a template.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct CheckedFunction {
    /// Its logical id, after those of the templates that it lies in.
    pub id: String,
    /// Its name.
    pub function_name: String,
    /// Why it cannot be served: Lambda's `StateReasonCode`, and a line.
    pub state_reason_code: Option<&'static str>,
    /// See `state_reason_code`.
    pub state_reason: Option<String>,
    /// Its settings by Lambda's names.
    #[serde(flatten)]
    pub settings: Map<String, Value>,
    /// Where its code is: a path, the name of an image, or `inline`.
    pub code: Option<String>,
    /// The file whose packages a start installs, if they are not there yet.
    pub installs: Option<PathBuf>,
    /// What its Handler lacks in the code: it must be built first.
    pub unbuilt: Option<String>,
}

/// Reads a template for a worker that has what is on offer.
///
/// # Errors
/// The template as a whole is wrong, and where.
pub fn check(template: &Path, options: &TemplateOptions, offer: Offer) -> Result<Checked> {
    let place = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut stack = Stack::declared(template, options)?;
    stack.check(offer)?;
    let layers = stack.layers.drain(..).map(|layer| {
        let found = layer.content.and_then(|path| present(&path).context("ContentUri"));
        (layer.name, found)
    });
    let layers: BTreeMap<String, Result<()>> = layers.collect();
    let mut functions = Vec::new();
    for (declared, _) in &stack.functions {
        functions.push(of_declared(declared, &layers, place.path()));
    }
    functions.extend(stack.failed.iter().map(of_failed));
    let http_apis = stack.http_apis().iter().map(of_api).collect();
    let sources = stack.sources();
    let queues = sources.queues.iter().map(of_queue).collect();
    let schedules = sources.schedules.iter().flat_map(|(target, list)| {
        list.iter().map(move |one| serde_json::json!({ "Name": one.name, "Function": target }))
    });
    let schedules = schedules.collect();
    Ok(Checked { functions, http_apis, queues, schedules, missing: stack.missing, notes: stack.notes })
}

fn of_declared(declared: &Declared, layers: &BTreeMap<String, Result<()>>, place: &Path) -> CheckedFunction {
    let fault = packages(declared, place)
        .and_then(|()| own_layers(declared, layers).map_err(Refused::of(ReasonCode::Dependency)))
        .err();
    let settings = &declared.settings;
    let mut shown = Map::new();
    let mut put = |key: &str, value: Value| drop(shown.insert(key.into(), value));
    if !matches!(declared.package, Package::Image(..)) {
        put("Runtime", settings.runtime.name().into());
        put("Handler", settings.handler.clone().into());
    }
    put("MemorySize", settings.memory_mib.into());
    put("Timeout", settings.timeout_s.into());
    put("Environment", serde_json::to_value(&settings.environment).unwrap_or_default());
    put("Layers", settings.layers.clone().into());
    if !declared.tags.is_empty() {
        put("Tags", serde_json::to_value(&declared.tags).unwrap_or_default());
    }
    if let Some(alias) = &declared.alias {
        put("AutoPublishAlias", alias.clone().into());
    }
    if let Some(url) = &declared.url {
        put("FunctionUrlConfig", of_url(url));
    }
    let folder = match &declared.package {
        Package::Path(path) if path.is_dir() => Some(path),
        _ => None,
    };
    let unbuilt = folder.filter(|_| settings.layers.is_empty());
    CheckedFunction {
        id: declared.id.clone(),
        function_name: declared.name.clone(),
        state_reason_code: fault.as_ref().map(|fault| Refused::code(fault).name()),
        state_reason: fault.map(|fault| format!("{fault:#}")),
        settings: shown,
        code: Some(match &declared.package {
            Package::Path(path) => path.display().to_string(),
            Package::Image(uri, _) => uri.clone(),
            Package::Inline(..) => "inline".into(),
        }),
        installs: folder.and_then(|folder| python_packages::wanted(&settings.runtime, folder)),
        unbuilt: unbuilt.and_then(|folder| handler::missing(&settings.runtime, &settings.handler, folder)),
    }
}

fn of_url(DeclaredUrl { auth_type, streams, cors }: &DeclaredUrl) -> Value {
    let mode = if *streams { "RESPONSE_STREAM" } else { "BUFFERED" };
    let mut shown = serde_json::json!({ "AuthType": auth_type, "InvokeMode": mode });
    if let Some(cors) = cors {
        shown["Cors"] = serde_json::to_value(cors).unwrap_or_default();
    }
    shown
}

fn of_failed(failed: &Failed) -> CheckedFunction {
    let mut settings = Map::new();
    for (key, otherwise) in [
        ("Runtime", Value::Null),
        ("Handler", Value::Null),
        ("MemorySize", limits::DEFAULT_MEMORY_MIB.into()),
        ("Timeout", limits::DEFAULT_TIMEOUT_S.into()),
        ("Layers", Value::Array(Vec::new())),
        ("FunctionUrlConfig", Value::Null),
    ] {
        settings.insert(key.into(), failed.properties.get(key).cloned().unwrap_or(otherwise));
    }
    let variables = failed.properties.get("Environment").and_then(|environment| environment.get("Variables"));
    // As a served function has them: texts.
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        _ => String::new(),
    };
    let variables = variables.and_then(Value::as_object).into_iter().flatten();
    let variables: Map<String, Value> =
        variables.map(|(name, value)| (name.clone(), text(value).into())).collect();
    settings.insert("Environment".into(), variables.into());
    settings.retain(|_, value| !value.is_null());
    let code = ["CodeUri", "ImageUri"].iter().find_map(|key| failed.properties.get(*key)?.as_str());
    let inline = failed.properties.contains_key("InlineCode").then_some("inline");
    CheckedFunction {
        id: failed.id.clone(),
        function_name: failed.name.clone(),
        state_reason_code: Some(failed.code.name()),
        state_reason: Some(failed.reason.clone()),
        settings,
        code: inline.or(code).map(String::from),
        installs: None,
        unbuilt: None,
    }
}

/// Whether the package is there. An image is looked up, and not unpacked.
fn packages(declared: &Declared, place: &Path) -> Result<()> {
    match &declared.package {
        Package::Path(path) => present(path).context("CodeUri").map_err(Refused::of(ReasonCode::Code)),
        Package::Inline(..) => Ok(()),
        Package::Image(uri, base) => {
            Code::finds_image(uri, base, place).map_err(Refused::of(ReasonCode::Image))
        }
    }
}

fn present(path: &Path) -> Result<()> {
    let found = std::fs::metadata(path).map(drop);
    found.map_err(|error| anyhow!("{}: {}", path.display(), worker_system::text::plain_reason(&error)))
}

/// Whether the function's layers are the template's, and there.
fn own_layers(declared: &Declared, layers: &BTreeMap<String, Result<()>>) -> Result<()> {
    let settings = &declared.settings;
    for arn in settings.layers.iter().filter(|arn| !public_layers::has(arn, &settings.runtime)) {
        let known = name::parse_layer_arn(arn).filter(|(_, version)| *version == LATEST_OF_LAYER);
        let found = known.and_then(|(name, _)| layers.get(name).map(|found| (name, found)));
        match found {
            None => bail!("Layers: there is no {arn}"),
            Some((name, Err(error))) => bail!("layer {name}: {error:#}"),
            Some((_, Ok(()))) => {}
        }
    }
    Ok(())
}

fn of_queue(mapping: &Mapping) -> Value {
    let mut shown = serde_json::to_value(&mapping.given).unwrap_or_default();
    shown["Function"] = mapping.target.clone().into();
    shown
}

fn of_api(api: &HttpApi) -> Value {
    let route = |route: &crate::function::http_api::Route| {
        serde_json::json!({
            "Method": route.method,
            "Path": route.path,
            "Function": route.target.to_string(),
            "PayloadFormatVersion": if route.format == Format::One { "1.0" } else { "2.0" },
        })
    };
    serde_json::json!({
        "Id": api.id,
        "Type": if api.kind == Kind::Rest { "REST" } else { "HTTP" },
        "Stage": api.stage,
        "Routes": api.routes.iter().map(route).collect::<Vec<_>>(),
    })
}
