//! `mayfly profile`: samples a program's allocations and says, for each calling context, how long its objects live.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use lifetime::label::{CLASS_NAMES, t95};
use lifetime::profile::{Context, Profile};
use lifetime::root::Root;
use lifetime::symbols::Symbols;
use serde_json::{Value, json};

use crate::child::Preloaded;
use crate::profile_attach;
use crate::quantity::{bytes, count, duration, parse_bytes};
use crate::settings::HeapSettings;

const EXAMPLES: &str = "\
Examples:
  mayfly profile -- ./server                          until it ends, or is killed
  mayfly profile -o server --every 64k -- ./server    more samples, of less memory each
  mayfly profile --pid 1234 --seconds 300 -o server   a program that runs already, for five minutes
  go tool pprof -http : server.pb.gz                  flame graphs; -tagfocus lifetime=1s for one class
  duckdb -c \"FROM 'server.parquet' ORDER BY bytes DESC\"

It leaves NAME.pb.gz (pprof), NAME.parquet (one row a calling context) and NAME.profile, which both are made from.
Objects are chosen by allocated bytes, so what is seen stands for all that was allocated (LLAMA §4).

With --pid the program must have been started by `mayfly run`, or with MAYFLY_HEAP_CONTROL=on; its files are found in its container.
In the first half of the time
objects are chosen, in the second half only their frees are awaited: what lives longer than half the time counts as living
for ever, so sample for more than twice the lifetimes that you want to tell apart. Ctrl-C ends it early and keeps what there is.";

/// Sample a program's allocations: how long do objects of each calling context live?
#[derive(Args)]
#[command(after_long_help = EXAMPLES, after_help = "Examples: mayfly profile --help")]
pub struct ProfileArguments {
    /// Where the profile goes: NAME.profile, NAME.pb.gz and NAME.parquet [default: the program's name]
    #[arg(short, long, value_name = "NAME")]
    output: Option<PathBuf>,
    /// Bytes between two samples, on average: 512k, 64KiB, 1M
    #[arg(long, value_name = "BYTES", default_value = "512k", value_parser = parse_distance)]
    every: u64,
    /// Sample a process that is running, for --seconds
    #[arg(long, value_name = "PID", requires = "seconds", conflicts_with = "command")]
    pid: Option<u32>,
    /// How long to stay attached to --pid
    #[arg(long, value_name = "N", requires = "pid", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// The folder that --pid has as MAYFLY_HEAP_CONTROL, where it lies here: for programs in containers
    #[arg(long, value_name = "FOLDER", requires = "pid")]
    control: Option<PathBuf>,
    /// How many contexts the table shows
    #[arg(long, value_name = "N", default_value_t = 15)]
    top: usize,
    #[command(flatten)]
    heap: HeapSettings,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments, after --
    #[arg(last = true, required_unless_present = "pid", value_name = "CMD")]
    command: Vec<OsString>,
}

impl ProfileArguments {
    /// Samples the program, then names its contexts and writes the profile; returns the program's exit code, or 0 for one that
    /// runs on.
    ///
    /// # Errors
    /// The program or the heap is not found, or it left no profile that can be read.
    pub fn execute(self) -> Result<i32> {
        let stem = match (&self.output, self.pid) {
            (Some(name), _) => name.clone(),
            (None, Some(pid)) => program_of(pid)?,
            (None, None) => Path::new(&self.command[0]).file_name().map(PathBuf::from).unwrap_or_default(),
        };
        let stem = std::path::absolute(&stem)?;
        let folder = stem.parent().ok_or_else(|| anyhow!("{}: not a file's name", stem.display()))?;
        if !folder.is_dir() {
            bail!("{}: no such directory", folder.display());
        }
        let raw = with_suffix(&stem, "profile");
        let (exit_code, root) = match (self.pid, self.seconds) {
            (Some(pid), Some(time)) => {
                // Now: it may have ended when names are looked for.
                let root = Root::of_process(pid).unwrap_or(Root::Own);
                profile_attach::profile(pid, self.control.as_deref(), time, self.every, &raw)?;
                (0, root)
            }
            _ => (self.run(folder, &raw)?, Root::Own),
        };
        self.write(&stem, &raw, &root)?;
        Ok(exit_code)
    }

    /// Runs the program from its start; its exit code.
    fn run(&self, folder: &Path, raw: &Path) -> Result<i32> {
        let mut program = Preloaded::new(&self.command)?;
        for (variable, value) in self.heap.variables(&HeapSettings::default(), |_| true) {
            match value {
                crate::settings::Value::Text(text) => program.set(variable, text),
                crate::settings::Value::OracleOf(_) => {
                    bail!("profile: --lifetimes oracle=TRACE is for mayfly run")
                }
            }
        }
        // Each process writes a file of its own, or one would write over another.
        let parts = tempfile::Builder::new()
            .prefix(".mayfly-profile-")
            .tempdir_in(folder)
            .with_context(|| format!("cannot write in {}", folder.display()))?;
        program.set("MAYFLY_HEAP_PROFILE", parts.path().join("%p"));
        program.set("MAYFLY_HEAP_PROFILE_BYTES", self.every.to_string());
        let finished = program.run(|_| {})?;
        let own = parts.path().join(finished.pid.to_string());
        if !own.is_file() {
            bail!("the program left no profile: it never loaded Mayfly's heap");
        }
        std::fs::rename(&own, raw).with_context(|| format!("cannot write {}", raw.display()))?;
        let others = std::fs::read_dir(parts.path())?.count();
        if others > 0 {
            eprintln!("mayfly: left out {others} processes that it started");
        }
        Ok(finished.exit_code())
    }

    /// Names the contexts of the profile in `raw`, and writes its other forms.
    fn write(&self, stem: &Path, raw: &Path, root: &Root) -> Result<()> {
        let profile = Profile::read(raw)?;
        let mut symbols = Symbols::below(root, &profile);
        let (pprof, table) = (with_suffix(stem, "pb.gz"), with_suffix(stem, "parquet"));
        lifetime::pprof::write(&profile, &mut symbols, &pprof)?;
        lifetime::table::write(&profile, &mut symbols, &table)?;
        let code = with_suffix(stem, "symbols.parquet");
        lifetime::table::write_code(&profile, &mut symbols, &code)?;
        for missing in &symbols.missing {
            eprintln!("mayfly: no names for {missing}");
        }
        if self.json {
            eprintln!("{}", as_json(&profile));
        } else {
            eprint!("{}", described(&profile, &mut symbols, self.top));
            eprintln!("written: {}, {} and {}", raw.display(), pprof.display(), table.display());
        }
        Ok(())
    }
}

fn parse_distance(text: &str) -> Result<u64, String> {
    parse_bytes(text).and_then(|bytes| {
        let allowed = (1..=1 << 40).contains(&bytes);
        if allowed { Ok(bytes) } else { Err("from 1 byte to 1 TiB".into()) }
    })
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..1e6).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds, from 0.1".into())
}

/// The name of the program that a process runs.
fn program_of(pid: u32) -> Result<PathBuf> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    Ok(name.map_err(|_| anyhow!("there is no process {pid}"))?.trim_end().replace('/', "_").into())
}

fn with_suffix(stem: &Path, suffix: &str) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn sum(profile: &Profile, of: impl Fn(&Context) -> u64) -> u64 {
    profile.contexts.iter().map(of).sum()
}

/// The totals under `profile.*`.
fn as_json(profile: &Profile) -> Value {
    let mut totals = json!({
        "profile.duration_s": profile.duration_ns as f64 / 1e9,
        "profile.mean_bytes": profile.mean_bytes,
        "profile.contexts": profile.contexts.len(),
        "profile.sampled": sum(profile, |context| context.sampled),
        "profile.freed": sum(profile, |context| context.freed),
        "profile.live": sum(profile, |context| context.live),
        "profile.unwatched": sum(profile, |context| context.unwatched),
        "profile.lost": profile.lost,
        "profile.allocations": profile.contexts.iter().map(|context| context.allocations).sum::<f64>(),
        "profile.bytes": profile.contexts.iter().map(|context| context.bytes).sum::<f64>(),
    });
    for (class, name) in CLASS_NAMES.iter().enumerate() {
        let of_class = profile.contexts.iter().filter(|context| t95(context) == Some(class));
        totals[format!("profile.t95_{name}.bytes")] =
            of_class.map(|context| context.bytes).sum::<f64>().into();
    }
    totals
}

fn described(profile: &Profile, symbols: &mut Symbols, top: usize) -> String {
    let mut contexts: Vec<&Context> = profile.contexts.iter().collect();
    contexts.sort_by(|a, b| b.bytes.total_cmp(&a.bytes));
    let total: f64 = contexts.iter().map(|context| context.bytes).sum();
    let mut text = format!(
        "{} samples of {} contexts in {}, one every {}: they stand for {} in {} allocations\n",
        count(sum(profile, |context| context.sampled)),
        count(contexts.len() as u64),
        duration(profile.duration_ns as f64),
        bytes(profile.mean_bytes as f64),
        bytes(total),
        count(contexts.iter().map(|context| context.allocations).sum::<f64>() as u64),
    );
    for (number, what) in [
        (sum(profile, |context| context.unwatched), "have no lifetime: two of one span are watched at most"),
        (profile.lost, "were lost: a table of the profile is full"),
    ] {
        if number > 0 {
            text += &format!("note: {} of the samples {what}; sample less often (--every)\n", count(number));
        }
    }
    text +=
        &format!("{:>9} {:>6}  {:>8} {:>8}  {:>9}  context\n", "bytes", "share", "size", "lifetime", "mean");
    for context in contexts.iter().take(top) {
        let names: Vec<String> = context
            .frames
            .iter()
            .flat_map(|&frame| symbols.of(frame).to_vec())
            .map(|function| short(&function.name))
            .collect();
        let mean = match context.freed {
            0 => "-".to_owned(),
            freed => duration(context.lifetime_ns.sum / freed as f64),
        };
        text += &format!(
            "{:>9} {:>5.1}%  {:>8} {:>8}  {:>9}  {}\n",
            bytes(context.bytes),
            context.bytes / total * 100.0,
            bytes(context.size.sum / context.sampled as f64),
            t95(context).map_or("?", |class| CLASS_NAMES[class]),
            mean,
            names.iter().take(4).cloned().collect::<Vec<_>>().join(" < "),
        );
    }
    text
}

/// A function's name without its parameters, cut where a line would not hold four of them.
fn short(name: &str) -> String {
    const MOST: usize = 40;
    let name = name.split('(').next().unwrap_or(name);
    if name.chars().count() <= MOST {
        name.to_owned()
    } else {
        name.chars().take(MOST - 1).chain(['…']).collect()
    }
}
