//! `mayfly run`: runs a program on Mayfly's heap.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::child::{Finished, Preloaded};
use crate::libraries;
use crate::model::bound;
use crate::progress;
use crate::settings::{HeapSettings, Lifetimes, Value};
use crate::sockets;
use crate::statistics;
use crate::trace::oracle::Table;
use crate::who::Watch;
use crate::who::account::Account;

const EXAMPLES: &str = "\
Examples:
  mayfly run -- redis-server --port 7000
  mayfly run --stats -- python3 script.py             a table of the heap's statistics at the end
  mayfly run --stats=heap.json -- ./server            the same as JSON in a file
  mayfly run --model server.mayfly-model -- ./server  lifetimes predicted by a model of `mayfly train`; each run
                                                      saves what it learns in server.mayfly-model.table
                                                      for the next; for another build, see mayfly bind
  mayfly run --lifetimes fixed:1s -- ./server         no learning: every object in one class
  mayfly run --lifetimes oracle=app.trace -- ./app    true lifetimes, recorded by `mayfly trace`

Settings are taken from flags, then MAYFLY_HEAP_* variables, then [heap] in mayfly.toml:
  [heap]
  lifetimes = \"online\"
  pages = \"thp\"

The library is libmayfly_heap.so beside mayfly, in ../lib or ../lib/mayfly, or MAYFLY_HEAP_LIB.

Exit code: the program's, or 128 + the signal that ended it; 127 if it is not found, 126 if it
cannot be run, 125 if mayfly itself fails.";

/// Run a program on the lifetime-aware heap
#[derive(Args)]
#[command(after_long_help = EXAMPLES, after_help = "Examples and the order of settings: mayfly run --help")]
pub struct RunArguments {
    #[command(flatten)]
    heap: HeapSettings,
    /// Save what the heap learns about each call site for the next run: FILE, or none [default: beside the
    /// model, if there is one]
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// TOML file with a table "heap" [default: mayfly.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Show the heap's statistics when the program has ended, on stderr, or write them to FILE as JSON
    ///
    /// Below them is who had its memory, as `mayfly who` shows it, for a program that ran for a second.
    ///
    /// FILE may contain %p, the process id: then processes that the program starts write theirs too.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    stats: Option<Option<PathBuf>>,
    /// With --stats: JSON instead of the table
    #[arg(long, requires = "stats")]
    json: bool,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl RunArguments {
    /// Runs the program; returns its exit code.
    ///
    /// # Errors
    /// The program or the heap is not found, or a setting is wrong.
    pub fn execute(self) -> Result<i32> {
        let mut program = Preloaded::new(&self.command, &libraries::HEAP)?;
        let file = HeapSettings::from_file(self.config.as_deref())?;
        if let Some(model) = &self.heap.model {
            // The heap would only warn, and learn without it.
            lifetime::model::file::File::read(model)?;
        }
        let mut table = None;
        for (variable, value) in self.heap.variables(&file, |name| std::env::var_os(name).is_some()) {
            match value {
                Value::Text(text) => program.set(variable, text),
                Value::OracleOf(trace) => {
                    let made = oracle_table(&trace)?;
                    let mut text = OsString::from("oracle:");
                    text.push(made.path());
                    program.set(variable, text);
                    table = Some(made);
                }
            }
        }
        let model = self.bound_model(&file, program.program());
        if let Some(bound) = &model {
            program.set("MAYFLY_HEAP_MODEL", bound);
        }
        if let Some(kept) = self.kept_table(model.or_else(|| self.model(&file)))? {
            program.set("MAYFLY_HEAP_TABLE", kept);
        }
        if std::env::var_os("MAYFLY_HEAP_CONTROL").is_none() && sockets::may_be_opened() {
            program.set("MAYFLY_HEAP_CONTROL", "on"); // for a later `mayfly profile --pid`
        }
        match self.stats {
            None if table.is_none() => Err(program.replace_this_process()),
            None => Ok(program.run(|_| {})?.exit_code()),
            Some(None) => show_statistics(program, self.json),
            Some(Some(file)) => {
                let file = std::path::absolute(&file)?;
                if file.to_string_lossy().contains("%p") {
                    program.set("MAYFLY_HEAP_STATS", &file);
                    return Ok(program.run(|_| {})?.exit_code());
                }
                let finished = with_statistics(program, |found, _| {
                    let Some((text, _)) = found else { return Ok(()) };
                    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
                })?;
                Ok(finished.exit_code())
            }
        }
    }
}

impl RunArguments {
    /// The model for the heap.
    fn model(&self, file: &HeapSettings) -> Option<PathBuf> {
        let variable = std::env::var_os("MAYFLY_HEAP_MODEL").map(PathBuf::from);
        self.heap.model.clone().or(variable).or(file.model.clone())
    }

    /// In its place, a model bound to this program's build.
    fn bound_model(&self, file: &HeapSettings, program: &Path) -> Option<PathBuf> {
        if !self.heap.lifetimes.as_ref().is_none_or(|lifetimes| matches!(lifetimes, Lifetimes::Model { .. }))
        {
            return None; // the heap uses no model
        }
        bound::for_program(&std::path::absolute(self.model(file)?).ok()?, program)
    }

    /// The file that saves the sites for the next run; `None` if there is none, or if the environment names
    /// it.
    fn kept_table(&self, model: Option<PathBuf>) -> Result<Option<PathBuf>> {
        let named = match &self.table {
            Some(none) if none.as_os_str() == "none" => return Ok(None),
            Some(table) => table.clone(),
            None if std::env::var_os("MAYFLY_HEAP_TABLE").is_some() => return Ok(None),
            None => match model {
                Some(model) => {
                    let mut table = model.into_os_string();
                    table.push(".table");
                    table.into()
                }
                None => return Ok(None),
            },
        };
        let table = std::path::absolute(&named)?;
        if self.table.is_some() && !table.parent().is_some_and(Path::is_dir) {
            anyhow::bail!("--table {}: no such directory", named.display());
        }
        Ok(Some(table))
    }
}

fn oracle_table(trace: &Path) -> Result<Table> {
    let bar = progress::over_file(trace, 2, "reading lifetimes");
    let table = Table::from_trace(trace, |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    Ok(table)
}

fn show_statistics(program: Preloaded, json: bool) -> Result<i32> {
    let finished = with_statistics(program, |found, account| {
        let mut statistics = match found {
            Some((text, origin)) => statistics::parse(text, origin)?,
            None => serde_json::Map::new(),
        };
        // Standard output belongs to the program.
        if json {
            statistics.extend(account.map(|account| account.as_json()).unwrap_or_default());
            if !statistics.is_empty() {
                eprintln!("{}", serde_json::Value::Object(statistics));
            }
        } else {
            if found.is_some() {
                eprint!("{}", statistics::table(&statistics));
                eprint!("{}", statistics::share_of_malloc(&statistics).unwrap_or_default());
            }
            if let Some(account) = account {
                eprint!("shortly before its end, {}", account.described());
            }
        }
        Ok(())
    })?;
    Ok(finished.exit_code())
}

/// Runs the program and passes its own process's statistics to `take`, if it wrote any, with their file, and
/// who had its memory shortly before its end. Processes that it starts write theirs beside it, under their
/// own PIDs, and are not shown.
fn with_statistics(
    mut program: Preloaded,
    take: impl FnOnce(Option<(&str, &Path)>, Option<Account>) -> Result<()>,
) -> Result<Finished> {
    let folder = tempfile::Builder::new().prefix("mayfly-stats-").tempdir()?;
    program.set("MAYFLY_HEAP_STATS", folder.path().join("%p.json"));
    let mut watch = Watch::new();
    let finished = program.run(|pid| watch.look(pid))?;
    let path = folder.path().join(format!("{}.json", finished.pid));
    let text = std::fs::read_to_string(&path).ok();
    if text.is_none() {
        match finished.signal() {
            Some(signal) => eprintln!("mayfly: no statistics: the program was ended by signal {signal}"),
            None => {
                eprintln!("mayfly: no statistics: the program ended without exit(), or never loaded the heap")
            }
        }
    }
    take(text.as_deref().map(|text| (text, path.as_path())), watch.last())?;
    Ok(finished)
}
