//! The profiles of a program that is run by `mayfly profile`, and of the processes that it starts: each writes a file of its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lifetime::profile::contents::Profile;
use lifetime::profile::file::is_written;
use tempfile::TempDir;

/// A server that forks for each connection leaves thousands: when there are so many, those of processes that have ended are merged.
const MANY: usize = 64;
/// Between two looks whether there are.
const LOOK: Duration = Duration::from_secs(1);
/// What those became, in the same folder.
const ENDED: &str = "ended";

/// The folder in which they are, until this is dropped.
pub struct Parts {
    folder: TempDir,
    looked: Instant,
}

/// What was found at the end.
pub struct Found {
    /// All of it.
    pub profile: Profile,
    /// Processes that run on.
    pub running: usize,
}

impl Parts {
    /// A new folder beside `stem`, and named after it: who kills this process finds what there is.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn beside(stem: &Path) -> Result<Self> {
        let folder = stem.parent().unwrap_or(Path::new("."));
        let name = stem.file_name().unwrap_or_default().to_string_lossy();
        let made = tempfile::Builder::new().prefix(&format!("{name}.parts-")).tempdir_in(folder);
        let folder = made.with_context(|| format!("cannot write in {}", folder.display()))?;
        Ok(Self { folder, looked: Instant::now() })
    }

    /// What `MAYFLY_HEAP_PROFILE` is.
    pub fn name(&self) -> PathBuf {
        self.folder.path().join("%p")
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Merges what processes that have ended left, when it is much. To be called now and then.
    pub fn look(&mut self) {
        if self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        let is_there = |path: &&PathBuf| {
            let file = std::fs::File::open(path);
            path.ends_with(ENDED) || file.is_ok_and(|file| !is_written(&file))
        };
        let files = files(self.path());
        let ended: Vec<&PathBuf> = files.iter().filter(is_there).collect();
        if ended.len() < MANY {
            return;
        }
        let whole = Profile::merged(ended.iter().filter_map(|path| Profile::read(path).ok()));
        if whole.write(&self.path().join(ENDED)).is_ok() {
            let merged = ended.iter().filter(|path| !path.ends_with(ENDED));
            merged.for_each(|path| _ = std::fs::remove_file(path));
        }
    }

    /// What there is; `only` names the process whose own is wanted. `None` if there is nothing.
    pub fn read(&self, only: Option<u32>) -> Option<Found> {
        let files = match only {
            Some(pid) => vec![self.path().join(pid.to_string())],
            None => files(self.path()),
        };
        // A file that was made and never begun is of a process that was killed then.
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
