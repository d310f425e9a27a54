//! The NRI plugin: one connection to the runtime's socket carries two ttrpc connections ([`wire`]). The agent
//! registers on one and responds to the runtime's requests on the other, in messages of
//! `nri.pkg.api.v1alpha1` ([`messages`]).
//!
//! No response is an error, whatever fails: the runtime would then not create the container.
//!
//! [`messages`]: crate::nri::messages

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
/// Late among plugins, so that the agent sees the others' changes: it extends `LD_PRELOAD` and does not
/// replace it.
const INDEX: &str = "90";
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
/// A client's streams in ttrpc have odd numbers.
const FIRST_STREAM: u32 = 1;
/// Requests that are handled at once.
const MAX_REQUESTS: usize = 64;
/// Containers of one synchronization, which may be divided into several messages.
const MAX_CONTAINERS: usize = 100_000;

/// Handles the runtime's requests.
pub trait RuntimeHandler: Send + Sync + 'static {
    /// The runtime has accepted the agent.
    fn configured(&self, runtime: &str, version: &str);
    /// All pods and containers, when the agent connects.
    fn synchronize(&self, pods: Vec<Pod>, containers: Vec<Container>);
    /// The runtime is about to create a container.
    fn create(&self, pod: &Pod, container: &Container) -> Adjustment;
    /// The container has a process, and the runtime is about to start its program.
    fn starting(&self, pod: &Pod, container: &Container);
    /// Its program runs.
    fn started(self: Arc<Self>, pod: &Pod, container: &Container);
    /// The runtime stops or removes it.
    fn stopped(&self, container: &Container);
}

/// Serves the runtime that listens at `socket` until it closes the connection.
///
/// # Errors
/// The runtime does not listen or does not accept the agent, or the connection fails.
pub async fn connect(socket: &Path, handler: Arc<dyn RuntimeHandler>) -> Result<()> {
    let connection = UnixStream::connect(socket)
        .await
        .with_context(|| format!("cannot connect to {}", socket.display()))?;
    let (from, mut to) = connection.into_split();
    let mut reader = Reader::new(from);
    let plugin = Plugin { handler, parts: Parts::default() };
    let (done, mut responses) = mpsc::channel::<(u32, Vec<u8>)>(MAX_REQUESTS);
    let register = Request {
        service: RUNTIME_SERVICE.into(),
        method: "RegisterPlugin".into(),
        payload: Register { name: NAME.into(), index: INDEX.into() }.encode_to_vec(),
        timeout_ns: REGISTRATION_TIMEOUT.as_nanos() as i64,
    };
    let lost = || format!("the connection to {}", socket.display());
    wire::send_request(&mut to, FIRST_STREAM, &register).await.with_context(lost)?;
    let mut is_registered = false;
    let deadline = tokio::time::sleep(REGISTRATION_TIMEOUT);
    tokio::pin!(deadline);
    let (messages, mut received) = mpsc::channel(1);
    // In a task of its own: `select!` would cancel a read half-way and lose the bytes that it has read.
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
                Some(Ok(Some(Received::Request(stream, request)))) => {
                    let (plugin, done) = (plugin.clone(), done.clone());
                    // Handlers read and write files, which would block the threads that serve connections.
                    tokio::task::spawn_blocking(move || {
                        let _ = done.blocking_send((stream, plugin.respond(&request)));
                    });
                }
                Some(Ok(Some(Received::Response(_, response)))) => {
                    if let Some(status) = response.status.filter(|status| status.code != 0) {
                        break Err(anyhow!("the runtime did not accept the agent: {}", status.message));
                    }
                    is_registered = true;
                }
                Some(Ok(None)) | None => break Ok(()),
                Some(Err(error)) => break Err(error).with_context(lost),
            },
            Some((stream, payload)) = responses.recv() => {
                if let Err(error) = wire::send_response(&mut to, stream, payload).await {
                    break Err(error).with_context(lost);
                }
            }
            () = &mut deadline, if !is_registered => {
                break Err(anyhow!("the runtime at {} does not respond", socket.display()));
            }
        }
    };
    reading.abort();
    ended
}

type Parts = Arc<Mutex<(Vec<Pod>, Vec<Container>)>>;

#[derive(Clone)]
struct Plugin {
    handler: Arc<dyn RuntimeHandler>,
    /// The pods and containers received of a synchronization that is not complete yet.
    parts: Parts,
}

impl Plugin {
    fn respond(&self, request: &Request) -> Vec<u8> {
        self.handle(&request.method, &request.payload).unwrap_or_else(|error| {
            tracing::error!("cannot decode the runtime's request {}: {error}", request.method);
            Vec::new()
        })
    }

    fn handle(&self, method: &str, payload: &[u8]) -> Result<Vec<u8>, prost::DecodeError> {
        Ok(match method {
            "Configure" => {
                let message = Configure::decode(payload)?;
                self.handler.configured(&message.runtime, &message.version);
                let events = [Event::Create, Event::Starting, Event::Started, Event::Stop, Event::Remove];
                Configured { events: events.into_iter().map(Event::mask).sum() }.encode_to_vec()
            }
            "Synchronize" => {
                let message = Synchronize::decode(payload)?;
                let more = message.more;
                let mut parts = self.parts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if parts.1.len() < MAX_CONTAINERS {
                    parts.0.extend(message.pods);
                    parts.1.extend(message.containers);
                }
                if !more {
                    let (pods, containers) = std::mem::take(&mut *parts);
                    drop(parts);
                    self.handler.synchronize(pods, containers);
                }
                Synchronized { more }.encode_to_vec()
            }
            "CreateContainer" => {
                let message = AboutContainer::decode(payload)?;
                let (pod, container) =
                    (message.pod.unwrap_or_default(), message.container.unwrap_or_default());
                Created { adjustment: Some(self.handler.create(&pod, &container)) }.encode_to_vec()
            }
            "StopContainer" => {
                let message = AboutContainer::decode(payload)?;
                self.handler.stopped(&message.container.unwrap_or_default());
                Vec::new()
            }
            "StateChange" => {
                let message = StateChange::decode(payload)?;
                let (pod, container) =
                    (message.pod.unwrap_or_default(), message.container.unwrap_or_default());
                if message.event == Event::Starting as i32 {
                    self.handler.starting(&pod, &container);
                } else if message.event == Event::Started as i32 {
                    self.handler.clone().started(&pod, &container);
                } else if message.event == Event::Remove as i32 {
                    self.handler.stopped(&container);
                }
                Empty {}.encode_to_vec()
            }
            _ => Vec::new(),
        })
    }
}
