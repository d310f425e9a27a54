//! `mayfly sim`: runs a program on a simulated machine, kernel included, and attributes its cycles.

pub mod archive;
pub mod dram;
pub mod files;
pub mod functions;
pub mod guest;
pub mod image;
pub mod program;
pub mod qemu;
pub mod replay;
pub mod script;
pub mod snapshot;
pub mod stop;
pub mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use sim::Description;
use sim::system::sampling::LEAST_WINDOWS;

use crate::quantity;
use crate::sim::dram::Dram;
use crate::sim::guest::{Ended, Guest, Progress};
use crate::sim::image::Image;
use crate::sim::program::{Allocator, Program, Region, is_alone};
use crate::sim::stop::Stop;

const EXAMPLES: &str = "\
Examples:
  mayfly sim -- ./churn                         a program of this machine
  mayfly sim -- python3 words.py                a program of the image, with files of this machine that it names
  mayfly sim --compare -- json-loads            a program that the image lists: the baseline, then Memento
  mayfly sim --allocator memento -- churn 1000  one of these with another input
  mayfly sim --set l1d.ways=9 -- ./churn        another machine: any key of sim/machines/*.toml
  mayfly sim --region first --checkpoint -- json-loads  its imports are executed in the first such run alone
  mayfly sim --cores 2 -- ./threads             two cores, each with caches and TLBs of its own
  mayfly sim --trace churn.xz -- ./churn        its instructions for ChampSim, too
  mayfly sim --compare --replay churn.trace     what mayfly trace has recorded, on units alone
  mayfly sim --max-instructions 50000000 --json -- ./churn
  mayfly sim --sample -- ./churn                a fifth of it is timed: cycles with a confidence interval, in less time

The guest boots Linux under QEMU once for each image; every run starts from a snapshot of it, and each
instruction of all processes and of the kernel is timed. Statistics cover the program from its start to its end.
mayfly sim passes on the program's output and exit status; it prints statistics on stderr, and writes all of them to
the folder --out.";

/// Run a program on a simulated machine: out-of-order core, caches, TLBs and DRAM of Memento's Table 3
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SimArguments {
    /// The machine: table3, memento, iso-storage, mallacc, speedmalloc, or a TOML file [default: table3, or
    /// its allocator's]
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// The allocator of the program's objects
    #[arg(long, value_enum, default_value = "native")]
    allocator: Allocator,
    /// Run the program on the baseline and on Memento, at once, and show both
    #[arg(long, conflicts_with_all = ["allocator", "machine"])]
    compare: bool,
    /// The timing model of DRAM
    #[arg(long, value_enum, default_value = "model")]
    dram: Dram,
    /// Number of cores [default: 1]
    #[arg(long, value_name = "N")]
    cores: Option<usize>,
    /// Another value for a key of the machine; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// A file or folder of this machine that the program reads, at the same path from the guest's working
    /// folder; files that CMD names are there without it; may be repeated
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// A variable of the program's environment; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE")]
    environment: Vec<String>,
    /// The part of the run that is counted; all but `process` need a function that the image lists as `warm`
    #[arg(long, value_enum, default_value = "process")]
    region: Region,
    /// With region `first` or `warm`: bring the guest to the end of its imports once and keep it, so that
    /// each run of this command begins there, on any machine with one core
    #[arg(long)]
    checkpoint: bool,
    /// Another layout: each number places the program's stack, heap and mappings elsewhere [default: as
    /// without randomness]
    #[arg(long, value_name = "N")]
    layout: Option<u8>,
    /// Mappings with huge pages: those with madvise, as on Ubuntu, or all, as on Debian
    #[arg(long, value_enum, default_value = "madvise")]
    huge_pages: HugePages,
    /// Estimate the cycles: time 3000 of each N instructions, and in between only keep caches, TLBs and
    /// predictors warm (SMARTS). All events are counted; the cycles have a confidence interval of 95%
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "25013")]
    sample: Option<u64>,
    /// Stop after so many instructions; the statistics so far are kept, and marked as partial
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    max_instructions: u64,
    /// The guest's image: a folder with image.json, or `bare` for a kernel alone [default: bare for a static
    /// ./PROGRAM, else the one that sim/image/build makes]
    #[arg(long, value_name = "FOLDER|bare")]
    image: Option<PathBuf>,
    /// The guest's memory
    #[arg(long, value_name = "SIZE", default_value = "1536MiB", value_parser = quantity::parse_bytes)]
    memory: u64,
    /// Keep stats.json, stats.txt, machine.toml and the guest's console in this folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Write to --out how often each block of instructions was entered, as blocks.tsv
    #[arg(long, requires = "out")]
    blocks: bool,
    /// Write the region's instructions in ChampSim's trace format; a FILE.xz is compressed
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    trace: Option<PathBuf>,
    /// Write to --out the statistics of each N instructions as a line of intervals.jsonl
    #[arg(long, value_name = "N", requires = "out", conflicts_with = "sample",
        value_parser = clap::value_parser!(u64).range(10_000..))]
    interval: Option<u64>,
    /// Time the allocations and frees of this trace (of mayfly trace) on the machine, without a guest; the
    /// program's and the allocator's code is made up
    #[arg(long, value_name = "TRACE", conflicts_with_all = ["image", "dram", "checkpoint", "trace", "interval", "blocks"])]
    replay: Option<PathBuf>,
    /// Threads of a run: with 2 the machine has one of its own beside the guest's. The counts are the same
    /// [default: 2 where each has a processor]
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2))]
    threads: Option<u8>,
    /// Print the statistics as one JSON object, instead of the program's output
    #[arg(long)]
    json: bool,
    /// The program and its arguments; ./PROGRAM, and files that arguments name, are copied into the guest
    #[arg(last = true, required_unless_present = "replay", conflicts_with = "replay", value_name = "CMD")]
    command: Vec<String>,
}

/// The mappings that the guest's kernel gives huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HugePages {
    /// Mappings with madvise(MADV_HUGEPAGE)
    Madvise,
    /// All mappings
    Always,
}

impl SimArguments {
    /// Boots, runs and reports; returns the program's exit status.
    ///
    /// # Errors
    /// The machine cannot be built, or the guest did not run the program to its end.
    pub fn execute(self) -> Result<i32> {
        if self.memory > 2 << 30 || self.memory < 128 << 20 {
            bail!("--memory {}: a guest has 128 MiB to 2 GiB", quantity::bytes(self.memory as f64));
        }
        // Wrong settings fail before anything is started.
        let machine = self.description(if self.compare { Allocator::Memento } else { self.allocator })?;
        if self.dram == Dram::Dramsim3 {
            if machine.sample.is_some() {
                bail!("--dram dramsim3: in a sampled run DRAM's requests have no times to compare");
            }
            dram::check(&machine)?;
        }
        if let Some(trace) = &self.replay {
            return self.replay(trace);
        }
        let image = match &self.image {
            Some(name) if name.as_os_str() == "bare" => Image::bare()?,
            Some(folder) => Image::open(folder)?,
            None if is_alone(&self.command)? => Image::bare()?,
            None => Image::build()?,
        };
        let stop = Stop::at_signals()?;
        let scratch = tempfile::tempdir()?;
        let folder = std::path::absolute(self.out.clone().unwrap_or_else(|| scratch.path().to_owned()))?;
        let bars = MultiProgress::new();
        let run = |allocator: Allocator, folder: &Path| {
            let ended = self.run(&image, allocator, folder, &bars, &stop);
            ended.inspect_err(|_| stop.others())
        };
        if !self.compare {
            return self.report(&run(self.allocator, &folder)?);
        }
        let (baseline, memento) = std::thread::scope(|scope| {
            let baseline = scope.spawn(|| run(Allocator::Native, &folder.join("native")));
            let memento = run(Allocator::Memento, &folder.join("memento"));
            (baseline.join().expect("a run does not panic"), memento)
        });
        // Of two that end because one has failed, the reason is that one's.
        let (baseline, memento) = match (baseline, memento) {
            (Err(error), Err(other)) => return Err(if stop.is_of_another(&error) { other } else { error }),
            (baseline, memento) => (baseline?, memento?),
        };
        if baseline.output != memento.output {
            bail!("the program's output under Memento is not the same as on the baseline: see --out");
        }
        self.report_both(&baseline, &memento)
    }

    /// The trace on the machine, or on both of a comparison.
    fn replay(&self, trace: &Path) -> Result<i32> {
        let run = |allocator: Allocator, part: &str| {
            if matches!(allocator, Allocator::Mayfly | Allocator::Marks) {
                bail!("--replay: {} is software, and a trace has no code", allocator.name());
            }
            replay::run(trace, &self.description(allocator)?, self.out.as_ref().map(|out| out.join(part)))
        };
        if !self.compare {
            return self.report(&run(self.allocator, "")?);
        }
        self.report_both(&run(Allocator::Native, "native")?, &run(Allocator::Memento, "memento")?)
    }

    fn threads(&self) -> u8 {
        let runs = if self.compare { 2 } else { 1 };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or(if processors >= 2 * runs { 2 } else { 1 })
    }

    fn description(&self, allocator: Allocator) -> Result<Description> {
        let default = match allocator {
            Allocator::Memento => "memento",
            Allocator::Mallacc => "mallacc",
            Allocator::SpeedMalloc => "speedmalloc",
            Allocator::Native | Allocator::Marks | Allocator::Mayfly => "table3",
        };
        let machine = self.machine.as_deref().unwrap_or(default);
        // Memento's units have keys of their own, which the baseline of a comparison lacks.
        let lacks =
            |key: &String| self.compare && allocator == Allocator::Native && key.starts_with("memento.");
        let cores = self.cores.map(|number| format!("cores.number={number}"));
        let others = self.overrides.iter().filter(|key| !lacks(key)).cloned();
        let overrides: Vec<_> = cores.into_iter().chain(others).collect();
        let description = Description::load(machine, &overrides);
        description.and_then(|one| one.sampled(self.sample)).map_err(|line| anyhow!(line))
    }

    fn run(
        &self,
        image: &Image,
        allocator: Allocator,
        folder: &Path,
        bars: &MultiProgress,
        stop: &Stop,
    ) -> Result<Ended> {
        let program = Program::resolve(&self.command, &image.description, allocator)?;
        let mut environment = program.environment;
        if let Some(variable) = self.region.variable() {
            if !program.has_regions {
                bail!("{}: the image lists no calls of it: leave --region out", self.command[0]);
            }
            environment.push(variable.to_owned());
        }
        // For the guest's init.
        environment.extend(self.layout.map(|number| format!("MAYFLY_LAYOUT={number}")));
        if self.huge_pages == HugePages::Always {
            environment.push("MAYFLY_HUGE_PAGES=always".to_owned());
        }
        environment.extend(self.environment.iter().cloned());
        let tree = image.tree.as_deref();
        let mut others = files::named(&self.command[1..], tree);
        for path in &self.files {
            others.extend(files::given(path, tree)?);
        }
        let description = self.description(allocator)?;
        if self.checkpoint {
            if !environment.iter().any(|one| guest::checkpoint::MARKED.contains(&one.as_str())) {
                bail!("--checkpoint: only region first or warm begins behind the program's start");
            }
            if description.cores.number > 1 {
                bail!("--checkpoint: a machine with several cores starts with the guest");
            }
        }
        if self.trace.is_some() && description.cores.number > 1 {
            bail!("--trace: ChampSim's traces are of one core each");
        }
        let trace = self.trace.as_ref().map(std::path::absolute).transpose()?;
        if trace.as_ref().is_some_and(|trace| trace.extension() == Some("xz".as_ref())) {
            which::which("xz").context("--trace FILE.xz: there is no program xz")?;
        }
        let guest = Guest {
            image,
            command: &program.words,
            file: program.file.as_ref(),
            is_library: program.is_library,
            others: &others,
            environment: &environment,
            machine: &toml::to_string(&description)?,
            keeps_dram: self.dram == Dram::Dramsim3,
            keeps_blocks: self.blocks,
            trace: trace.as_deref(),
            interval: self.interval,
            has_two_threads: self.threads() == 2,
            most_instructions: self.max_instructions,
            cores: description.cores.number,
            memory_mib: self.memory >> 20,
            folder,
            is_kept: self.out.is_some(),
            is_from_checkpoint: self.checkpoint,
            stop,
        };
        let bar = bars.add(progress_bar(self.max_instructions));
        let ended = guest.run(|progress| show(&bar, allocator, &progress));
        bar.finish_and_clear();
        let mut ended = ended?;
        if let Some(windows) = ended.statistics.get("sample.windows").and_then(Value::as_u64)
            && windows < LEAST_WINDOWS
        {
            bail!(
                "the region has {windows} windows, and {LEAST_WINDOWS} are needed: name a smaller --sample=N"
            );
        }
        if self.dram == Dram::Dramsim3 {
            dram::judge(folder, &description, &mut ended.statistics)?;
        }
        if let Some(expected) = program.expected
            && ended.statistics.get("partial").and_then(Value::as_bool) != Some(true)
            && ended.output.trim_ascii_end() != expected.trim_end().as_bytes()
        {
            std::io::stdout().write_all(&ended.output)?;
            bail!("{} under {}: its output is not the expected one", self.command[0], allocator.name());
        }
        Ok(ended)
    }

    fn report(&self, ended: &Ended) -> Result<i32> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(&ended.statistics)?);
        } else {
            std::io::stdout().write_all(&ended.output)?;
            std::io::stdout().flush()?;
            eprint!("{}", table::table(&ended.statistics));
            if let Some(folder) = &self.out {
                eprintln!("all statistics: {}", folder.join("stats.txt").display());
            }
        }
        status(&ended.statistics)
    }

    fn report_both(&self, baseline: &Ended, memento: &Ended) -> Result<i32> {
        if self.json {
            let mut both = Map::new();
            for (name, ended) in [("native", baseline), ("memento", memento)] {
                both.extend(
                    ended.statistics.iter().map(|(key, value)| (format!("{name}.{key}"), value.clone())),
                );
            }
            println!("{}", serde_json::to_string_pretty(&both)?);
        } else {
            std::io::stdout().write_all(&baseline.output)?;
            std::io::stdout().flush()?;
            eprint!("{}", table::side_by_side(&baseline.statistics, &memento.statistics));
            if let Some(folder) = &self.out {
                eprintln!("all statistics: {}/{{native,memento}}/stats.txt", folder.display());
            }
        }
        status(&baseline.statistics)?;
        status(&memento.statistics)
    }
}

/// The program's exit status, if the statistics are consistent.
fn status(statistics: &Map<String, Value>) -> Result<i32> {
    if let Some(law) = statistics.get("broken_laws").and_then(Value::as_array).and_then(|laws| laws.first()) {
        bail!("the simulator contradicts itself: {}", law.as_str().unwrap_or_default());
    }
    Ok(statistics.get("exit_status").and_then(Value::as_i64).unwrap_or(0) as i32)
}

fn progress_bar(most: u64) -> ProgressBar {
    let bar = if most > 0 { ProgressBar::new(most) } else { ProgressBar::new_spinner() };
    let style = if most > 0 { "{msg} {bar:30} {percent}%" } else { "{spinner} {msg}" };
    bar.set_style(ProgressStyle::with_template(style).expect("the template is right"));
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

fn show(bar: &ProgressBar, allocator: Allocator, progress: &Progress) {
    let name = allocator.name();
    if progress.instructions == 0 {
        bar.set_message(format!("{name}: booting Linux, {:.0} s", progress.seconds));
        return;
    }
    let millions = progress.instructions as f64 / 1e6;
    let mips = millions / progress.seconds.max(0.001);
    let left = match bar.length() {
        Some(most) => format!(", {:.0} s left", (most as f64 / 1e6 - millions).max(0.0) / mips.max(0.001)),
        None => String::new(),
    };
    bar.set_position(progress.instructions);
    bar.set_message(format!("{name}: {millions:.0} million instructions, {mips:.1} MIPS{left}"));
}
