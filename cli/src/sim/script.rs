//! The scripts of the source tree that build QEMU, images and the like for a simulation, and print their
//! paths.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

/// Runs a script of the source tree that prints a path.
///
/// # Errors
/// The script is not found, or fails.
pub fn script(name: &str) -> Result<String> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let here = std::env::current_dir().unwrap_or_default();
    let found = program
        .ancestors()
        .chain(here.ancestors())
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    let path = found.ok_or_else(|| anyhow!("{name} is part of Mayfly's source tree: run this there"))?;
    let output = Command::new(&path)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", path.display()))?;
    if !output.status.success() {
        bail!("{name} failed ({}); see above", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
