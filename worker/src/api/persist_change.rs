//! Answers a call that changes something once the change is persisted.

use std::sync::Arc;

use hyper::Method;
use serde::Deserialize;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;

use super::operations::{Named, Operation};
use super::{Api, Call, layers};
use crate::base::error::ApiError;
use crate::base::name::Target;
use crate::code::lambda_layers::Layer;
use crate::control::{Changed, Worker};
use crate::function::definition::Function;
use crate::function::queue_source::id_of;
use crate::http::Answer;

/// The name in the body of CreateFunction.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Created {
    function_name: String,
}

/// What a call may change; nothing, if it is no such call.
fn changed_by(call: &Call, named: Named<'_>) -> Option<Changed> {
    use Operation as Op;
    let function = |text: &str| Some(Changed::Function(Target::new(text, None).ok()?.name));
    let first = named.values[0];
    match named.operation {
        operation if operation.is_invocation() || call.parts.method == Method::GET => None,
        Op::CreateFunction => function(&call.json::<Created>().ok()?.function_name),
        Op::PublishLayerVersion
        | Op::DeleteLayerVersion
        | Op::AddLayerVersionPermission
        | Op::RemoveLayerVersionPermission => Some(Changed::Layer(layers::named(first).ok()?.into())),
        Op::CreateEventSourceMapping | Op::UpdateEventSourceMapping | Op::DeleteEventSourceMapping => {
            Some(Changed::Mappings)
        }
        Op::TagResource | Op::UntagResource if id_of(first).is_some() => Some(Changed::Mappings),
        _ => function(first),
    }
}

/// A change that is being made. It is persisted when this is dropped, also if the call has failed or its
/// client has disconnected.
struct PendingChange(Option<Change>);

struct Change {
    worker: Arc<Worker>,
    changed: Changed,
    /// Its record names its code, which must be there until the change is persisted.
    _function: Option<Function>,
    _layers: Vec<Arc<Layer>>,
    /// One change at a time: each is based on the state that the call before has left.
    _turn: OwnedMutexGuard<()>,
}

impl PendingChange {
    fn keep(&mut self) -> Option<JoinHandle<Result<(), ApiError>>> {
        let change = self.0.take()?;
        Some(tokio::task::spawn_blocking(move || {
            let change = change; // all of it
            change.worker.persist(&change.changed)
        }))
    }
}

impl Drop for PendingChange {
    fn drop(&mut self) {
        self.keep();
    }
}

/// Answers a call. What it has changed is persisted before the answer is sent, also if it has failed
/// half-way.
pub async fn route(api: &Api, call: &Call, named: Named<'_>) -> Result<Answer, ApiError> {
    let changed = changed_by(call, named).filter(|_| api.worker.options.state.is_some());
    let Some(changed) = changed else { return api.route(call, named).await };
    let turn = api.changing.clone().lock_owned().await;
    let (function, layers) = match &changed {
        Changed::Function(name) => (api.worker.function(name).ok(), Vec::new()),
        Changed::Mappings => (None, Vec::new()),
        Changed::Layer(name) => (None, api.worker.layers(|layers| layers.versions(name))),
    };
    let worker = api.worker.clone();
    let mut keeping =
        PendingChange(Some(Change { worker, changed, _function: function, _layers: layers, _turn: turn }));
    let answer = api.route(call, named).await;
    if let Some(kept) = keeping.keep() {
        kept.await.unwrap_or_else(|_| Err(ApiError::service("the thread that kept the change panicked")))?;
    }
    answer
}
