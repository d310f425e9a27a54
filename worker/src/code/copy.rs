//! Copies a folder that a caller has named, and reads of it only what every user may.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cap_std::fs::{Dir, MetadataExt, OpenOptions, OpenOptionsExt};
use sha2::{Digest, Sha256};

use super::{ENTRIES, Hashing};
use crate::base::limits;
use worker_system::text::plain_reason;

/// A copy that is being made.
#[derive(Default)]
pub struct Copy {
    pub digest: Sha256,
    pub bytes: u64,
    entries: usize,
}

impl Copy {
    /// Copies the contents of `source`, whose path in the whole folder is `below`.
    pub fn folder(&mut self, source: &Dir, below: &Path, target: &Path) -> Result<(), String> {
        if below.components().count() > limits::FOLDER_DEPTH {
            return Err("folders lie too deep in one another".into());
        }
        let failed = |error: io::Error| format!("{}: {}", below.display(), plain_reason(&error));
        if source.dir_metadata().map_err(failed)?.mode() & 0o005 != 0o005 {
            return Err(format!("{}: not all may read this folder (o+rx is needed)", below.display()));
        }
        let mut entries: Vec<_> =
            source.entries().map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
        entries.sort_by_key(cap_std::fs::DirEntry::file_name);
        for entry in entries {
            self.entries += 1;
            if self.entries > ENTRIES {
                return Err(format!("has more than the {ENTRIES} files that are allowed"));
            }
            let (name, kind) = (entry.file_name(), entry.file_type().map_err(failed)?);
            let (below, target) = (below.join(&name), target.join(&name));
            let failed = |error: io::Error| format!("{}: {}", below.display(), plain_reason(&error));
            if kind.is_dir() {
                fs::create_dir(&target).map_err(failed)?;
                fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).map_err(failed)?;
                self.folder(&entry.open_dir().map_err(failed)?, &below, &target)?;
            } else if kind.is_symlink() {
                // An instance resolves the link in its own root, so its target is copied as it is.
                let points_to = source.read_link_contents(&name).map_err(failed)?;
                std::os::unix::fs::symlink(points_to, &target).map_err(failed)?;
            } else {
                self.file(&entry, &below, &target)?;
            }
        }
        Ok(())
    }

    /// Not inlined: copying needs pages of the stack, which must not be part of each recursive frame.
    #[inline(never)]
    fn file(&mut self, entry: &cap_std::fs::DirEntry, below: &Path, target: &Path) -> Result<(), String> {
        let failed = |error: io::Error| format!("{}: {}", below.display(), plain_reason(&error));
        // Opening a pipe must not wait for its other end.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        if !entry.file_type().map_err(failed)?.is_file() {
            return Err(format!("{}: is neither a file nor a folder nor a link", below.display()));
        }
        let mut source = entry.open_with(&options).map_err(failed)?;
        // The opened file is checked, not the one that had this name before.
        let metadata = source.metadata().map_err(failed)?;
        if !metadata.is_file() || metadata.mode() & 0o004 == 0 {
            return Err(format!("{}: not all may read it (o+r is needed)", below.display()));
        }
        self.digest.update(below.as_os_str().as_encoded_bytes());
        self.digest.update([0]);
        let mut made = fs::File::create_new(target).map_err(failed)?;
        let left = limits::UNZIPPED_BYTES - self.bytes;
        let mut writer = Hashing(&mut self.digest, &mut made);
        let length = io::copy(&mut (&mut source).take(left + 1), &mut writer).map_err(failed)?;
        if length > left {
            return Err(format!("has more than the {} bytes that are allowed", limits::UNZIPPED_BYTES));
        }
        self.digest.update(length.to_le_bytes());
        self.bytes += length;
        let executable = if metadata.mode() & 0o001 != 0 { 0o755 } else { 0o644 };
        made.set_permissions(fs::Permissions::from_mode(executable)).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_too_deep_in_one_another_are_refused() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::set_permissions(from.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let source = Dir::open_ambient_dir(from.path(), cap_std::ambient_authority()).unwrap();
        let copied = |depth: usize| {
            fs::create_dir_all(from.path().join("d/".repeat(depth))).unwrap();
            let target = to.path().join(depth.to_string());
            fs::create_dir(&target).unwrap();
            Copy::default().folder(&source, Path::new(""), &target)
        };
        assert_eq!(copied(limits::FOLDER_DEPTH), Ok(()));
        assert_eq!(copied(limits::FOLDER_DEPTH + 1), Err("folders lie too deep in one another".into()));
    }
}
