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
    let too_many = |entries: u64| invalid(format!("it has {entries} entries, at most {ENTRIES} are allowed"));
    let claimed = claimed_entries(zip);
    if claimed > ENTRIES as u64 {
        return Err(too_many(claimed));
    }
    let mut archive = zip::ZipArchive::new(Cursor::new(zip)).map_err(|error| invalid(error.to_string()))?;
    if archive.len() > ENTRIES {
        return Err(too_many(archive.len() as u64));
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

/// The most entries that an end of the archive claims. Reading keeps some hundred bytes of each, and 50 MiB
/// can list a million: so they are counted before.
fn claimed_entries(zip: &[u8]) -> u64 {
    /// The end of an archive, with the longest comment; and what names the larger end before it, which has 20
    /// bytes.
    const END: usize = 22 + u16::MAX as usize;
    const LOCATOR: usize = 20;
    let number = |at: usize, bytes: usize| {
        let part = zip.get(at..at + bytes).unwrap_or_default();
        part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let begins = |at: usize, sign: &[u8]| zip.get(at..).is_some_and(|rest| rest.starts_with(sign));
    let ends = || (zip.len().saturating_sub(END)..zip.len()).filter(|at| begins(*at, b"PK\x05\x06"));
    // All bits are set where the larger end has the number.
    let claimed = ends().map(|end| number(end + 8, 2)).filter(|entries| *entries < u16::MAX.into());
    let has_larger = ends().filter_map(|end| end.checked_sub(LOCATOR)).any(|at| begins(at, b"PK\x06\x07"));
    let larger = (0..zip.len()).filter(|at| has_larger && begins(*at, b"PK\x06\x06"));
    claimed.chain(larger.map(|at| number(at + 24, 8))).max().unwrap_or(0)
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

    #[test]
    fn entries_are_counted_before_they_are_read() {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        writer.start_file("a", zip::write::SimpleFileOptions::default()).unwrap();
        let small = writer.finish().unwrap().into_inner();
        assert_eq!((claimed_entries(&small), claimed_entries(b"")), (1, 0));
        let end = |entries: u16| {
            let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
            end.extend([entries.to_le_bytes(), entries.to_le_bytes()].concat());
            end.extend([0; 10]);
            end
        };
        assert_eq!(claimed_entries(&end(60_000)), 60_000);
        let mut larger = b"PK\x06\x06".to_vec();
        larger.resize(24, 0);
        larger.extend(1_000_000_u64.to_le_bytes());
        larger.resize(56, 0);
        let mut locator = b"PK\x06\x07".to_vec();
        locator.resize(20, 0);
        assert_eq!(claimed_entries(&[&larger[..], &locator, &end(u16::MAX)].concat()), 1_000_000);
        assert_eq!(claimed_entries(&[&larger[..], &end(1)].concat()), 1, "nothing names it");
        let folder = tempfile::tempdir().unwrap();
        let many = [&larger[..], &locator, &end(1)].concat();
        assert!(unpack(&many, folder.path()).unwrap_err().message.contains("has 1000000 entries"));
    }
}
