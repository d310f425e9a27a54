//! Lambda's external extensions: the programs in /opt/extensions, which process 1 of an instance starts
//! beside the runtime. The worker's sandboxes on the host and instances in a VM use the same code.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// How many extensions an instance may have.
pub const MOST: usize = 10;
const FOLDER: &str = "/opt/extensions";
const NAME_BYTES: usize = 128;
/// Preloaded libraries are for the function, not for extensions.
const PRELOAD: &str = "LD_PRELOAD";

/// The extensions that run: process and name.
#[derive(Debug, Default)]
pub struct Extensions(Vec<(u32, String)>);

/// The names of the programs in the folder, sorted.
///
/// # Errors
/// The folder cannot be read, or has more programs than Lambda allows.
pub fn names() -> Result<Vec<String>> {
    let entries = match fs::read_dir(FOLDER) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(at(FOLDER))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(at(FOLDER))?;
        let program =
            fs::metadata(entry.path()).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o001 != 0);
        if !program {
            continue;
        }
        if names.len() == MOST {
            return Err(Error::other(format!("{FOLDER} has more than {MOST} programs")));
        }
        let name = entry.file_name().into_string().ok();
        let name = name.filter(|name| name.len() <= NAME_BYTES && !name.contains('\n'));
        names.push(name.ok_or_else(|| {
            Error::other(format!("{FOLDER}: a name is no text of at most {NAME_BYTES} bytes"))
        })?);
    }
    names.sort();
    Ok(names)
}

/// Starts them, with the function's environment. They print where this process does, or to `output`.
///
/// # Errors
/// One cannot be started.
pub fn start<'a>(
    names: &[String],
    environment: impl Iterator<Item = (&'a str, &'a str)>,
    output: Option<BorrowedFd>,
) -> Result<Extensions> {
    let environment: Vec<_> = environment.filter(|(name, _)| *name != PRELOAD).collect();
    let start = |name: &String| {
        let program = Path::new(FOLDER).join(name);
        let mut command = Command::new(&program);
        if let Some(output) = output {
            command.stdout(output.try_clone_to_owned()?).stderr(output.try_clone_to_owned()?);
        }
        // Process 1 reaps it.
        let child =
            command.env_clear().envs(environment.iter().copied()).current_dir("/").process_group(0).spawn();
        child
            .map(|child| (child.id(), name.clone()))
            .map_err(at(&format!("cannot run {}", program.display())))
    };
    names.iter().map(start).collect::<Result<_>>().map(Extensions)
}

fn at(what: &str) -> impl Fn(Error) -> Error {
    let what = what.to_string();
    move |error| Error::new(error.kind(), format!("{what}: {error}"))
}

impl Extensions {
    /// Whether none runs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The extension that this process was, once it has ended.
    pub fn remove(&mut self, process: u32) -> Option<String> {
        let index = self.0.iter().position(|(child, _)| *child == process)?;
        Some(self.0.remove(index).1)
    }

    /// A process has ended with this status of `wait`. Returns the extension that it was, if its end ends the
    /// instance: it failed, or it was the last one. An extension that has done its work may exit with 0; once
    /// the last has, all are done.
    pub fn ended(&mut self, process: u32, status: i32) -> Option<String> {
        let name = self.remove(process)?;
        (status != 0 || self.0.is_empty()).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_extension_or_last_extension_ends_the_instance() {
        let three = || Extensions(vec![(1, "a".into()), (2, "b".into()), (3, "c".into())]);
        let mut extensions = three();
        assert_eq!(extensions.ended(4, 1), None, "a child of the function's");
        assert_eq!(extensions.ended(2, 0), None);
        assert_eq!(extensions.ended(1, 0), None);
        assert_eq!(extensions.ended(3, 0).as_deref(), Some("c"));
        assert_eq!(three().ended(1, 256).as_deref(), Some("a"));
    }
}
