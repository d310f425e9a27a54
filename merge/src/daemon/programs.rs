//! The programs of a domain: what their calls have done, and how many pages each is charged for. These are
//! the pages of the segments that it uploaded, which are memory of its cgroup. A program that has ended stays
//! in the list as long as other programs use its segments.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::time::Instant;

use crate::base::protocol::Report;
use crate::daemon::json::quoted;
use crate::daemon::trust_domain::Peer;

/// A program, by its connection.
#[derive(Clone, Debug)]
struct Program {
    pid: i32,
    name: String,
    since: Instant,
    has_ended: bool,
    report: Report,
    charged_pages: u64,
}

/// The programs of a domain.
#[derive(Clone, Debug, Default)]
pub struct Programs(BTreeMap<u64, Program>);

impl Programs {
    /// A program has connected.
    pub fn connected(&mut self, client: u64, peer: &Peer) {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", peer.pid)).unwrap_or_default();
        let name = name.trim_end().to_owned();
        let program = Program {
            pid: peer.pid,
            name,
            since: Instant::now(),
            has_ended: false,
            report: Report::default(),
            charged_pages: 0,
        };
        self.0.insert(client, program);
    }

    /// Records the statistics of a program's calls.
    pub fn reported(&mut self, client: u64, report: Report) {
        if let Some(program) = self.0.get_mut(&client) {
            program.report = report;
        }
    }

    /// A program's connection has ended.
    pub fn disconnected(&mut self, client: u64) {
        if let Some(program) = self.0.get_mut(&client) {
            program.has_ended = true;
            program.report.mappings = 0;
        }
    }

    /// Records how many pages each program is charged; removes programs that have ended and are charged for
    /// none.
    pub fn charge(&mut self, charged: &HashMap<u64, u64>) {
        for (client, program) in &mut self.0 {
            program.charged_pages = charged.get(client).copied().unwrap_or(0);
        }
        self.0.retain(|_, program| !program.has_ended || program.charged_pages > 0);
    }

    /// The programs that have advised memory, as JSON objects.
    pub fn json(&self, domain: &str) -> Vec<String> {
        let has_advised = |program: &Program| program.charged_pages > 0 || program.report.looked_up_pages > 0;
        let listed = self.0.iter().filter(|(_, program)| has_advised(program));
        listed
            .map(|(client, program)| {
                let Program { pid, name, since, has_ended, report, charged_pages } = program;
                let mut out = format!("{{\"domain\":{},\"client\":{client}", quoted(domain));
                let _ = write!(out, ",\"pid\":{pid},\"name\":{}", quoted(name));
                let _ = write!(out, ",\"age_seconds\":{:.1}", since.elapsed().as_secs_f64());
                let _ = write!(out, ",\"has_gone\":{has_ended},\"charged_pages\":{charged_pages}");
                let Report { looked_up_pages, found_pages, mappings } = report;
                let _ = write!(out, ",\"looked_up_pages\":{looked_up_pages},\"found_pages\":{found_pages}");
                let _ = write!(out, ",\"mappings\":{mappings}}}");
                out
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::trust_domain::TrustDomain;

    #[test]
    fn keeps_an_ended_program_while_it_is_charged() {
        let peer = Peer { pid: std::process::id() as i32, user: 0, domain: TrustDomain::User(0) };
        let mut programs = Programs::default();
        programs.connected(1, &peer);
        programs.connected(2, &peer);
        assert!(programs.json("d").is_empty(), "neither has advised anything");
        programs.reported(2, Report { looked_up_pages: 8, found_pages: 6, mappings: 3 });
        programs.charge(&[(1, 512)].into());
        let listed = programs.json("d");
        assert!(
            listed[0].contains("\"charged_pages\":512") && listed[1].contains("\"found_pages\":6"),
            "{listed:?}"
        );
        programs.disconnected(1);
        programs.disconnected(2);
        programs.charge(&[(1, 512)].into());
        let listed = programs.json("d");
        assert!(listed.len() == 1 && listed[0].contains("\"has_gone\":true"), "{listed:?}");
        programs.charge(&HashMap::new());
        assert!(programs.json("d").is_empty());
    }
}
