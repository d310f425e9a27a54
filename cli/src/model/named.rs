//! `mayfly names-of FILE BUILD-ID OUT`: names all the code of a program or library. `mayfly train` starts it
//! for each file of its profiles. It is not for people, and not in the help.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, ensure};
use lifetime::code::ranges::Code;
use lifetime::export::table;

/// The verb.
pub const VERB: &str = "names-of";

/// Writes the table of the file's code; returns the exit code.
#[must_use]
pub fn execute([file, build_id, out]: [&OsString; 3]) -> i32 {
    match write(Path::new(file), &build_id.to_string_lossy(), Path::new(out)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("mayfly: {error:#}");
            1
        }
    }
}

fn write(file: &Path, build_id: &str, out: &Path) -> Result<()> {
    let id = lifetime::code::symbols::build_id(file)
        .map_err(|why| anyhow::anyhow!("{}: {why}", file.display()))?;
    let hex = lifetime::code::symbols::hexadecimal(&id);
    ensure!(hex == build_id, "{}: it is of build {hex} now", file.display());
    table::write_all_code(&Code::read(file)?, out)
}
