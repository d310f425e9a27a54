//! Registers with the runtime and answers it. Whatever goes wrong, an answer is no error: to the runtime that would be a
//! reason not to make the container.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use prost::Message;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::nri::messages::{
    AboutContainer, Adjustment, Configure, Configured, Container, Created, Empty, Event, Pod, Register,
    StateChange, Synchronize, Synchronized,
};
use crate::nri::wire::{self, Reader, Received, Request};

const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
const NAME: &str = "mayfly";
/// Late among plugins, so that it sees what others do. They may be asked in vain: `LD_PRELOAD` is added to, not replaced.
const INDEX: &str = "90";
const REGISTRATION: Duration = Duration::from_secs(5);
/// Calls of this end; ttrpc's are odd.
const FIRST_CALL: u32 = 1;
/// Questions that are being answered.
const MOST_AT_WORK: usize = 64;
/// Of one synchronization, which comes in parts.
const MOST_CONTAINERS: usize = 100_000;

/// What the agent answers.
pub trait Answers: Send + Sync + 'static {
    /// The runtime has taken the agent.
    fn configured(&self, runtime: &str, version: &str);
    /// What there is, when the agent comes.
    fn synchronize(&self, pods: Vec<Pod>, containers: Vec<Container>);
    /// A container is about to be made.
    fn create(&self, pod: &Pod, container: &Container) -> Adjustment;
    /// It has a process, and its program will run next.
    fn starting(&self, pod: &Pod, container: &Container);
    /// Its program runs.
    fn started(self: Arc<Self>, pod: &Pod, container: &Container);
    /// It has stopped, or is taken away.
    fn gone(&self, container: &Container);
}

/// Serves the runtime that listens at `socket` until it goes away.
///
/// # Errors
/// It does not listen, or does not take the agent.
pub async fn connect(socket: &Path, answers: Arc<dyn Answers>) -> Result<()> {
    let connection = UnixStream::connect(socket)
        .await
        .with_context(|| format!("cannot connect to {}", socket.display()))?;
    let (from, mut to) = connection.into_split();
    let mut reader = Reader::new(from);
    let plugin = Plugin { answers, parts: Parts::default() };
    let (done, mut answered) = mpsc::channel::<(u32, Vec<u8>)>(MOST_AT_WORK);
    let register = Request {
        service: RUNTIME_SERVICE.into(),
        method: "RegisterPlugin".into(),
        payload: Register { name: NAME.into(), index: INDEX.into() }.encode_to_vec(),
        timeout_ns: REGISTRATION.as_nanos() as i64,
    };
    let lost = || format!("the connection to {}", socket.display());
    wire::ask(&mut to, FIRST_CALL, &register).await.with_context(lost)?;
    let mut is_taken = false;
    let patience = tokio::time::sleep(REGISTRATION);
    tokio::pin!(patience);
    let (messages, mut received) = mpsc::channel(1);
    // Apart: a read that is given up half-way would lose what it has read.
    let reading = tokio::spawn(async move {
        loop {
            let message = reader.next().await;
            let is_last = !matches!(message, Ok(Some(_)));
            if messages.send(message).await.is_err() || is_last {
                return;
            }
        }
    });
    let ended = loop {
        tokio::select! {
            message = received.recv() => match message {
                Some(Ok(Some(Received::Request(call, request)))) => {
                    let (plugin, done) = (plugin.clone(), done.clone());
                    // Files are read and written: not on the threads that carry connections.
                    tokio::task::spawn_blocking(move || {
                        let _ = done.blocking_send((call, plugin.answer(&request)));
                    });
                }
                Some(Ok(Some(Received::Response(_, response)))) => {
                    if let Some(status) = response.status.filter(|status| status.code != 0) {
                        break Err(anyhow!("the runtime did not take the agent: {}", status.message));
                    }
                    is_taken = true;
                }
                Some(Ok(None)) | None => break Ok(()),
                Some(Err(error)) => break Err(error).with_context(lost),
            },
            Some((call, payload)) = answered.recv() => {
                if let Err(error) = wire::answer(&mut to, call, payload).await {
                    break Err(error).with_context(lost);
                }
            }
            () = &mut patience, if !is_taken => {
                break Err(anyhow!("the runtime at {} does not answer", socket.display()));
            }
        }
    };
    reading.abort();
    ended
}

type Parts = Arc<Mutex<(Vec<Pod>, Vec<Container>)>>;

#[derive(Clone)]
struct Plugin {
    answers: Arc<dyn Answers>,
    /// Of a synchronization that is not whole yet.
    parts: Parts,
}

impl Plugin {
    fn answer(&self, request: &Request) -> Vec<u8> {
        self.try_answer(&request.method, &request.payload).unwrap_or_else(|error| {
            tracing::error!("{} of the runtime cannot be read: {error}", request.method);
            Vec::new()
        })
    }

    fn try_answer(&self, method: &str, payload: &[u8]) -> Result<Vec<u8>, prost::DecodeError> {
        Ok(match method {
            "Configure" => {
                let told = Configure::decode(payload)?;
                self.answers.configured(&told.runtime, &told.version);
                let events = [Event::Create, Event::Starting, Event::Started, Event::Stop, Event::Remove];
                Configured { events: events.into_iter().map(Event::mask).sum() }.encode_to_vec()
            }
            "Synchronize" => {
                let told = Synchronize::decode(payload)?;
                let more = told.more;
                let mut parts = self.parts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if parts.1.len() < MOST_CONTAINERS {
                    parts.0.extend(told.pods);
                    parts.1.extend(told.containers);
                }
                if !more {
                    let (pods, containers) = std::mem::take(&mut *parts);
                    drop(parts);
                    self.answers.synchronize(pods, containers);
                }
                Synchronized { more }.encode_to_vec()
            }
            "CreateContainer" => {
                let told = AboutContainer::decode(payload)?;
                let (pod, container) = (told.pod.unwrap_or_default(), told.container.unwrap_or_default());
                Created { adjustment: Some(self.answers.create(&pod, &container)) }.encode_to_vec()
            }
            "StopContainer" => {
                let told = AboutContainer::decode(payload)?;
                self.answers.gone(&told.container.unwrap_or_default());
                Vec::new()
            }
            "StateChange" => {
                let told = StateChange::decode(payload)?;
                let (pod, container) = (told.pod.unwrap_or_default(), told.container.unwrap_or_default());
                if told.event == Event::Starting as i32 {
                    self.answers.starting(&pod, &container);
                } else if told.event == Event::Started as i32 {
                    self.answers.clone().started(&pod, &container);
                } else if told.event == Event::Remove as i32 {
                    self.answers.gone(&container);
                }
                Empty {}.encode_to_vec()
            }
            _ => Vec::new(),
        })
    }
}
