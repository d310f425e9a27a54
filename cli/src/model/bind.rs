//! `mayfly bind`: binds a model to another build than the one it was made from, by the names of functions and
//! without a profile. `mayfly run` does so by itself ([`crate::model::bound`]).

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use clap::Args;
use lifetime::code::ranges::Code;
use lifetime::model::bind::{Coverage, bind};
use lifetime::model::file as model_file;
use serde_json::{Map, Value};

use crate::progress;
use crate::quantity::{bytes, count};

const EXAMPLES: &str = "\
Examples:
  mayfly bind server.model -o new.model -- build/server             the functions of a new build, by their names
  mayfly bind server.model -o new.model -- server /lib/libvips.so   and those of an upgraded library
  mayfly run --model new.model -- build/server

A model knows code by build-id and address, so it predicts nothing for another build. Names are found as by `mayfly
profile`: in symbol tables and DWARF (/usr/lib/debug/.build-id first), inlined functions included. The new model serves
the builds of the old one, too. A context is known if each of its functions is in the new files, or in a file that did not
change; where few are known, profile and train again.

`mayfly run --model` does the same by itself when the program, or a library that the model knows, is of another build.";

/// Make a model serve another build, by the names of functions
#[derive(Args)]
#[command(after_long_help = EXAMPLES, after_help = "Examples: mayfly bind --help")]
pub struct BindArguments {
    /// The model that `mayfly train` made
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The model file to write
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Bind in another process, after those that do the same, and return at once
    #[arg(long, hide = true)]
    background: bool,
    /// Programs and libraries of the new build, after --
    #[arg(last = true, required = true, value_name = "BINARY")]
    files: Vec<PathBuf>,
}

/// The variable that names the lock of the process that `--background` starts.
const LOCK: &str = "MAYFLY_BIND_LOCK";

impl BindArguments {
    /// Writes the new model; returns the exit code.
    ///
    /// # Errors
    /// A file cannot be read or written, or is of another kind.
    pub fn execute(self) -> Result<i32> {
        if self.background {
            return self.start_in_background();
        }
        let _alone = match std::env::var_os(LOCK) {
            None => None,
            Some(lock) => {
                let file = File::create(&lock).with_context(|| format!("{}", Path::new(&lock).display()))?;
                file.lock().context("waiting for another process that binds the model")?;
                if model_file::File::read(&self.output).is_ok() {
                    return Ok(0); // the other process has bound it
                }
                Some(file)
            }
        };
        let file = model_file::File::read(&self.model)?;
        let mut codes = Vec::new();
        for path in &self.files {
            let waiting = progress::of_waiting("naming the functions of the new build");
            codes.push(Code::read(path)?);
            waiting.finish_and_clear();
        }
        let (bound, coverage) =
            bind(file.bytes(), &codes).with_context(|| format!("model {}", self.model.display()))?;
        write(&self.output, &bound)?;
        self.report(&coverage, bound.len())
    }

    fn report(&self, known: &Coverage, length: usize) -> Result<i32> {
        let text = if self.json {
            let flat: Map<String, Value> =
                known.as_json().into_iter().map(|(name, value)| (format!("bind.{name}"), value)).collect();
            Value::Object(flat).to_string()
        } else {
            format!(
                "known by name: {} of {} contexts, which allocated {:.1}% of the bytes; {} of the {} functions of theirs that \
                 may have changed\n{}: {}",
                count(known.contexts as u64),
                count(known.all_contexts as u64),
                100.0 * known.bytes,
                count(known.functions as u64),
                count(known.all_functions as u64),
                self.output.display(),
                bytes(length as f64)
            )
        };
        // The reader may have exited.
        let _ = writeln!(std::io::stdout(), "{text}");
        Ok(0)
    }

    /// Starts a process that binds the model. It writes its messages to our standard output, and shares
    /// nothing else with us.
    fn start_in_background(self) -> Result<i32> {
        let mut lock = self.output.clone().into_os_string();
        lock.push(".lock");
        let messages = std::io::stdout().as_fd().try_clone_to_owned().context("standard output")?;
        let mut command =
            Command::new(std::env::current_exe().context("cannot find the path of this program")?);
        command
            .arg("bind")
            .arg(self.model)
            .arg("-o")
            .arg(self.output)
            .arg("--json")
            .arg("--")
            .args(self.files);
        command.env(LOCK, lock).process_group(0).stdin(Stdio::null()).stderr(messages);
        command.spawn().context("cannot start another process")?;
        Ok(0)
    }
}

/// Writes a file whole or not at all.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let absolute = std::path::absolute(path).with_context(cannot)?;
    let folder = absolute.parent().unwrap_or(Path::new("/"));
    use std::os::unix::fs::PermissionsExt;
    let readable = std::fs::Permissions::from_mode(0o666); // less the umask
    let mut file = tempfile::Builder::new()
        .prefix(".mayfly-bind-")
        .permissions(readable)
        .tempfile_in(folder)
        .with_context(cannot)?;
    file.write_all(content).with_context(cannot)?;
    file.persist(&absolute).with_context(cannot)?;
    Ok(())
}
