//! The control socket of a VM's supervisor: how other processes reach a VM.
//!
//! One line of JSON for each request and each answer. The socket is its owner's alone (mode 0600, in a folder
//! of mode 0700); its name is the VM's.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vm_protocol::{PartitionNumber, Spawn};

use crate::base::error::Error;

/// A request to the supervisor. Each documents the type of its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
pub enum Command {
    /// [`crate::model::report::Status`].
    Status,
    /// [`crate::model::report::Plugged`].
    Plug {
        /// `None`: the first absent one.
        partition: Option<PartitionNumber>,
    },
    /// [`crate::model::report::Unplugged`].
    Unplug {
        /// Which one.
        partition: PartitionNumber,
    },
    /// [`crate::model::report::Spawned`].
    Spawn {
        /// Outside all partitions. Otherwise in `spawn.partition`, or the first that is ready.
        outside: bool,
        /// What to start.
        spawn: Spawn,
    },
    /// [`vm_protocol::ExitReason`].
    Stop {
        /// Which instance.
        instance: String,
        /// Between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
    /// [`vm_protocol::ExitReason`], or nothing if it still runs after `timeout_ms`.
    Wait {
        /// Which instance.
        instance: String,
        /// How long to wait.
        timeout_ms: u64,
    },
    /// [`Output`].
    Output {
        /// Which instance.
        instance: String,
        /// From this byte on.
        from: u64,
    },
    /// Nothing.
    Input {
        /// Which instance.
        instance: String,
        /// For its standard input.
        text: String,
        /// Close it afterwards.
        close: bool,
    },
    /// [`vm_protocol::InstanceInfo`]s.
    Instances,
    /// [`crate::model::report::Memory`].
    Memory,
    /// Text: the end of the guest's console.
    Console,
    /// Nothing. The connection closes when the VM has ended.
    Down,
}

/// Part of what an instance wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// What it wrote, in JSON as base64.
    #[serde(with = "vm_protocol::bytes")]
    pub bytes: Vec<u8>,
    /// Where `bytes` start: later than requested if older output was discarded.
    pub from: u64,
    /// Where to continue.
    pub next: u64,
    /// The output has ended, and this is the last of it.
    pub ended: bool,
}

/// The supervisor's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The result.
    Ok(Value),
    /// Why the request failed, in one line.
    Error(String),
}

/// The folder of the control sockets: `$XDG_RUNTIME_DIR/mayfly/vm`, `/run/mayfly/vm` for root, or one of the
/// user's own in the folder for temporary files.
///
/// # Errors
/// It cannot be made, or belongs to another user.
pub fn folder() -> Result<PathBuf, Error> {
    // SAFETY: takes nothing and returns a plain value.
    let user = unsafe { libc::geteuid() };
    let base = match std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()) {
        Some(folder) => PathBuf::from(folder).join("mayfly"),
        None if user == 0 => PathBuf::from("/run/mayfly"),
        None => std::env::temp_dir().join(format!("mayfly-{user}")),
    };
    let folder = base.join("vm");
    let failed = |error: std::io::Error| Error::Failed(format!("cannot use {}: {error}", folder.display()));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
    for path in [&base, &folder] {
        let metadata = std::fs::symlink_metadata(path).map_err(failed)?;
        if metadata.uid() != user || metadata.mode() & 0o022 != 0 {
            let path = path.display();
            return Err(Error::Failed(format!(
                "{path} must belong to the user alone (chmod 700), others may write there"
            )));
        }
    }
    Ok(folder)
}

/// The names of the VMs that run, sorted. Removes the sockets of supervisors that have ended.
///
/// # Errors
/// The folder cannot be read.
pub fn running() -> Result<Vec<String>, Error> {
    let folder = folder()?;
    let entries = std::fs::read_dir(&folder)
        .map_err(|error| Error::Failed(format!("cannot read {}: {error}", folder.display())))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".lock")?.to_string()))
        .filter(|name| !remove_if_dead(&folder, name))
        .filter(|name| UnixStream::connect(socket(&folder, name)).is_ok())
        .collect();
    names.sort();
    Ok(names)
}

/// Removes the files that a killed supervisor left, if no process holds the lock. Returns whether it did.
fn remove_if_dead(folder: &Path, name: &str) -> bool {
    let lock = folder.join(format!("{name}.lock"));
    let Ok(file) = File::open(&lock) else { return true };
    let dead = file.try_lock().is_ok();
    if dead {
        // While this has the lock, no supervisor can claim the name.
        let _ = std::fs::remove_file(socket(folder, name));
        let _ = std::fs::remove_file(lock);
    }
    dead
}

pub(crate) fn socket(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.sock"))
}

/// A connection to a VM's supervisor.
pub struct Client {
    name: String,
    reader: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the VM of that name, or to the only one that runs.
    ///
    /// # Errors
    /// There is no such VM, or more than one.
    pub fn connect(name: Option<&str>) -> Result<Client, Error> {
        let name = match name {
            Some(name) => name.to_string(),
            None => match &running()?[..] {
                [] => return Err(Error::Missing("no VM runs: start one with: mayfly vm boot".to_string())),
                [name] => name.clone(),
                names => {
                    let names = names.join(", ");
                    return Err(Error::Setting(format!(
                        "several VMs run ({names}): choose one with --vm NAME"
                    )));
                }
            },
        };
        let stream = UnixStream::connect(socket(&folder()?, &name)).map_err(|_| {
            Error::Missing(format!("no VM {name} runs: start it with: mayfly vm boot --name {name}"))
        })?;
        Ok(Client { name, reader: BufReader::new(stream) })
    }

    /// The VM's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a command and reads the answer, whose type is documented at each [`Command`].
    ///
    /// # Errors
    /// The error line that the supervisor answers, or that it has ended.
    pub fn ask<T: DeserializeOwned>(&mut self, command: &Command) -> Result<T, Error> {
        let ended = || Error::Ended(format!("the supervisor of {} has ended", self.name));
        let mut line = serde_json::to_vec(command).map_err(|error| Error::Failed(error.to_string()))?;
        line.push(b'\n');
        self.reader.get_mut().write_all(&line).map_err(|_| ended())?;
        let mut text = String::new();
        match self.reader.read_line(&mut text) {
            Ok(0) | Err(_) => return Err(ended()),
            Ok(_) => {}
        }
        let unknown = |error| Error::Failed(format!("the supervisor's answer is not understood: {error}"));
        match serde_json::from_str(&text).map_err(unknown)? {
            Reply::Ok(value) => serde_json::from_value(value).map_err(unknown),
            Reply::Error(line) => Err(Error::Failed(line)),
        }
    }
}
