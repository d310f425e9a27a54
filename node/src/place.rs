//! Where profiles go: a folder, which may be one of all nodes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A folder for files by name.
pub struct Place(PathBuf);

impl Place {
    /// A folder, which is made.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn of(folder: &Path) -> Result<Place> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Place(folder.to_owned()))
    }

    /// Puts a file there under `key`, a path below the folder, at one stroke.
    ///
    /// # Errors
    /// It cannot be read, or not be put there; nothing is left there then.
    pub fn put(&self, key: &str, file: &Path) -> Result<()> {
        let target = self.0.join(key);
        let folder = target.parent().context("a name without a folder")?;
        // Readers pass over names that begin so.
        let fresh = folder.join(format!(".{}", target.file_name().unwrap_or_default().to_string_lossy()));
        let put = fs::create_dir_all(folder)
            .and_then(|()| fs::copy(file, &fresh))
            .and_then(|_| fs::rename(&fresh, &target));
        if put.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        put.with_context(|| format!("cannot write {}", target.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("a/b");
        let place = Place::of(&name).unwrap();
        std::fs::write(folder.path().join("file"), "profile").unwrap();
        place.put("workload=a%2Fb/x.parquet", &folder.path().join("file")).unwrap();
        assert_eq!(std::fs::read_to_string(name.join("workload=a%2Fb/x.parquet")).unwrap(), "profile");
        assert!(place.put("y/x", &folder.path().join("none")).is_err());
        assert_eq!(fs::read_dir(name.join("y")).unwrap().count(), 0);
    }
}
