//! Opens what a caller has named below a folder of the operator's, with the rights that every user
//! has, also if the worker is root.

use std::io;
use std::path::{Component, Path};

use cap_std::fs::{Dir, File, MetadataExt, OpenOptions, OpenOptionsExt};

use crate::text::plain_reason;

/// Opens a folder: every folder on the way must be open to every user.
///
/// # Errors
/// It is not there, a link leads out, or a folder on the way is closed to others.
pub fn open(root: &Path, below: &Path) -> Result<Dir, String> {
    let root = Dir::open_ambient_dir(root, cap_std::ambient_authority());
    enter(root.map_err(|error| plain_reason(&error))?, below)
}

/// Opens a folder below another in the same way.
///
/// # Errors
/// As [`open`].
pub fn enter(mut folder: Dir, below: &Path) -> Result<Dir, String> {
    let failed = |error: io::Error| plain_reason(&error);
    for part in below.components() {
        let Component::Normal(name) = part else { return Err("must be named without '..'".into()) };
        folder = folder.open_dir(name).map_err(failed)?;
        if folder.dir_metadata().map_err(failed)?.mode() & 0o001 == 0 {
            return Err(format!("{} is closed to others (o+x is needed)", Path::new(name).display()));
        }
    }
    Ok(folder)
}

/// Opens a file that every user may read. A pipe is not waited for.
///
/// # Errors
/// It is no file, or not every user may read it.
pub fn file(folder: &Dir, name: &Path) -> Result<File, String> {
    let failed = |error: io::Error| plain_reason(&error);
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = folder.open_with(name, &options).map_err(failed)?;
    // Checks the opened file, not the one that has this name now.
    let metadata = file.metadata().map_err(failed)?;
    match metadata.is_file() {
        true if metadata.mode() & 0o004 != 0 => Ok(file),
        true => Err("not all may read it (o+r is needed)".into()),
        false => Err("is no file".into()),
    }
}
