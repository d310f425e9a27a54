//! What Prometheus is told.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::cgroup;
use crate::domains::trust_domain::Domain;
use crate::observe::containers::Known;
use crate::observe::model_coverage::{self, Standing};
use crate::observe::shared_memory;
use crate::service::agent::Agent;

/// All figures as Prometheus' text.
pub fn text(agent: &Agent) -> String {
    let mut out = Text(String::new());
    let counts = &agent.counts;
    let one = |count: &AtomicU64| count.load(Ordering::Relaxed);
    out.head("connected", "gauge", "Whether a container runtime asks the agent (NRI)");
    out.line("connected", &[], agent.is_connected.load(Ordering::Relaxed).into());
    out.head("given_total", "counter", "Containers that were given something");
    out.line("given_total", &[("what", "heap")], one(&counts.heap));
    out.line("given_total", &[("what", "share")], one(&counts.share));
    out.head("refused_total", "counter", "Annotations that were not followed");
    out.line("refused_total", &[], one(&counts.refused));
    out.head("missed_total", "counter", "Containers that asked and started while no agent ran");
    out.line("missed_total", &[], one(&counts.missed));
    out.head("outcomes_total", "counter", "What programs had of it once they ran");
    for (outcome, count) in counts.outcomes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).iter() {
        out.line("outcomes_total", &[("outcome", outcome.label())], *count);
    }
    out.head("profiles_total", "counter", "Profiles of programs");
    let outbox = &agent.profiles.outbox;
    out.line("profiles_total", &[("outcome", "kept")], one(&outbox.kept));
    out.line("profiles_total", &[("outcome", "failed")], one(&agent.profiles.failed));
    out.line("profiles_total", &[("outcome", "dropped")], one(&outbox.dropped));
    let waiting = outbox.waiting();
    out.head("profiles_waiting", "gauge", "Profiles that were taken and that the data set has not got yet");
    out.line("profiles_waiting", &[], waiting.len() as u64);
    out.head("profiles_waiting_bytes", "gauge", "Bytes of these");
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
    out.0
}

fn stores(agent: &Agent, out: &mut Text) {
    let states = agent.stores.states();
    let names: Vec<String> = states.keys().map(Domain::to_string).collect();
    let labels = |at: usize, domain: &Domain| {
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
    gauge("store_up", "Whether a trust domain's store runs", &|state| Some(state.process.is_some().into()));
    gauge("store_restarts", "How often it ended and was started again", &|state| Some(state.restarts));
    gauge("store_memory_bytes", "Memory charged to the store's own cgroup", &|state| state.memory_bytes);
    gauge("store_limit_bytes", "Memory that this cgroup may have", &|state| Some(state.limit_bytes));
    let mut has_head = std::collections::HashSet::new();
    for (at, (domain, state)) in states.iter().enumerate() {
        let labels = labels(at, domain);
        let labels = labels.each_ref().map(|(key, text)| (*key, text.as_str()));
        for line in state.figures().lines() {
            // The store knows itself as everyone's: of all who may reach it.
            let Some((name, value)) = line.split_once("{domain=\"everyone\"} ") else { continue };
            let Some(short) = name.strip_prefix("mayfly_") else { continue };
            let Ok(value) = value.parse() else { continue };
            if has_head.insert(short.to_owned()) {
                let kind = if short.ends_with("_total") { "counter" } else { "gauge" };
                let _ = writeln!(out.0, "# TYPE mayfly_{short} {kind}");
            }
            out.named(&format!("mayfly_{short}"), &labels, value);
        }
    }
}

fn containers(agent: &Agent, out: &mut Text) {
    let known = agent.containers();
    let sharing: Vec<_> = known.values().filter(|known| known.domain.is_some()).collect();
    out.head("containers", "gauge", "Containers that run with something given");
    out.line("containers", &[], known.len() as u64);
    let measured: Vec<_> = sharing
        .iter()
        .map(|known| {
            let processes = known.cgroup.iter().flat_map(|path| cgroup::processes_below(path));
            (known, shared_memory::shared(&processes.collect::<Vec<_>>()))
        })
        .collect();
    for (name, help) in [
        (
            "container_shared_mapped_bytes",
            "Store's pages that a container maps: private memory without the store",
        ),
        (
            "container_shared_bytes",
            "The same, each page divided by those who map it: what the container takes",
        ),
    ] {
        out.head(name, "gauge", help);
        for (known, shared) in &measured {
            let labels = [
                ("namespace", known.namespace.as_str()),
                ("pod", known.pod.as_str()),
                ("container", known.name.as_str()),
            ];
            let bytes = if name.contains("mapped") { shared.mapped_bytes } else { shared.proportional_bytes };
            out.line(name, &labels, bytes);
        }
    }
}

fn models(agent: &Agent, out: &mut Text) {
    let known = agent.containers();
    let of = |known: &Known| model_coverage::of_container(known, agent.offer());
    let standings: Vec<_> =
        known.values().filter_map(|known| Some((known, known.model.as_ref()?, of(known)?))).collect();
    let mut gauge = |name: &str, help: &str, value: fn(&Standing) -> u64| {
        out.head(name, "gauge", help);
        for (known, model, standing) in &standings {
            let labels = [
                ("namespace", known.namespace.as_str()),
                ("pod", known.pod.as_str()),
                ("container", known.name.as_str()),
                ("model", model.as_str()),
            ];
            out.line(name, &labels, value(standing));
        }
    };
    gauge("model_contexts", "Calling contexts that the model was asked about", |one| one.contexts);
    gauge("model_contexts_known", "Those that lie wholly in modules that it has", |one| one.known);
    gauge("model_believed", "Whether the program believes it", |one| u64::from(!one.is_doubted));
}

struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP mayfly_node_{name} {help}.\n# TYPE mayfly_node_{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.named(&format!("mayfly_node_{name}"), labels, value);
    }

    fn named(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let labels: Vec<String> =
            labels.iter().map(|(key, text)| format!("{key}=\"{}\"", escaped(text))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
}

/// As Prometheus wants labels.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_one_line_whatever_a_pod_is_called() {
        let mut out = Text(String::new());
        out.line("x", &[("pod", "a\"b\\\nc")], 7);
        assert_eq!(out.0, "mayfly_node_x{pod=\"a\\\"b\\\\\\nc\"} 7\n");
    }
}
