//! The profiles of a program that `mayfly profile` runs, and of the processes that it starts: each writes a
//! file of its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lifetime::profile::contents::Profile;
use lifetime::profile::file::is_written;
use tempfile::TempDir;

/// A server that forks for each connection leaves thousands of files: from this number on, those of ended
/// processes are merged.
const MANY: usize = 64;
/// Time between two checks for ended processes.
const CHECK: Duration = Duration::from_secs(1);
/// The file of the merged profiles, in the same folder.
const ENDED: &str = "ended";

/// The folder of the files, removed when this is dropped.
pub struct Parts {
    folder: TempDir,
    checked: Instant,
}

/// The profiles of all processes.
pub struct Found {
    /// The merged profile.
    pub profile: Profile,
    /// Processes that run on.
    pub running: usize,
}

impl Parts {
    /// A new folder beside `stem`, and named after it, so that a user finds it after this process is killed.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn beside(stem: &Path) -> Result<Self> {
        let folder = stem.parent().unwrap_or(Path::new("."));
        let name = stem.file_name().unwrap_or_default().to_string_lossy();
        let made = tempfile::Builder::new().prefix(&format!("{name}.parts-")).tempdir_in(folder);
        let folder = made.with_context(|| format!("cannot write in {}", folder.display()))?;
        Ok(Self { folder, checked: Instant::now() })
    }

    /// The value of `MAYFLY_HEAP_PROFILE`.
    pub fn name(&self) -> PathBuf {
        self.folder.path().join("%p")
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Merges the files of ended processes, if there are many. To be called periodically.
    pub fn merge_ended(&mut self) {
        if self.checked.elapsed() < CHECK {
            return;
        }
        self.checked = Instant::now();
        let has_ended = |path: &&PathBuf| {
            let file = std::fs::File::open(path);
            path.ends_with(ENDED) || file.is_ok_and(|file| !is_written(&file))
        };
        let files = files(self.path());
        let ended: Vec<&PathBuf> = files.iter().filter(has_ended).collect();
        if ended.len() < MANY {
            return;
        }
        let whole = Profile::merged(ended.iter().filter_map(|path| Profile::read(path).ok()));
        if whole.write(&self.path().join(ENDED)).is_ok() {
            let merged = ended.iter().filter(|path| !path.ends_with(ENDED));
            merged.for_each(|path| _ = std::fs::remove_file(path));
        }
    }

    /// The profiles so far; `only` restricts them to one process. `None` if there is none.
    pub fn read(&self, only: Option<u32>) -> Option<Found> {
        let files = match only {
            Some(pid) => vec![self.path().join(pid.to_string())],
            None => files(self.path()),
        };
        // An empty file belongs to a process that was killed as it created it.
        let profiles: Vec<Profile> = files.iter().filter_map(|path| Profile::read(path).ok()).collect();
        let runs = |path: &&PathBuf| std::fs::File::open(path).is_ok_and(|file| is_written(&file));
        let running = files.iter().filter(runs).count();
        (!profiles.is_empty()).then(|| Found { profile: Profile::merged(profiles), running })
    }
}

/// The profiles in a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_hidden =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.is_file() && !is_hidden(path)).collect();
    files.sort();
    files
}
