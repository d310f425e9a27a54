//! Hands over to a new version of the worker (SIGUSR2) without losing a request.
//!
//! ```text
//!   the one that runs                            the new one: the same arguments, the program as it is on the disk now
//!   starts it; it has the listening socket ────► reads the template, installs packages
//!                                          ◄──── Prepared
//!   lets changes end, takes no more connections
//!   (the kernel keeps them), closes the state
//!   State ─────────────────────────────────────► opens the state, takes connections
//!                                          ◄──── Serving
//!   passes on what its connections still bring,
//!   runs what it has begun, ends
//!   Done, Again: of events that it has begun ──►
//! ```
//! Until the new one serves, its end or failure changes nothing: the earlier one goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::function::definition::FunctionUrl;
use crate::invocation::id::InvocationId;
use crate::state::event_store::StoredEvent;
use worker_system::lock::lock;

/// Two numbers of descriptors: the listening socket, and a connection to the worker that runs.
const VARIABLE: &str = "MAYFLY_TAKES_OVER";

/// How long a successor that has failed may take to end.
const ENDING: Duration = Duration::from_secs(10);
/// How long a successor may prepare: it installs packages, and boots VMs.
const PREPARING: Duration = Duration::from_secs(3600);
/// How long a successor may take from the state until it serves. No request is served meanwhile.
const TAKING: Duration = Duration::from_secs(120);

/// What a successor reports.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Word {
    Prepared,
    Serving,
}

/// What a successor receives.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    State(State),
    /// An event that was begun is done.
    Done(InvocationId),
    /// An event that was begun has to be tried again.
    Again(StoredEvent),
}

/// The state that a successor receives, besides that on the disk.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Ids of events that the earlier worker still runs.
    pub begun: BTreeSet<InvocationId>,
    /// The URLs of the template's functions, which keep their addresses.
    pub urls: BTreeMap<String, FunctionUrl>,
}

fn say(line: &UnixStream, what: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec(what)?;
    text.push(b'\n');
    let mut line = line;
    Ok(line.write_all(&text)?)
}

fn hear<T: DeserializeOwned>(line: &mut BufReader<UnixStream>) -> Result<T> {
    let mut text = String::new();
    ensure!(line.read_line(&mut text)? > 0, "the other worker has ended");
    Ok(serde_json::from_str(&text)?)
}

/// Whether the other side has exceeded its time.
fn is_slow(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// The worker that this one takes over from.
pub(crate) struct Predecessor {
    line: BufReader<UnixStream>,
}

impl Predecessor {
    /// The predecessor, if there is one, and its listening socket.
    ///
    /// # Errors
    /// The predecessor has passed something else.
    pub fn of_this_process() -> Result<Option<(Predecessor, TcpListener)>> {
        let Ok(given) = std::env::var(VARIABLE) else { return Ok(None) };
        let numbers: Vec<RawFd> = given.split(' ').filter_map(|number| number.parse().ok()).collect();
        let [listener, line] = numbers[..] else { anyhow::bail!("{VARIABLE} is not two descriptors") };
        ensure!(listener > 2 && line > 2 && listener != line, "{VARIABLE} is not two descriptors");
        // Child processes shall inherit neither.
        for number in [listener, line] {
            // SAFETY: it is a number, and the call returns whether it is open.
            let given = unsafe { BorrowedFd::borrow_raw(number) };
            fcntl_setfd(given, FdFlags::CLOEXEC).with_context(|| format!("{VARIABLE}: {number}"))?;
        }
        // SAFETY: both are open. The worker that started this process has opened them for it, and
        // nothing else here owns them.
        let (listener, line) = unsafe { (TcpListener::from_raw_fd(listener), UnixStream::from_raw_fd(line)) };
        listener.local_addr().with_context(|| format!("{VARIABLE} names no socket"))?;
        Ok(Some((Predecessor { line: BufReader::new(line) }, listener)))
    }

    /// Reports that all is prepared that needs no state, and waits for the state.
    ///
    /// # Errors
    /// The earlier worker has ended.
    pub fn state(&mut self) -> Result<State> {
        say(self.line.get_ref(), &Word::Prepared)?;
        match hear(&mut self.line)? {
            Report::State(state) => Ok(state),
            other => anyhow::bail!("the earlier worker sends {other:?} instead of its state"),
        }
    }

    /// Reports that connections are accepted.
    ///
    /// # Errors
    /// The earlier worker has ended.
    pub fn serving(&self) -> Result<()> {
        say(self.line.get_ref(), &Word::Serving)
    }

    /// Its next report; none when it has ended.
    pub fn next(&mut self) -> Option<Report> {
        hear(&mut self.line).ok()
    }
}

/// The worker that takes over from this one.
pub(crate) struct Successor {
    process: Child,
    line: BufReader<UnixStream>,
}

impl Successor {
    /// Starts the successor with this worker's own arguments.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(program: &Path, listener: &TcpListener) -> Result<Successor> {
        let (line, theirs) = UnixStream::pair()?;
        let (listener, theirs_number) = (listener.try_clone()?, theirs.as_raw_fd());
        let listener_number = listener.as_raw_fd();
        let mut command = Command::new(program);
        command
            .args(std::env::args_os().skip(1))
            .env(VARIABLE, format!("{listener_number} {theirs_number}"))
            .stdin(Stdio::null());
        // SAFETY: between fork and exec two system calls are made, on descriptors that are open until
        // the command has been started.
        unsafe {
            command.pre_exec(move || {
                fcntl_setfd(BorrowedFd::borrow_raw(listener_number), FdFlags::empty())?;
                fcntl_setfd(BorrowedFd::borrow_raw(theirs_number), FdFlags::empty())?;
                Ok(())
            });
        }
        let process = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        drop((listener, theirs));
        Ok(Successor { process, line: BufReader::new(line) })
    }

    /// Waits until the successor has prepared all that needs no state.
    ///
    /// # Errors
    /// It has ended, or takes too long.
    pub fn prepared(&mut self) -> Result<()> {
        self.hear(&Word::Prepared, PREPARING)
    }

    /// Sends it the state, which this worker has closed, and waits until it serves.
    ///
    /// # Errors
    /// It has ended, or takes too long.
    pub fn take(&mut self, state: State) -> Result<()> {
        self.take_within(state, TAKING)
    }

    fn take_within(&mut self, state: State, patience: Duration) -> Result<()> {
        self.line.get_ref().set_write_timeout(Some(patience))?;
        let said = say(self.line.get_ref(), &Report::State(state));
        if said.as_ref().is_err_and(is_slow) {
            return self.end(format!("takes no state within {patience:?}"), Duration::ZERO);
        }
        self.hear(&Word::Serving, patience)
    }

    fn hear(&mut self, wanted: &Word, patience: Duration) -> Result<()> {
        self.line.get_ref().set_read_timeout(Some(patience))?;
        let heard: Result<Word> = hear(&mut self.line);
        match heard {
            Ok(word) if word == *wanted => Ok(()),
            Err(error) if is_slow(&error) => {
                self.end(format!("is not {wanted:?} within {patience:?}"), Duration::ZERO)
            }
            // It logs by itself how it ends.
            _ => self.end("has ended before it served".into(), ENDING),
        }
    }

    /// Ends the successor, and returns why.
    fn end(&mut self, why: String, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        while self.process.try_wait()?.is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let how = self.process.wait()?;
        anyhow::bail!("the new worker {why}: {how}")
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

/// Whether connections are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Accepting {
    #[default]
    Yes,
    /// A successor is about to accept them.
    NotNow,
    /// A successor accepts them.
    NoMore,
}

/// The successor that this worker has handed over to.
pub(crate) struct HandedOver {
    line: Mutex<UnixStream>,
}

impl HandedOver {
    /// Keeps the line to a successor that serves.
    pub fn new(successor: Successor) -> HandedOver {
        HandedOver { line: Mutex::new(successor.line.into_inner()) }
    }

    /// Reports the result of an event that this worker had begun.
    pub fn report(&self, what: &Report) {
        let line = lock(&self.line);
        if let Err(error) = say(&line, what) {
            tracing::error!("cannot report an event to the new worker: {error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_that_hangs_is_ended() {
        let urls = (0..100_000).map(|number| (number.to_string(), crate::api::new_url("NONE", false, None)));
        // One successor reads the state, and the other not even that; neither serves.
        for state in [State::default(), State { urls: urls.collect(), ..State::default() }] {
            let (line, _theirs) = UnixStream::pair().unwrap();
            let process = Command::new("sleep").arg("600").spawn().unwrap();
            let mut successor = Successor { process, line: BufReader::new(line) };
            let error = successor.take_within(state, Duration::from_millis(50)).unwrap_err().to_string();
            assert!(error.contains("within 50ms: signal: 9"), "{error}");
        }
    }
}
