//! `mayfly load`: replays a trace of invocations on a worker.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use worker_load::{LoadResult, Plan, Tally, Trace, drive};

const EXAMPLES: &str = "\
Examples:
  mayfly up functions/template.yaml &
  mayfly load --trace functions/trace.csv                    in the trace's own time
  mayfly load --trace functions/trace.csv --speed 60         a minute of the trace in a second
  mayfly load --trace day.csv --seconds 600 --json           its first ten minutes, result as JSON

A trace has one of the layouts published of Azure Functions: counts per minute (2019:
HashOwner,HashApp,HashFunction,Trigger,1,2,...) or a row per invocation (2021:
app,func,end_timestamp,duration). A function of the trace goes to the worker's function of that
name; the others are assigned to the worker's functions in turn.

Requests are sent at the trace's times, answered or not (open loop), and latencies count from
then. The worker must not require signatures.";

/// Replay a trace of invocations on a worker, and show its latencies
#[derive(Args)]
#[command(after_long_help = EXAMPLES, after_help = "Examples and layouts: mayfly load --help")]
pub struct LoadArguments {
    /// The trace, a CSV file
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// The worker's address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    worker: SocketAddr,
    /// Functions to call, separated by commas [default: all of the worker's]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    functions: Vec<String>,
    /// Seconds of the trace that pass in one second
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    speed: f64,
    /// Only the first seconds of the trace
    #[arg(long, value_name = "S", default_value_t = f64::INFINITY, hide_default_value = true)]
    seconds: f64,
    /// Seed of the invocations' times within a minute: the same seed gives the same load
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

impl LoadArguments {
    /// Replays the trace; returns the exit code.
    ///
    /// # Errors
    /// The trace is wrong, or no worker answers.
    pub fn execute(self) -> Result<i32> {
        let trace = Trace::read(&self.trace, self.seconds, self.seed)?;
        let bar = ProgressBar::new(trace.arrivals.len() as u64);
        let style = "sending {bar:30} {pos} of {len}, {elapsed}";
        bar.set_style(ProgressStyle::with_template(style).expect("the template is right"));
        let plan = Plan { address: self.worker, functions: self.functions, speed: self.speed };
        let result = drive(&trace, plan, |sent| bar.set_position(sent as u64))?;
        bar.finish_and_clear();
        if self.json {
            println!("{}", serde_json::to_string_pretty(&as_json(&result))?);
        } else {
            print!("{}", as_table(&result));
        }
        Ok(0)
    }
}

/// The result of all functions together.
fn sum(result: &LoadResult) -> Tally {
    let mut sum = Tally::new();
    result.functions.values().for_each(|tally| sum.add(tally));
    sum
}

const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)];

fn percentile_ms(tally: &Tally, percent: f64) -> f64 {
    Duration::from_micros(tally.latency_us.value_at_percentile(percent)).as_secs_f64() * 1e3
}

fn as_table(result: &LoadResult) -> String {
    let all = sum(result);
    let mut text = format!(
        "{:<16} {:>8} {:>8} {:>8} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9}\n",
        "function",
        "sent",
        "well",
        "failed",
        "throttled",
        "refused",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "p99.9 ms"
    );
    for (name, tally) in
        result.functions.iter().map(|(name, tally)| (name.as_str(), tally)).chain([("all", &all)])
    {
        text += &format!(
            "{name:<16} {:>8} {:>8} {:>8} {:>9} {:>8}",
            tally.sent, tally.succeeded, tally.failed, tally.throttled, tally.refused
        );
        for (_, percent) in PERCENTILES {
            text += &format!(" {:>9.2}", percentile_ms(tally, percent));
        }
        text.push('\n');
    }
    let seconds = result.elapsed.as_secs_f64();
    text + &format!("{} requests in {seconds:.1} s, {:.1} a second\n", all.sent, all.sent as f64 / seconds)
}

fn as_json(result: &LoadResult) -> Value {
    let all = sum(result);
    let mut json = Map::new();
    json.insert("elapsed_s".into(), result.elapsed.as_secs_f64().into());
    for (name, tally) in
        result.functions.iter().map(|(name, tally)| (name.as_str(), tally)).chain([("all", &all)])
    {
        let counts = [
            ("sent", tally.sent),
            ("succeeded", tally.succeeded),
            ("failed", tally.failed),
            ("throttled", tally.throttled),
            ("refused", tally.refused),
        ];
        for (key, count) in counts {
            json.insert(format!("{name}.{key}"), count.into());
        }
        for (key, percent) in PERCENTILES {
            json.insert(
                format!("{name}.latency.{}_ms", key.replace('.', "_")),
                percentile_ms(tally, percent).into(),
            );
        }
    }
    Value::Object(json)
}
