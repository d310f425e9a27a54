//! The page at `/` and the figures at `/metrics`.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Api;
use crate::count::{BUCKETS_S, Histogram};
use crate::http::{self, Answer};

/// What is served now, as a page that works without a network and without a script.
pub fn page(api: &Api) -> Answer {
    let worker = &api.worker;
    let instances = worker.instances();
    let mut rows = String::new();
    for function in worker.functions() {
        let deployment = &function.deployment;
        let census = worker.census(Some(deployment.function));
        let own = instances.iter().filter(|instance| instance.deployment.function == deployment.function);
        let bytes: u64 = own.filter_map(|instance| instance.memory_bytes()).sum();
        let reserved = function.reserved.map_or_else(|| "–".to_string(), |number| number.to_string());
        writeln!(
            rows,
            "<tr><th scope=row>{}<td>{}<td>{}<td>{reserved}<td>{}<td>{}<td>{}<td>{}<td>{:.1}",
            escape(&deployment.name),
            deployment.settings.runtime.name(),
            deployment.settings.memory_mib,
            census.busy,
            census.idle,
            census.starting + census.stopping,
            census.queued,
            bytes as f64 / f64::from(1 << 20),
        )
        .expect("strings take all");
    }
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let count = &worker.count;
    let text = include_str!("page.html")
        .replace("{uptime}", &worker.uptime().as_secs().to_string())
        .replace("{succeeded}", &read(&count.succeeded).to_string())
        .replace("{failed}", &read(&count.failed).to_string())
        .replace("{throttled}", &read(&count.throttled).to_string())
        .replace("{refused}", &read(&count.refused).to_string())
        .replace("{cold_starts}", &count.cold_start.cumulative().last().copied().unwrap_or(0).to_string())
        .replace("{rows}", &rows);
    http::answer(200, "text/html; charset=utf-8", text)
}

/// The figures in Prometheus' text format.
pub fn metrics(api: &Api) -> Answer {
    let worker = &api.worker;
    let mut text = Metrics(String::new());
    let count = &worker.count;
    text.about("mayfly_invocations_total", "counter", "Requests that were answered, by outcome");
    for (outcome, counter) in [
        ("succeeded", &count.succeeded),
        ("failed", &count.failed),
        ("throttled", &count.throttled),
        ("refused", &count.refused),
    ] {
        let labels = format!("outcome=\"{outcome}\"");
        text.value("mayfly_invocations_total", &labels, counter.load(Ordering::Relaxed));
    }
    text.about("mayfly_instances", "gauge", "Instances, by function and phase");
    for function in worker.functions() {
        let census = worker.census(Some(function.deployment.function));
        for (phase, number) in [
            ("starting", census.starting),
            ("idle", census.idle),
            ("busy", census.busy),
            ("stopping", census.stopping),
        ] {
            let labels = format!("function=\"{}\",phase=\"{phase}\"", function.deployment.name);
            text.value("mayfly_instances", &labels, number.into());
        }
    }
    text.about(
        "mayfly_instance_memory_bytes",
        "gauge",
        "Memory in use, by function, as its cgroups count it",
    );
    let instances = worker.instances();
    for function in worker.functions() {
        let own = instances.iter().filter(|one| one.deployment.function == function.deployment.function);
        let bytes = own.filter_map(|instance| instance.memory_bytes()).sum();
        text.value(
            "mayfly_instance_memory_bytes",
            &format!("function=\"{}\"", function.deployment.name),
            bytes,
        );
    }
    text.about("mayfly_queued_requests", "gauge", "Requests that wait for an instance");
    text.value("mayfly_queued_requests", "", worker.census(None).queued.into());
    text.histogram("mayfly_latency_seconds", "From arrival to answer, of requests that ran", &count.latency);
    text.histogram(
        "mayfly_cold_start_seconds",
        "From an instance's start until it asks for work",
        &count.cold_start,
    );
    http::answer(200, "text/plain; version=0.0.4", text.0)
}

struct Metrics(String);

impl Metrics {
    fn about(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("strings take all");
    }

    fn value(&mut self, name: &str, labels: &str, value: u64) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        writeln!(self.0, "{name}{labels} {value}").expect("strings take all");
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.about(name, "histogram", help);
        let counts = histogram.cumulative();
        for (count, bound) in
            counts.iter().zip(BUCKETS_S.map(|s| s.to_string()).into_iter().chain(["+Inf".into()]))
        {
            self.value(&format!("{name}_bucket"), &format!("le=\"{bound}\""), *count);
        }
        let sum = histogram.sum().as_secs_f64();
        writeln!(self.0, "{name}_sum {sum}\n{name}_count {}", counts.last().unwrap_or(&0))
            .expect("strings take all");
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
