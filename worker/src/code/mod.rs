//! A function's code: a folder that the operator has named in a template, the copy of one that a caller has
//! named, a .zip that is unpacked with care, or a container image.

mod copy;
mod engine;
pub(crate) mod handler;
mod image;
pub(crate) mod installed;
pub(crate) mod lambda_layers;
mod node_imports;
mod of_template;
pub(crate) mod public_layers;
pub(crate) mod python_packages;
pub(crate) mod runtime;
pub(crate) mod runtime_files;
pub(crate) mod unpack;
mod unpacked;

pub(crate) use image::Images;
pub(crate) use unpacked::Unpacked;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::base::error::ApiError;
use crate::base::limits;
use worker_image::Image;
use worker_system::open_below;
use worker_system::text::plain_reason;

/// The most files and folders in a .zip.
const ENTRIES: usize = 50_000;

/// Code in a folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Code {
    /// Where it lies; instances see it as /var/task.
    pub folder: PathBuf,
    /// `CodeSha256`: of the .zip, or of names and contents of the folder.
    pub sha256: String,
    /// `CodeSize`; 0 of an image.
    pub size_bytes: u64,
    /// The image's own configuration, if the code is an image, whose root the folder is.
    #[serde(default)]
    pub image: Option<Image>,
    /// Unpacked code is removed when no function and no instance uses it any more.
    #[serde(skip)]
    unpacked: Option<Arc<Unpacked>>,
}

impl Code {
    /// Code that has just been unpacked, and that outlives the worker.
    pub(crate) fn outliving(mut self, may_go: &Arc<AtomicBool>) -> Code {
        if let Some(unpacked) = self.unpacked.as_mut().and_then(Arc::get_mut) {
            unpacked.goes_if(may_go);
        }
        self
    }

    /// Code of an earlier worker's, in the folder that it had.
    pub(crate) fn again(&mut self, unpacked: Arc<Unpacked>) {
        self.unpacked = Some(unpacked);
    }

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
        Ok(Code { folder, sha256: BASE64.encode(digest.finalize()), size_bytes, image: None, unpacked: None })
    }

    /// Copies a folder that a caller has named, which must lie below one of those that the operator allows.
    /// It is read with the rights that every user has: files that only their owner may read are refused,
    /// also if the worker is root.
    ///
    /// # Errors
    /// It lies elsewhere, holds files that not every user may read or that are no file, folder or link, or
    /// is too large.
    pub fn copied(folder: &Path, allowed: &[PathBuf], place: &Path) -> Result<Code, ApiError> {
        let refused = |reason: String| ApiError::invalid_parameter(format!("{}: {reason}", folder.display()));
        let below = allowed.iter().find_map(|root| Some((root, folder.strip_prefix(root).ok()?)));
        let Some((root, below)) = below else {
            return Err(refused(
                "is not below a folder that code may come from (mayfly up --code-from FOLDER)".into(),
            ));
        };
        let source = open_below::open(root, below).map_err(refused)?;
        let copy = new_folder(place)?;
        let mut made = copy::Copy::default();
        made.folder(&source, Path::new(""), copy.path()).map_err(refused)?;
        Ok(Code {
            folder: copy.path().to_path_buf(),
            sha256: BASE64.encode(made.digest.finalize()),
            size_bytes: made.bytes,
            image: None,
            unpacked: Some(Unpacked::new(copy, None)),
        })
    }

    /// The same code where no other user can change it: a folder of the operator's is copied.
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn kept(&self, place: &Path) -> Result<Code, ApiError> {
        if self.unpacked.is_some() || self.image.is_some() {
            return Ok(self.clone());
        }
        let copy = new_folder(place)?;
        let put = |from: &Path, to: &Path| fs::copy(from, to).map(drop);
        lay_over(&self.folder, copy.path(), put).map_err(|error| {
            ApiError::service(format!("cannot copy {}: {}", self.folder.display(), plain_reason(&error)))
        })?;
        Ok(Code { folder: copy.path().into(), unpacked: Some(Unpacked::new(copy, None)), ..self.clone() })
    }

    /// Unpacks a .zip into a new folder below `place`.
    ///
    /// # Errors
    /// It is no .zip, too large, or holds names or links that lead out of the folder, or devices.
    pub fn from_zip(zip: &[u8], place: &Path) -> Result<Code, ApiError> {
        if zip.len() > limits::ZIP_BYTES {
            let limit = limits::ZIP_BYTES;
            return Err(ApiError::too_large(format!(
                "ZipFile has {} bytes, at most {limit} are allowed",
                zip.len()
            )));
        }
        let folder = new_folder(place)?;
        unpack::unpack(zip, folder.path())?;
        Ok(Code {
            folder: folder.path().to_path_buf(),
            sha256: BASE64.encode(Sha256::digest(zip)),
            size_bytes: zip.len() as u64,
            image: None,
            unpacked: Some(Unpacked::new(folder, None)),
        })
    }
}

pub(crate) fn new_folder(place: &Path) -> Result<TempDir, ApiError> {
    let folder = tempfile::Builder::new()
        .prefix("code-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(place)
        .map_err(|error| {
            ApiError::service(format!("cannot make a folder in {}: {error}", place.display()))
        })?;
    Ok(folder)
}

/// Copies a folder's contents over another, as unpacking one archive over another does. `put` makes a file.
pub(crate) fn lay_over(from: &Path, to: &Path, put: fn(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        let there = fs::symlink_metadata(&target).ok().map(|metadata| metadata.file_type());
        match there {
            Some(there) if there.is_dir() && !kind.is_dir() => fs::remove_dir_all(&target)?,
            Some(there) if !there.is_dir() => fs::remove_file(&target)?,
            _ => {}
        }
        if kind.is_dir() {
            fs::create_dir_all(&target)?;
            fs::set_permissions(&target, entry.metadata()?.permissions())?;
            lay_over(&entry.path(), &target, put)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, &target)?;
        } else if kind.is_file() {
            put(&entry.path(), &target)?;
        }
    }
    Ok(())
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
            let length = io::copy(&mut file, &mut Hashing(digest, &mut io::sink())).map_err(failed)?;
            digest.update(length.to_le_bytes());
            *size += length;
            if *size > limits::IMAGE_BYTES {
                return Err(format!("has more than the {} bytes that are allowed", limits::IMAGE_BYTES));
            }
        }
    }
    Ok(())
}

/// Hashes what is written.
struct Hashing<'a, W>(&'a mut Sha256, &'a mut W);

impl<W: Write> Write for Hashing<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.1.write(bytes)?;
        self.0.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

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
    fn a_zip_isunpacked_for_all_to_read() {
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
    fn links_inside_are_made_and_others_and_a_file_twice_are_refused() {
        let linked = |name: &str, target: &str| {
            let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
            writer.add_symlink(name, target, SimpleFileOptions::default()).unwrap();
            writer.start_file("lib/real.py", SimpleFileOptions::default()).unwrap();
            writer.write_all(b"1").unwrap();
            unpacked(&writer.finish().unwrap().into_inner())
        };
        let (_place, code) = linked("bin/app.py", "../lib/real.py").unwrap();
        assert_eq!(fs::read(code.folder.join("bin/app.py")).unwrap(), b"1");
        for target in ["/etc", "../etc", "lib/../../etc"] {
            assert!(linked("link", target).unwrap_err().message.contains("leads out of the archive"));
        }
        // Nothing is written through a link.
        assert!(linked("lib", "bin").is_err());
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
    fn a_folder_that_a_caller_names_is_copied_as_everybody_may_read_it() {
        let outer = tempfile::tempdir().unwrap();
        let (root, place) = (outer.path().join("root"), outer.path().join("place"));
        let code = root.join("a/code");
        fs::create_dir_all(code.join("sub")).unwrap();
        fs::create_dir(&place).unwrap();
        fs::write(code.join("app.py"), "1").unwrap();
        fs::write(code.join("sub/run"), "22").unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(&code.join("sub/run"), 0o755);
        let allowed = [root.clone()];
        let copied = |folder: &Path| Code::copied(folder, &allowed, &place);
        let refusal = |folder: &Path| copied(folder).unwrap_err().message;
        let copy = copied(&code).unwrap();
        assert_eq!((copy.size_bytes, fs::read(copy.folder.join("sub/run")).unwrap()), (3, b"22".to_vec()));
        fs::write(code.join("app.py"), "3").unwrap();
        assert_eq!(fs::read(copy.folder.join("app.py")).unwrap(), b"1", "as it was");
        assert_eq!(fs::metadata(copy.folder.join("sub/run")).unwrap().permissions().mode() & 0o777, 0o755);

        assert!(refusal(outer.path()).contains("--code-from"), "not below");
        assert!(refusal(&code.join("../../../place")).contains("without '..'"));
        mode(&root.join("a"), 0o700);
        assert!(refusal(&code).contains("a is closed to others"));
        mode(&root.join("a"), 0o755);
        mode(&code.join("app.py"), 0o600);
        assert!(refusal(&code).contains("app.py: not all may read it"));
        mode(&code.join("app.py"), 0o644);
        std::os::unix::fs::symlink("/etc", root.join("a/out")).unwrap();
        assert!(copied(&root.join("a/out")).is_err(), "a link leads out");
        let socket = std::os::unix::net::UnixListener::bind(code.join("socket")).unwrap();
        assert!(refusal(&code).contains("socket: is neither"));
        drop(socket);
        fs::remove_file(code.join("socket")).unwrap();
        drop(copy);
        assert!(copied(&code).is_ok());
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0, "nothing stays");
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
