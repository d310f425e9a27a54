//! Code that a template names by a .zip, a single file or its text: unpacked once, into the cache, and
//! named after its contents.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use sha2::{Digest, Sha256};

use super::{Code, new_folder, unpack};
use crate::base::limits;
use worker_system::text::plain_reason;

/// The first bytes of a .zip or .jar; the second kind has no entries.
const ARCHIVES: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

impl Code {
    /// Code that an operator's template names by a path: a folder, used where it is; a .zip or .jar,
    /// unpacked; or another file, which alone is the code. `place` is on the file system of `cache`.
    ///
    /// # Errors
    /// There is no such file, or it is too large.
    pub(crate) fn at_path(path: &Path, cache: &Path, place: &Path) -> Result<Code> {
        let shown = path.display();
        let metadata = fs::metadata(path).map_err(|error| anyhow!("{shown}: {}", plain_reason(&error)))?;
        if !metadata.is_file() {
            return Code::from_folder(path).map_err(|error| anyhow!("{}", error.message));
        }
        ensure!(
            metadata.len() <= limits::UNZIPPED_BYTES,
            "{shown}: has {} bytes, at most {} are allowed",
            metadata.len(),
            limits::UNZIPPED_BYTES
        );
        let bytes = fs::read(path).map_err(|error| anyhow!("{shown}: {}", plain_reason(&error)))?;
        if ARCHIVES.iter().any(|start| bytes.starts_with(start)) {
            let made = cached(&bytes, "", cache, place, |folder| {
                unpack::unpack(&bytes, folder).map_err(|error| anyhow!("{}", error.message))
            });
            return made.with_context(|| shown.to_string());
        }
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("{shown}: its name is no text"))?;
        let mode = if metadata.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 };
        cached(&bytes, name, cache, place, |folder| written(folder, name, &bytes, mode))
    }

    /// A file with this text.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn inline(name: &str, text: &str, cache: &Path, place: &Path) -> Result<Code> {
        let bytes = text.as_bytes();
        cached(bytes, name, cache, place, |folder| written(folder, name, bytes, 0o644))
    }
}

fn written(folder: &Path, name: &str, bytes: &[u8], mode: u32) -> Result<()> {
    let mut file = fs::File::create_new(folder.join(name))?;
    file.write_all(bytes)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// The folder for these contents, made once.
fn cached(
    bytes: &[u8],
    name: &str,
    cache: &Path,
    place: &Path,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<Code> {
    let digest = Sha256::new().chain_update(name).chain_update([0]).chain_update(bytes).finalize();
    let key: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let all = cache.join("code");
    fs::create_dir_all(&all).with_context(|| format!("cannot make {}", all.display()))?;
    let folder: PathBuf = all.join(key);
    if !folder.is_dir() {
        let begun = new_folder(place).map_err(|error| anyhow!("{}", error.message))?;
        make(begun.path())?;
        match fs::rename(begun.path(), &folder) {
            Ok(()) => drop(begun.keep()),
            // Another worker was first.
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
            }
            Err(error) => return Err(error).with_context(|| format!("cannot make {}", folder.display())),
        }
    }
    Code::from_folder(&folder).map_err(|error| anyhow!("{}", error.message))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn archives_files_and_texts_are_kept_by_their_contents() {
        let cache = tempfile::tempdir().unwrap();
        let (cache, place) = (cache.path(), cache.path());
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        zip.start_file("app.py", zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(b"1").unwrap();
        let path = cache.join("f.jar");
        fs::write(&path, zip.finish().unwrap().into_inner()).unwrap();
        let of = |path: &Path| Code::at_path(path, cache, place);
        let first = of(&path).unwrap();
        assert_eq!(fs::read(first.folder.join("app.py")).unwrap(), b"1");
        assert_eq!(of(&path).unwrap().folder, first.folder, "it is unpacked once");
        fs::write(cache.join("app.py"), "2").unwrap();
        let single = of(&cache.join("app.py")).unwrap();
        assert_eq!(fs::read_dir(&single.folder).unwrap().count(), 1);
        assert_eq!(fs::read(single.folder.join("app.py")).unwrap(), b"2");
        let inline = Code::inline("index.py", "3", cache, place).unwrap();
        assert_eq!(fs::read(inline.folder.join("index.py")).unwrap(), b"3");
        let error = format!("{:#}", of(&cache.join("none.zip")).unwrap_err());
        assert!(error.ends_with("none.zip: No such file or directory"), "{error}");
        fs::write(cache.join("bad.zip"), b"PK\x03\x04").unwrap();
        assert!(of(&cache.join("bad.zip")).is_err());
    }
}
