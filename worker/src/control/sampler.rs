//! Takes samples of memory and latency, once a second, and describes the instances that are there now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use worker_page::data::{self, FunctionSample, Host, Outcomes, Sample};

use crate::base::process_memory::{self, Memory};
use crate::control::Worker;
use crate::control::memory_readings::PART;
use crate::sandbox::history::{INTERVAL, ms};

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
        let counts = worker.counts_of(&function);
        let sample = FunctionSample {
            starting: counts.starting.into(),
            idle: counts.idle.into(),
            busy: counts.busy.into(),
            stopping: counts.stopping.into(),
            ..FunctionSample::default()
        };
        functions.insert(function.deployment.name.clone(), sample);
    }
    let reading = worker.readings.of(worker.maker(), worker.instances());
    for (instance, memory) in reading.instances {
        let sum = functions.entry(instance.deployment.name.clone()).or_default();
        sum.cgroup_bytes += instance.memory_bytes().unwrap_or(memory.pss_bytes);
        sum.pss_bytes += memory.pss_bytes;
        sum.private_bytes += memory.private_bytes;
        sum.shared_bytes += memory.shared_bytes;
        sum.mapped_shared_bytes += memory.mapped_shared_bytes;
        let (live, held) = instance.heap_bytes();
        sum.heap_live_bytes += live;
        sum.heap_held_bytes += held;
    }
    Sample {
        at_ms: worker.history.now_ms(),
        host: Host { available_bytes: process_memory::available_bytes() },
        store: reading.overall.store,
        ready: reading.overall.ready,
        vm: reading.overall.vm,
        latency: worker.history.take_latency(),
        queued: worker.counts().queued.into(),
        outcomes: outcomes(worker),
        functions,
    }
}

/// How requests have ended since the worker began.
pub fn outcomes(worker: &Worker) -> Outcomes {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let count = &worker.count;
    Outcomes {
        succeeded: read(&count.succeeded),
        failed: read(&count.failed),
        throttled: read(&count.throttled),
        refused: read(&count.refused),
    }
}

/// The instances that are there now, their memory as of the last second.
pub fn instances(worker: &Worker) -> data::Instances {
    let reading = worker.readings.of(worker.maker(), worker.instances());
    let described = reading.instances.into_iter().map(|(instance, memory)| {
        let Memory { pss_bytes, private_bytes, shared_bytes, mapped_shared_bytes } = memory;
        let (heap_live_bytes, heap_held_bytes) = instance.heap_bytes();
        data::Instance {
            id: instance.id.0,
            function: instance.deployment.name.clone(),
            tenant: instance.deployment.tenant.as_deref().map(String::from),
            phase: worker.phase(instance.id).to_string(),
            age_ms: instance.age().as_millis() as u64,
            memory_mib: instance.deployment.settings.memory_mib.into(),
            cgroup_bytes: instance.memory_bytes().unwrap_or(pss_bytes),
            peak_bytes: instance.peak_bytes().unwrap_or(0),
            pss_bytes,
            private_bytes,
            shared_bytes,
            mapped_shared_bytes,
            heap_live_bytes,
            heap_held_bytes,
            partition: instance.partition().map(|number| number.0.into()),
            init_ms: instance.start_time().and_then(ms),
        }
    });
    data::Instances { instances: described.collect() }
}
