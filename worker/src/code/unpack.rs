//! Unpacks a .zip with care: nothing is written outside its folder, and what its headers claim is not believed.

use std::fs;
use std::io::{self, Cursor, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use super::ENTRIES;
use crate::error::{ApiError, plain_reason};
use crate::limits;

pub fn unpack(zip: &[u8], folder: &Path) -> Result<(), ApiError> {
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
