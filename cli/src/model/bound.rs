//! `mayfly run --model` with a program, or a library that the model knows, of another build than the model's:
//! it has the model bound to that build by names, in the background, and caches the result for the next
//! start.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use lifetime::code::symbols::build_id;
use lifetime::model::bind::{Coverage, base_name, files_of};
use lifetime::model::file as model_file;
use lifetime::model::file::Model;

/// A start waits no longer than this.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bound models that were unused for so long are removed.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// If fewer of the contexts' bytes are known than this, the line advises to train again.
const FEW: f64 = 0.5;
const SUFFIX: &str = "mayfly-model";

/// A file of another build than the model has.
struct Changed {
    path: PathBuf,
    build_id: Vec<u8>,
}

/// The model to run a program with in place of the one in `path`; `None` if that one fits, or no better one
/// exists yet. For another build it prints in one line the share of the contexts that is known.
pub fn for_program(path: &Path, program: &Path) -> Option<PathBuf> {
    let file = model_file::File::read(path).ok()?; // the heap reports its fault
    let changed = changed(&file.model(), program);
    let name = changed.first()?.path.file_name()?.to_string_lossy().into_owned();
    let others = match changed.len() - 1 {
        0 => String::new(),
        1 => " and another file".to_owned(),
        others => format!(" and {others} other files"),
    };
    let verb = if changed.len() == 1 { "is" } else { "are" };
    let of = format!("mayfly: {name}{others} {verb} of another build than {}", path.display());
    match bound(path, file.bytes(), &changed) {
        Ok(Some((bound, known))) => {
            let advice = if known.bytes < FEW { "; profile and train again" } else { "" };
            eprintln!(
                "{of}: by names, {:.0}% of its contexts are known (of bytes){advice}",
                100.0 * known.bytes
            );
            Some(bound)
        }
        Ok(None) => {
            eprintln!(
                "{of}: it is bound to it in the background, for the next start; this one learns online"
            );
            None
        }
        Err(error) => {
            eprintln!("{of}, and cannot be bound to it: {error:#}");
            None
        }
    }
}

/// The files of other builds than the model's, the program first. The program counts only if the model knows
/// one of its name: `sh` is no other build of the server that it starts. Libraries are read from their
/// profiled paths.
fn changed(model: &Model, program: &Path) -> Vec<Changed> {
    let files = files_of(model);
    let of_another_build = |path: &Path| {
        let build_id = build_id(path).ok().filter(|id| !id.is_empty() && model.module(id).is_none())?;
        Some(Changed { path: path.to_owned(), build_id })
    };
    let Ok(program) = program.canonicalize() else { return Vec::new() };
    let name = program.to_string_lossy();
    let is_known = files.iter().any(|file| base_name(file) == base_name(&name));
    let own_id = build_id(&program).unwrap_or_default();
    if !is_known && model.module(&own_id).is_none() {
        return Vec::new();
    }
    let mut libraries: Vec<&str> = files
        .iter()
        .map(String::as_str)
        .filter(|file| file.starts_with('/') && base_name(file).ends_with(".so"))
        .collect();
    libraries.sort_unstable();
    libraries.dedup();
    let libraries = libraries.into_iter().map(Path::new);
    [&*program].into_iter().chain(libraries).filter_map(of_another_build).collect()
}

/// The bound model and its coverage; `None` if it is still being made.
fn bound(path: &Path, file: &[u8], changed: &[Changed]) -> Result<Option<(PathBuf, Coverage)>> {
    let folder = cache_folder().context("neither XDG_CACHE_HOME nor HOME is set")?;
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let name = base_name(&path.to_string_lossy()).to_owned();
    let kept = folder.join(format!("{name}-{:016x}.{SUFFIX}", key(file, changed)));
    if let Some(known) = coverage_in(&kept) {
        // Marks it as used; a file that cannot be marked expires and is made again.
        let _ =
            File::options().append(true).open(&kept).and_then(|file| file.set_modified(SystemTime::now()));
        return Ok(Some((kept, known)));
    }
    remove_old(&folder);
    let messages = bind_in_background(path, &kept, changed)?;
    match (coverage_in(&kept), messages) {
        (Some(known), _) => Ok(Some((kept, known))),
        (None, None) => Ok(None),
        (None, Some(messages)) => {
            let line = messages.lines().last().unwrap_or("mayfly bind ended without a message");
            Err(anyhow!("{}", line.trim_start_matches("mayfly: ").to_owned()))
        }
    }
}

fn cache_folder() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("mayfly/bound"))
}

/// A key for a model and files of other builds.
fn key(file: &[u8], changed: &[Changed]) -> u64 {
    let mut whole = file.get(24..32).unwrap_or_default().to_vec(); // its checksum
    let mut build_ids: Vec<&[u8]> = changed.iter().map(|file| &*file.build_id).collect();
    build_ids.sort_unstable();
    build_ids.into_iter().for_each(|id| whole.extend(id));
    lifetime::model::sections::checksum(&whole)
}

/// The coverage in a bound model's file, if it is whole.
fn coverage_in(path: &Path) -> Option<Coverage> {
    Coverage::of(&model_file::File::read(path).ok()?.model())
}

fn remove_old(folder: &Path) {
    let Ok(files) = std::fs::read_dir(folder) else { return };
    for file in files.flatten() {
        let modified = file.metadata().and_then(|about| about.modified());
        if modified.is_ok_and(|then| then.elapsed().is_ok_and(|age| age > KEPT)) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// Starts `mayfly bind`. Returns its messages if it ends soon; else it goes on alone: it is no child of this
/// process, which becomes the program.
fn bind_in_background(path: &Path, kept: &Path, changed: &[Changed]) -> Result<Option<String>> {
    let mut command = Command::new(std::env::current_exe().context("cannot find the path of this program")?);
    command.arg("bind").arg("--background").arg(path).arg("-o").arg(kept);
    command.arg("--").args(changed.iter().map(|file| &file.path));
    let mut started = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("mayfly bind cannot be started")?;
    let output = started.stdout.take().context("mayfly bind has no output")?;
    started.wait().context("mayfly bind")?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut messages = Vec::new();
        let _ = { output }.read_to_end(&mut messages);
        let _ = sender.send(String::from_utf8_lossy(&messages).into_owned());
    });
    Ok(receiver.recv_timeout(PATIENCE).ok())
}
