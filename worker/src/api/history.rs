//! What the worker reports of itself as JSON: `/history`, `/events`, `/instances`.

use serde::Serialize;
use worker_page::data::{History, Layers};

use super::Api;
use crate::control::Worker;
use crate::control::sampler;
use crate::http::{self, Answer};
use crate::sandbox::history::INTERVAL;

/// The number after `after=` in the query.
pub fn after(query: Option<&str>) -> Option<u64> {
    super::query(query, "after").next()?.parse().ok()
}

/// Samples after a time.
pub fn history(api: &Api, after: Option<u64>) -> Answer {
    let history = &api.worker.history;
    answer(&History {
        interval_ms: INTERVAL.as_millis() as u64,
        now_ms: history.now_ms(),
        layers: layers(&api.worker),
        samples: history.samples(after),
    })
}

/// Which layers the worker uses.
pub fn layers(worker: &Worker) -> Layers {
    let (layers, kind) = (&worker.options.libraries, worker.maker().kind());
    Layers {
        sandbox: kind.sandbox.into(),
        heap: layers.heap.is_some(),
        merge: layers.merge.is_some(),
        // What is not shared is not restored.
        snapshot: layers.snapshot && layers.merge.is_some() && kind.snapshots,
        ready: layers.ready && kind.sandbox == "process",
        partitions: kind.partitions.into(),
    }
}

/// Events after a number.
pub fn events(api: &Api, after: Option<u64>) -> Answer {
    answer(&api.worker.history.events(after))
}

/// Instances, as they are now.
pub async fn instances(api: &Api) -> Answer {
    let worker = api.worker.clone();
    let described = tokio::task::spawn_blocking(move || sampler::instances(&worker)).await;
    answer(&described.unwrap_or_default())
}

fn answer(value: &impl Serialize) -> Answer {
    http::answer(200, "application/json", serde_json::to_vec(value).expect("plain data"))
}
