//! The figures at `/metrics`, in Prometheus' text format. deploy/grafana shows them.

use std::sync::atomic::Ordering;

use prometheus_text::{CONTENT_TYPE, PrometheusText};
use worker_page::data::{FunctionSample, Sample, Vm};
use worker_page::figures::Memory;

use super::{Api, history};
use crate::control::Worker;
use crate::http::{self, Answer};
use crate::invocation::counters::{BUCKETS_S, Histogram};

/// All figures. Memory is the last sample's, at most some seconds old.
pub fn metrics(api: &Api) -> Answer {
    let worker = &api.worker;
    let mut text = PrometheusText::default();
    let sample = worker.history.last_sample().unwrap_or_default();
    requests(&mut text, worker);
    instances(&mut text, worker);
    memory(&mut text, worker, &sample);
    virtual_machine(&mut text, &sample.vm.clone().unwrap_or_default());
    events(&mut text, worker);
    settings(&mut text, worker);
    http::answer(200, CONTENT_TYPE, text.into_string())
}

fn requests(text: &mut PrometheusText, worker: &Worker) {
    let count = &worker.count;
    text.head("mayfly_invocations_total", "counter", "Requests that were answered, by outcome");
    for (outcome, counter) in [
        ("succeeded", &count.succeeded),
        ("failed", &count.failed),
        ("throttled", &count.throttled),
        ("refused", &count.refused),
    ] {
        text.value("mayfly_invocations_total", &[("outcome", outcome)], counter.load(Ordering::Relaxed));
    }
    let counts = worker.counts();
    text.single("mayfly_running_requests", "gauge", "Requests that instances have", counts.running);
    text.single("mayfly_queued_requests", "gauge", "Requests that wait for an instance", counts.queued);
    add_histogram(
        text,
        "mayfly_latency_seconds",
        "From arrival to answer, of requests that ran",
        &count.latency,
    );
    let help = "From an instance's start until it asks for work";
    add_histogram(text, "mayfly_cold_start_seconds", help, &count.cold_start);
    let help = "The same, of instances that were restored from a snapshot";
    add_histogram(text, "mayfly_restore_seconds", help, &count.restore);
}

fn instances(text: &mut PrometheusText, worker: &Worker) {
    text.head("mayfly_instances", "gauge", "Instances, by function and phase");
    for function in worker.functions() {
        let counts = worker.counts_of(&function);
        for (phase, number) in [
            ("starting", counts.starting),
            ("idle", counts.idle),
            ("busy", counts.busy),
            ("stopping", counts.stopping),
        ] {
            let labels = [("function", function.deployment.name.as_str()), ("phase", phase)];
            text.value("mayfly_instances", &labels, number);
        }
    }
}

/// A metric of each function's instances together: name, help text, value.
type OfFunction = (&'static str, &'static str, fn(&FunctionSample) -> u64);

const OF_FUNCTIONS: [OfFunction; 6] = [
    (
        "mayfly_instance_pss_bytes",
        "Proportional set size of instances, by function: shared pages are divided among those that map them",
        |f| f.pss_bytes,
    ),
    ("mayfly_instance_private_bytes", "Of that, anonymous memory that is not shared", |f| f.private_bytes),
    ("mayfly_instance_shared_bytes", "Of that, the part of the page stores", |f| f.shared_bytes),
    ("mayfly_instance_mapped_shared_bytes", "Pages of the stores that instances map, before dividing", |f| {
        f.mapped_shared_bytes
    }),
    ("mayfly_heap_live_bytes", "Live objects in the heaps of instances, when they last rested", |f| {
        f.heap_live_bytes
    }),
    ("mayfly_heap_held_bytes", "The blocks that they are in; what is more than live is fragmentation", |f| {
        f.heap_held_bytes
    }),
];

fn memory(text: &mut PrometheusText, worker: &Worker, sample: &Sample) {
    let help = "Memory in use, by function, as its cgroups count it";
    text.head("mayfly_instance_memory_bytes", "gauge", help);
    let instances = worker.instances();
    for function in worker.functions() {
        let own = instances.iter().filter(|one| one.deployment.parent == function.deployment.function);
        let bytes: u64 = own.filter_map(|instance| instance.memory_bytes()).sum();
        text.value("mayfly_instance_memory_bytes", &[("function", &function.deployment.name)], bytes);
    }
    for (name, help, value) in OF_FUNCTIONS {
        text.head(name, "gauge", help);
        for (function, of_function) in &sample.functions {
            text.value(name, &[("function", function)], value(of_function));
        }
    }
    let memory = Memory::of(sample);
    text.single(
        "mayfly_used_bytes",
        "gauge",
        "Memory of all instances and page stores, each page once",
        memory.used,
    );
    text.single("mayfly_stores", "gauge", "Page stores", sample.store.stores);
    text.single(
        "mayfly_store_bytes",
        "gauge",
        "Memory of the page stores, each page once",
        sample.store.bytes,
    );
    let ready = &sample.ready;
    let help = "Empty sandboxes that the next starts take";
    text.single("mayfly_ready_sandboxes", "gauge", help, ready.sandboxes);
    text.single("mayfly_ready_sandbox_bytes", "gauge", "Memory of those sandboxes", ready.bytes);
    text.single("mayfly_merge_saved_bytes", "gauge", "Memory that merging saves", memory.saved());
    text.single(
        "mayfly_host_available_bytes",
        "gauge",
        "MemAvailable of the machine",
        sample.host.available_bytes,
    );
}

fn virtual_machine(text: &mut PrometheusText, vm: &Vm) {
    let name = "mayfly_vm_partitions";
    text.head(
        name,
        "gauge",
        "Partitions of the virtual machine: in all, plugged, with an instance; 0 without a VM",
    );
    for (state, number) in [("possible", vm.partitions), ("plugged", vm.plugged), ("used", vm.used)] {
        text.value(name, &[("state", state)], number);
    }
    text.single(
        "mayfly_vm_plugged_bytes",
        "gauge",
        "Memory that is plugged into the virtual machine",
        vm.plugged_bytes,
    );
    text.single(
        "mayfly_vm_resident_bytes",
        "gauge",
        "Memory of the host that the VM occupies",
        vm.resident_bytes,
    );
    text.single(
        "mayfly_vm_merged_bytes",
        "gauge",
        "Pages that the VM's kernel has merged, each once: they lie in its shared partition",
        vm.merged_bytes,
    );
    text.single(
        "mayfly_vm_mapped_merged_bytes",
        "gauge",
        "The same pages, counted once for each instance that maps them",
        vm.mapped_merged_bytes,
    );
}

fn events(text: &mut PrometheusText, worker: &Worker) {
    let totals = worker.history.totals();
    text.head("mayfly_events_total", "counter", "Events by kind; /events has their details");
    for (kind, total) in &totals {
        text.value("mayfly_events_total", &[("kind", kind)], total.count);
    }
    let of = |kind: &str| totals.get(kind).cloned().unwrap_or_default();
    let idle_work = worker.count.idle_work.load(Ordering::Relaxed);
    text.single("mayfly_rests_total", "counter", "Times that an instance without work has rested", idle_work);
    let freezes = worker.count.freezes.load(Ordering::Relaxed);
    text.single("mayfly_freezes_total", "counter", "Times that an instance without work was frozen", freezes);
    let (merge, rest, unplug) = (of("merge"), of("rest"), of("unplug"));
    text.single("mayfly_merged_bytes_total", "counter", "Memory that was merged", merge.bytes);
    text.single("mayfly_merge_seconds_total", "counter", "Time that merging took", merge.ms / 1e3);
    text.head(
        "mayfly_returned_bytes_total",
        "counter",
        "Memory that idle instances or unplugging have returned",
    );
    text.value("mayfly_returned_bytes_total", &[("by", "rest")], rest.bytes);
    text.value("mayfly_returned_bytes_total", &[("by", "unplug")], unplug.bytes);
    text.single("mayfly_unplug_seconds_total", "counter", "Time that unplugging took", unplug.ms / 1e3);
}

fn settings(text: &mut PrometheusText, worker: &Worker) {
    let layers = history::layers(worker);
    text.head("mayfly_layer", "gauge", "1 for layers that are switched on");
    let partitions = !matches!(layers.partitions.as_str(), "" | "none");
    for (layer, on) in [
        ("heap", layers.heap),
        ("merge", layers.merge),
        ("snapshot", layers.snapshot),
        ("partitions", partitions),
    ] {
        text.value("mayfly_layer", &[("layer", layer)], u8::from(on));
    }
    let capacity = worker.capacity();
    let help = "Memory that all instances together may have";
    text.single("mayfly_memory_limit_bytes", "gauge", help, capacity.memory_mib << 20);
    text.single("mayfly_concurrency_limit", "gauge", "The most instances at once", capacity.concurrency);
    text.head("mayfly_function_memory_limit_bytes", "gauge", "The memory limit of an instance, by function");
    for function in worker.functions() {
        let bytes = u64::from(function.deployment.settings.memory_mib) << 20;
        text.value("mayfly_function_memory_limit_bytes", &[("function", &function.deployment.name)], bytes);
    }
    text.single("mayfly_uptime_seconds", "gauge", "Since the worker began", worker.uptime().as_secs_f64());
}

/// A metric of `histogram`, in seconds.
fn add_histogram(text: &mut PrometheusText, name: &str, help: &str, histogram: &Histogram) {
    text.head(name, "histogram", help);
    let counts = histogram.cumulative();
    let bounds = BUCKETS_S.map(|bound| bound.to_string()).into_iter().chain(["+Inf".into()]);
    for (count, bound) in counts.iter().zip(bounds) {
        text.value(&format!("{name}_bucket"), &[("le", &bound)], count);
    }
    text.value(&format!("{name}_sum"), &[], histogram.sum().as_secs_f64());
    text.value(&format!("{name}_count"), &[], counts.last().unwrap_or(&0));
}
