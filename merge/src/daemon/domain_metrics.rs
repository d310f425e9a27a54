//! Metrics of each domain: JSON for `mayfly share top`, Prometheus' text for /metrics.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;

use prometheus_text::PrometheusText;

use crate::base::protocol::MAX_BYTES;
use crate::daemon::json::quoted;
use crate::daemon::programs::Programs;
use crate::daemon::trust_domain::TrustDomain;

macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ident,)+) => {
        /// A domain's metrics: counters since its store was created, and gauges.
        #[derive(Clone, Debug, Default)]
        pub struct DomainMetrics {
            $($(#[doc = $help])+ pub $name: u64,)+
        }

        impl DomainMetrics {
            /// Name, kind, help and value of each.
            fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str, u64)> {
                [$((stringify!($name), stringify!($kind), concat!($($help),+), self.$name),)+].into_iter()
            }
        }
    };
}

metrics! {
    /// Connections that are open
    clients: gauge,
    /// Pages in the store
    store_pages: gauge,
    /// Pages that the store may hold
    store_limit_pages: gauge,
    /// Segments of the store
    segments: gauge,
    /// Pages that can be found
    index_entries: gauge,
    /// Memory of the index
    index_bytes: gauge,
    /// Known pages that stay in clients' private memory
    private_pages: gauge,
    /// Pages that the daemon has copied, and pays for
    copied_pages: gauge,
    /// Connections accepted
    connections_total: counter,
    /// Connections closed because of an invalid message
    expelled_total: counter,
    /// Connections refused because there were too many
    turned_away_total: counter,
    /// Requests served
    requests_total: counter,
    /// Requests refused
    refused_total: counter,
    /// Pages offered
    offered_pages_total: counter,
    /// Pages offered whose contents were new
    new_pages_total: counter,
    /// Pages dropped because no process mapped them any more
    dropped_pages_total: counter,
}

/// The metrics and programs that the domains' threads have posted.
#[derive(Default)]
pub struct MetricsByDomain(Mutex<BTreeMap<TrustDomain, (DomainMetrics, Programs)>>);

impl MetricsByDomain {
    /// Posts a domain's metrics, or removes them.
    pub fn post(&self, domain: &TrustDomain, metrics: Option<&DomainMetrics>) {
        let Ok(mut all) = self.0.lock() else { return };
        match (metrics, all.get_mut(domain)) {
            (Some(metrics), Some(posted)) => posted.0.clone_from(metrics),
            (Some(metrics), None) => {
                all.insert(domain.clone(), (metrics.clone(), Programs::default()));
            }
            (None, _) => drop(all.remove(domain)),
        }
    }

    /// Posts the programs of a domain whose metrics are there.
    pub fn post_programs(&self, domain: &TrustDomain, programs: &Programs) {
        let Ok(mut all) = self.0.lock() else { return };
        if let Some(posted) = all.get_mut(domain) {
            posted.1.clone_from(programs);
        }
    }

    fn read<T>(&self, with: impl FnOnce(&BTreeMap<TrustDomain, (DomainMetrics, Programs)>) -> T) -> T {
        with(&self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// One JSON object: all domains, or only one, as far as they fit into a message.
    pub fn json(&self, only: Option<&TrustDomain>) -> String {
        let mut out = format!("{{\"pid\":{},\"cpu_seconds\":{:.3}", std::process::id(), cpu_seconds());
        out.push_str(",\"domains\":[");
        self.read(|all| {
            for (domain, (metrics, _)) in
                all.iter().filter(|(domain, _)| only.is_none_or(|only| only == *domain))
            {
                let mut one = format!("{{\"domain\":{}", quoted(&domain.to_string()));
                for (name, _, _, value) in metrics.all() {
                    let _ = write!(one, ",\"{name}\":{value}");
                }
                // A tenant chooses the length of its cgroups' names.
                if out.len() + one.len() > MAX_BYTES - 64 {
                    continue;
                }
                out.push_str(if out.ends_with('[') { "" } else { "," });
                out.push_str(&one);
                out.push('}');
            }
        });
        out + "]}"
    }

    /// The number of programs in all domains or in only one, and those after the first `skip`, as far as they
    /// fit into a message.
    pub fn programs(&self, only: Option<&TrustDomain>, skip: usize) -> String {
        let listed: Vec<String> = self.read(|all| {
            let seen = all.iter().filter(|(domain, _)| only.is_none_or(|only| only == *domain));
            seen.flat_map(|(domain, (_, programs))| programs.json(&domain.to_string())).collect()
        });
        let mut out = format!("{{\"total\":{},\"programs\":[", listed.len());
        for (i, program) in listed.iter().skip(skip).enumerate() {
            if out.len() + program.len() > MAX_BYTES - 64 {
                break;
            }
            out.push_str(if i > 0 { "," } else { "" });
            out.push_str(program);
        }
        out + "]}"
    }

    /// Prometheus' text format.
    pub fn prometheus(&self) -> String {
        let mut out = PrometheusText::default();
        let name = "mayfly_share_cpu_seconds_total";
        out.single(name, "counter", "Processor time of the daemon", format_args!("{:.3}", cpu_seconds()));
        self.read(|all| {
            for (i, (name, kind, help, _)) in DomainMetrics::default().all().enumerate() {
                let name = format!("mayfly_share_{name}");
                out.head(&name, kind, help.trim_start());
                for (domain, (metrics, _)) in all {
                    let value = metrics.all().nth(i).map_or(0, |metric| metric.3);
                    out.value(&name, &[("domain", &domain.to_string())], value);
                }
            }
        });
        out.into_string()
    }
}

/// Processor time of this process in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_name_the_domain() {
        let by_domain = MetricsByDomain::default();
        let domain = TrustDomain::Cgroup(7, "/a\"b".into());
        by_domain.post(
            &domain,
            Some(&DomainMetrics { clients: 3, offered_pages_total: 12, ..DomainMetrics::default() }),
        );
        by_domain.post(&TrustDomain::User(1), Some(&DomainMetrics::default()));
        let json = by_domain.json(Some(&domain));
        assert!(json.contains(r#"[{"domain":"uid 7 in /a\"b","clients":3,"store_pages":0"#), "{json}");
        assert!(!json.contains("uid 1") && by_domain.json(None).contains("uid 1"));
        let text = by_domain.prometheus();
        assert!(text.contains("\nmayfly_share_clients{domain=\"uid 7 in /a\\\"b\"} 3\n"), "{text}");
        assert!(text.contains("\n# TYPE mayfly_share_offered_pages_total counter\n"), "{text}");
        by_domain.post(&domain, None);
        assert!(!by_domain.json(None).contains("uid 7"));
    }

    #[test]
    fn json_fits_into_a_message_with_long_names() {
        let by_domain = MetricsByDomain::default();
        for user in 0..40 {
            let domain = TrustDomain::Cgroup(user, format!("/{}", "\u{1}".repeat(3000)));
            by_domain.post(&domain, Some(&DomainMetrics::default()));
        }
        by_domain.post(&TrustDomain::Everyone, Some(&DomainMetrics::default()));
        let json = by_domain.json(None);
        assert!(json.len() <= MAX_BYTES - 4 && json.contains("uid 0 in") && json.contains("\"everyone\""));
    }
}
