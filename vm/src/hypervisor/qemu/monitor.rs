//! QEMU's monitor (QMP): sends one command at a time, passes events on as they arrive.
//!
//! Each command has an id, which QEMU's answer repeats. A command that timed out may be answered later (QEMU
//! was stopped, or the host had no memory or CPU left); that answer is dropped, and the next command works
//! again. QEMU carries commands out in their order, so a late one never undoes its successor.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use qapi_spec::{Any, Command, Execute};
use tracing::{debug, warn};

use super::qmp::{Event, GetProperty, Greeting, Message, NegotiateCapabilities, SetProperty};
use crate::base::error::Error;

/// QEMU answers in milliseconds, unless the host has no memory or CPU left for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to QEMU's monitor.
pub struct Monitor {
    connection: Mutex<Connection>,
}

struct Connection {
    writer: UnixStream,
    answers: Receiver<Answer>,
    /// The id of the next command.
    next_id: u64,
}

/// QEMU's answer to the command of that id.
#[derive(Debug)]
struct Answer {
    id: Option<u64>,
    result: Result<Any, qapi_spec::Error>,
}

impl Monitor {
    /// Takes the host's end of the monitor and negotiates capabilities. `on_event` is called for each event
    /// and must not send commands.
    ///
    /// # Errors
    /// QEMU ends or does not answer.
    pub fn new(stream: UnixStream, on_event: impl FnMut(Event) + Send + 'static) -> Result<Monitor, Error> {
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
        let monitor = Monitor { connection: Mutex::new(Connection { writer: stream, answers, next_id: 1 }) };
        monitor.execute(&NegotiateCapabilities {})?;
        Ok(monitor)
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// QEMU refuses, has ended, or does not answer in time. Then it may carry the command out later.
    pub fn execute<C: Command>(&self, command: &C) -> Result<C::Ok, Error> {
        self.execute_within(ANSWER_TIMEOUT, command)
    }

    fn execute_within<C: Command>(&self, timeout: Duration, command: &C) -> Result<C::Ok, Error> {
        let ended = || Error::Ended("QEMU closed its monitor".to_string());
        let mut connection = self.connection.lock().expect("no panic under this lock");
        let id = connection.next_id;
        connection.next_id += 1;
        let mut text = serde_json::to_vec(&Execute::<&C, u64>::with_id(command, id))
            .map_err(|error| Error::Failed(format!("QEMU's monitor: {}: {error}", C::NAME)))?;
        text.push(b'\n');
        connection.writer.write_all(&text).map_err(|_| ended())?;
        let deadline = Instant::now() + timeout;
        let answer = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match connection.answers.recv_timeout(left) {
                Ok(answer) if answer.id == Some(id) => break answer,
                Ok(late) => debug!(?late, "the late answer to a command that timed out"),
                Err(RecvTimeoutError::Disconnected) => return Err(ended()),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Error::Failed(format!(
                        "QEMU's monitor does not answer ({}): QEMU is stopped, or the host has no memory or CPU left",
                        C::NAME
                    )));
                }
            }
        };
        let value = answer
            .result
            .map_err(|error| Error::Failed(format!("QEMU refuses {}: {}", C::NAME, error.desc)))?;
        serde_json::from_value(value).map_err(|error| {
            Error::Failed(format!("QEMU's answer to {} is not understood: {error}", C::NAME))
        })
    }

    /// Reads a property of an object that is a number.
    ///
    /// # Errors
    /// As [`Monitor::execute`].
    pub fn number(&self, path: &str, property: &str) -> Result<u64, Error> {
        let value = self.execute(&GetProperty { path, property })?;
        value.as_u64().ok_or_else(|| Error::Failed(format!("QEMU: {path}.{property} is no number: {value}")))
    }

    /// Sets a property of an object to a number.
    ///
    /// # Errors
    /// As [`Monitor::execute`].
    pub fn set_number(&self, path: &str, property: &str, value: u64) -> Result<(), Error> {
        self.execute(&SetProperty { path, property, value: value.into() }).map(drop)
    }
}

fn read_all(
    mut reader: BufReader<UnixStream>,
    greeter: &std::sync::mpsc::Sender<()>,
    sender: &std::sync::mpsc::Sender<Answer>,
    mut on_event: impl FnMut(Event),
) {
    let mut text = Vec::new();
    loop {
        text.clear();
        match reader.read_until(b'\n', &mut text) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if serde_json::from_slice::<Greeting>(&text).is_ok() {
            let _ = greeter.send(());
            continue;
        }
        match serde_json::from_slice::<Message>(&text) {
            Ok(Message::Event(event)) => on_event(event),
            Ok(Message::Response(response)) => {
                let id = response.id().and_then(Any::as_u64);
                if sender.send(Answer { id, result: response.result() }).is_err() {
                    return;
                }
            }
            Err(error) => warn!("QEMU's monitor: {error}: {}", String::from_utf8_lossy(&text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 7}, "package": ""}, "capabilities": []}}"#;

    /// QEMU's end of a monitor.
    struct Peer {
        writer: UnixStream,
        reader: BufReader<UnixStream>,
    }

    impl Peer {
        /// The name and id of the next command.
        fn receive(&mut self) -> (String, serde_json::Value) {
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            let command: serde_json::Value = serde_json::from_str(&line).unwrap();
            (command["execute"].as_str().unwrap().to_string(), command["id"].clone())
        }

        fn send(&mut self, value: &serde_json::Value) {
            self.writer.write_all(format!("{value}\r\n").as_bytes()).unwrap();
        }
    }

    /// A monitor that has negotiated its capabilities, and QEMU's end.
    fn pair() -> (Monitor, Peer) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut peer = Peer { reader: BufReader::new(theirs.try_clone().unwrap()), writer: theirs };
        let connecting = std::thread::spawn(move || Monitor::new(ours, |_| {}).unwrap());
        peer.writer.write_all(format!("{GREETING}\r\n").as_bytes()).unwrap();
        let (name, id) = peer.receive();
        assert_eq!(name, "qmp_capabilities");
        peer.send(&serde_json::json!({"return": {}, "id": id}));
        (connecting.join().unwrap(), peer)
    }

    fn property(path: &str) -> GetProperty<'_> {
        GetProperty { path, property: "size" }
    }

    #[test]
    fn late_answers_are_dropped_and_the_next_command_works() {
        let (monitor, mut peer) = pair();
        let monitor = Arc::new(monitor);
        for _ in 0..3 {
            let failed = monitor.execute_within(Duration::ZERO, &property("/late")).unwrap_err().to_string();
            assert!(failed.contains("does not answer (qom-get)"), "{failed}");
        }
        let asking = {
            let monitor = Arc::clone(&monitor);
            std::thread::spawn(move || monitor.execute(&property("/next")))
        };
        let late: Vec<_> = (0..3).map(|_| peer.receive().1).collect();
        let (_, next) = peer.receive();
        peer.send(&serde_json::json!({"return": 1, "id": late[0]}));
        let error = serde_json::json!({"class": "GenericError", "desc": "late"});
        peer.send(&serde_json::json!({"error": error, "id": late[1]}));
        peer.send(&serde_json::json!({"return": 3, "id": late[2]}));
        peer.send(&serde_json::json!({"return": 4, "id": next}));
        assert_eq!(asking.join().unwrap().unwrap(), serde_json::json!(4));
        drop(peer);
        assert!(matches!(monitor.execute(&property("/ended")), Err(Error::Ended(_))));
    }

    #[test]
    fn refusals_belong_to_their_command() {
        let (monitor, mut peer) = pair();
        let asking = std::thread::spawn(move || monitor.execute(&property("/none")));
        let (_, id) = peer.receive();
        let error = serde_json::json!({"class": "DeviceNotFound", "desc": "Device '/none' not found"});
        peer.send(&serde_json::json!({"error": error, "id": id}));
        let failed = asking.join().unwrap().unwrap_err().to_string();
        assert!(failed.contains("QEMU refuses qom-get: Device '/none' not found"), "{failed}");
    }
}
