//! A template with the runtimes, packages and code that its functions need: read, checked and prepared,
//! before anything that is served changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Map;

use crate::base::error::ApiError;
use crate::base::{limits, name};
use crate::code::Code;
use crate::code::installed::Installed;
use crate::code::lambda_layers::{Layer, OptMount};
use crate::code::runtime::Runtime;
use crate::code::{public_layers, python_packages};
use crate::control::Worker;
use crate::function::failed::{Failed, ReasonCode, Refused};
use crate::function::http_api::HttpApi;
use crate::function::queue_source::Mapping;
use crate::function::schedule::Scheduled;
use crate::function::template::{self, Declared, DeclaredLayer, LATEST_OF_LAYER, Package};
use crate::function::worker_options::TemplateOptions;
use crate::service::parts::{self, Parts};
use crate::service::sources::Sources;
use worker_container::rights::{no_network, no_page_out};

/// What a worker has for functions.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Functions without a setting for it reach the outside world.
    pub outside: bool,
    /// Instances run in VMs.
    pub in_vm: bool,
    /// There is a server for queues.
    pub queues: bool,
    /// The memory of all instances together, where they are not in VMs.
    pub memory_mib: u64,
}

/// What a template declares, with the packages that its functions name.
#[derive(Default)]
pub(crate) struct Stack {
    template: PathBuf,
    pub layers: Vec<DeclaredLayer>,
    pub functions: Vec<(Declared, Vec<PathBuf>)>,
    http_apis: Vec<HttpApi>,
    schedules: BTreeMap<String, Vec<Scheduled>>,
    mappings: Vec<Mapping>,
    pub failed: Vec<Failed>,
    pub missing: Vec<String>,
    pub notes: Vec<String>,
    strict: bool,
    takes_nearest: bool,
}

/// A function that can be put into the worker.
pub(crate) struct Ready {
    pub declared: Declared,
    pub code: Code,
    pub opt: OptMount,
}

/// What of a template can be served, and what cannot.
pub(crate) struct Prepared {
    pub functions: Vec<Ready>,
    pub failed: Vec<Failed>,
    template: PathBuf,
    pub missing: Vec<String>,
    pub strict: bool,
}

impl Stack {
    /// Reads a template, and installs nothing.
    ///
    /// # Errors
    /// The template as a whole is wrong, and where.
    pub fn declared(path: &Path, options: &TemplateOptions) -> Result<Stack> {
        let mut template = template::read(path, options)?;
        template.take_layers(&options.layers);
        for function in &template.functions {
            let settings = &function.settings;
            template.notes.extend(public_layers::notes(&settings.layers, &settings.runtime, &function.name));
        }
        Ok(Stack {
            template: path.into(),
            layers: template.layers,
            functions: template.functions.into_iter().map(|function| (function, Vec::new())).collect(),
            http_apis: template.http_apis,
            schedules: template.schedules,
            mappings: template.mappings,
            failed: template.failed,
            missing: template.missing,
            notes: template.notes,
            strict: options.strict,
            takes_nearest: template.takes_nearest,
        })
    }

    /// Reads a template, and installs what its functions name.
    ///
    /// # Errors
    /// The template as a whole is wrong, and where.
    pub fn read(path: &Path, installed: &Installed, options: &TemplateOptions) -> Result<Stack> {
        let mut stack = Stack::declared(path, options)?;
        for note in std::mem::take(&mut stack.notes) {
            tracing::warn!("{note}");
        }
        let cache = installed.cache();
        let mut runtimes = Runtimes { installed, takes_nearest: stack.takes_nearest, known: BTreeMap::new() };
        for (mut function, _) in std::mem::take(&mut stack.functions) {
            if let Err(error) = runtimes.provide(&mut function) {
                stack.failed.push(failed(&function, &error));
                continue;
            }
            match packages(&mut function, cache, options).map_err(Refused::of(ReasonCode::Dependency)) {
                Ok(packages) => stack.functions.push((function, packages)),
                Err(error) => stack.failed.push(failed(&function, &error)),
            }
        }
        Ok(stack)
    }

    /// Its functions.
    pub fn functions(&self) -> impl Iterator<Item = &Declared> {
        self.functions.iter().map(|(function, _)| function)
    }

    /// Its HTTP APIs.
    pub fn http_apis(&self) -> Vec<HttpApi> {
        self.http_apis.clone()
    }

    /// The queues and schedules that functions are called from.
    pub fn sources(&self) -> Sources {
        let is_served =
            |mapping: &&Mapping| self.functions().any(|function| function.name == function_of(mapping));
        let queues = self.mappings.iter().filter(is_served).cloned().collect();
        Sources { queues, schedules: self.schedules.clone() }
    }

    /// Takes out what this worker cannot serve: functions that need a network, a VM feature or memory that it
    /// lacks, and queues without a server.
    ///
    /// # Errors
    /// Every function would need what it lacks.
    pub fn check(&mut self, offer: Offer) -> Result<()> {
        let Offer { outside, in_vm, queues, memory_mib } = offer;
        let (no_network, no_page_out) = (no_network(), no_page_out());
        if let (true, Some(why)) = (outside, &no_network) {
            bail!("{why}");
        }
        let fault = |function: &Declared| {
            let settings = &function.settings;
            if let (Some(true), Some(why)) = (settings.outside, &no_network) {
                return Some(why.as_str());
            }
            if settings.page_out_after_s.is_some() {
                if in_vm {
                    return Some(
                        "PageOutAfter needs instances that are processes of this host (no --sandbox vm)",
                    );
                }
                if let Some(why) = &no_page_out {
                    return Some(why.as_str());
                }
            }
            if settings.per_tenant && in_vm {
                return Some(
                    "TenancyConfig needs instances that are processes of this host (no --sandbox vm)",
                );
            }
            let guest_lacks_it = matches!(settings.runtime, Runtime::Java(..) | Runtime::Ruby(..));
            if in_vm && (guest_lacks_it || settings.runtime.has_own_system()) {
                return Some(
                    "the VM has no such runtime: it runs in instances that are processes of this host (no --sandbox vm)",
                );
            }
            (function.alias.is_some() && in_vm).then_some(
                "AutoPublishAlias needs instances that are processes of this host (no --sandbox vm)",
            )
        };
        for (function, packages) in std::mem::take(&mut self.functions) {
            let fits = limits::check_memory(function.settings.memory_mib, memory_mib);
            let too_large = fits.err().filter(|_| !in_vm); // The VMs' memory is made for their functions.
            if let Some(fault) = too_large.or_else(|| fault(&function).map(String::from)) {
                self.failed.push(failed(&function, &anyhow!("{fault}")));
                continue;
            }
            let is_its =
                |mapping: &&Mapping| mapping.given.is_enabled() && function_of(mapping) == function.name;
            if !queues && self.mappings.iter().any(|mapping| is_its(&mapping)) {
                self.missing.push(format!(
                    "{}: Events of Type SQS need a server that speaks SQS' API (mayfly up --queues ADDRESS)",
                    function.name
                ));
            }
            self.functions.push((function, packages));
        }
        if !queues {
            self.mappings.clear();
        }
        Ok(())
    }

    /// Publishes the layers that have changed, and reads the code. Nothing that is served changes yet.
    ///
    /// # Errors
    /// No function can be served, or one cannot and the worker is strict.
    pub fn ready(self, worker: &Worker) -> Result<Prepared> {
        let Stack { template, layers, functions, mut failed, missing, strict, .. } = self;
        let of_functions = functions.iter().map(|(function, _)| function.package.clone());
        let of_layers =
            layers.iter().filter_map(|layer| Some(Package::Path(layer.content.as_ref().ok()?.clone())));
        let codes = parts::codes(worker, of_functions.chain(of_layers).collect());
        let mut unpublished = BTreeMap::new();
        for layer in layers {
            let name = layer.name.clone();
            if let Err(error) = publish(worker, layer, &codes) {
                unpublished.insert(name, format!("{error:#}"));
            }
        }
        let mut named = Vec::new();
        for (mut declared, packages) in functions {
            let arns = &mut declared.settings.layers;
            match arns.iter_mut().try_for_each(|arn| latest(worker, arn, &unpublished)) {
                Ok(()) => {
                    let below = (arns.clone(), packages);
                    named.push((declared, below));
                }
                Err(error) => {
                    failed.push(self::failed(&declared, &Refused::of(ReasonCode::Dependency)(error)));
                }
            }
        }
        let opts = parts::opts(worker, named.iter().map(|(_, below)| below.clone()).collect());
        let (mut ready, mut kinds) = (Vec::new(), BTreeSet::new());
        for (declared, below) in named {
            match made(worker, &declared, &codes, &opts[&below]) {
                Ok((code, opt)) => {
                    let runtime = declared.settings.runtime.clone();
                    kinds.insert((runtime, code.folder.clone(), opt.sources.clone()));
                    ready.push(Ready { declared, code, opt });
                }
                Err(error) => failed.push(self::failed(&declared, &error)),
            }
        }
        parts::provide_sdk(worker, kinds);
        let prepared = Prepared { functions: ready, failed, template, missing, strict };
        prepared.check()?;
        Ok(prepared)
    }
}

impl Prepared {
    /// Reports every fault at once, if one is too many.
    ///
    /// # Errors
    /// No function can be served, or one cannot and the worker is strict.
    pub fn check(&self) -> Result<()> {
        let none = self.functions.is_empty() && !self.failed.is_empty();
        if none || (self.strict && !(self.failed.is_empty() && self.missing.is_empty())) {
            self.report(self.failed.iter())?;
        }
        Ok(())
    }

    /// Refuses a change that would end the service of functions.
    ///
    /// # Errors
    /// One of the `served` cannot be served any more.
    pub fn check_served(&self, served: &BTreeSet<String>) -> Result<()> {
        let lost = || self.failed.iter().filter(|function| served.contains(&function.name));
        if lost().next().is_some() { self.report(lost()) } else { Ok(()) }
    }

    fn report<'a>(&'a self, failed: impl Iterator<Item = &'a Failed>) -> Result<()> {
        let lines: Vec<String> = failed
            .map(|function| format!("{}: {}", function.name, function.reason))
            .chain(self.missing.iter().cloned())
            .collect();
        bail!("{}: {}", self.template.display(), lines.join("\n  "))
    }
}

/// Installs what takes the place of public layers, and what a function's requirements.txt names.
fn packages(function: &mut Declared, cache: &Path, options: &TemplateOptions) -> Result<Vec<PathBuf>> {
    let settings = &mut function.settings;
    let mut folders = public_layers::take(&mut settings.layers, &settings.runtime, cache)?;
    if let Package::Path(folder) = &function.package
        && folder.is_dir()
    {
        folders.extend(python_packages::layer(&settings.runtime, folder, cache, options.pinned)?);
    }
    Ok(folders)
}

/// A function's code, and what it sees below /opt.
fn made(
    worker: &Worker,
    declared: &Declared,
    codes: &Parts<Package, Code>,
    opt: &Result<OptMount, Refused>,
) -> Result<(Code, OptMount)> {
    let code = codes[&declared.package].clone();
    let code = match declared.package {
        Package::Path(_) => code.context("CodeUri"),
        _ => code.map_err(anyhow::Error::new),
    }?;
    let provided = worker.options.installed.provide(&declared.settings.runtime);
    provided.map_err(Refused::of(ReasonCode::Runtime))?;
    Ok((code, opt.clone()?))
}

/// Installs the runtimes of a template's functions, each once: one that cannot be had takes time to find out.
struct Runtimes<'a> {
    installed: &'a Installed,
    takes_nearest: bool,
    /// By name: why it cannot be had, or nothing.
    known: BTreeMap<String, Option<String>>,
}

impl Runtimes<'_> {
    fn provide(&mut self, function: &mut Declared) -> Result<()> {
        let runtime = function.settings.runtime.clone();
        let provide = || self.installed.provide(&runtime).err().map(|error| format!("{error:#}"));
        let known = self.known.entry(runtime.name().into()).or_insert_with(provide);
        let Some(reason) = known else { return Ok(()) };
        let reason = Refused::of(ReasonCode::Runtime)(anyhow!("{reason}"));
        let nearest = Runtime::nearest_of_host(runtime.name());
        match Runtime::parse(&nearest) {
            Ok(other) if self.takes_nearest && other != runtime && other.to_install().is_none() => {
                tracing::warn!("{}: the function runs on {nearest}: {reason:#}", function.name);
                function.settings.runtime = other;
                Ok(())
            }
            _ => Err(reason),
        }
    }
}

/// The name of the function that a queue calls.
fn function_of(mapping: &Mapping) -> &str {
    mapping.target.split(':').next().unwrap_or_default()
}

pub(super) fn failed(function: &Declared, error: &anyhow::Error) -> Failed {
    let settings = &function.settings;
    let text = |text: &str| Some(text.to_string()).filter(|text| !text.is_empty());
    let is_image = matches!(function.package, Package::Image(..));
    Failed {
        id: function.id.clone(),
        name: function.name.clone(),
        runtime: text(settings.runtime.name()).filter(|_| !is_image),
        handler: text(&settings.handler),
        properties: Map::new(),
        code: Refused::code(error),
        reason: format!("{error:#}"),
    }
}

pub(super) fn plain(error: ApiError) -> anyhow::Error {
    anyhow!("{}", error.message)
}

fn publish(worker: &Worker, layer: DeclaredLayer, codes: &Parts<Package, Code>) -> Result<()> {
    let code = codes[&Package::Path(layer.content?)].clone().context("ContentUri")?;
    let latest = worker.layers(|layers| layers.versions(&layer.name)).into_iter().next();
    if latest.is_none_or(|latest| latest.code.sha256 != code.sha256) {
        worker.publish_layer(Layer {
            name: layer.name,
            version: 0,
            code,
            description: layer.description,
            license: layer.license,
            runtimes: layer.runtimes,
            created: SystemTime::now(),
            policy: None,
        });
    }
    Ok(())
}

/// Replaces the names of the template's own layers by their latest versions.
fn latest(worker: &Worker, arn: &mut String, unpublished: &BTreeMap<String, String>) -> Result<()> {
    if let Some((name, LATEST_OF_LAYER)) = name::parse_layer_arn(arn) {
        if let Some(reason) = unpublished.get(name) {
            bail!("layer {name}: {reason}");
        }
        let versions = worker.layers(|layers| layers.versions(name));
        *arn = versions.first().with_context(|| format!("Layers: there is no {name}"))?.arn();
    }
    Ok(())
}
