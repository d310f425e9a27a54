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

/// A library for a program's `LD_PRELOAD`.
pub struct Preload {
    /// What it is to a program, for messages: "Mayfly's ...".
    pub what: &'static str,
    file: &'static str,
    /// Names another file.
    variable: Option<&'static str>,
}

/// The lifetime-aware heap.
pub const HEAP: Preload =
    Preload { what: "heap", file: "libmayfly_heap.so", variable: Some("MAYFLY_HEAP_LIB") };

/// The automatic mode of merging.
pub const AUTOMATIC_MERGING: Preload =
    Preload { what: "automatic merging", file: "libmayfly_merge_auto.so", variable: None };

/// Finds `libmayfly_heap.so`: `MAYFLY_HEAP_LIB`, else by [`find`].
///
/// # Errors
/// No such file, or a path that `LD_PRELOAD` cannot carry.
pub fn heap() -> Result<PathBuf> {
    HEAP.path()
}

impl Preload {
    /// The file that its variable names, else by [`find`].
    ///
    /// # Errors
    /// No such file, or a path that `LD_PRELOAD` cannot carry.
    pub fn path(&self) -> Result<PathBuf> {
        let named =
            |variable| Some((variable, std::env::var_os(variable).filter(|value| !value.is_empty())?));
        let library = match (self.variable, self.variable.and_then(named)) {
            (_, Some((variable, given))) => std::path::absolute(&given)
                .ok()
                .filter(|path| path.is_file())
                .ok_or_else(|| anyhow!("{variable}={}: no such file", Path::new(&given).display()))?,
            (Some(variable), None) => find(self.file).map_err(|error| anyhow!("{error}: set {variable}"))?,
            (None, None) => find(self.file)?,
        };
        if library.as_os_str().as_encoded_bytes().iter().any(|byte| b" :\t\n".contains(byte)) {
            bail!("{}: LD_PRELOAD cannot carry a path with a space or a colon", library.display());
        }
        Ok(library)
    }
}
