//! Takes samples of memory and latency, once a second, and describes the instances that are there now.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use worker_page::data::{self, FunctionSample, Host, Sample, Store};

use crate::history::{INTERVAL, ms};
use crate::instance::Instance;
use crate::memory::{self, Memory};
use crate::pool::InstanceId;
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
        let census = worker.census_of(&function);
        let sample = FunctionSample {
            starting: census.starting.into(),
            idle: census.idle.into(),
            busy: census.busy.into(),
            stopping: census.stopping.into(),
            ..FunctionSample::default()
        };
        functions.insert(function.deployment.name.clone(), sample);
    }
    for (instance, memory) in worker.readings.of(worker) {
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
    let (stores, bytes) = worker.stores.figures();
    Sample {
        at_ms: worker.history.now_ms(),
        host: Host { available_bytes: memory::available_bytes() },
        store: Store { bytes, stores },
        vm: worker.machine.get().and_then(|machine| machine.memory()),
        latency: worker.history.take_latency(),
        queued: worker.census().queued.into(),
        functions,
    }
}

/// The memory of all instances, read from the kernel at most once a second however many look.
#[derive(Default)]
pub struct Readings(Mutex<Option<Reading>>);

struct Reading {
    at: Instant,
    took: Duration,
    memory: BTreeMap<InstanceId, Memory>,
}

impl Reading {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < INTERVAL.max(self.took * PART)
    }
}

impl Readings {
    /// The instances that are there, each with what was last read of it; nothing yet of one that has just come.
    fn of(&self, worker: &Worker) -> Vec<(Arc<Instance>, Memory)> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let instances = worker.instances();
        let reading = match last.take().filter(Reading::is_fresh) {
            Some(reading) => reading,
            None => read(worker, &instances),
        };
        let memory_of = |instance: &Instance| reading.memory.get(&instance.id).copied().unwrap_or_default();
        let found = instances.into_iter().map(|instance| (instance.clone(), memory_of(&instance))).collect();
        *last = Some(reading);
        found
    }
}

/// In the VM, an instance's memory is what is used of its partition.
fn read(worker: &Worker, instances: &[Arc<Instance>]) -> Reading {
    let at = Instant::now();
    let partitions = worker.machine.get().map(|machine| machine.partitions());
    let memory_of = |instance: &Instance| {
        let Some(partitions) = &partitions else { return instance.memory() };
        let node = instance.partition().and_then(|partition| partitions.get(&partition));
        node.map_or_else(Memory::default, |node| Memory {
            pss_bytes: node.total_bytes.saturating_sub(node.free_bytes),
            private_bytes: node.anonymous_bytes,
            ..Memory::default()
        })
    };
    let memory = instances.iter().map(|instance| (instance.id, memory_of(instance))).collect();
    Reading { at, took: at.elapsed(), memory }
}

/// The instances that are there now, their memory as of the last second.
pub fn instances(worker: &Worker) -> data::Instances {
    let described = worker.readings.of(worker).into_iter().map(|(instance, memory)| {
        let Memory { pss_bytes, private_bytes, shared_bytes, mapped_shared_bytes } = memory;
        let (heap_live_bytes, heap_held_bytes) = instance.heap_bytes();
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
            heap_live_bytes,
            heap_held_bytes,
            partition: instance.partition().map(u64::from),
            init_ms: instance.start_time().and_then(ms),
        }
    });
    data::Instances { instances: described.collect() }
}
