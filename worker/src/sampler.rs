//! Takes samples of memory and latency, once a second, and describes the instances that are there now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use vm::protocol::NodeStats;
use worker_page::data::{self, FunctionSample, Host, Sample, Store};

use crate::history::{INTERVAL, ms};
use crate::instance::Instance;
use crate::memory::{self, Memory};
use crate::worker::Worker;

/// Of all time, at most this part is spent on samples.
const PART: u32 = 20;

/// Samples until the future is dropped.
pub async fn run(worker: Arc<Worker>) {
    loop {
        let began = Instant::now();
        let sampling = worker.clone();
        // It reads page tables, which takes milliseconds for each instance.
        if let Ok(sample) = tokio::task::spawn_blocking(move || sample(&sampling)).await {
            worker.history.keep(sample);
        }
        tokio::time::sleep(INTERVAL.max(began.elapsed() * PART).saturating_sub(began.elapsed())).await;
    }
}

fn sample(worker: &Worker) -> Sample {
    let mut functions: BTreeMap<String, FunctionSample> = BTreeMap::new();
    for function in worker.functions() {
        let census = worker.census(Some(function.deployment.function));
        let sample = FunctionSample {
            starting: census.starting.into(),
            idle: census.idle.into(),
            busy: census.busy.into(),
            stopping: census.stopping.into(),
            ..FunctionSample::default()
        };
        functions.insert(function.deployment.name.clone(), sample);
    }
    let (vm, partitions) = worker.machine.get().and_then(|machine| machine.memory()).unzip();
    for instance in worker.instances() {
        let memory = memory_of(&instance, partitions.as_ref());
        let sum = functions.entry(instance.deployment.name.clone()).or_default();
        sum.cgroup_bytes += instance.memory_bytes().unwrap_or(memory.pss_bytes);
        sum.pss_bytes += memory.pss_bytes;
        sum.private_bytes += memory.private_bytes;
        sum.shared_bytes += memory.shared_bytes;
        sum.mapped_shared_bytes += memory.mapped_shared_bytes;
    }
    let (stores, bytes) = worker.stores.figures();
    Sample {
        at_ms: worker.history.now_ms(),
        host: Host { available_bytes: memory::available_bytes() },
        store: Store { bytes, stores },
        vm,
        latency: worker.history.take_latency(),
        queued: worker.census(None).queued.into(),
        functions,
    }
}

/// An instance's memory; in the VM, what is used of its partition.
fn memory_of(instance: &Instance, partitions: Option<&BTreeMap<u32, NodeStats>>) -> Memory {
    let Some(partitions) = partitions else { return instance.memory() };
    let node = instance.partition().and_then(|partition| partitions.get(&partition));
    node.map_or_else(Memory::default, |node| Memory {
        pss_bytes: node.total_bytes.saturating_sub(node.free_bytes),
        private_bytes: node.anonymous_bytes,
        ..Memory::default()
    })
}

/// The instances that are there now. Reads page tables: milliseconds for each.
pub fn instances(worker: &Worker) -> data::Instances {
    let partitions =
        worker.machine.get().and_then(|machine| machine.memory()).map(|(_, partitions)| partitions);
    let described = worker.instances().into_iter().map(|instance| {
        let Memory { pss_bytes, private_bytes, shared_bytes, mapped_shared_bytes } =
            memory_of(&instance, partitions.as_ref());
        data::Instance {
            id: instance.id,
            function: instance.deployment.name.clone(),
            phase: worker.phase(instance.id).to_string(),
            age_ms: instance.age().as_millis() as u64,
            memory_mib: instance.deployment.settings.memory_mib.into(),
            cgroup_bytes: instance.memory_bytes().unwrap_or(pss_bytes),
            peak_bytes: instance.peak_bytes().unwrap_or(0),
            pss_bytes,
            private_bytes,
            shared_bytes,
            mapped_shared_bytes,
            partition: instance.partition().map(u64::from),
            init_ms: instance.start_time().and_then(ms),
        }
    });
    data::Instances { instances: described.collect() }
}
