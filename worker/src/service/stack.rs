//! Deploys a template's functions and layers into the worker, at its start and when the template is read
//! anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::api;
use crate::base::error::ApiError;
use crate::base::name;
use crate::code::Code;
use crate::code::lambda_layers::{Layer, OptMount};
use crate::code::python_packages;
use crate::control::{Changed, Worker};
use crate::function::definition::{Alias, FunctionUrl};
use crate::function::http_api::HttpApi;
use crate::function::schedule::Scheduled;
use crate::function::template::{self, Declared, DeclaredLayer, DeclaredUrl, LATEST_OF_LAYER, Package};
use crate::service::sources::Sources;
use worker_container::worker_is_root;

/// What a template declares, with the packages that its functions name.
#[derive(Default)]
pub(crate) struct Stack {
    layers: Vec<DeclaredLayer>,
    functions: Vec<(Declared, Option<PathBuf>)>,
    http_apis: Vec<HttpApi>,
    schedules: BTreeMap<String, Vec<Scheduled>>,
}

/// A function that can be put into the worker.
pub(crate) struct Ready {
    pub declared: Declared,
    pub code: Code,
    pub opt: OptMount,
}

impl Stack {
    /// Reads a template, and installs what its functions name.
    ///
    /// # Errors
    /// The template is wrong, and where.
    pub fn read(template: &Path, cache: &Path) -> Result<Stack> {
        let template = template::read(template)?;
        let with_packages = |function: Declared| {
            let packages = match &function.package {
                Package::Folder(folder) => python_packages::layer(&function.settings.runtime, folder, cache)?,
                Package::Image(..) => None,
            };
            Ok((function, packages))
        };
        let functions = template.functions.into_iter().map(with_packages).collect::<Result<_>>()?;
        let (http_apis, schedules) = (template.http_apis, template.schedules);
        Ok(Stack { layers: template.layers, functions, http_apis, schedules })
    }

    /// Its functions.
    pub fn functions(&self) -> impl Iterator<Item = &Declared> {
        self.functions.iter().map(|(function, _)| function)
    }

    /// Its HTTP APIs.
    pub fn http_apis(&self) -> Vec<HttpApi> {
        self.http_apis.clone()
    }

    /// The queues and schedules that functions are called from, by the called function, or by its published
    /// alias.
    pub fn sources(&self) -> Sources {
        let with = self.functions().filter(|function| !function.sources.is_empty());
        let of = |function: &Declared| {
            let alias = function.alias.as_ref().map(|alias| format!(":{alias}")).unwrap_or_default();
            (format!("{}{alias}", function.name), function.sources.clone())
        };
        Sources { queues: with.map(of).collect(), schedules: self.schedules.clone() }
    }

    /// Checks that this worker has what the functions need.
    ///
    /// # Errors
    /// A function needs a network, an SQS server or a VM feature that this worker lacks.
    pub fn check(&self, outside: bool, in_vm: bool, queues: bool) -> Result<()> {
        if let (Some(function), false) =
            (self.functions().find(|function| !function.sources.is_empty()), queues)
        {
            bail!(
                "{}: Events of Type SQS need a server that speaks SQS' API (mayfly up --queues ADDRESS)",
                function.name
            );
        }
        let reaches_out = outside || self.functions().any(|function| function.settings.outside == Some(true));
        ensure!(!reaches_out || worker_is_root(), "Network: outside needs root");
        let pages_out = self.functions().any(|function| function.settings.page_out_after_s.is_some());
        ensure!(
            !pages_out || (worker_is_root() && !in_vm),
            "PageOutAfter needs root, and instances that are processes of this host (no --sandbox vm)"
        );
        let with_versions = self.functions().find(|function| function.alias.is_some());
        if let (Some(function), true) = (with_versions, in_vm) {
            bail!(
                "{}: AutoPublishAlias needs instances that are processes of this host (no --sandbox vm)",
                function.name
            );
        }
        Ok(())
    }

    /// Publishes the layers that have changed, and reads the code. Nothing that is served changes yet.
    ///
    /// # Errors
    /// A folder that cannot be read, a layer that is not there.
    pub fn ready(self, worker: &Worker) -> Result<Vec<Ready>> {
        for layer in &self.layers {
            publish(worker, layer).with_context(|| format!("layer {}", layer.name))?;
        }
        let ready = |(mut declared, packages): (Declared, Option<PathBuf>)| {
            let made = || -> Result<Ready> {
                for arn in &mut declared.settings.layers {
                    latest(worker, arn)?;
                }
                let code = match &declared.package {
                    Package::Folder(folder) => {
                        Code::from_folder(folder).map_err(|error| anyhow!("CodeUri: {}", error.message))?
                    }
                    Package::Image(uri, base) => {
                        Code::of_operators_image(uri, base, &worker.options.cache, worker.folder())?
                    }
                };
                worker.options.python.provide(&declared.settings.runtime)?;
                let opt = worker.opt(&declared.settings.layers, packages).map_err(plain)?;
                Ok(Ready { declared, code, opt })
            };
            made()
        };
        let each = self.functions.into_iter().map(|function| {
            let name = function.0.name.clone();
            ready(function).context(name)
        });
        each.collect()
    }
}

fn plain(error: ApiError) -> anyhow::Error {
    anyhow!("{}", error.message)
}

fn publish(worker: &Worker, layer: &DeclaredLayer) -> Result<()> {
    let code = Code::from_folder(&layer.content).map_err(|error| anyhow!("ContentUri: {}", error.message))?;
    let latest = worker.layers(|layers| layers.versions(&layer.name)).into_iter().next();
    if latest.is_none_or(|latest| latest.code.sha256 != code.sha256) {
        worker.publish_layer(Layer {
            name: layer.name.clone(),
            version: 0,
            code,
            description: layer.description.clone(),
            license: layer.license.clone(),
            runtimes: layer.runtimes.clone(),
            created: SystemTime::now(),
        });
    }
    Ok(())
}

/// Replaces the names of the template's own layers by their latest versions.
fn latest(worker: &Worker, arn: &mut String) -> Result<()> {
    if let Some((name, LATEST_OF_LAYER)) = name::parse_layer_arn(arn) {
        let versions = worker.layers(|layers| layers.versions(name));
        *arn = versions.first().with_context(|| format!("Layers: there is no {name}"))?.arn();
    }
    Ok(())
}

/// Creates and updates functions, and deletes those that only the earlier template had. Unchanged functions
/// keep their instances, unless they live in one of the `replaced` VMs. `urls` are those of an earlier
/// worker. Returns the names of all.
///
/// # Errors
/// The worker refuses a function; those before it are deployed.
pub(crate) fn deploy(
    worker: &Arc<Worker>,
    functions: Vec<Ready>,
    earlier: &BTreeSet<String>,
    urls: &BTreeMap<String, FunctionUrl>,
    replaced: &BTreeSet<Option<String>>,
) -> Result<BTreeSet<String>> {
    let names: BTreeSet<String> = functions.iter().map(|function| function.declared.name.clone()).collect();
    for gone in earlier.difference(&names) {
        // A caller of the API may have deleted it meanwhile.
        let _ = worker.delete(gone);
        worker.persist(&Changed::Function(gone.clone())).map_err(plain)?;
        tracing::info!("{gone} was deleted: the template lacks it");
    }
    for function in functions {
        let name = function.declared.name.clone();
        let url = urls.get(&name).cloned();
        let stays = !replaced.contains(&function.declared.settings.vm);
        deploy_one(worker, function, url, stays).map_err(plain).context(name)?;
    }
    Ok(names)
}

fn deploy_one(
    worker: &Arc<Worker>,
    Ready { declared, code, opt }: Ready,
    earlier_url: Option<FunctionUrl>,
    stays: bool,
) -> Result<(), ApiError> {
    let name = &declared.name;
    match worker.function(name) {
        Err(_) => {
            worker.create(name, declared.settings, code, opt)?;
        }
        Ok(known) => {
            let now = &known.deployment;
            let same_code = (&now.code.folder, &now.code.sha256) == (&code.folder, &code.sha256);
            let is_same = same_code && now.settings == declared.settings && now.opt.sources == opt.sources;
            if !is_same {
                tracing::info!("{name} has changed");
            }
            if !(is_same && stays) {
                worker.update(name, |_| Ok((declared.settings, code, opt)))?;
            }
        }
    }
    worker.reserve(name, declared.reserved)?;
    worker.change_tags(name, |tags| *tags = declared.tags)?;
    worker.change_events(name, declared.events)?;
    if let Some(alias) = &declared.alias {
        let version = worker.publish(name, None, |_| Ok(()))?.version.clone();
        worker.change_alias(name, alias, |_| {
            let (description, revision) = (String::new(), uuid::Uuid::new_v4().to_string());
            Ok(Some(Alias { version, description, revision }))
        })?;
    }
    worker.change_url(name, |known| {
        // A URL that stays keeps its address.
        let Some(DeclaredUrl { auth_type, streams, cors }) = declared.url else { return Ok(None) };
        let same = |url: &FunctionUrl| url.auth_type == auth_type && url.alias == declared.alias;
        let stays = known.or(earlier_url).filter(same);
        let url = stays.unwrap_or_else(|| api::new_url(&auth_type, streams, declared.alias.clone()));
        Ok(Some(FunctionUrl { streams, cors, ..url }))
    })?;
    Ok(())
}
