//! `mayfly report`: a worker's run as a table, and as one HTML file with charts.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use worker_page::report::{ratio, report};
use worker_page::run::{Fact, Run};

const EXAMPLES: &str = "\
Examples:
  mayfly up functions/template.yaml &
  mayfly load --trace functions/trace.csv --speed 30 --json > load.json
  mayfly report --worker 127.0.0.1:8080 --load load.json --output report.html

To compare, keep each run in a file, and name the files; ratios are to the first:
  mayfly report --worker 127.0.0.1:8080 --load load.json --name plain --keep plain.json
  mayfly report plain.json mayfly.json --output report.html

The HTML file is complete, styles and charts included: it can be sent and opened anywhere.
A worker keeps its last hour.";

/// How long a worker may take for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Show a worker's use of its memory: a table, and an HTML file with charts
#[derive(Args)]
#[command(after_long_help = EXAMPLES, after_help = "Examples: mayfly report --help")]
pub struct ReportArguments {
    /// Runs saved with --keep; ratios are to the first
    #[arg(value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// A worker whose last hour is a run
    #[arg(long, value_name = "ADDRESS", required_unless_present = "runs")]
    worker: Option<SocketAddr>,
    /// The output of `mayfly load --json` for that worker
    #[arg(long, value_name = "FILE", requires = "worker")]
    load: Option<PathBuf>,
    /// The name of the worker's run
    #[arg(
        long,
        value_name = "NAME",
        requires = "worker",
        default_value = "worker",
        hide_default_value = true
    )]
    name: String,
    /// Save the worker's run to a file
    #[arg(long, value_name = "FILE", requires = "worker")]
    keep: Option<PathBuf>,
    /// Write the HTML file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

impl ReportArguments {
    /// Writes and prints the report; returns the exit code.
    ///
    /// # Errors
    /// No worker answers, or a file cannot be read or written.
    pub fn execute(self) -> Result<i32> {
        let mut runs: Vec<Run> = self.runs.iter().map(|path| read(path)).collect::<Result<_>>()?;
        if let Some(address) = self.worker {
            let run = Run {
                name: self.name,
                history: ask(address, "/history")?,
                events: ask(address, "/events")?,
                load: self.load.as_deref().map_or_else(|| Ok(BTreeMap::new()), read)?,
            };
            if let Some(path) = &self.keep {
                write(path, &serde_json::to_string(&run)?)?;
            }
            runs.push(run);
        }
        for run in &runs {
            ensure!(
                !run.history.samples.is_empty(),
                "the run {} has no samples: it was shorter than a second",
                run.name
            );
        }
        if let Some(path) = &self.output {
            write(path, &report(&runs))?;
        }
        let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
        let facts: Vec<Vec<Fact>> = runs.iter().map(|run| run.trimmed().facts()).collect();
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&as_json(&names, &facts))?),
            false => print!("{}", as_table(&names, &facts)),
        }
        Ok(0)
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{}: not a file that this command saves", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A worker's answer at a path. HTTP/1.0, so that the end of the connection is the end of the answer.
fn ask<T: DeserializeOwned>(address: SocketAddr, path: &str) -> Result<T> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)
        .with_context(|| format!("no worker answers at {address}: start one with `mayfly up`"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(|| format!("{address} does not answer at {path}"))?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { bail!("{address} does not speak HTTP") };
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status == "200", "{address} answers {status} at {path}: is it a worker of this version?");
    serde_json::from_str(body).with_context(|| format!("{address}: the answer at {path} is not understood"))
}

/// One row per fact that some run has; from the second run on with the ratio to the first.
fn as_table(names: &[String], facts: &[Vec<Fact>]) -> String {
    let mut rows = vec![vec![String::new()]];
    for (place, name) in names.iter().enumerate() {
        rows[0].push(name.clone());
        if place > 0 {
            rows[0].push(format!("/ {}", names[0]));
        }
    }
    for (number, first) in facts[0].iter().enumerate() {
        if facts.iter().all(|of_run| of_run[number].value.is_none()) {
            continue;
        }
        let mut row = vec![first.label.to_string()];
        for (place, of_run) in facts.iter().enumerate() {
            let value = of_run[number].value;
            row.push(value.map_or_else(|| "-".into(), |value| first.unit.format(value)));
            if place > 0 {
                row.push(ratio(first.value, value));
            }
        }
        rows.push(row);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = format!("{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            line += &format!("  {cell:>width$}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn as_json(names: &[String], facts: &[Vec<Fact>]) -> Value {
    let mut json = Map::new();
    for (name, of_run) in names.iter().zip(facts) {
        for fact in of_run {
            if let Some(value) = fact.value {
                json.insert(format!("{name}.{}", fact.key), value.into());
            }
        }
    }
    Value::Object(json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_page::text::Unit;

    fn fact(value: Option<f64>) -> Fact {
        Fact { key: "memory.peak_bytes", label: "memory", unit: Unit::Bytes, value }
    }

    #[test]
    fn columns_are_aligned() {
        let names = ["plain".to_string(), "mayfly".to_string()];
        let facts = [vec![fact(Some(2_097_152.0)), fact(None)], vec![fact(Some(1_048_576.0)), fact(None)]];
        assert_eq!(
            as_table(&names, &facts),
            "        plain  mayfly  / plain\nmemory  2 MiB   1 MiB    0.50×\n"
        );
    }

    #[test]
    fn keys_name_the_run_and_the_unit() {
        let json = as_json(&["plain".to_string()], &[vec![fact(Some(5.0)), fact(None)]]);
        assert_eq!(json.to_string(), "{\"plain.memory.peak_bytes\":5.0}");
    }
}
