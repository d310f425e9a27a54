//! Deploys a prepared template into the worker, at its start and when the template is read anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};

use crate::api;
use crate::base::error::ApiError;
use crate::base::name::Target;
use crate::control::{Changed, Worker};
use crate::function::attached::{EventInvoke, key};
use crate::function::definition::{Alias, FunctionUrl};
use crate::function::failed::Failed;
use crate::function::template::DeclaredUrl;
use crate::service::stack::{Prepared, Ready, failed, plain};

/// Creates and updates functions, and deletes those that only the earlier template had. Unchanged functions
/// keep their instances, unless they live in one of the `replaced` VMs. `urls` are those of an earlier
/// worker. Returns the names of all that are served.
///
/// # Errors
/// The worker refuses every function, or one and it is strict; those before it are deployed.
pub(crate) fn deploy(
    worker: &Arc<Worker>,
    mut prepared: Prepared,
    earlier: &BTreeSet<String>,
    urls: &BTreeMap<String, FunctionUrl>,
    replaced: &BTreeSet<Option<String>>,
) -> Result<BTreeSet<String>> {
    for line in &prepared.missing {
        tracing::warn!("{line}");
    }
    for Failed { name, reason, .. } in &prepared.failed {
        tracing::error!("{name} is not served: {reason}");
    }
    worker.set_failed(prepared.failed.clone());
    let functions = std::mem::take(&mut prepared.functions);
    let mut names: BTreeSet<String> =
        functions.iter().map(|function| function.declared.name.clone()).collect();
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
        let described = failed(&function.declared, &anyhow!(""));
        let is_new = worker.function(&name).is_err();
        let Err(error) = deploy_one(worker, function, url, stays) else { continue };
        prepared.failed.push(Failed { reason: error.message.clone(), ..described });
        if prepared.strict || !is_new {
            return Err(plain(error)).context(name);
        }
        tracing::error!("{name} is not served: {}", error.message);
        names.remove(&name);
        // It may have been refused after it was made.
        let _ = worker.delete(&name);
    }
    if names.is_empty() {
        prepared.check()?;
    }
    worker.set_failed(prepared.failed);
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
    if let Some(alias) = &declared.alias {
        let version = worker.publish(name, None, |_| Ok(()))?.version.clone();
        worker.change_alias(name, alias, |_| {
            let (description, revision) = (String::new(), uuid::Uuid::new_v4().to_string());
            Ok(Some(Alias { version, description, revision }))
        })?;
    }
    let called = Target { name: name.clone(), qualifier: declared.alias.clone() };
    worker.change_attached(&called, |attached| {
        let known = attached.events.remove(&key(&called));
        if let Some(config) = declared.events {
            // A configuration that stays keeps its time.
            let known = known.filter(|known| known.config == config);
            attached.events.insert(key(&called), known.unwrap_or_else(|| EventInvoke::now(config)));
        }
        Ok(())
    })?;
    worker.change_url(name, |known| {
        // A URL that stays keeps its address.
        let Some(DeclaredUrl { auth_type, streams, cors }) = declared.url else { return Ok(None) };
        let same = |url: &FunctionUrl| url.auth_type == auth_type && url.alias == declared.alias;
        let stays = known.or(earlier_url).filter(same);
        let url = stays.unwrap_or_else(|| {
            let url = api::new_url(&auth_type, streams, declared.alias.clone());
            let id = |known| api::id_of_key(known, name, &auth_type, declared.alias.as_deref());
            let id = worker.options.credentials.as_ref().map_or(url.id, id);
            FunctionUrl { id, ..url }
        });
        Ok(Some(FunctionUrl { streams, cors, ..url }))
    })?;
    Ok(())
}
