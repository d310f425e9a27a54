//! The worker's functions: created, changed, deleted; their reservations and URLs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::{State, Worker};
use crate::base::error::ApiError;
use crate::base::limits;
use crate::base::name::{self, Target};
use crate::code::Code;
use crate::code::lambda_layers::OptMount;
use crate::function::attached::Attached;
use crate::function::definition::{Deployment, Function, FunctionUrl};
use crate::function::failed::Failed;
use crate::function::settings::Settings;
use crate::function::variables::MAX_CONCURRENCY;
use worker_pool::FunctionId;
use worker_system::text::shown;

impl Worker {
    /// Adds a function.
    ///
    /// # Errors
    /// There is one of this name, or it needs more memory than the worker has.
    pub fn create(
        self: &Arc<Self>,
        name: &str,
        settings: Settings,
        code: Code,
        opt: OptMount,
    ) -> Result<Arc<Deployment>, ApiError> {
        let mut state = self.lock();
        if state.functions.contains_key(name) || state.failed.contains_key(name) {
            return Err(ApiError::conflict(format!("Function already exist: {name}")));
        }
        let id = state.new_function_id();
        self.deploy(&mut state, id, name, settings, code, opt)
    }

    /// Changes a function's settings, code or both; instances of the old kind finish what they have.
    ///
    /// # Errors
    /// No such function, or the error of `change`.
    pub fn update(
        self: &Arc<Self>,
        name: &str,
        change: impl FnOnce(&Deployment) -> Result<(Settings, Code, OptMount), ApiError>,
    ) -> Result<Arc<Deployment>, ApiError> {
        let mut state = self.lock();
        let known = state.function(name)?.deployment.clone();
        let (settings, code, opt) = change(&known)?;
        self.deploy(&mut state, known.function, name, settings, code, opt)
    }

    fn deploy(
        self: &Arc<Self>,
        state: &mut State,
        id: FunctionId,
        name: &str,
        settings: Settings,
        code: Code,
        opt: OptMount,
    ) -> Result<Arc<Deployment>, ApiError> {
        let at_once = settings.at_once();
        let of_image = code.image.iter().flat_map(|image| &image.environment);
        if let Some((variable, own)) = of_image.into_iter().find(|(name, _)| name == MAX_CONCURRENCY) {
            let own = shown(own);
            tracing::info!(
                "{name}: the image's {variable}={own} is passed over: CapacityProviderConfig sets it"
            );
        }
        let wanted = settings.memory_mib;
        limits::check_memory(wanted, state.pool.capacity().memory_mib)
            .map_err(ApiError::invalid_parameter)?;
        let deployment = Arc::new(Deployment {
            function: id,
            parent: id,
            tenant: None,
            name: name.to_string(),
            version: name::LATEST.into(),
            settings,
            code,
            opt,
            revision: uuid::Uuid::new_v4().to_string(),
            modified: SystemTime::now(),
        });
        state.deployments.insert(id, deployment.clone());
        match state.functions.get_mut(name) {
            Some(function) => function.deployment = deployment.clone(),
            None => {
                let new = Function {
                    deployment: deployment.clone(),
                    reserved: None,
                    url: None,
                    tags: BTreeMap::new(),
                    versions: BTreeMap::new(),
                    latest_version: 0,
                    aliases: BTreeMap::new(),
                    attached: Attached::default(),
                    count: Arc::default(),
                };
                state.functions.insert(name.to_string(), new);
            }
        }
        let mut actions = state.pool.set_function_at_once(id, wanted, at_once);
        actions.extend(state.change_tenants(id, wanted, at_once));
        self.carry_out(state, actions);
        Ok(deployment)
    }

    /// Deletes a function: what waits is refused, what runs may finish.
    ///
    /// # Errors
    /// No such function.
    pub fn delete(self: &Arc<Self>, name: &str) -> Result<(), ApiError> {
        let mut state = self.lock();
        if state.failed.remove(name).is_some() {
            return Ok(());
        }
        let function = state.functions.remove(name).ok_or_else(|| name::no_such_function(name))?;
        for deployment in function.deployments() {
            self.withdraw(&mut state, deployment);
        }
        Ok(())
    }

    /// Removes a function or version from the pool, and ends its instances.
    pub(super) fn withdraw(self: &Arc<Self>, state: &mut State, deployment: &Deployment) {
        let mut actions = state.pool.remove_function(deployment.function);
        state.deployments.remove(&deployment.function);
        self.maker().deleted(deployment.function);
        actions.extend(self.withdraw_tenants(state, deployment.function));
        self.end_store_unless_used(state, deployment.store());
        self.carry_out(state, actions);
    }

    /// Ends the page store of a function or of a tenant once no instance can use it.
    pub(super) fn end_store_unless_used(&self, state: &State, store: FunctionId) {
        let lives = state.deployments.contains_key(&store) || state.tenants.contains(store);
        if !lives && !state.instances.values().any(|instance| instance.deployment.store() == store) {
            self.maker().forget(store);
        }
    }

    /// A function.
    ///
    /// # Errors
    /// No such function.
    pub fn function(&self, name: &str) -> Result<Function, ApiError> {
        self.lock().function(name).cloned()
    }

    /// Sets which functions of the template cannot be served. One that is served by this name stays.
    pub(crate) fn set_failed(&self, failed: Vec<Failed>) {
        let mut state = self.lock();
        let unserved = failed.into_iter().filter(|one| !state.functions.contains_key(&one.name));
        state.failed = unserved.map(|one| (one.name.clone(), one)).collect();
    }

    /// The functions that cannot be served, by name.
    pub(crate) fn failed(&self) -> BTreeMap<String, Failed> {
        self.lock().failed.clone()
    }

    /// The function whose URL has this id. Any client may ask for any id, so only this one is copied.
    pub fn function_at(&self, url_id: &str) -> Option<Function> {
        let is_its = |function: &&Function| function.url.as_ref().is_some_and(|url| url.id == url_id);
        self.lock().functions.values().find(is_its).cloned()
    }

    /// All functions, by name.
    pub fn functions(&self) -> Vec<Function> {
        self.lock().functions.values().cloned().collect()
    }

    /// Reserves concurrency, or gives it back.
    ///
    /// # Errors
    /// No such function, or other functions have reserved it.
    pub fn reserve(self: &Arc<Self>, name: &str, reserved: Option<u32>) -> Result<(), ApiError> {
        let mut state = self.lock();
        let id = state.function(name)?.deployment.function;
        let free = state.pool.unreserved(Some(id));
        if reserved.is_some_and(|wanted| wanted > free) {
            return Err(ApiError::invalid_parameter(format!(
                "ReservedConcurrentExecutions: only {free} of the worker's {} are not reserved",
                self.options.capacity.concurrency
            )));
        }
        state.functions.get_mut(name).expect("found above").reserved = reserved;
        let actions = state.pool.reserve(id, reserved);
        self.carry_out(&mut state, actions);
        Ok(())
    }

    /// Changes a function's tags.
    ///
    /// # Errors
    /// No such function, or more than Lambda allows.
    pub fn change_tags(
        &self,
        name: &str,
        change: impl FnOnce(&mut BTreeMap<String, String>),
    ) -> Result<(), ApiError> {
        let mut state = self.lock();
        let mut tags = state.function(name)?.tags.clone();
        change(&mut tags);
        if tags.len() > limits::TAGS {
            return Err(ApiError::invalid_parameter(format!("a function has at most {} tags", limits::TAGS)));
        }
        state.functions.get_mut(name).expect("found above").tags = tags;
        Ok(())
    }

    /// Changes what is attached to a function, or to a version or an alias of it. After an error all is as
    /// before.
    ///
    /// # Errors
    /// No such function, version or alias, or the error of `change`.
    pub fn change_attached<T>(
        &self,
        target: &Target,
        change: impl FnOnce(&mut Attached) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let mut state = self.lock();
        let function = state.function(&target.name)?;
        function.qualified(target.qualifier.as_deref())?;
        let mut attached = function.attached.clone();
        let changed = change(&mut attached)?;
        state.functions.get_mut(&target.name).expect("found above").attached = attached;
        Ok(changed)
    }

    /// Replaces a function's URL by what `change` makes of it.
    ///
    /// # Errors
    /// No such function, or the error of `change`.
    pub fn change_url(
        &self,
        name: &str,
        change: impl FnOnce(Option<FunctionUrl>) -> Result<Option<FunctionUrl>, ApiError>,
    ) -> Result<Option<FunctionUrl>, ApiError> {
        let mut state = self.lock();
        state.function(name)?;
        let function = state.functions.get_mut(name).expect("found above");
        function.url = change(function.url.clone())?;
        Ok(function.url.clone())
    }
}
