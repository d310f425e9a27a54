//! A trace of `mayfly trace` on a simulated machine's allocator unit, without a guest.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use sim::Description;
use sim::system::replay::Replay;

use crate::sim::guest::Ended;
use crate::trace::file::Reader;
use crate::trace::live_objects::walk;

/// Replays the trace on this machine; `folder` gets stats.json and stats.txt.
///
/// # Errors
/// The file is no trace, or the machine refuses one of its operations.
pub fn run(trace: &Path, description: &Description, folder: Option<PathBuf>) -> Result<Ended> {
    let mut replay = Replay::new(description).map_err(|line| anyhow!("--replay: {line}"))?;
    let told = |line: String| anyhow!("{}: {line}", trace.display());
    let mut live = HashMap::new();
    let (totals, _) = walk(
        Reader::open(trace)?,
        |_| {},
        |change, _| -> Result<()> {
            if let Some(object) = change.died.and_then(|died| live.remove(&died.address)) {
                replay.free(&object).map_err(told)?;
            }
            if let Some(born) = change.born {
                let object = replay.allocate(born.size_bytes, born.thread).map_err(told)?;
                live.insert(born.address, object);
            }
            Ok(())
        },
    )?;
    let statistics = replay.finish();
    let mut json = statistics.json();
    json.insert("partial".into(), totals.is_cut.into());
    if totals.is_cut {
        json.insert("partial_reason".into(), "the trace has no end".into());
    }
    json.insert("machine".into(), description.name.clone().into());
    json.insert("broken_laws".into(), statistics.broken.clone().into());
    json.insert("replay.allocations".into(), totals.allocations.into());
    json.insert("replay.frees".into(), (totals.frees - totals.frees_unmatched).into());
    if let Some(folder) = folder {
        let written = std::fs::create_dir_all(&folder).and_then(|()| {
            std::fs::write(folder.join("stats.txt"), statistics.text())?;
            std::fs::write(folder.join("stats.json"), serde_json::to_string_pretty(&json)? + "\n")
        });
        written.with_context(|| format!("cannot write to {}", folder.display()))?;
    }
    Ok(Ended { statistics: json, output: Vec::new() })
}
