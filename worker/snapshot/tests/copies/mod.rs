//! Restored processes, for the tests of this folder.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use worker_snapshot::{Snapshot, restore};

/// How long a test waits for what a process writes.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A copy of the process that was taken, and the line to it.
pub fn restored(snapshot: &Snapshot) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (program, pages) =
        (snapshot.program().try_clone_to_owned().unwrap(), snapshot.pages().try_clone_to_owned().unwrap());
    let theirs = OwnedFd::from(theirs);
    let mut command = Command::new("/bin/false"); // never run: the program is executed before
    // SAFETY: system calls only, between fork and exec.
    unsafe { command.pre_exec(move || Err(restore(program.as_fd(), pages.as_fd(), theirs.as_fd()))) };
    let child = command.spawn().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    (child, ours)
}
