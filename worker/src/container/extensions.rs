//! Lambda's external extensions: the programs in /opt/extensions, started beside the runtime by process 1.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::system;
use crate::limits::EXTENSIONS;

const FOLDER: &str = "/opt/extensions";
const NAME_BYTES: usize = 128;

/// Those that run.
pub struct Extensions(Vec<(libc::pid_t, String)>);

/// The programs that there are, by name.
///
/// # Errors
/// They cannot be read, or are more than Lambda allows.
pub fn names() -> Result<Vec<String>> {
    let entries = match fs::read_dir(FOLDER) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.context(FOLDER)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.context(FOLDER)?;
        let program =
            fs::metadata(entry.path()).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o001 != 0);
        if !program {
            continue;
        }
        ensure!(names.len() < EXTENSIONS, "{FOLDER} has more than {EXTENSIONS} programs");
        let name = entry
            .file_name()
            .into_string()
            .ok()
            .filter(|name| name.len() <= NAME_BYTES && !name.contains('\n'));
        names.push(
            name.with_context(|| format!("{FOLDER}: a name is no text of at most {NAME_BYTES} bytes"))?,
        );
    }
    names.sort();
    Ok(names)
}

/// Starts them, with the function's environment but for what is preloaded there. Called by a process with one thread.
///
/// # Errors
/// One cannot be started.
pub fn start(names: Vec<String>, environment: &[(String, String)]) -> Result<Extensions> {
    let mut running = Vec::new();
    for name in names {
        match system::fork()? {
            Some(child) => running.push((child, name)),
            None => {
                system::new_session()?;
                std::env::set_current_dir("/")?;
                let program = Path::new(FOLDER).join(&name);
                let variables = environment.iter().filter(|(name, _)| name != "LD_PRELOAD").cloned();
                let error = Command::new(&program).env_clear().envs(variables).exec();
                return Err(error).with_context(|| format!("cannot run {}", program.display()));
            }
        }
    }
    Ok(Extensions(running))
}

impl Extensions {
    /// A process has ended: the extension that it was, if the instance is over with it. One that has done its work may end, but
    /// not the last: that is how a worker knows that all have.
    pub fn ended(&mut self, process: libc::pid_t, status: i32) -> Option<String> {
        let index = self.0.iter().position(|(child, _)| *child == process)?;
        let (_, name) = self.0.remove(index);
        (status != 0 || self.0.is_empty()).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_fails_and_the_last_end_the_instance() {
        let three = || Extensions(vec![(1, "a".into()), (2, "b".into()), (3, "c".into())]);
        let mut extensions = three();
        assert_eq!(extensions.ended(4, 1), None, "a child of the function's");
        assert_eq!(extensions.ended(2, 0), None);
        assert_eq!(extensions.ended(1, 0), None);
        assert_eq!(extensions.ended(3, 0).as_deref(), Some("c"));
        assert_eq!(three().ended(1, 256).as_deref(), Some("a"));
    }
}
