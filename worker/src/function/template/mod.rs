//! Templates of SAM, CloudFormation and CDK: which functions and layers they declare.
//!
//! The worker reads functions and layers of SAM's kinds and of Lambda's, `Globals.Function`, and templates
//! within the template. It ignores other resources, and logs each property that it ignores. A function that
//! cannot be read does not hinder the others.

mod bucket;
mod callers;
mod coercion;
mod events;
mod function;
mod globals;
mod http_apis;
mod indentation;
mod intrinsics;
mod layer;
mod loops;
mod mappings;
mod nested;
mod parameters;
mod properties;
mod scalars;
mod schedules;
mod scope;
mod yaml;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value as Json};

pub use self::function::{DeclaredUrl, Package};
pub use self::layer::DeclaredLayer;
use self::properties::{KNOWN, NEEDLESS, note_unknown};
use self::scope::Scope;
use crate::base::name::Target;
use crate::function::event_config::EventConfig;
use crate::function::failed::{Failed, Refused};
use crate::function::http_api::HttpApi;
use crate::function::queue_source::Mapping;
use crate::function::schedule::Scheduled;
use crate::function::settings::Settings;
use crate::function::worker_options::TemplateOptions;

const FUNCTION: &str = "AWS::Serverless::Function";
const LAMBDA: &str = "AWS::Lambda::Function";
const LAYERS: [&str; 2] = ["AWS::Serverless::LayerVersion", "AWS::Lambda::LayerVersion"];
/// The name of the stack.
const STACK: &str = "mayfly";
/// Why an event is not served.
const NO_TENANT: &str = "it is not served: it names no tenant, which a function with TenancyConfig needs";

/// A function of a template.
#[derive(Debug)]
pub struct Declared {
    /// Its logical id, after those of the templates that it lies in: `PART/ID`.
    pub id: String,
    /// `FunctionName`, or the resource's name.
    pub name: String,
    /// Checked settings.
    pub settings: Settings,
    /// Its package: code or an image.
    pub package: Package,
    /// `ReservedConcurrentExecutions`.
    pub reserved: Option<u32>,
    /// `FunctionUrlConfig`.
    pub url: Option<DeclaredUrl>,
    /// `AutoPublishAlias`: the alias of the version that is published whenever the function has changed.
    pub alias: Option<String>,
    /// `Tags`.
    pub tags: BTreeMap<String, String>,
    /// `EventInvokeConfig`.
    pub events: Option<EventConfig>,
}

/// What a template declares.
#[derive(Debug, Default)]
pub struct Template {
    /// Its functions.
    pub functions: Vec<Declared>,
    /// Its layers.
    pub layers: Vec<DeclaredLayer>,
    /// Its HTTP APIs.
    pub http_apis: Vec<HttpApi>,
    /// Its schedules, by what they call.
    pub schedules: BTreeMap<String, Vec<Scheduled>>,
    /// The queues that its functions are called from.
    pub mappings: Vec<Mapping>,
    /// The functions that cannot be served.
    pub failed: Vec<Failed>,
    /// Lines about what else cannot be had; functions are served without it, unless the worker is strict.
    pub missing: Vec<String>,
    /// Lines about what is different here.
    pub notes: Vec<String>,
    /// Whether a function runs in the nearest version where its runtime cannot be had.
    pub takes_nearest: bool,
}

/// The version number in ARNs that means the latest version of the template's own layer.
pub const LATEST_OF_LAYER: u64 = 0;

/// Reads a template.
///
/// # Errors
/// The template as a whole is wrong, or declares no function.
pub fn read(path: &Path, options: &TemplateOptions) -> Result<Template> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut given = parameters::of_config(folder)?;
    for text in &options.parameters {
        given.extend(parameters::overrides(text).context("--parameter-overrides")?);
    }
    let given = given.into_iter().map(|(name, value)| (name, Json::from(value))).collect();
    let variables = options.variables.as_deref().map(parameters::variables).transpose()?.unwrap_or_default();
    let read = || Reader::read(&Scope::new(load(path)?, folder, STACK, &given)?, options, variables);
    read().with_context(|| path.display().to_string())
}

/// Reads a template as if it lay in a folder, in which nothing is.
///
/// # Errors
/// As [`read`].
#[cfg(any(test, fuzzing))]
pub(crate) fn of_text(text: &str, options: &TemplateOptions) -> Result<Template> {
    let scope = Scope::new(yaml::read(text)?, Path::new("/templates"), STACK, &BTreeMap::new())?;
    Reader::read(&scope, options, BTreeMap::new())
}

#[cfg(fuzzing)]
pub(crate) use self::yaml::read as values;

/// The values of a template's file.
fn load(path: &Path) -> Result<Json> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| anyhow!("{}", worker_system::text::plain_reason(&error)))?;
    yaml::read(&text)
}

fn kind_of(resource: &Json) -> &str {
    resource.get("Type").and_then(Json::as_str).unwrap_or_default()
}

fn is_function(resource: &Json) -> bool {
    matches!(kind_of(resource), FUNCTION | LAMBDA)
}

fn is_layer(resource: &Json) -> bool {
    LAYERS.contains(&kind_of(resource))
}

struct Reader<'a> {
    options: &'a TemplateOptions,
    /// Of `--env-vars`.
    variables: BTreeMap<String, BTreeMap<String, Json>>,
    template: Template,
}

impl Reader<'_> {
    fn read(
        scope: &Scope,
        options: &TemplateOptions,
        variables: BTreeMap<String, BTreeMap<String, Json>>,
    ) -> Result<Template> {
        let mut reader = Reader { options, variables, template: Template::default() };
        reader.stack(scope)?;
        let template = reader.template;
        if template.functions.is_empty() && template.failed.is_empty() {
            let lines = template.missing.iter().chain(&template.notes);
            let left_out: Vec<&str> =
                lines.filter(|line| line.starts_with("Resources.")).map(String::as_str).collect();
            ensure!(left_out.is_empty(), "no function is left: {}", left_out.join("\n  "));
            bail!("Resources: none is an {FUNCTION}");
        }
        Ok(template)
    }

    /// Adds what a template declares, and those within it.
    fn stack(&mut self, scope: &Scope) -> Result<()> {
        let resources = scope.template.get("Resources").and_then(Json::as_object);
        let resources = resources.context("there are no Resources")?;
        let globals = scope.template.get("Globals").and_then(|globals| globals.get("Function"));
        let globals = globals.and_then(Json::as_object).cloned().unwrap_or_default();
        note_unknown(&globals, scope, "Globals.Function");
        let nearest = function::takes_nearest_runtime(&scope.template)?;
        scope.takes_nearest.set(nearest || self.options.nearest_runtime);
        self.template.takes_nearest |= scope.takes_nearest.get();
        let mut http = http_apis::declared(scope);
        for (id, resource) in resources {
            if !self.is_there(id, resource, scope) {
                continue;
            }
            if is_function(resource) {
                http.functions.extend(self.function(id, resource, &globals, scope));
            } else if is_layer(resource) {
                match layer::read(id, resource, scope, self.options) {
                    Ok(layer) => self.template.layers.push(layer),
                    Err(error) => self.template.missing.push(format!("{error:#}")),
                }
            } else if nested::is_nested(resource) {
                let inner =
                    scope.nested(id).and_then(|inner| inner.map_or(Ok(()), |inner| self.stack(&inner)));
                if let Err(error) = inner {
                    self.template.missing.push(format!("Resources.{id}: {error:#}"));
                }
            }
        }
        for (id, resource) in resources {
            if resource.get("Type").is_some_and(|kind| kind == mappings::MAPPING)
                && self.is_there(id, resource, scope)
            {
                let read =
                    mappings::read(id, resource, scope, |name| self.names().any(|known| known == name));
                match read {
                    Ok(Some(mapping)) if self.has_tenants(&mapping) => {
                        self.template.missing.push(format!("Resources.{id}: {NO_TENANT}"));
                    }
                    Ok(mapping) => self.template.mappings.extend(mapping),
                    Err(error) => self.template.missing.push(format!("Resources.{id}: {error:#}")),
                }
            }
        }
        for (id, resource) in resources {
            if callers::is_caller(resource) && self.is_there(id, resource, scope) {
                let read = callers::read(id, resource, scope, &mut self.template);
                read.unwrap_or_else(|error| scope.note(format!("Resources.{id} is not served: {error:#}")));
            }
        }
        let (apis, notes) = http_apis::read(&http);
        self.template.http_apis.extend(apis);
        notes.into_iter().for_each(|note| scope.note(note));
        for (function, target, events) in &http.functions {
            let (found, notes) = schedules::read(function, events);
            self.template.schedules.entry(target.to_string()).or_default().extend(found);
            notes.into_iter().for_each(|note| scope.note(note));
        }
        self.template.notes.extend(scope.take_notes());
        Ok(())
    }

    /// Whether a resource's condition holds, if it has one.
    fn is_there(&mut self, id: &str, resource: &Json, scope: &Scope) -> bool {
        let Some(condition) = resource.get("Condition").and_then(Json::as_str) else { return true };
        match scope.condition(condition, &format!("Resources.{id}.Condition")) {
            Ok(true) => true,
            Ok(false) => {
                if is_function(resource) {
                    scope.note(format!(
                        "Resources.{id}: the condition {condition} does not hold: it is left out"
                    ));
                }
                false
            }
            Err(error) => {
                self.template.missing.push(format!("Resources.{id}.Condition: {error:#}"));
                false
            }
        }
    }

    /// Adds a function; returns its events that are routes or schedules, and what they call.
    fn function(
        &mut self,
        id: &str,
        resource: &Json,
        globals: &Map<String, Json>,
        scope: &Scope,
    ) -> Option<(String, Target, Map<String, Json>)> {
        let mut name = scope.name_of(id, "FunctionName");
        let known: Vec<&str> = self.names().collect();
        if known.contains(&name.as_str()) && scope.depth > 0 {
            let other = format!("{}-{name}", scope.stack());
            scope
                .note(format!("Resources.{id}: another template has a function {name}: this one is {other}"));
            name = other;
        }
        let mut texts = Map::new();
        let read = self.read_function(id, &name, resource, globals, scope, &mut texts);
        match read {
            Ok((declared, routes)) => {
                let target = Target { name: declared.name.clone(), qualifier: declared.alias.clone() };
                self.template.functions.push(declared);
                Some((id.into(), target, routes))
            }
            Err(error) => {
                let text = |key: &str| texts.get(key).and_then(Json::as_str).map(String::from);
                let (code, reason) = (Refused::code(&error), format!("{error:#}"));
                let (runtime, handler) = (text("Runtime"), text("Handler"));
                let id = scope.path_of(id);
                let properties = texts;
                self.template.failed.push(Failed { id, name, runtime, handler, properties, code, reason });
                None
            }
        }
    }

    /// Whether a queue would call a function with tenant isolation.
    fn has_tenants(&self, mapping: &Mapping) -> bool {
        let name = mapping.target.split(':').next();
        self.template.functions.iter().any(|one| one.settings.per_tenant && Some(one.name.as_str()) == name)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let served = self.template.functions.iter().map(|function| function.name.as_str());
        served.chain(self.template.failed.iter().map(|function| function.name.as_str()))
    }

    fn read_function(
        &mut self,
        id: &str,
        name: &str,
        resource: &Json,
        globals: &Map<String, Json>,
        scope: &Scope,
        texts: &mut Map<String, Json>,
    ) -> Result<(Declared, Map<String, Json>)> {
        let place = format!("Resources.{id}.Properties");
        let none = Map::new();
        let is_lambda = resource.get("Type").is_some_and(|kind| kind == LAMBDA);
        let lambda = is_lambda.then(|| function::of_lambda(resource, &scope.folder));
        let own = lambda.as_ref().or(resource.get("Properties").and_then(Json::as_object)).unwrap_or(&none);
        note_unknown(own, scope, &place);
        let raw = if is_lambda { own.clone() } else { globals::merged(globals, own) };
        let events = raw.get("Events").and_then(Json::as_object).cloned().unwrap_or_default();
        // The cheap ones first, so that a failed function shows them.
        for key in ["Runtime", "Handler"].into_iter().chain(KNOWN) {
            let Some(value) = raw.get(key).filter(|_| !matches!(key, "Events" | "FunctionName")) else {
                continue;
            };
            // A line about a value of all functions is logged once.
            let at: &str = if own.contains_key(key) { &place } else { "Globals.Function" };
            let value = scope.resolve(value, &format!("{at}.{key}"));
            let value = match value.with_context(|| key.to_string()).with_context(|| place.clone()) {
                Err(error) if NEEDLESS.contains(&key) => {
                    scope.note(format!("{error:#}: it is passed over"));
                    continue;
                }
                value => value?,
            };
            texts.extend(value.map(|value| (key.to_string(), value)));
        }
        ensure!(!self.names().any(|known| known == name), "{place}: FunctionName '{name}' is there twice");
        let mut properties = texts.clone();
        self.replace_variables(id, name, &mut properties, scope);
        let mut declared =
            function::read(id, name, properties, scope, &place, self.options).context(place.clone())?;
        function::of_mayfly(resource, &mut declared.settings, &scope.folder)
            .with_context(|| format!("Resources.{id}"))?;
        if declared.settings.per_tenant {
            function::check_tenancy(&raw, scope, &place).with_context(|| place.clone())?;
            let none = events.keys().map(|event| format!("{place}.Events.{event}: {NO_TENANT}"));
            self.template.missing.extend(none);
            return Ok((declared, Map::new()));
        }
        let (sources, missing) = events::sources(&events, scope, &place);
        let target = Target { name: name.into(), qualifier: declared.alias.clone() };
        self.template.mappings.extend(sources.into_iter().map(|given| mappings::mapping(&target, given)));
        self.template.missing.extend(missing);
        Ok((declared, events::routes(&events, scope, id)))
    }

    /// As `sam local` has it: only variables that the template declares are replaced.
    fn replace_variables(&self, id: &str, name: &str, properties: &mut Map<String, Json>, scope: &Scope) {
        let declared =
            properties.get_mut("Environment").and_then(|environment| environment.get_mut("Variables"));
        let mut none = Map::new();
        let declared = declared.and_then(Json::as_object_mut).unwrap_or(&mut none);
        for function in ["Parameters", name, id] {
            for (variable, value) in self.variables.get(function).into_iter().flatten() {
                match declared.get_mut(variable) {
                    Some(known) => known.clone_from(value),
                    None if function == "Parameters" => {}
                    None => scope.note(format!(
                        "--env-vars: {name} declares no variable {variable}: it is passed over"
                    )),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
