//! Reads the properties of a template's function.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value as Json};

use super::scope::Scope;
use super::yaml::text_of;
use super::{Declared, bucket, coercion, http_apis};
use crate::base::name;
use crate::code::runtime::Runtime;
use crate::function::capacity_provider::{self, Several};
use crate::function::event_config::EventConfig;
use crate::function::failed::{ReasonCode, Refused};
use crate::function::http_api::Cors;
use crate::function::settings::Settings;
use crate::function::tenancy;
use crate::function::variables;
use crate::function::wanted::Wanted;
use crate::function::worker_options::TemplateOptions;

/// A VM's whole name has 40 characters, of which the worker takes some.
const LONGEST_VM: usize = 20;
/// The longest event that primes an instance.
const EVENT_BYTES: u64 = 1 << 20;
/// Variables that a template may set although Lambda reserves them: `sam local` has it so.
const OWN_VARIABLES: [&str; 5] =
    ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"];

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

/// The package of a function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Package {
    /// The folder, .zip or file that `CodeUri` names.
    Path(PathBuf),
    /// `InlineCode`: a file's name and its text.
    Inline(&'static str, String),
    /// `ImageUri`, and the folder where relative paths begin.
    Image(String, PathBuf),
}

/// Settings without a property in SAM: `Metadata.Mayfly` of a resource.
pub fn of_mayfly(resource: &Json, settings: &mut Settings, folder: &Path) -> Result<()> {
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
    if let Some(value) = given("Concurrency") {
        let at_once = capacity_provider::figure(value);
        ensure!(at_once.is_some(), "Metadata.Mayfly.Concurrency must be a number of requests, 1 to 1600");
        settings.several = at_once.map(|at_once| Several { at_once, provider: None });
    }
    settings.snapshot_by_default = given("Snapshot").is_none();
    if let Some(value) = given("Snapshot") {
        let event = value.get("Prime").map(|path| event(path, &settings.runtime, folder));
        settings.primed_by = event.transpose().context("Metadata.Mayfly.Snapshot.Prime")?;
        settings.snapshot = match value.as_str() {
            Some("on") => true, // words of YAML 1.1
            Some("off") => false,
            _ if settings.primed_by.is_some() => true,
            _ => value.as_bool().context("Metadata.Mayfly.Snapshot must be true, false or {Prime: FILE}")?,
        };
        if settings.snapshot {
            tenancy::refuse(settings.per_tenant, "SnapStart")
                .map_err(|error| anyhow!("{}", error.message))?;
        }
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

/// An event in a file beside the template, as one line.
fn event(path: &Json, runtime: &Runtime, folder: &Path) -> Result<String> {
    let path = folder.join(path.as_str().context("it must be the path of a file with an event")?);
    let has_client = matches!(runtime, Runtime::Python(..) | Runtime::Node(..) | Runtime::Image);
    ensure!(has_client, "only functions in Python and Node.js are primed by an event");
    let of_file = || path.display().to_string();
    let mut text = String::new();
    let file = File::open(&path).with_context(of_file)?;
    file.take(EVENT_BYTES + 1).read_to_string(&mut text).with_context(of_file)?;
    ensure!(text.len() as u64 <= EVENT_BYTES, "{} has more than {EVENT_BYTES} bytes", path.display());
    serde_json::from_str::<Json>(&text).with_context(of_file)?;
    // In JSON, lines end between its parts alone.
    Ok(text.replace(['\n', '\r'], " "))
}

/// Whether the template's functions run on the nearest version of their language where this host lacks
/// theirs: `Metadata.Mayfly.NearestRuntime` of the template. For functions that run on any version.
pub fn takes_nearest_runtime(template: &Json) -> Result<bool> {
    let given = template.get("Metadata").and_then(|all| all.get("Mayfly")?.get("NearestRuntime"));
    match given {
        None => Ok(false),
        Some(value) => value.as_bool().context("Metadata.Mayfly.NearestRuntime must be true or false"),
    }
}

/// Reads a function from its evaluated properties, those of Globals among them.
///
/// # Errors
/// A property is wrong, and which.
pub fn read(
    id: &str,
    function: &str,
    mut properties: Map<String, Json>,
    scope: &Scope,
    place: &str,
    options: &TemplateOptions,
) -> Result<Declared> {
    coercion::properties(&mut properties);
    let mut take = |key: &str| properties.remove(key);
    ensure!(name::is_plain(function), "FunctionName: '{function}' is no name of a function");
    let code = [take("InlineCode"), take("CodeUri"), take("ImageUri")];
    let reserved = match take("ReservedConcurrentExecutions") {
        None => None,
        Some(value) => {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            Some(number.with_context(|| format!("ReservedConcurrentExecutions: {value} is no number"))?)
        }
    };
    let alias = take("AutoPublishAlias").map(|alias| text_of(&alias));
    ensure!(alias.as_deref().is_none_or(name::is_alias), "AutoPublishAlias: not a name of an alias");
    let events =
        take("EventInvokeConfig").map(|config| serde_json::from_value(only_functions(config, scope)));
    let events: Option<EventConfig> = events.transpose().context("EventInvokeConfig")?;
    if let Some(events) = &events {
        events.check().map_err(|error| anyhow!("EventInvokeConfig: {}", error.message))?;
    }
    let tags = match take("Tags") {
        None => BTreeMap::new(),
        Some(Json::Object(tags)) => tags.iter().map(|(key, value)| (key.clone(), text_of(value))).collect(),
        Some(Json::Array(list)) => list.iter().filter_map(tag).collect(),
        Some(_) => bail!("Tags: not texts by name"),
    };
    let url = take("FunctionUrlConfig").map(|config| url(&config)).transpose()?;
    let own = own_variables(&mut properties, scope, place);
    for key in ["MemorySize", "Timeout"] {
        let other = properties.get(key).filter(|value| !value.is_u64());
        ensure!(other.is_none(), "{key}: {} is no number", other.unwrap_or(&Json::Null));
    }
    let is_image = properties.get("PackageType").is_some_and(|kind| kind == "Image");
    if let Some(runtime) = properties.get_mut("Runtime").filter(|_| !is_image) {
        suit_runtime(runtime, place, scope)?;
    }
    suit_architecture(&mut properties, place, scope);
    let wanted: Wanted = serde_json::from_value(Json::Object(properties))?;
    let mut settings = Settings::new(&wanted).map_err(|error| anyhow!("{}", error.message))?;
    settings.environment.extend(own);
    let package = package(&settings, code, scope, place, options)?;
    let name = function.to_string();
    Ok(Declared { id: scope.path_of(id), name, settings, package, reserved, url, alias, tags, events })
}

/// Refuses the properties that Lambda refuses beside `TenancyConfig`.
pub fn check_tenancy(properties: &Map<String, Json>, scope: &Scope, place: &str) -> Result<()> {
    for key in ["FunctionUrlConfig", "ProvisionedConcurrencyConfig", "SnapStart"] {
        let Some(value) = properties.get(key) else { continue };
        let value = scope.resolve(value, &format!("{place}.{key}"))?;
        let is_given = value.is_some_and(|value| value.get("ApplyOn").is_none_or(|on| on != "None"));
        tenancy::refuse(is_given, key).map_err(|error| anyhow!("{}", error.message))?;
    }
    Ok(())
}

/// A tag as resources of Lambda itself have it.
fn tag(value: &Json) -> Option<(String, String)> {
    Some((text_of(value.get("Key")?), text_of(value.get("Value")?)))
}

/// What a function's URL is declared with.
///
/// # Errors
/// A setting is wrong.
pub fn url(config: &Json) -> Result<DeclaredUrl> {
    let Some(kind @ ("NONE" | "AWS_IAM")) = config.get("AuthType").and_then(Json::as_str) else {
        bail!("FunctionUrlConfig.AuthType must be NONE or AWS_IAM")
    };
    let streams = match config.get("InvokeMode").map(|mode| mode.as_str().unwrap_or_default()) {
        None | Some("BUFFERED") => false,
        Some("RESPONSE_STREAM") => true,
        Some(_) => bail!("FunctionUrlConfig.InvokeMode must be BUFFERED or RESPONSE_STREAM"),
    };
    let cors = config.get("Cors").and_then(http_apis::cors::of_http);
    Ok(DeclaredUrl { auth_type: kind.to_string(), streams, cors })
}

/// Makes texts of the variables, and takes those out that Lambda refuses: some of them a template may set.
fn own_variables(properties: &mut Map<String, Json>, scope: &Scope, place: &str) -> Vec<(String, String)> {
    let mut own = Vec::new();
    let Some(Json::Object(variables)) =
        properties.get_mut("Environment").and_then(|environment| environment.get_mut("Variables"))
    else {
        return own;
    };
    variables.retain(|name, value| {
        let place = format!("{place}.Environment.Variables.{name}");
        if value.is_array() || value.is_object() {
            scope.note(format!("{place}: {value} is no text: the variable is empty"));
            *value = Json::Null;
        }
        *value = text_of(value).into();
        let Some(must) = variables::fault_of(name) else { return true };
        if OWN_VARIABLES.contains(&name.as_str()) {
            scope.note(format!("{place} is set as it is: Lambda would refuse it"));
            own.push((name.clone(), text_of(value)));
        } else {
            scope.note(format!("{place} is passed over: Lambda would refuse it, and templates must {must}"));
        }
        false
    });
    own
}

/// Replaces a runtime that this host lacks by the nearest that it has, if that is allowed.
fn suit_runtime(runtime: &mut Json, place: &str, scope: &Scope) -> Result<()> {
    let wanted = text_of(runtime);
    let Err(error) = Runtime::parse(&wanted) else { return Ok(()) };
    let refused = Refused::of(ReasonCode::Runtime);
    let nearest = Runtime::nearest(&wanted);
    if nearest == wanted {
        return Err(refused(anyhow!("{}", error.message)));
    }
    if !scope.takes_nearest.get() {
        return Err(refused(anyhow!("{}; --nearest-runtime serves it with {nearest}", error.message)));
    }
    scope.note(format!("{place}: this host has no {wanted}: the function runs on {nearest}"));
    *runtime = nearest.into();
    Ok(())
}

/// Interpreted languages run on any processor, and so does Java.
fn suit_architecture(properties: &mut Map<String, Json>, place: &str, scope: &Scope) {
    let runtime = properties.get("Runtime").map(text_of).unwrap_or_default();
    let is_interpreted =
        ["python", "nodejs", "java", "ruby"].iter().any(|language| runtime.starts_with(language));
    let is_other = |given: &Json| given.as_array().is_some_and(|list| list.iter().any(|one| one == "arm64"));
    if is_interpreted && cfg!(target_arch = "x86_64") && properties.get("Architectures").is_some_and(is_other)
    {
        scope.note(format!(
            "{place}.Architectures: this host is no arm64: its own processor runs the function"
        ));
        properties.remove("Architectures");
    }
}

/// Removes destinations that the worker does not support, and logs each.
fn only_functions(mut config: Json, scope: &Scope) -> Json {
    let destinations = config.get_mut("DestinationConfig").and_then(Json::as_object_mut);
    for (name, destination) in destinations.into_iter().flatten() {
        let kind = destination.get("Type").and_then(Json::as_str).unwrap_or("Lambda");
        if kind != "Lambda" {
            scope.note(format!("EventInvokeConfig: {name} of Type {kind} is not supported and passed over"));
            *destination = Json::Object(Map::new());
        }
    }
    config
}

fn package(
    settings: &Settings,
    [inline, code, image]: [Option<Json>; 3],
    scope: &Scope,
    place: &str,
    options: &TemplateOptions,
) -> Result<Package> {
    if settings.runtime == Runtime::Image {
        let refused = Refused::of(ReasonCode::Image);
        let image = image.context(
            "ImageUri is needed: podman save --format oci-archive -o image.tar NAME, then ImageUri: image.tar",
        );
        let image = image.map_err(refused)?;
        if code.is_some() {
            scope.note(format!("{place}: CodeUri is passed over: the function is an image"));
        }
        return Ok(Package::Image(text_of(&image), scope.folder.clone()));
    }
    ensure!(image.is_none(), "ImageUri needs PackageType: Image");
    if let Some(text) = inline {
        let file = match &settings.runtime {
            Runtime::Python(..) => "index.py",
            Runtime::Node(..) => "index.js",
            _ => bail!("InlineCode: only functions in Python and Node.js have it"),
        };
        return Ok(Package::Inline(file, text_of(&text)));
    }
    // As `sam local` has it: without CodeUri the template's own folder.
    let code = code.unwrap_or_else(|| ".".into());
    let path = bucket::path(&code, "CodeUri", &scope.folder, options);
    Ok(Package::Path(path.map_err(Refused::of(ReasonCode::Code))?))
}

/// The properties of an `AWS::Lambda::Function` by SAM's names: its code is given in another way.
pub fn of_lambda(resource: &Json, folder: &Path) -> Map<String, Json> {
    let mut own = resource.get("Properties").and_then(Json::as_object).cloned().unwrap_or_default();
    let code = own.remove("Code").unwrap_or_default();
    if let Some(path) = bucket::asset(resource, "Code") {
        own.insert("CodeUri".into(), folder.join(path).to_string_lossy().into());
        return own;
    }
    let part = |name: &str| code.get(name).cloned();
    let (key, value) = match (part("ZipFile"), part("ImageUri")) {
        (Some(text), _) => ("InlineCode", text),
        (_, Some(image)) => {
            own.entry("PackageType").or_insert_with(|| "Image".into());
            ("ImageUri", image)
        }
        _ => ("CodeUri", code),
    };
    if !value.is_null() {
        own.insert(key.into(), value);
    }
    own
}
