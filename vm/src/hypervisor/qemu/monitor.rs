//! QEMU's monitor (QMP): sends one command at a time, passes events on as they arrive.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use qapi::qmp::{self, QapiCapabilities, QmpMessage};
use qapi::{Any, Command, Execute};
use tracing::warn;

use crate::base::error::Error;

/// QEMU answers in milliseconds, unless the host has no memory or CPU left for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to QEMU's monitor.
pub struct Monitor {
    connection: Mutex<Connection>,
}

struct Connection {
    writer: UnixStream,
    answers: Receiver<qapi::CommandResult<RawCommand>>,
    /// A command timed out. Its answer may still arrive and be taken for a later one's, so no more commands
    /// are sent.
    broken: bool,
}

/// For [`QmpMessage`]: any command, with its answer not yet parsed.
#[derive(Debug, Clone, serde::Serialize)]
struct RawCommand;

impl Command for RawCommand {
    type Ok = Any;
    const NAME: &'static str = "";
    const ALLOW_OOB: bool = false;
}

impl Monitor {
    /// Takes the host's end of the monitor and negotiates capabilities. `on_event` is called for each event
    /// and must not send commands.
    ///
    /// # Errors
    /// QEMU ends or does not answer.
    pub fn new(
        stream: UnixStream,
        on_event: impl FnMut(qmp::Event) + Send + 'static,
    ) -> Result<Monitor, Error> {
        let failed = |error: std::io::Error| Error::Failed(format!("QEMU's monitor: {error}"));
        let reader = BufReader::new(stream.try_clone().map_err(failed)?);
        let (sender, answers) = channel();
        let (greeter, greeting) = channel();
        std::thread::Builder::new()
            .name("vm-monitor".to_string())
            .spawn(move || read_all(reader, &greeter, &sender, on_event))
            .map_err(failed)?;
        greeting
            .recv_timeout(ANSWER_TIMEOUT)
            .map_err(|_| Error::Failed("QEMU ended as it started".to_string()))?;
        let monitor =
            Monitor { connection: Mutex::new(Connection { writer: stream, answers, broken: false }) };
        monitor.execute(&qmp::qmp_capabilities { enable: None })?;
        Ok(monitor)
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// QEMU refuses, has ended, or hangs.
    pub fn execute<C: Command>(&self, command: &C) -> Result<C::Ok, Error> {
        let hangs = || Error::Failed(format!("QEMU's monitor does not answer ({})", C::NAME));
        let ended = || Error::Ended("QEMU closed its monitor".to_string());
        let mut connection = self.connection.lock().expect("no panic under this lock");
        if connection.broken {
            return Err(hangs());
        }
        let mut text = serde_json::to_vec(&Execute::<&C>::from(command))
            .map_err(|error| Error::Failed(format!("QEMU's monitor: {}: {error}", C::NAME)))?;
        text.push(b'\n');
        connection.writer.write_all(&text).map_err(|_| ended())?;
        let answer = match connection.answers.recv_timeout(ANSWER_TIMEOUT) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Disconnected) => return Err(ended()),
            Err(RecvTimeoutError::Timeout) => {
                connection.broken = true;
                return Err(hangs());
            }
        };
        let value =
            answer.map_err(|error| Error::Failed(format!("QEMU refuses {}: {}", C::NAME, error.desc)))?;
        serde_json::from_value(value).map_err(|error| {
            Error::Failed(format!("QEMU's answer to {} is not understood: {error}", C::NAME))
        })
    }

    /// Reads a property of an object that is a number.
    ///
    /// # Errors
    /// As [`Monitor::execute`].
    pub fn number(&self, path: &str, property: &str) -> Result<u64, Error> {
        let value = self.execute(&qmp::qom_get { path: path.to_string(), property: property.to_string() })?;
        value.as_u64().ok_or_else(|| Error::Failed(format!("QEMU: {path}.{property} is no number: {value}")))
    }

    /// Sets a property of an object to a number.
    ///
    /// # Errors
    /// As [`Monitor::execute`].
    pub fn set_number(&self, path: &str, property: &str, value: u64) -> Result<(), Error> {
        let (path, property) = (path.to_string(), property.to_string());
        self.execute(&qmp::qom_set { path, property, value: value.into() }).map(drop)
    }
}

fn read_all(
    mut reader: BufReader<UnixStream>,
    greeter: &std::sync::mpsc::Sender<()>,
    sender: &std::sync::mpsc::Sender<qapi::CommandResult<RawCommand>>,
    mut on_event: impl FnMut(qmp::Event),
) {
    let mut text = Vec::new();
    loop {
        text.clear();
        match reader.read_until(b'\n', &mut text) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if serde_json::from_slice::<QapiCapabilities>(&text).is_ok() {
            let _ = greeter.send(());
            continue;
        }
        match serde_json::from_slice::<QmpMessage<Any>>(&text) {
            Ok(QmpMessage::Event(event)) => on_event(event),
            Ok(QmpMessage::Response(response)) => {
                if sender.send(response.result()).is_err() {
                    return;
                }
            }
            // An event that this version of the crate does not know.
            Err(error) => warn!("QEMU's monitor: {error}: {}", String::from_utf8_lossy(&text)),
        }
    }
}
