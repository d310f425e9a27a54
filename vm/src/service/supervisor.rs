//! The process that owns a VM: it boots the VM, serves its control socket, and ends with it.
//!
//! The kernel kills QEMU when this process dies, and this process ends when QEMU does.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::info;

use crate::base::error::Error;
use crate::base::settings::Settings;
use crate::model::partitions::MemorySource;
use crate::service::control::{Command, Reply, folder, socket};
use crate::service::vm::Vm;

/// The longest request: an instance's arguments and environment, or text for its standard input.
const MAX_REQUEST_BYTES: u64 = 2 << 20;

/// The lock on a VM's name, and the socket of that name. Dropping this removes both.
struct Name {
    lock: PathBuf,
    socket: PathBuf,
    _held: File,
}

impl Name {
    fn claim(name: &str) -> Result<(Name, UnixListener), Error> {
        let folder = folder()?;
        let lock = folder.join(format!("{name}.lock"));
        let failed =
            |error: std::io::Error| Error::Failed(format!("cannot use {}: {error}", folder.display()));
        let held = loop {
            let held = File::create(&lock).map_err(failed)?;
            if held.try_lock().is_err() {
                return Err(Error::Setting(format!(
                    "a VM {name} runs already: choose another name with --name, or end it with: mayfly vm down --vm {name}"
                )));
            }
            // A process that lists VMs removes unlocked files, perhaps this one between its creation and its
            // lock.
            let inode = |about: std::fs::Metadata| about.ino();
            if std::fs::metadata(&lock).map(inode).ok() == held.metadata().map(inode).ok() {
                break held;
            }
        };
        let socket = socket(&folder, name);
        // A socket here was left by a supervisor that was killed, as nothing holds the lock.
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok((Name { lock, socket, _held: held }, listener))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let _ = std::fs::remove_file(&self.lock);
    }
}

/// Why the VM is being shut down, or why it has ended.
enum Ending {
    Requested(String),
    Ended(String),
}

/// Boots a VM, calls `on_ready`, and serves its control socket until the VM ends, or a command or a signal
/// requests its end. Returns the reason. Clients that connect during boot are answered once it has finished.
///
/// # Errors
/// The VM does not come up, or ended by itself.
pub fn run(settings: &Settings, on_ready: impl FnOnce(&Vm)) -> Result<String, Error> {
    settings.check()?;
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Error::Failed(format!("cannot take signals: {error}")))?;
    let (name, listener) = Name::claim(&settings.name)?;
    let (ending, end) = channel();
    let name = Arc::new(Mutex::new(Some(name)));
    let (by_signal, booting) = (ending.clone(), Arc::clone(&name));
    std::thread::spawn(move || take_signals(signals, &by_signal, &booting));
    let booted = Vm::boot(settings);
    // From now on this function has the name, and frees it when it returns.
    let _name = name.lock().expect("no panic under this lock").take();
    let vm = Arc::new(booted?);
    let (listening, by_command) = (Arc::clone(&vm), ending.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (vm, ending) = (Arc::clone(&listening), by_command.clone());
            std::thread::spawn(move || serve(stream, &vm, &ending));
        }
    });
    let watched = Arc::clone(&vm);
    std::thread::spawn(move || {
        loop {
            if let Some(why) = watched.wait_for_end(Instant::now() + Duration::from_secs(3600)) {
                let _ = ending.send(Ending::Ended(why));
                return;
            }
        }
    });
    on_ready(&vm);
    match end.recv().expect("the listener keeps a sender") {
        Ending::Ended(why) => Err(Error::Ended(why)),
        Ending::Requested(why) => {
            info!("ending the VM: {why}");
            vm.shut_down();
            Ok(why)
        }
    }
}

fn take_signals(mut signals: Signals, ending: &Sender<Ending>, booting: &Mutex<Option<Name>>) {
    for (count, signal) in signals.forever().enumerate() {
        let _ = ending.send(Ending::Requested(format!("signal {signal}")));
        // During boot nothing reads that channel yet; and a second signal means not to wait for the guest.
        let name = booting.lock().expect("no panic under this lock").take();
        if name.is_some() || count > 0 {
            drop(name);
            std::process::exit(128 + signal);
        }
    }
}

fn serve(stream: UnixStream, vm: &Vm, ending: &Sender<Ending>) {
    let Ok(mut writer) = stream.try_clone() else { return };
    let mut reader = BufReader::new(stream);
    loop {
        let mut text = Vec::new();
        match reader.by_ref().take(MAX_REQUEST_BYTES).read_until(b'\n', &mut text) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        // The rest of a request that is too long would be taken for the next one, and each answer from then
        // on for that of the request before: the connection ends here.
        let is_whole = text.ends_with(b"\n");
        let reply = match serde_json::from_slice(&text) {
            _ if !is_whole => Reply::Error(format!(
                "not a request: a line of at most {} MiB, with its end",
                MAX_REQUEST_BYTES >> 20
            )),
            Err(error) => Reply::Error(format!("not a request: {error}")),
            Ok(Command::Down) => {
                let _ = ending.send(Ending::Requested("requested by mayfly vm down".to_string()));
                // The connection closes when this process ends.
                std::thread::sleep(Duration::from_secs(60));
                return;
            }
            Ok(command) => {
                carry_out(vm, command).map_or_else(|error| Reply::Error(error.to_string()), Reply::Ok)
            }
        };
        let Ok(mut line) = serde_json::to_vec(&reply) else { return };
        line.push(b'\n');
        if writer.write_all(&line).is_err() || !is_whole {
            return;
        }
    }
}

fn carry_out(vm: &Vm, command: Command) -> Result<Value, Error> {
    let value = match command {
        Command::Status => json!(vm.status()),
        Command::Plug { partition } => json!(vm.plug(partition)?),
        Command::Unplug { partition } => json!(vm.unplug(partition)?),
        Command::Spawn { outside, spawn } => {
            let memory = match spawn.partition {
                _ if outside => MemorySource::Boot,
                Some(number) => MemorySource::Partition(number),
                None => MemorySource::FirstReady,
            };
            json!(vm.spawn(memory, spawn)?)
        }
        Command::Stop { instance, grace_ms } => json!(vm.stop(&instance, Duration::from_millis(grace_ms))?),
        Command::Wait { instance, timeout_ms } => {
            json!(vm.wait(&instance, Instant::now() + Duration::from_millis(timeout_ms))?)
        }
        Command::Output { instance, from } => {
            json!(vm.output(&instance, from)?)
        }
        Command::Input { instance, text, close } => json!(vm.input(&instance, &text, close)?),
        Command::Instances => json!(vm.instances()?),
        Command::Memory => json!(vm.memory()?),
        Command::Console => json!(vm.console()),
        Command::Down => Value::Null,
    };
    Ok(value)
}
