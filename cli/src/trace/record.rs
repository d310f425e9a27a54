//! `mayfly trace`: records every allocation and free of a program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::child::Preloaded;
use crate::libraries;
use crate::progress;
use crate::quantity::{bytes, count, duration};
use crate::settings::HeapSettings;
use crate::trace::file::Reader;
use crate::trace::live_objects::{Totals, walk};

const EXAMPLES: &str = "\
Examples:
  mayfly trace -o redis.trace -- redis-server --port 7000
  mayfly trace -o build.%p.trace -- make        one trace for each process
  mayfly replay redis.trace                     then: its pages over time

A record is 48 bytes, so a program that allocates a million times a second writes about 96 MB a second.
The format is described in docs/trace.md.";

/// Record every allocation and free of a program
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct TraceArguments {
    /// The trace file; %p stands for the process id and keeps the traces of processes that the program starts
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    heap: HeapSettings,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl TraceArguments {
    /// Runs the program, then reads its trace and prints a summary on stderr; returns the program's exit
    /// code.
    ///
    /// # Errors
    /// The program or the heap is not found, or the program left no readable trace.
    pub fn execute(self) -> Result<i32> {
        let output = std::path::absolute(&self.output)?;
        let name = output.file_name().ok_or_else(|| anyhow!("{}: not a file", output.display()))?;
        let folder = output.parent().unwrap_or(Path::new("/"));
        if !folder.is_dir() {
            bail!("{}: no such directory", folder.display());
        }
        let mut program = Preloaded::new(&self.command, &libraries::HEAP)?;
        for (variable, value) in self.heap.variables(&HeapSettings::default(), |_| true) {
            match value {
                crate::settings::Value::Text(text) => program.set(variable, text),
                crate::settings::Value::OracleOf(_) => {
                    bail!("trace: --lifetimes oracle=TRACE is for mayfly run")
                }
            }
        }
        let keep_all = name.to_string_lossy().contains("%p");
        // Each process writes a file of its own, or one would overwrite another's.
        let parts = if keep_all { None } else { Some(beside(folder)?) };
        let pattern = parts.as_ref().map_or(output.clone(), |parts| parts.path().join("%p"));
        program.set("MAYFLY_HEAP_TRACE", &pattern);
        let path_of = |pid: u32| PathBuf::from(pattern.to_string_lossy().replace("%p", &pid.to_string()));

        let bar = progress::of_recording();
        let finished = program.run(|pid| {
            bar.set_position(std::fs::metadata(path_of(pid)).map_or(0, |metadata| metadata.len()));
        })?;
        bar.finish_and_clear();

        let mut trace = last_of(&path_of(finished.pid));
        if !trace.is_file() {
            bail!("the program left no trace: it never loaded Mayfly's heap");
        }
        if let Some(parts) = &parts {
            std::fs::rename(&trace, &output).with_context(|| format!("cannot write {}", output.display()))?;
            trace = output.clone();
            let others = std::fs::read_dir(parts.path())?.count();
            if others > 0 {
                eprintln!("mayfly: left out {others} processes that it started: -o NAME.%p.trace keeps all");
            }
        }
        let totals = summarize(&trace)?;
        if self.json {
            eprintln!("{}", totals_as_json(&totals));
        } else {
            eprintln!("{}", described(&totals, &trace));
        }
        Ok(finished.exit_code())
    }
}

/// The trace of the last program that a process ran: after an exec the heap writes NAME.2, NAME.3 and so on.
fn last_of(first: &Path) -> PathBuf {
    let numbered = (2..).map(|number| {
        let mut name = first.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    });
    numbered.take_while(|name| name.is_file()).last().unwrap_or_else(|| first.to_owned())
}

/// A folder on the same file system as the trace, so that it can be renamed into place.
fn beside(folder: &Path) -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(".mayfly-trace-")
        .tempdir_in(folder)
        .with_context(|| format!("cannot write in {}", folder.display()))
}

fn summarize(trace: &Path) -> Result<Totals> {
    let bar = progress::over_file(trace, 1, "reading the trace");
    let (totals, _) = walk(Reader::open(trace)?, |bytes| bar.set_position(bytes), |_, _| anyhow::Ok(()))?;
    bar.finish_and_clear();
    Ok(totals)
}

/// The totals of a trace under `trace.*` and `live.*`.
pub fn totals_as_json(totals: &Totals) -> Value {
    json!({
        "trace.duration_s": totals.duration_ns as f64 / 1e9,
        "trace.allocations": totals.allocations,
        "trace.frees": totals.frees,
        "trace.frees_unmatched": totals.frees_unmatched,
        "trace.frees_missing": totals.frees_missing,
        "trace.records_out_of_order": totals.out_of_order,
        "trace.torn_bytes": totals.torn_bytes,
        "trace.is_cut": totals.is_cut,
        "trace.threads": totals.threads,
        "trace.allocated_bytes": totals.allocated_bytes,
        "live.peak_bytes": totals.peak_live_bytes,
        "live.peak_objects": totals.peak_live_objects,
        "live.end_bytes": totals.end_live_bytes,
        "live.end_objects": totals.end_live_objects,
    })
}

/// The totals of a trace as lines for people.
pub fn described(totals: &Totals, trace: &Path) -> String {
    let mut text = format!(
        "{}: {} allocations, {} frees by {} threads in {}\nlive: {} at the peak, {} in {} objects at the end",
        trace.display(),
        count(totals.allocations),
        count(totals.frees),
        count(totals.threads),
        duration(totals.duration_ns as f64),
        bytes(totals.peak_live_bytes as f64),
        bytes(totals.end_live_bytes as f64),
        count(totals.end_live_objects),
    );
    if totals.is_cut {
        text +=
            "\nnote: the trace has no end: its program was killed, ran another one, or could not write on";
    }
    for (number, fault) in [
        (totals.torn_bytes, "bytes of an unfinished last record were dropped"),
        (totals.frees_unmatched, "frees have no allocation in the trace"),
        (totals.frees_missing, "allocations are at the address of an object that was never freed"),
        (totals.out_of_order, "records came too late to be put in order of time"),
    ] {
        if number > 0 {
            text += &format!("\nnote: {} {fault}", count(number));
        }
    }
    text
}
