//! The names in a template: its parameters, pseudo parameters and resources, and their values.
//!
//! A resource is named by its logical id, as `sam local` has it, and its attributes by `ID.Attribute`. Where
//! there is no such resource here, a function that uses it must be configured in another way, and a line
//! is logged.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

use super::http_apis::is_api;
use super::yaml::{measure, text_of, weight_of};
use super::{LATEST_OF_LAYER, is_function, is_layer, kind_of, loops, parameters};
use crate::base::{limits, name};

/// The id in the ARN of the stack.
const STACK_ID: &str = "00000000-0000-0000-0000-000000000000";
/// Ids of resources that SAM makes for events of a function.
const IMPLICIT: [&str; 2] = ["ServerlessRestApi", "ServerlessHttpApi"];

/// The beginning of the types of API Gateway's resources.
const API: &str = "AWS::ApiGateway";
/// The attribute of a REST API that names its path `/`.
pub const ROOT: &str = "RootResourceId";
/// Resources that stand for a function.
const OF_FUNCTIONS: [&str; 2] = ["AWS::Lambda::Alias", "AWS::Lambda::Version"];

/// Values that evaluation may make, in a template and all within it: names of names multiply, as texts do.
const WORK: usize = 1_000_000;
/// How deep evaluation may be: a value, and the names that it needs.
const LEVELS: usize = 250;

/// The values of names in a template.
pub struct Scope {
    /// The template.
    pub template: Json,
    /// Where its relative paths begin.
    pub folder: PathBuf,
    parameters: BTreeMap<String, Json>,
    stack: String,
    /// How many templates it lies within.
    pub depth: usize,
    /// Whether its functions run on the nearest version of their language.
    pub takes_nearest: Cell<bool>,
    /// Names that are being evaluated: one that needs itself has no value.
    busy: RefCell<BTreeSet<String>>,
    notes: RefCell<Vec<String>>,
    /// The same lines, which are kept once.
    noted: RefCell<BTreeSet<String>>,
    effort: Rc<Effort>,
}

/// What evaluation has taken so far, of a template and all within it.
#[derive(Default)]
pub(super) struct Effort {
    /// Values that were made.
    work: Cell<usize>,
    level: Cell<usize>,
}

impl Scope {
    /// The names of a template; `given` are values of parameters.
    ///
    /// # Errors
    /// A loop in it is wrong.
    pub fn new(template: Json, folder: &Path, stack: &str, given: &BTreeMap<String, Json>) -> Result<Scope> {
        Scope::within(template, folder, stack, given, Rc::default())
    }

    /// As [`Scope::new`], of a template that lies in one whose evaluation has taken so much.
    pub(super) fn within(
        mut template: Json,
        folder: &Path,
        stack: &str,
        given: &BTreeMap<String, Json>,
        effort: Rc<Effort>,
    ) -> Result<Scope> {
        let loops = template.as_object_mut().map(std::mem::take).unwrap_or_default();
        let mut scope = Scope {
            template: Json::Object(loops.clone()),
            folder: folder.into(),
            parameters: BTreeMap::new(),
            stack: stack.into(),
            depth: 0,
            takes_nearest: Cell::new(false),
            busy: RefCell::default(),
            notes: RefCell::default(),
            noted: RefCell::default(),
            effort,
        };
        let mut values = BTreeMap::new();
        for (name, declared) in scope.part("Parameters") {
            let Some(value) = parameters::value(declared, given.get(name)) else { continue };
            let kind = declared.get("Type").and_then(Json::as_str).unwrap_or_default();
            if kind.starts_with("AWS::SSM::") {
                let shown = text_of(&value);
                scope
                    .note(format!("Parameters.{name}: there is no SSM here: '{shown}' stands for its value"));
            }
            values.insert(name.clone(), value);
        }
        scope.parameters = values;
        for name in given.keys().filter(|name| !scope.part("Parameters").any(|(known, _)| known == *name)) {
            scope.note(format!("there is no parameter {name}: its value is passed over"));
        }
        let list = |collection: &Json| match scope.resolve(collection, "Fn::ForEach")? {
            Some(Json::Array(list)) => Ok(list.iter().map(text_of).collect()),
            _ => bail!("its collection is no list"),
        };
        let expanded = loops::expand(Json::Object(loops), &list, &|work| scope.spend(work))?;
        scope.template = expanded;
        Ok(scope)
    }

    /// The members of a part of the template.
    pub fn part(&self, name: &str) -> impl Iterator<Item = (&String, &Json)> {
        self.template.get(name).and_then(Json::as_object).into_iter().flatten()
    }

    /// A resource.
    pub fn resource(&self, id: &str) -> Option<&Json> {
        self.template.get("Resources")?.get(id)
    }

    /// Keeps a line for the log.
    pub fn note(&self, line: String) {
        if self.noted.borrow_mut().insert(line.clone()) {
            self.notes.borrow_mut().push(line);
        }
    }

    /// The lines for the log.
    pub fn take_notes(&self) -> Vec<String> {
        self.noted.take();
        self.notes.take()
    }

    /// The stack's name.
    pub fn stack(&self) -> &str {
        &self.stack
    }

    /// A resource's id, after those of the templates that it lies in.
    pub(super) fn path_of(&self, id: &str) -> String {
        // The stack of a template within another is named OUTER-ID, and ids have no '-'.
        let outer = self.stack.split('-').skip(1).map(|part| format!("{part}/"));
        outer.collect::<String>() + id
    }

    /// Evaluates what a name stands for, unless that needs itself.
    pub(super) fn guarded<T>(&self, name: &str, of: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.busy.borrow_mut().insert(name.to_string()) {
            bail!("{name} needs itself");
        }
        let value = self.deeper(of);
        self.busy.borrow_mut().remove(name);
        value
    }

    /// Counts values that are made.
    ///
    /// # Errors
    /// They are too many.
    pub(super) fn spend(&self, values: usize) -> Result<()> {
        let work = &self.effort.work;
        work.set(work.get().saturating_add(values));
        ensure!(work.get() <= WORK, "evaluating it makes more than {WORK} values");
        Ok(())
    }

    /// For a template within this one.
    pub(super) fn effort(&self) -> Rc<Effort> {
        self.effort.clone()
    }

    /// Evaluates a part of what is being evaluated.
    pub(super) fn deeper<T>(&self, of: impl FnOnce() -> Result<T>) -> Result<T> {
        self.spend(1)?;
        let level = self.effort.level.get();
        ensure!(level < LEVELS, "values and names lie too deep in one another");
        self.effort.level.set(level + 1);
        let value = of();
        self.effort.level.set(level);
        value
    }

    /// The name that a resource has: a property of it, or its logical id.
    pub fn name_of(&self, id: &str, property: &str) -> String {
        let given = self.resource(id).and_then(|resource| resource.get("Properties")?.get(property));
        let Some(given) = given else { return self.name_by_id(id, property) };
        let place = format!("Resources.{id}.Properties.{property}");
        let value = match self.guarded(&place, || self.resolve(given, &place)) {
            Ok(value) => value,
            Err(error) => {
                self.note(format!("{place}: {error:#}: it is named {id}"));
                None
            }
        };
        let name = value.as_ref().map(text_of).filter(|name| !name.is_empty());
        name.unwrap_or_else(|| self.name_by_id(id, property))
    }

    /// The name of a resource that declares none. CloudFormation shortens ids that are too long, too.
    fn name_by_id(&self, id: &str, property: &str) -> String {
        if property != "FunctionName" || id.len() <= limits::FUNCTION_NAME || !id.is_ascii() {
            return id.into();
        }
        let digest = Sha256::digest(id);
        let end: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let name = format!("{}-{end}", &id[..limits::FUNCTION_NAME - end.len() - 1]);
        self.note(format!("Resources.{id}: an id is too long for a function's name: this one is {name}"));
        name
    }

    /// The name of a queue: that of a FIFO queue ends so, also where CloudFormation makes it up.
    fn queue_name(&self, id: &str) -> String {
        let name = self.name_of(id, "QueueName");
        let is_true = |value: &Json| *value == Json::Bool(true) || value == "true";
        let given = self.resource(id).and_then(|resource| resource.get("Properties")?.get("FifoQueue"));
        let is_fifo =
            given.is_some_and(|given| self.resolve(given, id).ok().flatten().as_ref().is_some_and(is_true));
        if is_fifo && !name.ends_with(".fifo") { format!("{name}.fifo") } else { name }
    }

    /// The value of a name; none is left out.
    ///
    /// # Errors
    /// There is no such name.
    pub(super) fn reference(&self, name: &str, place: &str) -> Result<Option<Json>> {
        let pseudo = match name {
            "AWS::NoValue" => return Ok(None),
            "AWS::Region" => name::REGION.into(),
            "AWS::AccountId" => name::ACCOUNT.into(),
            "AWS::Partition" => "aws".into(),
            "AWS::StackName" => self.stack.clone().into(),
            "AWS::URLSuffix" => "amazonaws.com".into(),
            "AWS::NotificationARNs" => json!([]),
            "AWS::StackId" => {
                let (region, account, stack) = (name::REGION, name::ACCOUNT, &self.stack);
                format!("arn:aws:cloudformation:{region}:{account}:stack/{stack}/{STACK_ID}").into()
            }
            _ => Json::Null,
        };
        if !pseudo.is_null() {
            return Ok(Some(pseudo));
        }
        if let Some(value) = self.parameters.get(name) {
            self.spend(measure(value).0)?;
            return Ok(Some(value.clone()));
        }
        if self.part("Parameters").any(|(declared, _)| declared == name) {
            self.note(format!(
                "{place}: the parameter {name} has no Default: its name stands for it (--parameter-overrides {name}=VALUE)"
            ));
            return Ok(Some(name.into()));
        }
        match self.resource(name) {
            Some(resource) if is_function(resource) => Ok(Some(self.name_of(name, "FunctionName").into())),
            Some(resource) if is_layer(resource) => {
                let layer = self.name_of(name, "LayerName");
                Ok(Some(name::layer_arn(&format!("{layer}:{LATEST_OF_LAYER}")).into()))
            }
            // An API has this id here, too.
            Some(resource) if kind_of(resource).starts_with(API) || is_api(kind_of(resource)) => {
                Ok(Some(name.into()))
            }
            None if IMPLICIT.contains(&name) => Ok(Some(name.into())),
            Some(resource) if OF_FUNCTIONS.contains(&kind_of(resource)) => {
                self.function_of(name, resource, place)
            }
            None if !self.is_generated(name) => {
                bail!("Ref {name}: there is no parameter and no resource of this name")
            }
            _ => Ok(Some(self.of_function(name).unwrap_or_else(|| {
                self.note(format!("{place}: there is no {name} here: its name stands for it"));
                name.into()
            }))),
        }
    }

    /// Whether SAM makes a resource of this id: such ids begin with that of the resource they are made for.
    fn is_generated(&self, id: &str) -> bool {
        let before_dot = id.split('.').next().unwrap_or(id);
        let is_serverless = |(own, resource): (&String, &Json)| {
            let kind = resource.get("Type").and_then(Json::as_str).unwrap_or_default();
            kind.starts_with("AWS::Serverless::") && before_dot.starts_with(own.as_str())
        };
        IMPLICIT.iter().any(|implicit| id.starts_with(implicit)) || self.part("Resources").any(is_serverless)
    }

    /// The ARN of the function that an alias or a version is of: the worker serves `$LATEST` in its place.
    fn function_of(&self, id: &str, resource: &Json, place: &str) -> Result<Option<Json>> {
        let own = resource.get("Properties");
        let named = own.and_then(|own| own.get("FunctionName"));
        let named = named.with_context(|| format!("{id} names no function"))?;
        let value = self.guarded(&format!("the function of {id}"), || self.resolve(named, place))?;
        let target = name::parse(&value.as_ref().map(text_of).unwrap_or_default());
        Ok(Some(target.map_or_else(|_| id.into(), |target| name::arn(&target.name).into())))
    }

    /// `ID.Alias` and `ID.Version` of a function with AutoPublishAlias.
    fn of_function(&self, name: &str) -> Option<Json> {
        let (id, "Alias" | "Version") = name.split_once('.')? else { return None };
        let alias = self.resource(id).filter(|resource| is_function(resource))?;
        alias.get("Properties")?.get("AutoPublishAlias")?;
        let (function, alias) = (self.name_of(id, "FunctionName"), self.name_of(id, "AutoPublishAlias"));
        Some(name::arn(&format!("{function}:{alias}")).into())
    }

    /// An attribute of a resource.
    pub(super) fn attribute(&self, id: &str, attribute: &str, place: &str) -> Json {
        let kind = self.resource(id).map(kind_of).unwrap_or_default();
        let known = match (kind, attribute) {
            (_, "RestApiId" | "ApiId" | "ResourceId") if kind.starts_with(API) => Some(id.into()),
            (_, ROOT) if kind.starts_with(API) => Some(format!("{id}.{}", ROOT)),
            (_, "Arn") if self.resource(id).is_some_and(is_function) => {
                Some(name::arn(&self.name_of(id, "FunctionName")))
            }
            ("AWS::SQS::Queue", "Arn") => {
                let queue = self.queue_name(id);
                Some(format!("arn:aws:sqs:{}:{}:{queue}", name::REGION, name::ACCOUNT))
            }
            ("AWS::SQS::Queue", "QueueName") => Some(self.queue_name(id)),
            ("AWS::IAM::Role", "Arn") => {
                Some(format!("arn:aws:iam::{}:role/{}", name::ACCOUNT, self.name_of(id, "RoleName")))
            }
            ("", "Arn") if id.ends_with("Role") && self.is_generated(id) => {
                Some(format!("arn:aws:iam::{}:role/{id}", name::ACCOUNT))
            }
            _ => self.of_function(&format!("{id}.{attribute}")).as_ref().map(text_of),
        };
        if let Some(known) = known {
            return known.into();
        }
        if let Some(output) = attribute.strip_prefix("Outputs.") {
            match self.output(id, output) {
                Ok(None) => {}
                Ok(Some(value)) => return value,
                Err(error) => self.note(format!("{place}: {error:#}")),
            }
        }
        self.note(format!(
            "{place}: there is no {id}.{attribute} here: the text '{id}.{attribute}' stands for it"
        ));
        format!("{id}.{attribute}").into()
    }

    /// An output of a nested template.
    fn output(&self, id: &str, output: &str) -> Result<Option<Json>> {
        self.guarded(&format!("the output {id}.{output}"), || {
            let Some(inner) = self.nested(id)? else { return Ok(None) };
            let value = inner.template.get("Outputs").and_then(|outputs| outputs.get(output)?.get("Value"));
            let value = value.with_context(|| format!("{id} has no output {output}"))?;
            inner.resolve(value, &format!("Outputs.{output}"))
        })
    }

    /// Replaces `${NAME}`; `${!NAME}` stands for `${NAME}` itself.
    pub(super) fn substitute(&self, text: &str, own: &Map<String, Json>, place: &str) -> Result<Json> {
        let (mut made, mut rest) = (String::new(), text);
        while let Some(start) = rest.find("${") {
            let end =
                rest[start..].find('}').with_context(|| format!("Sub '{text}': a }} is missing"))? + start;
            made.push_str(&rest[..start]);
            let name = rest[start + 2..end].trim();
            let value = match (name.strip_prefix('!'), own.get(name), name.split_once('.')) {
                (Some(literal), ..) => Some(format!("${{{literal}}}").into()),
                (None, Some(value), _) => Some(value.clone()),
                (None, None, Some((id, attribute))) => Some(self.attribute(id, attribute, place)),
                (None, None, None) => self.reference(name, place)?,
            };
            let value = value.as_ref().map(text_of).unwrap_or_default();
            self.spend(weight_of(value.len()))?;
            made.push_str(&value);
            rest = &rest[end + 1..];
        }
        Ok(Json::String(made + rest))
    }
}
