//! What is counted for each domain, and how it is told: JSON for `mayfly share top`, Prometheus' text for /metrics.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;

use crate::base::protocol::MOST_BYTES;
use crate::daemon::json::quoted;
use crate::daemon::programs::Programs;
use crate::daemon::trust_domain::Domain;

macro_rules! figures {
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ident,)+) => {
        /// A domain's figures: counters since its store was made, and gauges.
        #[derive(Clone, Debug, Default)]
        pub struct Figures {
            $($(#[doc = $help])+ pub $name: u64,)+
        }

        impl Figures {
            /// Name, kind, meaning and value of each.
            fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str, u64)> {
                [$((stringify!($name), stringify!($kind), concat!($($help),+), self.$name),)+].into_iter()
            }
        }
    };
}

figures! {
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
    /// Pages known that clients keep for themselves
    private_pages: gauge,
    /// Pages that the daemon has copied, and pays for
    copied_pages: gauge,
    /// Connections accepted
    connections_total: counter,
    /// Connections closed because of what came over them
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
    /// Pages dropped because nobody mapped them any more
    dropped_pages_total: counter,
}

/// Where the domains' threads post their figures, and now and then their programs.
#[derive(Default)]
pub struct FiguresByDomain(Mutex<BTreeMap<Domain, (Figures, Programs)>>);

impl FiguresByDomain {
    /// Posts a domain's figures, or takes them down.
    pub fn post(&self, domain: &Domain, figures: Option<&Figures>) {
        let Ok(mut all) = self.0.lock() else { return };
        match (figures, all.get_mut(domain)) {
            (Some(figures), Some(posted)) => posted.0.clone_from(figures),
            (Some(figures), None) => {
                all.insert(domain.clone(), (figures.clone(), Programs::default()));
            }
            (None, _) => drop(all.remove(domain)),
        }
    }

    /// Posts the programs of a domain whose figures are there.
    pub fn post_programs(&self, domain: &Domain, programs: &Programs) {
        let Ok(mut all) = self.0.lock() else { return };
        if let Some(posted) = all.get_mut(domain) {
            posted.1.clone_from(programs);
        }
    }

    fn read<T>(&self, with: impl FnOnce(&BTreeMap<Domain, (Figures, Programs)>) -> T) -> T {
        with(&self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// One JSON object: of all domains, or of one only, and of no more than a message holds.
    pub fn json(&self, only: Option<&Domain>) -> String {
        let mut out = format!("{{\"pid\":{},\"cpu_seconds\":{:.3}", std::process::id(), cpu_seconds());
        out.push_str(",\"domains\":[");
        self.read(|all| {
            for (domain, (figures, _)) in
                all.iter().filter(|(domain, _)| only.is_none_or(|only| only == *domain))
            {
                let mut one = format!("{{\"domain\":{}", quoted(&domain.to_string()));
                for (name, _, _, value) in figures.all() {
                    let _ = write!(one, ",\"{name}\":{value}");
                }
                // A tenant chooses how long the names of its cgroups are.
                if out.len() + one.len() > MOST_BYTES - 64 {
                    continue;
                }
                out.push_str(if out.ends_with('[') { "" } else { "," });
                out.push_str(&one);
                out.push('}');
            }
        });
        out + "]}"
    }

    /// How many programs there are in all domains or in one only, and those after the first so many, as far as they fit into
    /// a message.
    pub fn programs(&self, only: Option<&Domain>, skip: usize) -> String {
        let told: Vec<String> = self.read(|all| {
            let seen = all.iter().filter(|(domain, _)| only.is_none_or(|only| only == *domain));
            seen.flat_map(|(domain, (_, programs))| programs.json(&domain.to_string())).collect()
        });
        let mut out = format!("{{\"total\":{},\"programs\":[", told.len());
        for (i, program) in told.iter().skip(skip).enumerate() {
            if out.len() + program.len() > MOST_BYTES - 64 {
                break;
            }
            out.push_str(if i > 0 { "," } else { "" });
            out.push_str(program);
        }
        out + "]}"
    }

    /// Prometheus' text format.
    pub fn prometheus(&self) -> String {
        let mut out = String::from("# HELP mayfly_share_cpu_seconds_total Processor time of the daemon.\n");
        let _ = writeln!(out, "# TYPE mayfly_share_cpu_seconds_total counter");
        let _ = writeln!(out, "mayfly_share_cpu_seconds_total {:.3}", cpu_seconds());
        self.read(|all| {
            for (i, (name, kind, help, _)) in Figures::default().all().enumerate() {
                let _ = writeln!(out, "# HELP mayfly_share_{name}{help}.\n# TYPE mayfly_share_{name} {kind}");
                for (domain, (figures, _)) in all {
                    let value = figures.all().nth(i).map_or(0, |figure| figure.3);
                    let label = quoted(&domain.to_string());
                    let _ = writeln!(out, "mayfly_share_{name}{{domain={label}}} {value}");
                }
            }
        });
        out
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
        let by_domain = FiguresByDomain::default();
        let domain = Domain::Cgroup(7, "/a\"b".into());
        by_domain.post(&domain, Some(&Figures { clients: 3, offered_pages_total: 12, ..Figures::default() }));
        by_domain.post(&Domain::User(1), Some(&Figures::default()));
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
    fn no_names_are_too_long_for_a_message() {
        let by_domain = FiguresByDomain::default();
        for user in 0..40 {
            let domain = Domain::Cgroup(user, format!("/{}", "\u{1}".repeat(3000)));
            by_domain.post(&domain, Some(&Figures::default()));
        }
        by_domain.post(&Domain::Everyone, Some(&Figures::default()));
        let json = by_domain.json(None);
        assert!(json.len() <= MOST_BYTES - 4 && json.contains("uid 0 in") && json.contains("\"everyone\""));
    }
}
