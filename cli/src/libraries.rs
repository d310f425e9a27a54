//! Finds Mayfly's own shared libraries: beside the command in a build, below `../lib` once installed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

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

/// Finds `libmayfly_heap.so`: `MAYFLY_HEAP_LIB`, else by [`find`].
///
/// # Errors
/// No such file, or a path that `LD_PRELOAD` cannot carry.
pub fn heap() -> Result<PathBuf> {
    const NAME: &str = "libmayfly_heap.so";
    let library = match std::env::var_os("MAYFLY_HEAP_LIB").filter(|value| !value.is_empty()) {
        Some(given) => std::path::absolute(&given)
            .ok()
            .filter(|path| path.is_file())
            .ok_or_else(|| anyhow!("MAYFLY_HEAP_LIB={}: no such file", Path::new(&given).display()))?,
        None => find(NAME).map_err(|error| anyhow!("{error}: set MAYFLY_HEAP_LIB"))?,
    };
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| b" :\t\n".contains(byte)) {
        bail!("{}: LD_PRELOAD cannot carry a path with a space or a colon", library.display());
    }
    Ok(library)
}
