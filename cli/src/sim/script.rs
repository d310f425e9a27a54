//! The scripts that build QEMU, images and the like for a simulation, and print their paths.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use vm::scripts;

/// Runs a script of the source tree, or of the package `mayfly-guest`, that prints a path.
///
/// # Errors
/// The script is not found, or fails.
pub fn script(name: &str) -> Result<String> {
    let path = scripts::find(name)?;
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
