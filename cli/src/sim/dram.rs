//! `mayfly sim --dram dramsim3`: replays the requests that the machine's own DRAM model answered on DRAMsim3.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use sim::Description;
use sim_oracle::Request;

/// The timing model of DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dram {
    /// The machine's own event-driven model
    Model,
    /// The same, and afterwards DRAMsim3 on the same requests at the same clocks, to compare the two. A
    /// minute for each 50 simulated milliseconds
    Dramsim3,
}

/// The file of the machine's requests.
pub const REQUESTS: &str = "dram.requests";
/// Physical addresses of Memento's pool begin here, far above the guest's memory; DRAMsim3 maps them right
/// behind it.
const POOL: u64 = 64 << 30;
const BEHIND: u64 = 4 << 30;

/// Checks that DRAMsim3 models this machine: it is configured for Table 3's DDR4.
///
/// # Errors
/// The machine has another DRAM.
pub fn check(description: &Description) -> Result<()> {
    let known = Description::load("table3", &[]).map_err(anyhow::Error::msg)?;
    if toml::to_string(&description.dram)? != toml::to_string(&known.dram)? {
        bail!(
            "--dram dramsim3: DRAMsim3 is configured for the DRAM of machine table3, and this machine has another"
        );
    }
    Ok(())
}

/// Adds `dram.dramsim3.*` to the statistics, also to those in the folder.
///
/// # Errors
/// The requests were not kept, or there are none.
pub fn judge(folder: &Path, description: &Description, statistics: &mut Map<String, Value>) -> Result<()> {
    let path = folder.join(REQUESTS);
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (records, _) = bytes.as_chunks::<16>();
    let mut requests: Vec<Request> = records.iter().map(|record| Request::decode(*record)).collect();
    // The core's requests are not in order of time; DRAMsim3 needs them so.
    requests.sort_unstable();
    for request in &mut requests {
        if let Some(place) = request.line.checked_sub(POOL / 64) {
            request.line = place + BEHIND / 64;
        }
    }
    let bar = ProgressBar::new(requests.len() as u64).with_style(
        ProgressStyle::with_template("DRAMsim3 {bar:30} {percent}%").expect("the template is right"),
    );
    let found = sim_oracle::replay(&requests, |done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    let ns = 1000.0 / description.dram.clock_mhz as f64;
    let number = |key: &str| statistics.get(key).and_then(Value::as_f64).unwrap_or(0.0);
    let hits = number("dram.read_row_hits") / (number("dram.reads") - number("dram.forwards")).max(1.0);
    let added = [
        ("dram.read_row_hit_rate", hits),
        ("dram.dramsim3.read_latency_ns", found.read_clocks * ns),
        ("dram.dramsim3.read_row_hit_rate", found.read_row_hits),
    ];
    statistics.extend(added.map(|(key, value)| (key.to_owned(), value.into())));
    let file = folder.join("stats.json");
    std::fs::write(&file, format!("{:#}\n", Value::Object(statistics.clone())))
        .with_context(|| format!("cannot write {}", file.display()))?;
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
}

/// A line for the table, if DRAMsim3 was run.
pub fn line(statistics: &Map<String, Value>) -> Option<String> {
    let number = |key: &str| statistics.get(key).and_then(Value::as_f64);
    let theirs = number("dram.dramsim3.read_latency_ns")?;
    let ours = number("dram.read_latency_ns")?;
    Some(format!(
        "DRAMsim3       {theirs:.1} ns a read, the model {ours:.1} ({:+.1}%); open rows {:.1}%, the model {:.1}%\n",
        100.0 * (ours / theirs - 1.0),
        100.0 * number("dram.dramsim3.read_row_hit_rate")?,
        100.0 * number("dram.read_row_hit_rate")?,
    ))
}
