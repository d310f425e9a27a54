//! Python packages on demand: pinned and hashed ones are installed once into a cache, and used from there.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::code::runtime::Runtime;
use worker_install::python;

/// Lambda's own client of the Runtime API, for functions in Python.
const CLIENT: &str = include_str!("../../python-client.txt");
/// Where an instance sees that folder.
pub const RUNTIME: &str = "/var/runtime";
/// The package that functions in Python start with: Mayfly's own, beside the client.
pub const BOOTSTRAP: &str = "mayfly_bootstrap";
/// Its files, in Python.
pub const BOOTSTRAP_FILES: &[(&str, &str)] = &[
    ("__init__.py", include_str!("../../runtime/mayfly_bootstrap/__init__.py")),
    ("__main__.py", include_str!("../../runtime/mayfly_bootstrap/__main__.py")),
    ("image.py", include_str!("../../runtime/mayfly_bootstrap/image.py")),
    ("several.py", include_str!("../../runtime/mayfly_bootstrap/several.py")),
    ("rest.py", include_str!("../../runtime/mayfly_bootstrap/rest.py")),
    ("snapshot.py", include_str!("../../runtime/mayfly_bootstrap/snapshot.py")),
];
/// The file with the packages that a function in Python needs, beside its code.
const REQUIREMENTS: &str = "requirements.txt";

/// The program that packages are installed for.
pub enum Interpreter {
    /// The host's.
    Host(PathBuf),
    /// Of a root that the worker has installed, by its minor version.
    Installed(PathBuf, u8),
}

impl Interpreter {
    /// That of a function. Installs it if it is not there.
    ///
    /// # Errors
    /// It cannot be installed.
    pub fn of(runtime: &Runtime, cache: &Path) -> Result<Interpreter> {
        let minor = runtime.to_install().and_then(|minor| u8::try_from(minor).ok());
        match (minor, runtime.program()) {
            (Some(minor), _) => Ok(Interpreter::Installed(python::provide(minor, cache)?, minor)),
            (None, program) => Ok(Interpreter::Host(program.context("it is in no language")?.into())),
        }
    }

    /// The root that it is in, if that is not the host's.
    pub fn root(&self) -> Option<&Path> {
        match self {
            Interpreter::Host(_) => None,
            Interpreter::Installed(root, _) => Some(root),
        }
    }

    /// Names what it is: packages have code for one version.
    fn key(&self) -> &Path {
        let (Interpreter::Host(path) | Interpreter::Installed(path, _)) = self;
        path
    }

    fn command(&self) -> Result<Command> {
        match self {
            Interpreter::Host(program) => Ok(Command::new(program)),
            Interpreter::Installed(root, minor) => python::command(root, *minor),
        }
    }
}

/// The folder for `/var/runtime` with `awslambdaric` and our bootstrap: part of it is native code, so each
/// version of Python has its own. Waits for pip if it was never installed.
///
/// # Errors
/// It cannot be installed.
pub fn client(python: &Interpreter, name: &str, cache: &Path) -> Result<PathBuf> {
    let installed = installed(python, CLIENT, "", BOOTSTRAP_FILES, cache, How::Pinned);
    installed.with_context(|| format!("cannot install awslambdaric for {name}"))
}

/// The folder for `/opt` with what the code's `requirements.txt` names, if it has one, unless the packages
/// are beside the code already, as `sam build` and `pip install --target` do.
///
/// # Errors
/// It cannot be installed; pip's own words are shown.
pub fn layer(runtime: &Runtime, code: &Path, cache: &Path, pinned: bool) -> Result<Option<PathBuf>> {
    if !matches!(runtime, Runtime::Python(..)) {
        return Ok(None);
    }
    let file = code.join(REQUIREMENTS);
    if !file.exists() {
        return Ok(None);
    }
    if has_packages(code) {
        tracing::info!("{}: packages lie beside the code, so nothing is installed", file.display());
        return Ok(None);
    }
    let wanted = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let is_pinned = pinned || wanted.contains("--hash=");
    if !is_pinned && !has_requirements(&wanted) {
        return Ok(None);
    }
    let how = if is_pinned { How::Pinned } else { How::Newest };
    if !is_pinned {
        tracing::warn!(
            "{}: packages are not pinned and hashed: pip chose their versions when it first installed them \
             (--pinned refuses that)",
            file.display()
        );
    }
    let folder = Interpreter::of(runtime, cache)
        .and_then(|python| installed(&python, &wanted, "python", &[], cache, how))
        .with_context(|| format!("cannot install what {} names", file.display()))?;
    Ok(Some(folder))
}

/// The folder for `/opt` with packages that are all pinned and hashed.
///
/// # Errors
/// They cannot be installed.
pub fn pinned(runtime: &Runtime, wanted: &str, cache: &Path) -> Result<PathBuf> {
    installed(&Interpreter::of(runtime, cache)?, wanted, "python", &[], cache, How::Pinned)
}

/// The file whose packages [`layer`] would install.
pub fn wanted(runtime: &Runtime, code: &Path) -> Option<PathBuf> {
    let file = code.join(REQUIREMENTS);
    let is_python = matches!(runtime, Runtime::Python(..));
    let wanted = fs::read_to_string(&file).ok().filter(|_| is_python && !has_packages(code))?;
    has_requirements(&wanted).then_some(file)
}

/// Whether an installer has left packages in a folder: each leaves a folder that describes it.
fn has_packages(folder: &Path) -> bool {
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| Path::new(&entry.file_name()).extension().is_some_and(|kind| kind == "dist-info"))
}

/// Whether there is more than comments.
fn has_requirements(text: &str) -> bool {
    text.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
}

/// How packages are chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Each is pinned and hashed, its dependencies too.
    Pinned,
    /// By pip, with their dependencies.
    Newest,
}

/// Installs `requirements` below the subfolder `below` of a folder in the cache, and the bootstrap's files
/// if there are any, unless that was done before.
fn installed(
    python: &Interpreter,
    requirements: &str,
    below: &str,
    bootstrap: &[(&str, &str)],
    cache: &Path,
    how: How,
) -> Result<PathBuf> {
    let mut digest = Sha256::new();
    let texts = bootstrap.iter().map(|(_, text)| *text);
    for part in [requirements, below, &python.key().to_string_lossy()].into_iter().chain(texts) {
        digest.update(part);
        digest.update([0]);
    }
    let key: String = digest.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let packages = cache.join("python");
    let folder = packages.join(&key);
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(&packages).with_context(|| format!("cannot make {}", packages.display()))?;
    let temporary = tempfile::Builder::new().prefix("new-").tempdir_in(&packages)?;
    let file = temporary.path().join(REQUIREMENTS);
    fs::File::create(&file)?.write_all(requirements.as_bytes())?;
    let mut pip = pip(python, &packages)?;
    tracing::info!("installing Python packages into {}", folder.display());
    let made = temporary.path().join("made");
    let target = made.join(below);
    let strictness: &[&str] = if how == How::Pinned { &["--no-deps", "--require-hashes"] } else { &[] };
    let output = pip
        .args(["install", "--quiet", "--disable-pip-version-check", "--no-input"])
        .args(["--only-binary", ":all:", "--no-warn-script-location"])
        .args(strictness)
        .arg("--target")
        .arg(&target)
        .arg("-r")
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", pip.get_program().display()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| line.contains("ERROR")).or(text.lines().last());
        let line = line.unwrap_or("no reason given").trim();
        match how {
            How::Pinned => bail!(
                "pip: {line} (every package must be pinned and hashed, as `uv pip compile --generate-hashes` writes it; or run `sam build`, and serve its template)"
            ),
            How::Newest => bail!("pip: {line} (`sam build` builds what has no wheel; serve its template)"),
        }
    }
    if !bootstrap.is_empty() {
        compile(python, bootstrap, &made)?;
    }
    // All may read: instances run as other users. Another worker may have made it meanwhile: either is good.
    set_readable(&made)?;
    if let Err(error) = fs::rename(&made, &folder) {
        ensure!(folder.is_dir(), "cannot move to {}: {error}", folder.display());
    }
    Ok(folder)
}

/// Writes the bootstrap's files beside what was installed, compiled for the interpreter that runs them:
/// they are read at every start, by users who may write nothing there.
fn compile(python: &Interpreter, files: &[(&str, &str)], beside: &Path) -> Result<()> {
    let folder = beside.join(BOOTSTRAP);
    fs::create_dir(&folder)?;
    for (name, text) in files {
        fs::write(folder.join(name), text)?;
    }
    let mut command = python.command()?;
    let output = command
        .args(["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-d"])
        .arg(Path::new(RUNTIME).join(BOOTSTRAP))
        .arg(&folder)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", python.key().display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let name = python.key().display();
    ensure!(output.status.success(), "{name} cannot compile the bootstrap: {}", text.trim());
    Ok(())
}

/// pip, run by the function's own interpreter, or by a virtual environment made from it once.
fn pip(python: &Interpreter, packages: &Path) -> Result<Command> {
    let program = match python {
        Interpreter::Host(program) => program,
        Interpreter::Installed(root, minor) => {
            let mut command = python::command(root, *minor)?;
            command.arg(python::pip(root)?);
            return Ok(command);
        }
    };
    let of = |program: &Path| {
        let mut command = Command::new(program);
        command.args(["-m", "pip"]);
        command
    };
    let has_pip = |program: &Path| of(program).arg("--version").output().is_ok_and(|it| it.status.success());
    if has_pip(program) {
        return Ok(of(program));
    }
    let name = program.file_name().context("a program has a name")?.to_string_lossy().into_owned();
    let environment = packages.join(format!("pip-{name}"));
    let own = environment.join("bin/python");
    // Workers that start at once make it one after the other.
    let lock = fs::File::create(packages.join(format!("pip-{name}.lock")))?;
    lock.lock().with_context(|| format!("cannot wait for {}", environment.display()))?;
    if !has_pip(&own) {
        let output = Command::new(program).args(["-m", "venv", "--clear"]).arg(&environment).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{name} has no pip, and -m venv failed: {}", text.trim());
    }
    Ok(of(&own))
}

fn set_readable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let mode = metadata.permissions().mode();
    let readable = if metadata.is_dir() || mode & 0o100 != 0 { mode | 0o555 } else { mode | 0o444 };
    fs::set_permissions(path, fs::Permissions::from_mode(readable))?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            set_readable(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Python without pip. Its `venv` fails if another is making the same folder.
    const PYTHON: &str = r#"#!/bin/sh
[ "$2" = venv ] || exit 1
mkdir "$4" && sleep 0.2 && mkdir "$4/bin" && printf '#!/bin/sh\n' > "$4/bin/python" && chmod +x "$4/bin/python"
"#;

    #[test]
    fn two_workers_make_the_environment_with_pip_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let (text, program) = (folder.path().join("text"), folder.path().join("python3.99"));
        fs::write(&text, PYTHON).unwrap();
        // By a program, as this one may fork while it writes.
        let copied = Command::new("install").arg("-m755").args([&text, &program]).status().unwrap();
        assert!(copied.success());
        let python = Interpreter::Host(program);
        std::thread::scope(|threads| {
            let make = || pip(&python, folder.path()).map(|command| command.get_program().to_owned());
            let both = [threads.spawn(make), threads.spawn(make)];
            for made in both {
                let made = made.join().unwrap().unwrap();
                assert_eq!(Path::new(&made), folder.path().join("pip-python3.99/bin/python"));
            }
        });
    }
}
