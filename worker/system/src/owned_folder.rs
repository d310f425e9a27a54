//! Folders that one worker makes and removes when it ends. The next worker removes those of a worker that
//! was killed.
//!
//! A worker holds a lock (`flock`) on each of its folders. The kernel releases it however the worker ends,
//! and every other worker can see that, in any PID namespace; a process id would not show it.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The right to a folder, until it is dropped.
#[derive(Debug)]
pub struct Owned(#[allow(dead_code, reason = "closing it ends the lock")] File);

/// Makes a new folder, by a name that begins with `prefix` and this process's id, and makes it this worker's.
///
/// # Errors
/// No folder can be made or locked there.
pub fn make(place: &Path, prefix: &str) -> Result<(PathBuf, Owned)> {
    loop {
        let random = uuid::Uuid::new_v4().simple().to_string();
        let folder = place.join(format!("{prefix}{}-{}", std::process::id(), &random[..8]));
        match fs::create_dir(&folder) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        }
        // Another worker that starts now may have taken it for one that was left behind.
        if let Some(owned) = own(&folder)? {
            return Ok((folder, owned));
        }
    }
}

/// Calls `remove` for every folder in `place` whose name begins with `prefix` and whose worker has ended.
pub fn remove_left_behind(place: &Path, prefix: &str, remove: impl Fn(&Path) -> Result<()>) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let folder = entry.path();
        let is_one =
            entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)) && folder.is_dir();
        if is_one
            && let Ok(Some(_owned)) = own(&folder)
            && let Err(error) = remove(&folder)
        {
            tracing::warn!("cannot remove {}: {error}", folder.display());
        }
    }
}

/// Locks a folder; `None` if it is another's, or removed.
fn own(folder: &Path) -> Result<Option<Owned>> {
    let file = match File::open(folder) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let is_there = fs::metadata(folder).is_ok_and(|now| {
        file.metadata().is_ok_and(|ours| (now.dev(), now.ino()) == (ours.dev(), ours.ino()))
    });
    Ok(is_there.then_some(Owned(file)))
}

const FOLDER_PREFIX: &str = "mayfly-worker-";

/// A folder that is removed when the worker ends. Other users may pass through, to their own files.
pub struct Folder {
    path: PathBuf,
    _owned: Owned,
}

impl Folder {
    /// Makes a folder, and removes those of workers that were killed.
    ///
    /// # Errors
    /// None can be made there.
    pub fn new(place: &Path) -> anyhow::Result<Folder> {
        remove_left_behind(place, FOLDER_PREFIX, |folder| fs::remove_dir_all(folder));
        let (path, owned) = make(place, FOLDER_PREFIX)
            .with_context(|| format!("cannot make a folder in {}", place.display()))?;
        let folder = Folder { path, _owned: owned };
        fs::set_permissions(&folder.path, fs::Permissions::from_mode(0o711))?;
        Ok(folder)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remove(folder: &Path) -> Result<()> {
        fs::remove_dir(folder)
    }

    #[test]
    fn removes_only_folders_without_a_live_owner() {
        let place = tempfile::tempdir().unwrap();
        let (ours, held) = make(place.path(), "x-").unwrap();
        // Of a process that no longer has this number, or never had it in this PID namespace.
        fs::create_dir(place.path().join("x-4194303-0")).unwrap();
        fs::create_dir(place.path().join("y-1-0")).unwrap();
        let names = || {
            let mut names: Vec<_> = fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().path()).collect();
            names.sort();
            names
        };
        remove_left_behind(place.path(), "x-", remove);
        assert_eq!(names(), [ours.clone(), place.path().join("y-1-0")]);
        drop(held);
        remove_left_behind(place.path(), "x-", remove);
        assert_eq!(names(), [place.path().join("y-1-0")]);
    }
}
