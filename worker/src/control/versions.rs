//! Versions of functions, which do not change any more, and aliases, which name one and may be moved to
//! another.

use std::sync::Arc;
use std::time::SystemTime;

use super::Worker;
use crate::base::error::ApiError;
use crate::base::name::{self, Target};
use crate::function::definition::{Alias, Deployment, Function};
use crate::sandbox::interface::{Order, SPARE};

impl Worker {
    /// What a request calls.
    ///
    /// # Errors
    /// There is no such function, version or alias.
    pub fn target(&self, target: &Target) -> Result<Arc<Deployment>, ApiError> {
        self.lock().function(&target.name)?.qualified(target.qualifier.as_deref()).cloned()
    }

    /// Publishes the function's present state as a new version, unless its latest version is equal.
    /// `check` may refuse.
    ///
    /// # Errors
    /// No such function, or the error of `check`.
    pub fn publish(
        &self,
        name: &str,
        description: Option<String>,
        check: impl FnOnce(&Deployment) -> Result<(), ApiError>,
    ) -> Result<Arc<Deployment>, ApiError> {
        let function = self.function(name)?;
        check(&function.deployment)?;
        if let Some(latest) = function.versions.values().next_back()
            && latest.is_alike(&function.deployment)
        {
            return Ok(latest.clone());
        }
        if !self.maker().takes_code() {
            let reason = "with --sandbox vm a function has no versions: the VM's disk holds what the template's are now";
            return Err(ApiError::invalid_parameter(reason));
        }
        // That may take time, so nothing is locked meanwhile.
        let code = tokio::task::block_in_place(|| function.deployment.code.kept(self.code_folder()))?;
        let code = self.lasting(code);
        let mut state = self.lock();
        let is_same = |now: &Function| Arc::ptr_eq(&now.deployment, &function.deployment);
        let Some(function) = state.functions.get(name).filter(|now| is_same(now)) else {
            return Err(ApiError::conflict(format!(
                "The function {name} is being changed by another request"
            )));
        };
        let number = function.latest_version + 1;
        let mut version = Deployment {
            code,
            version: number.to_string(),
            revision: uuid::Uuid::new_v4().to_string(),
            modified: SystemTime::now(),
            ..(*function.deployment).clone()
        };
        version.function = state.new_function_id();
        if let Some(description) = description {
            version.settings.description = description;
        }
        let version = Arc::new(version);
        state.deployments.insert(version.function, version.clone());
        let (memory_mib, at_once) = (version.settings.memory_mib, version.settings.at_once());
        state.pool.add_version(version.function, version.parent, memory_mib, at_once);
        let function = state.functions.get_mut(name).expect("found above");
        function.latest_version = number;
        function.versions.insert(number, version.clone());
        drop(state);
        let metadata_token = uuid::Uuid::new_v4().to_string().into();
        let order = Order { id: SPARE, deployment: version.clone(), metadata_token, snap_start: false };
        self.context().maker.clone().prepare(order);
        Ok(version)
    }

    /// Deletes a version: what waits for it is refused, what runs may finish.
    ///
    /// # Errors
    /// No such function, an alias names the version, or it is `$LATEST`.
    pub fn delete_version(self: &Arc<Self>, name: &str, version: &str) -> Result<(), ApiError> {
        let mut state = self.lock();
        let function = state.function(name)?;
        let named = function.aliases.iter().find(|(_, alias)| alias.version == version);
        if let Some((alias, _)) = named {
            return Err(ApiError::conflict(format!(
                "the alias {alias} names version {version}: move it first"
            )));
        }
        let Ok(number) = version.parse::<u64>() else {
            return Err(ApiError::invalid_parameter(
                "Qualifier must be the number of a version: aliases are deleted by DeleteAlias",
            ));
        };
        let function = state.functions.get_mut(name).expect("found above");
        function.attached.forget(version);
        if let Some(version) = function.versions.remove(&number) {
            self.withdraw(&mut state, &version);
        }
        Ok(())
    }

    /// Replaces an alias by what `change` makes of it, and returns the new one.
    ///
    /// # Errors
    /// No such function or version, or the error of `change`.
    pub fn change_alias(
        &self,
        name: &str,
        alias: &str,
        change: impl FnOnce(Option<Alias>) -> Result<Option<Alias>, ApiError>,
    ) -> Result<Option<Alias>, ApiError> {
        let mut state = self.lock();
        let function = state.function(name)?;
        let changed = change(function.aliases.get(alias).cloned())?;
        if let Some(changed) = &changed {
            let known = |function: &Function| match changed.version.as_str() {
                name::LATEST => true,
                version => version.parse().is_ok_and(|number: u64| function.versions.contains_key(&number)),
            };
            if !known(function) {
                return Err(name::no_such_function(&format!("{name}:{}", changed.version)));
            }
        }
        let function = state.functions.get_mut(name).expect("found above");
        match &changed {
            Some(changed) => drop(function.aliases.insert(alias.to_string(), changed.clone())),
            None => {
                function.aliases.remove(alias);
                function.attached.forget(alias);
            }
        }
        Ok(changed)
    }
}
