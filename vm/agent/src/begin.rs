//! How an instance's program begins: as its command says, with a line to the agent, or as the process that
//! was taken. The agent passes what that needs to the first process of the instance, which carries it out
//! once it is confined: it needs no right.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use worker_snapshot::{PAGES, Snapshot};

use crate::plan::Beginning;

/// How an instance begins, and what it needs for that.
pub enum Start {
    Command,
    Taken,
    /// Until it runs it may take so long.
    Restored(Arc<Snapshot>, Duration),
}

impl Start {
    /// For the first process of the instance, whose program gets this end of its line.
    pub fn beginning(&self, line: Option<&OwnedFd>) -> Beginning {
        match (self, line.map(AsRawFd::as_raw_fd)) {
            (_, None) | (Start::Command, _) => Beginning::Command,
            (Start::Taken, Some(line)) => Beginning::Taken { line },
            (Start::Restored(snapshot, _), Some(line)) => Beginning::Restored {
                program: snapshot.program().as_raw_fd(),
                pages: snapshot.pages().as_raw_fd(),
                line,
                files: snapshot.files().to_vec(),
                entries: snapshot.entries().to_vec(),
            },
        }
    }
}

/// Makes what the process that was taken finds: its files in /tmp.
pub fn lay_out(beginning: &Beginning) -> Result<(), String> {
    let Beginning::Restored { pages, files, entries, .. } = beginning else { return Ok(()) };
    // Each instance has mounts of its own, of the same read-only disks.
    if let Some(file) = files.iter().find(|file| !file.is_unchanged_in_another_mount()) {
        return Err(format!("{} has changed", file.path.display()));
    }
    // SAFETY: the agent passed it open, and it stays open until the program is started.
    let pages = unsafe { BorrowedFd::borrow_raw(*pages) };
    worker_snapshot::lay_out(Path::new("/tmp"), entries, pages)
        .map_err(|error| format!("its files in /tmp cannot be made: {error}"))
}

/// Has a command begin so. What is returned is dropped once it is started: then the line is the program's
/// alone.
pub fn hand(beginning: &Beginning, command: &mut Command) -> io::Result<Vec<OwnedFd>> {
    let numbers = beginning.descriptors();
    // SAFETY: the agent opened them for this process, and nothing else here owns them.
    let own = |number: &RawFd| unsafe { OwnedFd::from_raw_fd(*number) };
    let mut handed: Vec<OwnedFd> = numbers.iter().map(own).collect();
    if numbers.is_empty() {
        return Ok(handed);
    }
    // The program is given descriptors of certain numbers. The start itself opens some, which must not have
    // these: until then they are used up.
    loop {
        let nothing = File::open("/dev/null")?;
        let is_behind = nothing.as_raw_fd() > PAGES;
        handed.push(nothing.into());
        if is_behind {
            break;
        }
    }
    let begin = move || {
        // SAFETY: they are open in the child, too.
        let given = |number: &RawFd| unsafe { BorrowedFd::borrow_raw(*number) };
        match &numbers[..] {
            [line] => worker_snapshot::wait_at(given(line)),
            // Returns only if it fails.
            [program, pages, line] => {
                Err(worker_snapshot::restore(given(program), given(pages), given(line)))
            }
            _ => Ok(()),
        }
    };
    // SAFETY: between fork and exec of a process with one thread.
    unsafe { command.pre_exec(begin) };
    Ok(handed)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn first_process_is_passed_the_descriptors_of_its_program() {
        let line = OwnedFd::from(File::open("/dev/null").unwrap());
        let descriptors = |start: Start, line| start.beginning(line).descriptors();
        assert_eq!(descriptors(Start::Taken, Some(&line)), [line.as_raw_fd()]);
        assert!(descriptors(Start::Command, Some(&line)).is_empty());
    }

    #[test]
    fn program_has_its_line_and_the_starter_none() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let beginning = Beginning::Taken { line: OwnedFd::from(theirs).into_raw_fd() };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo waits >&9"]);
        let handed = hand(&beginning, &mut command).unwrap();
        let mut child = command.spawn().unwrap();
        drop(handed);
        let mut said = String::new();
        // Ends with the program.
        ours.read_to_string(&mut said).unwrap();
        assert_eq!(said, "waits\n");
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_snapshot_that_cannot_be_executed_is_an_error() {
        let null = || OwnedFd::from(File::open("/dev/null").unwrap()).into_raw_fd();
        let (program, pages, line) = (null(), null(), null());
        let beginning = Beginning::Restored { program, pages, line, files: Vec::new(), entries: Vec::new() };
        let mut command = Command::new("/bin/true");
        let handed = hand(&beginning, &mut command).unwrap();
        assert_eq!(command.spawn().unwrap_err().raw_os_error(), Some(libc::EACCES));
        drop(handed);
    }
}
