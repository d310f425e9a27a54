//! `mayfly share top`: the store's contents and the programs that use it, as live tables, or once as JSON.

use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use merge::client::connection::Connection;
use serde_json::{Map, Value};

use crate::live::{LiveArguments, printable};

/// Show what the page store holds and which programs use it: live tables, or once as JSON
///
/// A program is charged, in its cgroup, for the pages that it uploaded first; also after it has ended, while
/// other programs use them. Found is the share of looked-up pages that another program had uploaded. Root and
/// the store's own user see every trust domain, others their own.
#[derive(Args)]
pub struct TopArguments {
    /// One JSON object, and no table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    live: LiveArguments,
}

struct Sample {
    at: Instant,
    status: Value,
    programs: Vec<Value>,
}

fn number(of: &Value, name: &str) -> f64 {
    of.get(name).and_then(Value::as_f64).unwrap_or(0.0)
}

fn mib(pages: f64) -> String {
    format!("{:.1}", pages / 256.0)
}

fn shown(of: &Value, name: &str) -> String {
    printable(of.get(name).and_then(Value::as_str).unwrap_or("?"))
}

fn domains(status: &Value) -> &[Value] {
    status.get("domains").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The table, with rates since the sample before.
fn table(now: &Sample, before: Option<&Sample>) -> String {
    let mut out = format!(
        "page store, process {}: {:.1} s of processor time\n\n{:<28} {:>7} {:>10} {:>10} {:>8} {:>9} {:>11} {:>11}\n",
        number(&now.status, "pid"),
        number(&now.status, "cpu_seconds"),
        "trust domain",
        "clients",
        "store MiB",
        "limit MiB",
        "segments",
        "index MiB",
        "offered/s",
        "new/s"
    );
    for domain in domains(&now.status) {
        let name = shown(domain, "domain");
        let former = before.and_then(|before| {
            let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
            let same = domains(&before.status).iter().find(|d| d.get("domain") == domain.get("domain"))?;
            Some((same, seconds))
        });
        let rate = |counter: &str| {
            former.map_or("-".to_owned(), |(same, seconds)| {
                mib((number(domain, counter) - number(same, counter)) / seconds)
            })
        };
        out += &format!(
            "{:<28} {:>7} {:>10} {:>10} {:>8} {:>9.1} {:>11} {:>11}\n",
            name,
            number(domain, "clients"),
            mib(number(domain, "store_pages")),
            mib(number(domain, "store_limit_pages")),
            number(domain, "segments"),
            number(domain, "index_bytes") / f64::from(1 << 20),
            rate("offered_pages_total"),
            rate("new_pages_total"),
        );
    }
    if domains(&now.status).is_empty() {
        out += "no program shares memory yet\n";
    }
    out + &programs_table(&now.programs)
}

/// The programs, and what each is charged.
fn programs_table(programs: &[Value]) -> String {
    if programs.is_empty() {
        return String::new();
    }
    let mut sorted: Vec<_> = programs.iter().collect();
    sorted.sort_by(|a, b| number(b, "charged_pages").total_cmp(&number(a, "charged_pages")));
    let mut out = format!(
        "\n{:<28} {:<16} {:>8} {:>6} {:>12} {:>9} {:>14} {:>6}\n",
        "trust domain", "program", "pid", "age", "charged MiB", "mappings", "looked up MiB", "found"
    );
    for program in sorted {
        let looked_up = number(program, "looked_up_pages");
        let found = match looked_up {
            0.0 => "-".to_owned(),
            looked_up => format!("{:.0}%", 100.0 * number(program, "found_pages") / looked_up),
        };
        let has_ended = program["has_gone"].as_bool() == Some(true);
        out += &format!(
            "{:<28} {:<16} {:>8} {:>6} {:>12} {:>9} {:>14} {:>6}\n",
            shown(program, "domain"),
            shown(program, "name"),
            if has_ended { "ended".to_owned() } else { number(program, "pid").to_string() },
            age(number(program, "age_seconds")),
            mib(number(program, "charged_pages")),
            number(program, "mappings"),
            mib(looked_up),
            found,
        );
    }
    out
}

fn age(seconds: f64) -> String {
    match seconds {
        ..100.0 => format!("{seconds:.0} s"),
        ..6000.0 => format!("{:.0} min", seconds / 60.0),
        ..172_800.0 => format!("{:.0} h", seconds / 3600.0),
        _ => format!("{:.0} d", seconds / 86_400.0),
    }
}

/// The store's answer with flat, dotted names.
fn flat(Sample { status, programs, .. }: &Sample) -> Value {
    let mut out = Map::new();
    out.insert("share.pid".into(), status["pid"].clone());
    out.insert("share.cpu_seconds".into(), status["cpu_seconds"].clone());
    for domain in domains(status) {
        let Some(fields) = domain.as_object() else { continue };
        let name = fields.get("domain").and_then(Value::as_str).unwrap_or("?").replace(' ', "_");
        for (field, value) in fields.iter().filter(|(field, _)| *field != "domain") {
            out.insert(format!("share.{name}.{field}"), value.clone());
        }
    }
    for program in programs {
        let Some(fields) = program.as_object() else { continue };
        let domain = program["domain"].as_str().unwrap_or("?").replace(' ', "_");
        let prefix = format!("share.{domain}.program.{}", program["client"]);
        for (field, value) in fields.iter().filter(|(field, _)| !["domain", "client"].contains(&&***field)) {
            out.insert(format!("{prefix}.{field}"), value.clone());
        }
    }
    Value::Object(out)
}

fn sample(connection: &mut Connection) -> Result<Sample> {
    let read = |text: String| serde_json::from_str::<Value>(&text).context("the page store's metrics");
    let status = read(connection.status()?)?;
    let mut programs = Vec::new();
    loop {
        let piece = read(connection.programs(programs.len() as u32)?)?;
        let more = piece["programs"].as_array().map_or(&[][..], Vec::as_slice);
        programs.extend_from_slice(more);
        if more.is_empty() || programs.len() as f64 >= number(&piece, "total") {
            return Ok(Sample { at: Instant::now(), status, programs });
        }
    }
}

impl TopArguments {
    /// Shows the store's state until the store or the terminal closes.
    ///
    /// # Errors
    /// There is no store.
    pub fn execute(self) -> Result<i32> {
        let mut connection = Connection::open()?;
        if self.json {
            println!("{}", flat(&sample(&mut connection)?));
            return Ok(0);
        }
        let mut before = None;
        self.live.show(|| {
            let now = sample(&mut connection)?;
            let text = table(&now, before.as_ref());
            before = Some(now);
            Ok(text)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(offered: u64, at: Instant) -> Sample {
        let status = serde_json::json!({"pid": 7, "cpu_seconds": 1.5, "domains": [
            {"domain": "uid 0", "clients": 3, "store_pages": 512, "offered_pages_total": offered}]});
        let programs = [(4711, 1024, 100, 25, 30.0), (4712, 0, 0, 0, 7200.0)].map(|(pid, charged, up, found, age)| {
            serde_json::json!({"domain": "uid 0", "client": 5 + pid % 10, "pid": pid, "name": "web", "age_seconds": age,
                "has_gone": pid == 4712, "charged_pages": charged, "looked_up_pages": up, "found_pages": found,
                "mappings": 3})
        });
        Sample { at, status, programs: programs.into() }
    }

    #[test]
    fn the_table_shows_rates() {
        let start = Instant::now();
        let text = table(&at(1024, start + Duration::from_secs(2)), Some(&at(0, start)));
        let line = text.lines().find(|line| line.starts_with("uid 0")).unwrap();
        let cells: Vec<_> = line.split_whitespace().collect();
        assert_eq!(cells[2..4], ["3", "2.0"]);
        assert!(cells.contains(&"2.0"), "{line}");
        assert!(table(&at(0, start), None).contains(" -"));
        let programs: Vec<Vec<_>> =
            text.lines().filter(|l| l.contains(" web ")).map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(programs[0][2..], ["web", "4711", "30", "s", "4.0", "3", "0.4", "25%"]);
        assert_eq!(programs[1][2..], ["web", "ended", "2", "h", "0.0", "3", "0.0", "-"]);
    }

    #[test]
    fn names_cannot_send_control_characters() {
        let mut sample = at(0, Instant::now());
        sample.programs[0]["name"] = "\u{1b}[2Jx\u{7}".into();
        sample.status["domains"][0]["domain"] = "uid 0 in /\u{1b}c\n".into();
        let text = table(&sample, None);
        assert!(text.contains("?[2Jx?") && text.contains("uid 0 in /?c?"));
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn json_has_flat_names() {
        let flat = flat(&at(5, Instant::now()));
        assert_eq!(flat["share.uid_0.offered_pages_total"], 5);
        assert_eq!(flat["share.pid"], 7);
        assert_eq!(flat["share.uid_0.program.6.charged_pages"], 1024);
    }
}
