//! `mayfly profile`: samples a program's allocations and reports, for each calling context, how long its
//! objects live.

pub mod again;
pub mod attach;
pub mod files;
pub mod flame;
pub mod parts;
pub mod rows;
pub mod table;
pub mod tree;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use clap::Args;
use lifetime::code::root::Root;
use lifetime::code::symbols::Symbols;
use lifetime::profile::contents::Profile;

use self::again::parse_pause;
use self::files::Checkpoints;
use self::parts::Parts;
use self::table::{as_json, described, difference, frees, leaks};
use self::tree::Target;
use crate::child::Preloaded;
use crate::libraries;
use crate::process;
use crate::program;
use crate::progress::ProgressLine;
use crate::quantity::{duration, parse_bytes};
use crate::runtime;
use crate::settings::HeapSettings;
use crate::who::Watch;

const EXAMPLES: &str = "\
Examples:
  mayfly profile -- ./server                          until it ends, or is killed
  mayfly profile -o server --every 64k -- ./server    more samples, of less memory each
  mayfly profile --pid 1234 --seconds 300 -o server   a program that runs already, for five minutes
  mayfly profile --from one.profile two.profile -o both   merge finished profiles
  mayfly profile --from new.profile --minus old.profile --flame new.html   the changes, and a flame graph of them
  mayfly profile --leaks -- ./app                     objects that it never freed
  mayfly profile --from server.profile --frees        the callers that free each context's objects
  mayfly profile --name server --seconds 60 --again 1h -o profiles/   a minute each hour; then: mayfly train profiles/
  go tool pprof -http : server.pb.gz                  flame graphs; -tagfocus 'lifetime=^1s$' for one class
  duckdb -c \"FROM 'server.parquet' ORDER BY bytes DESC\"

It writes NAME.profile, and from it NAME.pb.gz (pprof) and NAME.parquet (one row for each calling context). Objects are
sampled by allocated bytes, so the samples represent all allocations (LLAMA §4). Processes that the program starts or forks
have a profile each; all are merged, unless --only is given.

With --pid the program must have been started by `mayfly run`, or with MAYFLY_HEAP_CONTROL=on; its files are read from its
container. Its descendants, now and later, are sampled, too. In the first half of the time objects are sampled; in the
second half only their frees are recorded. An object alive at the end lives at least so long (≥10s in the table). Profiles
of other lengths and of whole runs show longer lives: `mayfly train` takes them together.

Ctrl-C ends it early and keeps the profile so far; kill -s RTMIN PID-OF-MAYFLY writes NAME.1.profile, NAME.2.profile and so
on meanwhile. mayfly profile --from FILE shows a finished profile. A killed mayfly profile leaves NAME.profile, some seconds
old, or with -- CMD the folder NAME.parts-…, some seconds old as well";

/// Sample a program's allocations: how long objects of each calling context live
#[derive(Args)]
#[command(after_long_help = EXAMPLES, after_help = "Examples: mayfly profile --help")]
pub struct ProfileArguments {
    /// Write NAME.profile, NAME.pb.gz and NAME.parquet [default: the program's name; no files with --from]
    #[arg(short, long, value_name = "NAME")]
    output: Option<PathBuf>,
    /// Bytes between two samples, on average: 512k, 64KiB, 1M
    #[arg(long, value_name = "BYTES", default_value = "512k", value_parser = parse_distance)]
    every: u64,
    /// Sample a process that is running, for --seconds
    #[arg(long, value_name = "PID", requires = "seconds", conflicts_with_all = ["command", "from"])]
    pid: Option<u32>,
    /// As --pid, for all processes of this name
    #[arg(long, value_name = "NAME", requires = "seconds", conflicts_with_all = ["command", "from", "pid"])]
    name: Option<String>,
    /// Profile again so long after the last one began (30m, 1h), until a signal ends it: each profile is a
    /// file of the data set -o FOLDER
    #[arg(long, value_name = "TIME", requires = "output", conflicts_with_all = ["command", "from"], value_parser = parse_pause)]
    again: Option<Duration>,
    /// Only that process, or CMD's: none that it forks or starts
    #[arg(long, conflicts_with = "from")]
    only: bool,
    /// Read finished profiles, and merge them: .profile files, or the folder of a killed mayfly profile
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "command")]
    from: Vec<PathBuf>,
    /// How long to stay attached to --pid
    #[arg(long, value_name = "N", conflicts_with = "command", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// The folder that --pid has as MAYFLY_HEAP_CONTROL, by its path on the host: for programs in containers
    #[arg(long, value_name = "FOLDER", requires = "seconds")]
    control: Option<PathBuf>,
    /// Draw a flame graph: one HTML page, by bytes, objects, byte-seconds (bytes times lifetime) or bytes
    /// live at the end
    #[arg(long, value_name = "FILE.html")]
    flame: Option<PathBuf>,
    /// Show the changes since this profile, of the same build or another
    #[arg(long, value_name = "FILE.profile")]
    minus: Option<PathBuf>,
    /// Show objects that were never freed, most first
    #[arg(long, conflicts_with = "minus")]
    leaks: bool,
    /// Show the functions that free the objects of each context
    #[arg(long, conflicts_with_all = ["minus", "leaks"])]
    frees: bool,
    /// How many contexts the table shows
    #[arg(long, value_name = "N", default_value_t = 15)]
    top: usize,
    #[command(flatten)]
    heap: HeapSettings,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments, after --
    #[arg(last = true, required_unless_present_any = ["pid", "name", "from"], value_name = "CMD")]
    command: Vec<OsString>,
}

impl ProfileArguments {
    /// Samples the program, then names its contexts and writes the profile; returns the program's exit code,
    /// or 0 for a program that runs on.
    ///
    /// # Errors
    /// The program or the heap is not found, or the program left no readable profile.
    pub fn execute(self) -> Result<i32> {
        if let Some(pause) = self.again {
            let dataset = self.output.as_deref().unwrap_or(Path::new("."));
            let mut checkpoints = Checkpoints::new(None)?;
            checkpoints.stop_by_signals()?;
            again::repeat(dataset, pause, &mut checkpoints, |checkpoints| self.attach(checkpoints))?;
            return Ok(0);
        }
        // Read first: a wrong file should fail at once.
        let before = self.minus.as_deref().map(Profile::read).transpose()?;
        let stem = self.stem()?;
        let mut watch = Watch::new();
        let (exit_code, profile, root) = match (&self.from[..], self.seconds, &stem) {
            ([], Some(_), Some(stem)) => {
                let mut checkpoints = Checkpoints::new(Some(stem))?;
                checkpoints.stop_by_signals()?;
                self.pid.iter().for_each(|&pid| watch.look(pid));
                let (profile, root) = self.attach(&mut checkpoints)?;
                self.pid.iter().for_each(|&pid| watch.look(pid));
                (0, profile, root)
            }
            ([], _, Some(stem)) => {
                let (exit_code, profile) = self.run(stem, &mut watch)?;
                (exit_code, profile, Root::Own)
            }
            (files, ..) => (0, read(files)?, Root::Own),
        };
        let mut symbols = Symbols::below(&root, &profile);
        let line = ProgressLine::of("finding the names of functions", self.json);
        // What cannot be written is still shown.
        let written = stem.as_ref().map(|stem| files::write(&profile, &mut symbols, stem));
        let (mut written, failed) = match written {
            Some(Err(why)) => (Vec::new(), Some(why)),
            Some(Ok(written)) => (written, None),
            None => (Vec::new(), None),
        };
        let mut old = before.as_ref().map(|before| (before, Symbols::new(before)));
        if let Some(page) = &self.flame {
            let program = profile.program().and_then(|number| profile.modules[number].path.file_name());
            let title = format!(
                "{}: {}",
                program.unwrap_or_default().display(),
                duration(profile.duration_ns as f64)
            );
            let before = old.as_mut().map(|(before, symbols)| (*before, symbols));
            flame::write(&title, (&profile, &mut symbols), before, page)?;
            written.push(page.clone());
        }
        drop(line);
        match &mut old {
            _ if self.json => eprintln!("{}", as_json(&profile)),
            Some((before, names)) => {
                eprint!("{}", difference((&profile, &mut symbols), (before, names), self.top))
            }
            None if self.frees => eprint!("{}", frees(&profile, &mut symbols, self.top)),
            None if self.leaks => eprint!("{}", leaks(&profile, &mut symbols, self.top)),
            None => eprint!("{}", described(&profile, &mut symbols, self.top)),
        }
        if let Some(account) = watch.last().filter(|_| !self.json) {
            eprint!("when last looked at, {}", account.described());
        }
        for missing in symbols.missing.iter().filter(|_| !self.json) {
            eprintln!("mayfly: no names for {missing}");
        }
        for module in symbols.ends_of_stacks(&profile).iter().filter(|_| !self.json) {
            eprintln!(
                "mayfly: stacks end in {}, whose code has tables for debuggers alone (.debug_frame): compile it \
                 with -fasynchronous-unwind-tables",
                module.display()
            );
        }
        if !self.json && !written.is_empty() {
            let names: Vec<_> = written.iter().map(|path| path.display().to_string()).collect();
            eprintln!("written: {}", names.join(", "));
        }
        failed.map_or(Ok(exit_code), Err)
    }

    /// The beginning of the files' names.
    fn stem(&self) -> Result<Option<PathBuf>> {
        let stem = match (&self.output, self.pid, self.command.first()) {
            (Some(name), ..) => name.clone(),
            (None, Some(pid), _) => {
                process::name(pid).ok_or_else(|| anyhow!("there is no process {pid}"))?.into()
            }
            (None, None, None) if self.name.is_some() => {
                self.name.clone().unwrap_or_default().replace('/', "_").into()
            }
            (None, None, Some(command)) => {
                Path::new(command).file_name().map(PathBuf::from).unwrap_or_default()
            }
            (None, None, None) => return Ok(None),
        };
        let stem = std::path::absolute(&stem)?;
        let folder = stem.parent().ok_or_else(|| anyhow!("{}: not a file's name", stem.display()))?;
        ensure!(folder.is_dir(), "{}: no such directory", folder.display());
        Ok(Some(stem))
    }

    /// Samples the named processes; also returns the root of their files.
    fn attach(&self, checkpoints: &mut Checkpoints) -> Result<(Profile, Root)> {
        let pids = match &self.name {
            Some(name) => process::named(name),
            None => self.pid.into_iter().collect(),
        };
        let name = || self.name.clone().unwrap_or_default();
        let pid = *pids.first().ok_or_else(|| anyhow!("there is no process called {}", name()))?;
        // Now: the process may have ended before names are looked up.
        let root = Root::of_process(pid).unwrap_or(Root::Own);
        let (control, time) = (self.control.as_deref(), self.seconds.unwrap_or_default());
        let target = Target { pids: &pids, only: self.only, control, time, every: self.every };
        Ok((tree::profile(&target, checkpoints)?, root))
    }

    /// Profiles a program from its start; returns its exit code and the profile.
    fn run(&self, stem: &Path, watch: &mut Watch) -> Result<(i32, Profile)> {
        if let Some(program) = program::find(&self.command[0]) {
            if let Some(why) = program::no_profile(&program) {
                bail!("{why}");
            }
            if let Some(note) = runtime::note(&program).filter(|_| !self.json) {
                eprintln!("mayfly: {note}");
            }
        }
        let mut program = Preloaded::new(&self.command, &libraries::HEAP)?;
        for (variable, value) in self.heap.variables(&HeapSettings::default(), |_| true) {
            match value {
                crate::settings::Value::Text(text) => program.set(variable, text),
                crate::settings::Value::OracleOf(_) => {
                    bail!("profile: --lifetimes oracle=TRACE is for mayfly run")
                }
            }
        }
        let mut parts = Parts::beside(stem, self.only)?;
        let mut checkpoints = Checkpoints::new(Some(stem))?;
        program.set("MAYFLY_HEAP_PROFILE", parts.address());
        program.set("MAYFLY_HEAP_PROFILE_BYTES", self.every.to_string());
        let finished = program.run(|pid| {
            watch.look(pid);
            parts.keep(pid);
            let found = checkpoints.is_requested().then(|| parts.read(pid)).flatten();
            if let Some(Err(why)) = found.map(|found| checkpoints.snapshot(&found.profile)) {
                eprintln!("mayfly: {why:#}");
            }
        })?;
        let Some(found) = parts.read(finished.pid) else {
            bail!("the program left no profile: it never loaded Mayfly's heap");
        };
        if found.running > 0 {
            let number = found.running;
            eprintln!(
                "mayfly: {number} processes that it started run on: the profile has only their allocations so far"
            );
        }
        Ok((finished.exit_code(), found.profile))
    }
}

/// Reads these files, and those in these folders, as one profile.
fn read(names: &[PathBuf]) -> Result<Profile> {
    let mut profiles = Vec::new();
    for name in names {
        if !name.is_dir() {
            profiles.push(Profile::read(name)?);
            continue;
        }
        let before = profiles.len();
        profiles.extend(parts::files(name).iter().filter_map(|path| Profile::read(path).ok()));
        ensure!(profiles.len() > before, "{}: no profile in this folder", name.display());
    }
    Ok(Profile::merged(profiles))
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
