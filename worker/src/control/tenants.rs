//! Tenants of functions with tenant isolation. For the pool, a tenant of a function or of a version is a
//! function of its own, which has the reservation of the one that it belongs to. So it has instances and a
//! queue of its own, and does not starve. It is known from its first request until it has neither requests
//! nor instances.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{State, Worker};
use crate::base::error::ApiError;
use crate::function::definition::Deployment;
use crate::function::tenancy;
use worker_pool::{Action, FunctionId};

/// The known tenants of all functions.
#[derive(Default)]
pub(super) struct Tenants {
    /// By the function or version, and the tenant's id.
    ids: BTreeMap<(FunctionId, Arc<str>), FunctionId>,
    /// The same by the pool's id.
    known: BTreeMap<FunctionId, (FunctionId, Arc<str>)>,
}

impl Tenants {
    fn add(&mut self, of: FunctionId, tenant: Arc<str>, id: FunctionId) {
        self.ids.insert((of, tenant.clone()), id);
        self.known.insert(id, (of, tenant));
    }

    fn remove(&mut self, id: FunctionId) {
        if let Some(key) = self.known.remove(&id) {
            self.ids.remove(&key);
        }
    }

    pub fn contains(&self, id: FunctionId) -> bool {
        self.known.contains_key(&id)
    }

    /// The pool's ids of a function's tenants, or of a version's.
    pub fn of(&self, function: FunctionId) -> impl Iterator<Item = FunctionId> {
        let first = (function, Arc::from(""));
        self.ids.range(first..).take_while(move |((of, _), _)| *of == function).map(|(_, id)| *id)
    }
}

impl State {
    /// What the pool calls the server of this deployment's requests by this tenant, or without one.
    ///
    /// # Errors
    /// The function needs a tenant, or has none.
    pub(super) fn served_as(
        &mut self,
        deployment: &Deployment,
        tenant: Option<&str>,
    ) -> Result<FunctionId, ApiError> {
        let settings = &deployment.settings;
        tenancy::check(settings.per_tenant, tenant)?;
        let Some(tenant) = tenant else { return Ok(deployment.function) };
        let key = (deployment.function, Arc::from(tenant));
        if let Some(known) = self.tenants.ids.get(&key) {
            return Ok(*known);
        }
        let id = self.new_function_id();
        self.pool.add_version(id, deployment.parent, settings.memory_mib, settings.at_once());
        self.tenants.add(deployment.function, key.1, id);
        Ok(id)
    }

    /// What new instances are started with, by what the pool calls it.
    pub(super) fn deployment(&self, id: FunctionId) -> Option<Arc<Deployment>> {
        let Some((of, tenant)) = self.tenants.known.get(&id) else {
            return self.deployments.get(&id).cloned();
        };
        let deployment = (**self.deployments.get(of)?).clone();
        Some(Arc::new(Deployment { function: id, tenant: Some(tenant.clone()), ..deployment }))
    }

    /// A function has changed: the instances of its tenants finish what they have.
    pub(super) fn change_tenants(
        &mut self,
        function: FunctionId,
        memory_mib: u32,
        at_once: u32,
    ) -> Vec<Action> {
        let ids: Vec<FunctionId> = self.tenants.of(function).collect();
        ids.into_iter().flat_map(|id| self.pool.set_function_at_once(id, memory_mib, at_once)).collect()
    }
}

impl Worker {
    /// Removes the tenants of a function or version that is deleted.
    pub(super) fn withdraw_tenants(&self, state: &mut State, function: FunctionId) -> Vec<Action> {
        let ids: Vec<FunctionId> = state.tenants.of(function).collect();
        let mut actions = Vec::new();
        for id in ids {
            actions.extend(state.pool.remove_function(id));
            state.tenants.remove(id);
            self.maker().deleted(id);
            self.end_store_unless_used(state, id);
        }
        actions
    }

    /// Forgets tenants that have neither requests nor instances, and ends their page stores.
    pub(super) fn forget_unused_tenants(self: &Arc<Self>, state: &mut State) {
        if state.tenants.known.is_empty() {
            return;
        }
        let used = state.pool.functions_in_use();
        let unused = state.tenants.known.keys().filter(|id| !used.contains(id));
        for id in unused.copied().collect::<Vec<_>>() {
            // It has no request that would be refused by this; others may be served.
            let actions = state.pool.remove_function(id);
            state.tenants.remove(id);
            self.maker().deleted(id);
            self.end_store_unless_used(state, id);
            self.carry_out(state, actions);
        }
    }
}
