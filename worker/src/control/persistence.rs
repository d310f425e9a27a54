//! Functions and layers that callers make by the API: stored on disk, and restored when the worker starts
//! (`--state`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Result, anyhow, ensure};

use super::Worker;
use crate::base::error::ApiError;
use crate::code::Code;
use crate::code::lambda_layers::OptMount;
use crate::function::definition::{Deployment, Function};
use crate::function::queue_source::Mappings;
use crate::state::function_store::{
    FunctionStore, StoredDeployment, StoredFunction, StoredLayer, StoredState,
};
use worker_image::Allowed;
use worker_pool::FunctionId;

/// What a call may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// The function of this name.
    Function(String),
    /// The layer of this name.
    Layer(String),
    /// The queues that functions are called from.
    Mappings,
}

impl Worker {
    /// Opens the store. Called once, before anything else uses it.
    ///
    /// # Errors
    /// Another worker has it, or it cannot be read.
    pub(crate) fn open_state(&self) -> Result<()> {
        if let Some(folder) = &self.options.state {
            let store = FunctionStore::open(folder)?;
            self.mappings.send_replace(store.mappings()?);
            ensure!(self.function_store.set(store).is_ok(), "the store is opened once");
        }
        Ok(())
    }

    /// Where the code of callers is unpacked.
    pub(crate) fn code_folder(&self) -> &Path {
        self.function_store.get().map_or(self.folder(), |store| store.code_folder())
    }

    /// Code that has just been unpacked there: with a store it stays for the next worker.
    pub(crate) fn lasting(&self, code: Code) -> Code {
        match self.function_store.get() {
            Some(store) => code.outliving(store.may_go()),
            None => code,
        }
    }

    /// An image that a caller has named, unpacked; with a store it stays for the next worker.
    ///
    /// # Errors
    /// The operator does not allow it, or it is wrong.
    pub(crate) fn image(&self, uri: &str) -> Result<Code, ApiError> {
        let options = &self.options;
        let allowed = Allowed { folders: &options.code_folders, registries: &options.image_registries };
        let may_go = self.function_store.get().map(FunctionStore::may_go);
        Code::of_callers_image(uri, &allowed, &self.images, self.code_folder(), may_go)
    }

    /// Closes the store, for another worker, or opens it again.
    ///
    /// # Errors
    /// Another worker has it.
    pub(crate) fn set_store_open(&self, in_use: bool) -> Result<()> {
        let Some(store) = self.function_store.get() else { return Ok(()) };
        store.set_in_use(in_use)?;
        self.set_code_gc(in_use);
        Ok(())
    }

    /// The first function or layer that callers have made and that is not persisted, other than these
    /// functions of the template.
    pub(crate) fn first_unpersisted(&self, of_template: &BTreeSet<String>) -> Option<String> {
        if self.function_store.get().is_some() {
            return None;
        }
        let of_caller = |mappings: &Mappings| {
            let made = mappings.iter().find(|(_, mapping)| !mapping.of_template);
            made.map(|(id, _)| format!("the event source mapping {id}"))
        };
        let function = self.lock().functions.keys().find(|name| !of_template.contains(*name)).cloned();
        function.or_else(|| self.mappings(of_caller))
    }

    /// Whether code is removed with its last user. When the worker ends it stays for the next one.
    pub(super) fn set_code_gc(&self, may_go: bool) {
        if let Some(store) = self.function_store.get() {
            store.may_go().store(may_go, Ordering::Relaxed);
        }
    }

    /// Stores the function or layer that may have changed, as it is now. Waits for the disk.
    ///
    /// # Errors
    /// It could not be written.
    pub(crate) fn persist(&self, changed: &Changed) -> Result<(), ApiError> {
        let Some(store) = self.function_store.get() else { return Ok(()) };
        let done = match changed {
            Changed::Function(name) => {
                store.put_function(name, || self.lock().functions.get(name).map(StoredFunction::of))
            }
            Changed::Mappings => store.put_mappings(|| {
                self.mappings(|all| {
                    all.clone().into_iter().filter(|(_, mapping)| !mapping.of_template).collect()
                })
            }),
            Changed::Layer(name) => store.put_layer(name, || {
                let (latest, versions) = self.lock().published.history(name)?;
                Some(StoredLayer {
                    latest,
                    versions: versions.iter().map(|layer| (**layer).clone()).collect(),
                })
            }),
        };
        done.map_err(|error| ApiError::service(format!("the change cannot be kept: {error:#}")))
    }

    /// Reads what an earlier worker has stored. Its layers are published when this returns; its functions
    /// are returned.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read_stored(&self) -> Result<StoredState> {
        let mut stored =
            self.function_store.get().map_or_else(|| Ok(StoredState::default()), |store| store.all())?;
        let mut state = self.lock();
        for (name, StoredLayer { latest, versions }) in std::mem::take(&mut stored.layers) {
            state.published.again(&name, latest, versions.into_iter().map(Arc::new).collect());
        }
        Ok(stored)
    }

    /// Takes functions of an earlier worker into service. Those that the template has by now are the
    /// template's; a warning names one whose files are missing. From now on code is removed with its last
    /// user.
    pub(crate) fn restore(self: &Arc<Self>, stored: StoredState) {
        for (name, function) in stored.functions {
            if self.function(&name).is_ok() {
                tracing::info!("{name} is the template's: changes of it by the API are not kept");
            } else if let Err(error) = self.restore_one(&name, function) {
                tracing::error!("{name} is kept by --state, but cannot be served: {error:#}");
            }
        }
        self.set_code_gc(true);
    }

    fn restore_one(self: &Arc<Self>, name: &str, mut stored: StoredFunction) -> Result<()> {
        let attached = stored.attached();
        let (id, numbers) = {
            let mut state = self.lock();
            let id = state.new_function_id();
            (id, stored.versions.iter().map(|_| state.new_function_id()).collect::<Vec<_>>())
        };
        let deployment = self.deployment_again(name, id, id, stored.deployment)?;
        let mut versions = BTreeMap::new();
        for ((number, version), own) in stored.versions.into_iter().zip(numbers) {
            versions.insert(number, self.deployment_again(name, own, id, version)?);
        }
        let function = Function {
            deployment,
            reserved: stored.reserved,
            url: stored.url,
            tags: stored.tags,
            versions,
            latest_version: stored.latest_version,
            aliases: stored.aliases,
            attached,
            count: Arc::default(),
        };
        let mut state = self.lock();
        for deployment in function.deployments() {
            state.deployments.insert(deployment.function, deployment.clone());
        }
        let settings = &function.deployment.settings;
        let mut actions = state.pool.set_function_at_once(id, settings.memory_mib, settings.at_once());
        for version in function.versions.values() {
            let (memory_mib, at_once) = (version.settings.memory_mib, version.settings.at_once());
            state.pool.add_version(version.function, id, memory_mib, at_once);
        }
        actions.extend(state.pool.reserve(id, function.reserved));
        state.functions.insert(name.to_string(), function);
        self.carry_out(&mut state, actions);
        Ok(())
    }

    fn deployment_again(
        &self,
        name: &str,
        function: FunctionId,
        parent: FunctionId,
        stored: StoredDeployment,
    ) -> Result<Arc<Deployment>> {
        let folder = &stored.code.folder;
        ensure!(folder.is_dir(), "{} is gone", folder.display());
        self.options.installed.provide(&stored.settings.runtime)?;
        let layers = stored.layers.into_iter().map(Arc::new).collect();
        let opt = OptMount::new(layers, Vec::new(), self.folder()).map_err(|error| anyhow!("{error}"))?;
        self.options.installed.provide_sdk(&stored.settings.runtime, folder, &opt.sources);
        Ok(Arc::new(Deployment {
            function,
            parent,
            tenant: None,
            name: name.to_string(),
            version: stored.version,
            settings: stored.settings,
            code: stored.code,
            opt,
            revision: stored.revision,
            modified: stored.modified,
        }))
    }
}
