//! Finds Mayfly's own shared libraries: beside the command in a build, below `../lib` once installed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

/// The folders to search, the likeliest first.
///
/// # Errors
/// The path of this program is not known.
fn places() -> Result<[PathBuf; 3]> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let prefix = folder.parent().unwrap_or(folder);
    Ok([folder.to_path_buf(), prefix.join("lib/mayfly"), prefix.join("lib")])
}

/// The library of this file name.
///
/// # Errors
/// It is in none of the folders.
pub fn find(name: &str) -> Result<PathBuf> {
    let places = places()?;
    places
        .iter()
        .map(|place| place.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| anyhow!("{name} is not in {}, ../lib/mayfly or ../lib", places[0].display()))
}
