//! Python of Debian's newer suites.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::debian::{self, System};

/// Minor versions, and the suites that have them. pip comes as a wheel.
static VERSIONS: [(u32, System); 2] = [
    (13, System { suite: "trixie", packages: &["python3.13", "python3-pip-whl"] }),
    (14, System { suite: "forky", packages: &["python3.14", "python3-pip-whl"] }),
];
const WHEELS: &str = "usr/share/python-wheels";

/// The minor versions of Python 3 that can be installed on this processor.
pub fn minors() -> impl Iterator<Item = u8> {
    debian::installable(&VERSIONS).map(|minor| minor as u8)
}

/// The root with Python 3 of this minor version, below `cache`. It is installed if it is not there.
///
/// # Errors
/// It cannot be installed, and what to do.
pub fn provide(wanted: u8, cache: &Path) -> Result<PathBuf> {
    let label = format!("Python 3.{wanted}");
    debian::of_version(&VERSIONS, wanted.into(), &label)?.provide(&label, cache, |root| {
        let name = format!("python3.{wanted}");
        let program = format!("/usr/bin/{name}");
        debian::link_programs(root, &[(&name, &program), ("python3", &program), ("python", &program)])?;
        compile(root, wanted)
    })
}

/// Runs the root's interpreter on this host, by its own loader and C library.
///
/// # Errors
/// The root is incomplete.
pub fn command(root: &Path, minor: u8) -> Result<Command> {
    let (loader, libraries) = debian::loader(root)?;
    let program = root.join(format!("usr/bin/python3.{minor}"));
    let mut command = Command::new(loader);
    let words = [OsStr::new("--library-path"), libraries.as_os_str(), OsStr::new("--argv0")];
    command.args(words).arg(&program).arg(&program).stdin(Stdio::null());
    for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH"] {
        command.env_remove(name);
    }
    command.env("PYTHONHOME", root.join("usr")).env("PYTHONNOUSERSITE", "1");
    Ok(command)
}

/// The archive that is pip, as a program in Python.
///
/// # Errors
/// The root has none.
pub fn pip(root: &Path) -> Result<PathBuf> {
    let wheels = root.join(WHEELS);
    let mut names = wheels.read_dir().with_context(|| format!("cannot read {}", wheels.display()))?.flatten();
    let wheel = names.find(|entry| entry.file_name().to_string_lossy().starts_with("pip-"));
    Ok(wheel.with_context(|| format!("{} has no pip", wheels.display()))?.path().join("pip"))
}

/// Compiles the library for every start to come: instances may write nothing there.
fn compile(root: &Path, minor: u8) -> Result<()> {
    let mut command = command(root, minor)?;
    command.args(["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-p", "/", "-s"]);
    let output = command.arg(root).arg(root.join(format!("usr/lib/python3.{minor}"))).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().last().unwrap_or_default();
    ensure!(output.status.success(), "it does not run on this host: {}", line.trim());
    Ok(())
}
