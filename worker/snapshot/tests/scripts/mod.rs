//! Processes of Python scripts that are asked by a line, for the tests of this folder.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use worker_snapshot::{Error, Limits, Snapshot, WAITS, Waiting, take, wait_at};

use crate::copies;

pub const LIMITS: Limits<'_> = Limits { bytes: 512 << 20, own_folder: None, disk: None };

/// A process with a line to it.
pub struct Process {
    pub child: Child,
    pub line: UnixStream,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What each script begins with: `told()` waits to be taken, and `serve()` evaluates what it is asked.
const BEGIN: &str = r#"
import os, sys
def told():
    os.write(9, b"ready\n")
    return os.read(9, 2)
def serve():
    answers = {}
    while line := os.read(9, 65536).decode():
        try:
            answer = eval(line, globals())
        except Exception as error:
            answer = repr(error)
        os.write(9, (str(answer) + "\n").encode())
"#;

/// Starts a Python script; returns when it waits.
pub fn start(script: &str) -> Process {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new("python3");
    command.arg("-c").arg(format!("{BEGIN}\n{script}\ntold()\nserve()\n"));
    let theirs = OwnedFd::from(theirs);
    // SAFETY: system calls only, between fork and exec.
    unsafe {
        command.pre_exec(move || {
            // What this test itself has inherited.
            libc::syscall(libc::SYS_close_range, WAITS, -1, libc::CLOSE_RANGE_CLOEXEC);
            wait_at(theirs.as_fd())
        });
    }
    let mut process = Process { child: command.spawn().unwrap(), line: ours };
    drop(command);
    process.line.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    assert_eq!(process.answer(), "ready");
    process
}

/// A copy, which goes on.
pub fn restored(snapshot: &Snapshot) -> Process {
    let (child, line) = copies::restored(snapshot);
    let mut process = Process { child, line };
    process.line.write_all(b"go").unwrap();
    process
}

impl Process {
    pub fn answer(&mut self) -> String {
        let mut text = Vec::new();
        let mut byte = [0];
        loop {
            match self.line.read(&mut byte) {
                Ok(1) if byte[0] != b'\n' => text.push(byte[0]),
                Ok(1) => return String::from_utf8(text).unwrap(),
                other => panic!("no answer ({other:?}); it ended: {:?}", self.child.try_wait()),
            }
        }
    }

    pub fn ask(&mut self, question: &str) -> String {
        self.line.write_all(question.as_bytes()).unwrap();
        self.answer()
    }

    pub fn take(&self) -> Result<Snapshot, Error> {
        self.take_within(LIMITS)
    }

    /// Once it waits: its answer is written shortly before.
    pub fn take_within(&self, limits: Limits<'_>) -> Result<Snapshot, Error> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match take(self.child.id() as i32, Waiting::AtLine, limits) {
                Err(Error::Unsupported(why)) if why.contains("does not wait") && Instant::now() < end => {}
                taken => return taken,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
