//! A folder that appears whole or not at all, however the process that makes it ends, and that several
//! workers share: one makes it, the others wait.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use worker_system::owned_folder;

/// The beginning of names of folders that are being made.
const NEW: &str = "new-";

/// The folder `name` below `place`. If it is not there, `make` fills an empty folder, which then becomes it.
///
/// # Errors
/// It cannot be made; nothing stays of it.
pub fn once(place: &Path, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let folder = place.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))?;
    // Another worker that makes it holds this lock; the kernel ends it with that worker.
    let lock = place.join(format!(".{name}.lock"));
    let lock = File::create(&lock).with_context(|| format!("cannot make {}", lock.display()))?;
    lock.lock().context("cannot wait for another worker")?;
    if folder.is_dir() {
        return Ok(folder);
    }
    owned_folder::remove_left_behind(place, NEW, |folder| fs::remove_dir_all(folder));
    let (begun, _owned) = owned_folder::make(place, NEW)
        .with_context(|| format!("cannot make a folder in {}", place.display()))?;
    let made = begun.join("made");
    let outcome = fill(&made, make).and_then(|()| {
        fs::rename(&made, &folder).with_context(|| format!("cannot make {}", folder.display()))
    });
    let _ = fs::remove_dir_all(&begun);
    outcome.map(|()| folder)
}

fn fill(made: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    fs::create_dir(made)?;
    make(made)?;
    // The name must not reach the disk before the contents do.
    Ok(rustix::fs::syncfs(File::open(made)?)?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anyhow::bail;

    use super::*;

    #[test]
    fn it_is_made_once_and_a_failure_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let failed = once(place, "a", |folder| {
            fs::write(folder.join("half"), "")?;
            bail!("as asked")
        });
        assert_eq!(failed.unwrap_err().to_string(), "as asked");
        let folders = || fs::read_dir(place).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir()).count();
        assert_eq!(folders(), 0);
        // What a killed worker has left.
        fs::create_dir(place.join("new-4194303-0")).unwrap();
        let times = AtomicUsize::new(0);
        let make = |folder: &Path| {
            times.fetch_add(1, Ordering::Relaxed);
            Ok(fs::write(folder.join("whole"), "1")?)
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(once(place, "a", make).unwrap().join("whole").is_file()));
            }
        });
        assert_eq!((times.load(Ordering::Relaxed), folders()), (1, 1));
    }
}
