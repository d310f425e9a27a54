//! The metrics as Prometheus' text.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_text::PrometheusText;

use crate::domains::trust_domain::TrustDomain;
use crate::observe::containers::InjectedContainer;
use crate::observe::model_coverage::{self, ModelCoverage};
use crate::service::agent::Agent;
use crate::service::memory::{ContainerMemory, container_memory};

/// All metrics as Prometheus' text.
pub fn text(agent: &Agent) -> String {
    let mut out = Text::default();
    let counts = &agent.counts;
    let one = |count: &AtomicU64| count.load(Ordering::Relaxed);
    out.head("connected", "gauge", "Whether the agent is connected to a container runtime (NRI)");
    out.line("connected", &[], agent.is_connected.load(Ordering::Relaxed).into());
    out.head("given_total", "counter", "Containers that started with an injection");
    out.line("given_total", &[("what", "heap")], one(&counts.heap));
    out.line("given_total", &[("what", "share")], one(&counts.share));
    out.head("refused_total", "counter", "Requests that the agent refused");
    out.line("refused_total", &[], one(&counts.refused));
    out.head(
        "missed_total",
        "counter",
        "Containers with a request that started while no agent ran, or before it responded",
    );
    out.line("missed_total", &[], one(&counts.missed));
    out.head(
        "replaced_total",
        "counter",
        "Containers that started without an injected library, since another NRI plugin replaced LD_PRELOAD",
    );
    out.line("replaced_total", &[], one(&counts.replaced));
    out.head("outcomes_total", "counter", "Running programs by whether they loaded the injected libraries");
    for (outcome, count) in counts.outcomes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).iter() {
        out.line("outcomes_total", &[("outcome", outcome.label())], *count);
    }
    out.head("profiles_total", "counter", "Profiles of programs");
    let upload_queue = &agent.profiler.upload_queue;
    out.line("profiles_total", &[("outcome", "kept")], one(&upload_queue.kept));
    out.line("profiles_total", &[("outcome", "failed")], one(&agent.profiler.failed));
    out.line("profiles_total", &[("outcome", "dropped")], one(&upload_queue.dropped));
    let waiting = upload_queue.waiting();
    out.head("profiles_waiting", "gauge", "Profiles that wait to be stored in the data set");
    out.line("profiles_waiting", &[], waiting.len() as u64);
    out.head("profiles_waiting_bytes", "gauge", "Bytes of the profiles that wait");
    out.line("profiles_waiting_bytes", &[], waiting.iter().map(|one| one.bytes).sum());
    out.head(
        "models_doubted_total",
        "counter",
        "Containers whose model was of another build and not believed",
    );
    out.line("models_doubted_total", &[], one(&counts.models_doubted));
    stores(agent, &mut out);
    containers(agent, &mut out);
    models(agent, &mut out);
    out.0.into_string()
}

fn stores(agent: &Agent, out: &mut Text) {
    let states = agent.stores.states();
    let names: Vec<String> = states.keys().map(TrustDomain::to_string).collect();
    let labels = |at: usize, domain: &TrustDomain| {
        [("domain", names[at].clone()), ("namespace", domain.namespace().to_owned())]
    };
    let mut gauge =
        |name: &str, help: &str, value: &dyn Fn(&crate::domains::page_stores::State) -> Option<u64>| {
            out.head(name, "gauge", help);
            for (at, (domain, state)) in states.iter().enumerate() {
                if let Some(value) = value(state) {
                    let labels = labels(at, domain);
                    out.line(name, &labels.each_ref().map(|(key, text)| (*key, text.as_str())), value);
                }
            }
        };
    gauge("store_up", "Whether a trust domain's page store runs", &|state| {
        Some(state.process.is_some().into())
    });
    gauge("store_restarts", "How often it was restarted", &|state| Some(state.restarts));
    gauge("store_memory_bytes", "Memory charged to the store's own cgroup", &|state| state.memory_bytes);
    gauge("store_limit_bytes", "The limit of this cgroup", &|state| Some(state.limit_bytes));
    let mut families = Families::default();
    for (at, (domain, state)) in states.iter().enumerate() {
        let labels = labels(at, domain);
        families.add(&state.metrics(), &labels.each_ref().map(|(key, text)| (*key, text.as_str())));
    }
    families.write(&mut out.0);
}

/// The stores' own metrics. All values of one metric follow its head, as Prometheus' format requires.
#[derive(Default)]
struct Families(Vec<Family>);

#[derive(Default)]
struct Family {
    name: String,
    /// Its help and type, as a store has written them.
    head: String,
    values: PrometheusText,
}

impl Families {
    /// Adds the metrics of one store. It labels them with its only domain, `everyone`; the agent replaces
    /// that label by those of the trust domain.
    fn add(&mut self, text: &str, labels: &[(&str, &str)]) {
        let mut head = String::new();
        for line in text.lines() {
            if line.starts_with('#') {
                let is_first = line.starts_with("# HELP ");
                head = if is_first { format!("{line}\n") } else { format!("{head}{line}\n") };
                continue;
            }
            let Some((name, value)) = line.split_once("{domain=\"everyone\"} ") else { continue };
            let (true, Ok(value)) = (name.starts_with("mayfly_share_"), value.parse::<u64>()) else {
                continue;
            };
            let at = self.0.iter().position(|family| family.name == name).unwrap_or_else(|| {
                let head = std::mem::take(&mut head);
                self.0.push(Family { name: name.to_owned(), head, values: PrometheusText::default() });
                self.0.len() - 1
            });
            self.0[at].values.value(name, labels, value);
        }
    }

    fn write(self, out: &mut PrometheusText) {
        for Family { head, values, .. } in self.0 {
            out.push(&head);
            out.push(&values.into_string());
        }
    }
}

fn containers(agent: &Agent, out: &mut Text) {
    out.head("containers", "gauge", "Running containers with an injection");
    let containers = container_memory(agent);
    out.line("containers", &[], containers.len() as u64);
    let mut gauge = |name: &str, help: &str, value: fn(&ContainerMemory) -> Option<u64>| {
        out.head(name, "gauge", help);
        for container in &containers {
            let labels = [
                ("namespace", container.namespace.as_str()),
                ("pod", container.pod.as_str()),
                ("container", container.container.as_str()),
            ];
            if let Some(value) = value(container) {
                out.line(name, &labels, value);
            }
        }
    };
    gauge("container_charged_bytes", "Memory charged to the container's own cgroup", |one| one.charged_bytes);
    gauge(
        "container_shared_mapped_bytes",
        "A store's pages that a container maps: private memory without the store",
        |one| one.shared_mapped_bytes,
    );
    gauge(
        "container_shared_bytes",
        "The same, each page divided by the processes that map it: what the container takes",
        |one| one.shared_bytes,
    );
}

fn models(agent: &Agent, out: &mut Text) {
    let containers = agent.containers();
    let coverage = |container: &InjectedContainer| model_coverage::of_container(container, agent.artifacts());
    let coverages: Vec<_> =
        containers.values().filter_map(|one| Some((one, one.model()?, coverage(one)?))).collect();
    let mut gauge = |name: &str, help: &str, value: fn(&ModelCoverage) -> u64| {
        out.head(name, "gauge", help);
        for (container, model, coverage) in &coverages {
            let labels = [
                ("namespace", container.namespace.as_str()),
                ("pod", container.pod.as_str()),
                ("container", container.name.as_str()),
                ("model", model.as_str()),
            ];
            out.line(name, &labels, value(coverage));
        }
    };
    gauge("model_contexts", "Calling contexts that the heap looked up in the model", |one| one.contexts);
    gauge("model_contexts_known", "Those whose modules are all in the model", |one| one.known);
    gauge("model_believed", "Whether the program believes it", |one| u64::from(!one.is_doubted));
}

/// The agent's own metrics: whole numbers, whose names begin alike.
#[derive(Default)]
struct Text(PrometheusText);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.0.head(&named(name), kind, help);
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.0.value(&named(name), labels, value);
    }
}

fn named(name: &str) -> String {
    format!("mayfly_node_{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_two_stores_follow_one_head_with_help() {
        let store = |clients: u32| {
            let head = |name, kind| format!("# HELP {name} Help.\n# TYPE {name} {kind}\n");
            [
                head("mayfly_share_cpu_seconds_total", "counter"),
                "mayfly_share_cpu_seconds_total 0.250\n".into(),
                head("mayfly_share_clients", "gauge"),
                format!("mayfly_share_clients{{domain=\"everyone\"}} {clients}\n"),
                head("mayfly_share_requests_total", "counter"),
                "mayfly_share_requests_total{domain=\"everyone\"} 9\n".into(),
            ]
            .concat()
        };
        let (mut families, mut out) = (Families::default(), PrometheusText::default());
        families.add(&store(1), &[("domain", "a")]);
        families.add(&store(2), &[("domain", "b")]);
        families.write(&mut out);
        let wanted = "# HELP mayfly_share_clients Help.\n# TYPE mayfly_share_clients gauge\n\
            mayfly_share_clients{domain=\"a\"} 1\nmayfly_share_clients{domain=\"b\"} 2\n\
            # HELP mayfly_share_requests_total Help.\n# TYPE mayfly_share_requests_total counter\n\
            mayfly_share_requests_total{domain=\"a\"} 9\nmayfly_share_requests_total{domain=\"b\"} 9\n";
        assert_eq!(out.into_string(), wanted);
    }
}
