//! Unpacks a .zip with care: nothing is written outside its folder, and the claims of its headers are not
//! trusted.

use std::fs;
use std::io::{self, Cursor, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use super::ENTRIES;
use crate::base::error::ApiError;
use crate::base::limits;
use worker_system::text::{plain_reason, shown};

/// The kind of an entry that is a symbolic link.
const LINK: u32 = 0o120_000;
/// The longest target of a link, in bytes.
const TARGET: u64 = 1024;

/// Unpacks an archive into an empty folder.
///
/// # Errors
/// It is damaged, too large, or leads out of the folder.
pub fn unpack(zip: &[u8], folder: &Path) -> Result<(), ApiError> {
    let invalid =
        |reason: String| ApiError::invalid_parameter(format!("Could not unzip uploaded file: {reason}"));
    let mut archive = zip::ZipArchive::new(Cursor::new(zip)).map_err(|error| invalid(error.to_string()))?;
    if archive.len() > ENTRIES {
        return Err(invalid(format!("it has {} entries, at most {ENTRIES} are allowed", archive.len())));
    }
    // The headers' sizes are not trusted: bytes are counted as they are unpacked.
    let mut left = limits::UNZIPPED_BYTES;
    let mut folders = Folders { root: folder, left: ENTRIES };
    let mut links = Vec::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| invalid(error.to_string()))?;
        let name = entry.name().map_err(|error| invalid(error.to_string()))?.into_owned();
        let shown = shown(&name);
        let wrong = |reason: &str| invalid(format!("{shown}: {reason}"));
        let name = inside(&name).ok_or_else(|| wrong("the name leads out of the archive"))?;
        if name.components().count() > limits::FOLDER_DEPTH {
            return Err(wrong("folders lie too deep in one another"));
        }
        let mode = entry.unix_mode().unwrap_or(0o644);
        if mode & 0o170_000 != 0 && !matches!(mode & 0o170_000, 0o100_000 | 0o040_000 | LINK) {
            return Err(wrong("only files, folders and links are allowed"));
        }
        let failed = |error: io::Error| wrong(&plain_reason(&error));
        let path = folder.join(&name);
        if entry.is_dir() {
            folders.make(&path).map_err(failed)?;
            continue;
        }
        folders.make(path.parent().unwrap_or(folder)).map_err(failed)?;
        if mode & 0o170_000 == LINK {
            let mut target = String::new();
            (&mut entry).take(TARGET + 1).read_to_string(&mut target).map_err(failed)?;
            if !stays_inside(&name, &target) {
                return Err(wrong("the link leads out of the archive"));
            }
            links.push((path, target, shown));
            continue;
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
        let written = io::copy(&mut (&mut entry).take(left + 1), &mut file).map_err(failed)?;
        left = left.checked_sub(written).ok_or_else(|| {
            invalid(format!("Unzipped size must be smaller than {} bytes", limits::UNZIPPED_BYTES))
        })?;
        // Instances run as other users: all may read, whatever mode the archive has.
        let executable = if mode & 0o111 != 0 { 0o755 } else { 0o644 };
        file.set_permissions(fs::Permissions::from_mode(executable)).map_err(failed)?;
    }
    // Last, so that no entry is written through a link.
    for (path, target, shown) in links {
        let made = std::os::unix::fs::symlink(target, path);
        made.map_err(|error| invalid(format!("{shown}: {}", plain_reason(&error))))?;
    }
    Ok(())
}

/// Whether a link leads to a place below the archive's root: up from its own folder as far as the root, and
/// then down. Parts on the way down may be links, and lead no further out either.
fn stays_inside(name: &Path, target: &str) -> bool {
    let fits = !target.is_empty() && target.len() as u64 <= TARGET && !target.contains('\0');
    let mut parts = Path::new(target).components().filter(|part| *part != Component::CurDir).peekable();
    let depth =
        name.components().filter(|part| matches!(part, Component::Normal(_))).count().saturating_sub(1);
    let mut up = 0;
    while parts.next_if_eq(&Component::ParentDir).is_some() {
        up += 1;
    }
    fits && up <= depth && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Makes a bounded number of folders: the name of one entry can have hundreds, which take room on the
/// disk.
struct Folders<'a> {
    root: &'a Path,
    left: usize,
}

impl Folders<'_> {
    /// Makes a folder, with its parents.
    fn make(&mut self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent().filter(|parent| parent.starts_with(self.root)) {
            self.make(parent)?;
        }
        self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("it has too many folders"))?;
        fs::create_dir(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
    }
}

/// A name in a .zip as a path that stays below its folder.
fn inside(name: &str) -> Option<PathBuf> {
    let plain = !name.is_empty() && name.len() <= 1024 && !name.contains(['\0', '\\']);
    let path = Path::new(name);
    let stays = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    (plain && stays).then(|| path.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_below_the_root() {
        for (name, target, stays) in [
            ("a", "b", true),
            ("a/b", "../c/d", true),
            ("a/b", "./../../c", false),
            ("./a/b", "../c", true),
            ("a", "..", false),
            ("a", "b/../c", false),
            ("a", "/etc", false),
            ("a", "", false),
            ("a", "b\0", false),
        ] {
            assert_eq!(stays_inside(Path::new(name), target), stays, "{name} -> {target}");
        }
    }

    #[test]
    fn folders_are_neither_too_many_nor_too_deep() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir(&root).unwrap();
        let mut folders = Folders { root: &root, left: 3 };
        assert!(folders.make(&root).is_ok());
        assert!(folders.make(&root.join("a/./b")).is_ok());
        assert!(folders.make(&root.join("a/b")).is_ok(), "they are there already");
        assert_eq!(folders.make(&root.join("c/d")).unwrap_err().to_string(), "it has too many folders");
        fs::write(root.join("file"), "").unwrap();
        assert!(Folders { root: &root, left: 3 }.make(&root.join("file")).is_err());

        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let deep = "d/".repeat(limits::FOLDER_DEPTH) + "file";
        writer.start_file(deep, zip::write::SimpleFileOptions::default()).unwrap();
        let zip = writer.finish().unwrap().into_inner();
        assert!(unpack(&zip, &root).unwrap_err().message.contains("too deep"));
    }
}
