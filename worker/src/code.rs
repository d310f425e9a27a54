//! A function's code: a folder of the host's, or a .zip that is unpacked with care.

use std::fs;
use std::io::{self, Cursor, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::error::ApiError;
use crate::limits;

/// The most files and folders in a .zip.
const ENTRIES: usize = 50_000;

/// Code in a folder.
#[derive(Clone, Debug)]
pub struct Code {
    /// Where it lies; instances see it as /var/task.
    pub folder: PathBuf,
    /// `CodeSha256`: of the .zip, or of names and contents of the folder.
    pub sha256: String,
    /// `CodeSize`.
    pub size_bytes: u64,
    /// Unpacked code goes when no function and no instance uses it any more.
    _unpacked: Option<Arc<TempDir>>,
}

impl Code {
    /// A folder, used where it is: instances see later changes of its files.
    ///
    /// # Errors
    /// No such folder, or more in it than Lambda allows.
    pub fn from_folder(folder: &Path) -> Result<Code, ApiError> {
        let wrong = |reason: String| ApiError::invalid_parameter(format!("{}: {reason}", folder.display()));
        let folder = folder.canonicalize().map_err(|error| wrong(plain_reason(&error)))?;
        if !folder.is_dir() {
            return Err(wrong("is not a folder".into()));
        }
        let mut digest = Sha256::new();
        let mut size_bytes = 0;
        digest_folder(&folder, Path::new(""), &mut digest, &mut size_bytes).map_err(wrong)?;
        Ok(Code { folder, sha256: BASE64.encode(digest.finalize()), size_bytes, _unpacked: None })
    }

    /// Unpacks a .zip into a new folder below `place`.
    ///
    /// # Errors
    /// It is no .zip, too large, or holds names that lead out of the folder, links or devices.
    pub fn from_zip(zip: &[u8], place: &Path) -> Result<Code, ApiError> {
        if zip.len() > limits::ZIP_BYTES {
            let limit = limits::ZIP_BYTES;
            return Err(ApiError::too_large(format!(
                "ZipFile has {} bytes, at most {limit} are allowed",
                zip.len()
            )));
        }
        let folder = tempfile::Builder::new().prefix("code-").tempdir_in(place).map_err(|error| {
            ApiError::service(format!("cannot make a folder in {}: {error}", place.display()))
        })?;
        set_mode(folder.path(), 0o755)?;
        unpack(zip, folder.path())?;
        Ok(Code {
            folder: folder.path().to_path_buf(),
            sha256: BASE64.encode(Sha256::digest(zip)),
            size_bytes: zip.len() as u64,
            _unpacked: Some(Arc::new(folder)),
        })
    }
}

/// An error of the system in its own short words.
pub fn plain_reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

fn digest_folder(root: &Path, below: &Path, digest: &mut Sha256, size: &mut u64) -> Result<(), String> {
    let folder = root.join(below);
    let failed = |error: io::Error| format!("{}: {}", below.display(), plain_reason(&error));
    let mut names: Vec<_> =
        fs::read_dir(&folder).map_err(failed)?.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    for name in names {
        let below = below.join(&name);
        let path = root.join(&below);
        let kind = fs::symlink_metadata(&path).map_err(failed)?.file_type();
        if kind.is_dir() {
            digest_folder(root, &below, digest, size)?;
        } else if kind.is_file() {
            digest.update(below.as_os_str().as_encoded_bytes());
            digest.update([0]);
            let mut file = fs::File::open(&path).map_err(failed)?;
            let length = io::copy(&mut file, &mut Hashing(digest)).map_err(failed)?;
            digest.update(length.to_le_bytes());
            *size += length;
            if *size > limits::UNZIPPED_BYTES {
                return Err(format!("has more than the {} bytes that are allowed", limits::UNZIPPED_BYTES));
            }
        }
    }
    Ok(())
}

struct Hashing<'a>(&'a mut Sha256);

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn unpack(zip: &[u8], folder: &Path) -> Result<(), ApiError> {
    let invalid =
        |reason: String| ApiError::invalid_parameter(format!("Could not unzip uploaded file: {reason}"));
    let mut archive = zip::ZipArchive::new(Cursor::new(zip)).map_err(|error| invalid(error.to_string()))?;
    if archive.len() > ENTRIES {
        return Err(invalid(format!("it has {} entries, at most {ENTRIES} are allowed", archive.len())));
    }
    // What the headers claim is not believed: bytes are counted as they come out.
    let mut left = limits::UNZIPPED_BYTES;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| invalid(error.to_string()))?;
        let name = entry.name().map_err(|error| invalid(error.to_string()))?.into_owned();
        let shown: String = name.chars().take(80).collect();
        let wrong = |reason: &str| invalid(format!("{}: {reason}", shown.escape_debug()));
        let name = inside(&name).ok_or_else(|| wrong("the name leads out of the archive"))?;
        let mode = entry.unix_mode().unwrap_or(0o644);
        if mode & 0o170_000 != 0 && !matches!(mode & 0o170_000, 0o100_000 | 0o040_000) {
            return Err(wrong("only files and folders are allowed"));
        }
        let failed = |error: io::Error| wrong(&plain_reason(&error));
        let path = folder.join(&name);
        if entry.is_dir() {
            fs::create_dir_all(&path).map_err(failed)?;
            continue;
        }
        fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(failed)?;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
        let written = io::copy(&mut (&mut entry).take(left + 1), &mut file).map_err(failed)?;
        left = left.checked_sub(written).ok_or_else(|| {
            invalid(format!("Unzipped size must be smaller than {} bytes", limits::UNZIPPED_BYTES))
        })?;
        // Instances run as other users: whoever packed it, all may read.
        let executable = if mode & 0o111 != 0 { 0o755 } else { 0o644 };
        file.set_permissions(fs::Permissions::from_mode(executable)).map_err(failed)?;
    }
    Ok(())
}

/// A name in a .zip as a path that stays below its folder.
fn inside(name: &str) -> Option<PathBuf> {
    let plain = !name.is_empty() && name.len() <= 1024 && !name.contains(['\0', '\\']);
    let path = Path::new(name);
    let stays = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    (plain && stays).then(|| path.to_path_buf())
}

fn set_mode(path: &Path, mode: u32) -> Result<(), ApiError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| ApiError::service(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zip::write::SimpleFileOptions;

    fn zip(entries: &[(&str, &[u8], u32)]) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content, mode) in entries {
            writer.start_file(*name, SimpleFileOptions::default().unix_permissions(*mode)).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn unpacked(zip: &[u8]) -> Result<(TempDir, Code), ApiError> {
        let place = tempfile::tempdir().unwrap();
        let code = Code::from_zip(zip, place.path())?;
        Ok((place, code))
    }

    #[test]
    fn a_zip_is_unpacked_for_all_to_read() {
        let (_place, code) = unpacked(&zip(&[("a.py", b"1", 0o600), ("bin/b", b"22", 0o700)])).unwrap();
        let mode = |name: &str| fs::metadata(code.folder.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("a.py"), mode("bin/b"), mode("bin")), (0o644, 0o755, 0o755));
        assert_eq!(fs::read(code.folder.join("bin/b")).unwrap(), b"22");
        let folder = code.folder.clone();
        drop(code);
        assert!(!folder.exists(), "it goes with its last user");
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        for name in ["../x", "a/../../x", "/etc/x", "a\\..\\x", "x/./../../y"] {
            let error = unpacked(&zip(&[(name, b"", 0o644)])).expect_err(name);
            assert!(error.message.contains("leads out"), "{error}");
        }
    }

    #[test]
    fn links_and_a_file_twice_are_refused() {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        writer.add_symlink("link", "/etc", SimpleFileOptions::default()).unwrap();
        let link = writer.finish().unwrap().into_inner();
        assert!(unpacked(&link).unwrap_err().message.contains("only files"));
        // A file where a folder is needed.
        assert!(unpacked(&zip(&[("a", b"", 0o644), ("a/b", b"", 0o644)])).is_err());
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let many_zeros = vec![0; 64 << 20];
        let entries: Vec<_> =
            ["1", "2", "3", "4", "5"].iter().map(|name| (*name, &many_zeros[..], 0o644)).collect();
        let bomb = zip(&entries);
        assert!(bomb.len() < 1 << 20, "it is small: {}", bomb.len());
        let place = tempfile::tempdir().unwrap();
        let error = Code::from_zip(&bomb, place.path()).unwrap_err();
        assert!(error.message.contains("Unzipped size"), "{error}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "nothing stays");
    }

    #[test]
    fn a_folder_has_a_digest_of_names_and_contents() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("b")).unwrap();
        fs::write(place.path().join("b/c"), "12").unwrap();
        let first = Code::from_folder(place.path()).unwrap();
        assert_eq!(first.size_bytes, 2);
        fs::write(place.path().join("b/c"), "13").unwrap();
        assert_ne!(Code::from_folder(place.path()).unwrap().sha256, first.sha256);
        assert!(
            Code::from_folder(&place.path().join("b/c")).unwrap_err().message.ends_with("is not a folder")
        );
        let missing = Code::from_folder(Path::new("/nowhere")).unwrap_err();
        assert_eq!(missing.message, "/nowhere: No such file or directory");
    }

    proptest! {
        #[test]
        fn nothing_is_ever_written_outside(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 0..200_usize) {
            let outer = tempfile::tempdir().unwrap();
            let place = outer.path().join("place");
            fs::create_dir(&place).unwrap();
            let mut damaged = zip(&[("a/b.py", b"content", 0o644), ("c", b"more", 0o755)]);
            for (index, byte) in bytes.iter().enumerate() {
                let at = (index * 7 + cut) % damaged.len();
                if byte % 3 == 0 { damaged[at] = *byte; }
            }
            let _ = Code::from_zip(&bytes, &place);
            let _ = Code::from_zip(&damaged, &place);
            prop_assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
        }
    }
}
