//! The NRI plugin: one connection to the runtime's socket carries two ttrpc connections ([`wire`]). The agent
//! registers on one and responds to the runtime's requests on the other, in messages of
//! `nri.pkg.api.v1alpha1` ([`messages`]).
//!
//! Newer runtimes (NRI from 0.12) have a call for each event of a container, older ones one call for most,
//! `StateChange`. The agent handles both, and refuses a method that it does not know with *Unimplemented*: by
//! that the runtime chooses between them.
//!
//! No other response is an error, whatever fails: the runtime would then not create the container.
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
    AboutContainer, Adjustment, Configure, Configured, Container, Created, Event, Pod, Register, StateChange,
    Synchronize, Synchronized,
};
use crate::nri::wire::{self, Reader, Received, Request, Response, Status};

const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
const NAME: &str = "mayfly";
/// Last among plugins, so that the agent sees the others' changes: it extends `LD_PRELOAD` and does not
/// replace it. If a later plugin set that variable, the runtime would report a conflict and not create the
/// container.
const INDEX: &str = "99";
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
    /// The runtime removes the pod. It reports no end of containers whose creation has failed.
    fn pod_removed(&self, pod: &Pod);
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
    let (done, mut responses) = mpsc::channel::<(u32, Response)>(MAX_REQUESTS);
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
                Some(Ok(Some(Received::Unknown(stream, kind)))) => {
                    let refused = refusal(format!("messages of kind {kind}"));
                    if let Err(error) = wire::send_response(&mut to, stream, &refused).await {
                        break Err(error).with_context(lost);
                    }
                }
                Some(Ok(None)) | None => break Ok(()),
                Some(Err(error)) => break Err(error).with_context(lost),
            },
            Some((stream, response)) = responses.recv() => {
                if let Err(error) = wire::send_response(&mut to, stream, &response).await {
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

/// The agent's responses to requests, by method and message, for `fuzz/`.
#[cfg(fuzzing)]
pub fn respond_to(handler: Arc<dyn RuntimeHandler>, requests: &[(&str, Vec<u8>)]) -> Vec<Response> {
    let plugin = Plugin { handler, parts: Parts::default() };
    let request = |(method, payload): &(&str, Vec<u8>)| {
        let (service, method) = (PLUGIN_SERVICE.into(), (*method).into());
        plugin.respond(&Request { service, method, payload: payload.clone(), timeout_ns: 0 })
    };
    requests.iter().map(request).collect()
}

impl Plugin {
    fn respond(&self, request: &Request) -> Response {
        let method = request.method.as_str();
        if request.service != PLUGIN_SERVICE {
            return refusal(format!("{}.{method}", request.service));
        }
        let payload = match self.handle(method, &request.payload) {
            Ok(Some(payload)) => payload,
            Ok(None) => return refusal(method.to_owned()),
            Err(error) => {
                tracing::error!("cannot decode the runtime's request {method}: {error}");
                Vec::new()
            }
        };
        Response { status: None, payload }
    }

    /// The response's message, none for a method or an event that the agent does not know.
    fn handle(&self, method: &str, payload: &[u8]) -> Result<Option<Vec<u8>>, prost::DecodeError> {
        match method {
            "Configure" => {
                let message = Configure::decode(payload)?;
                self.handler.configured(&message.runtime, &message.version);
                let events = [
                    Event::RemovePod,
                    Event::Create,
                    Event::Starting,
                    Event::Started,
                    Event::Stop,
                    Event::Remove,
                ];
                return Ok(Some(
                    Configured { events: events.into_iter().map(Event::mask).sum() }.encode_to_vec(),
                ));
            }
            "Synchronize" => {
                return Ok(Some(self.synchronize(Synchronize::decode(payload)?).encode_to_vec()));
            }
            "CreateContainer" => {
                let (pod, container) = about(AboutContainer::decode(payload)?);
                return Ok(Some(
                    Created { adjustment: Some(self.handler.create(&pod, &container)) }.encode_to_vec(),
                ));
            }
            "StartContainer" => self.changed(Event::Starting, AboutContainer::decode(payload)?),
            "PostStartContainer" => self.changed(Event::Started, AboutContainer::decode(payload)?),
            "StopContainer" => self.changed(Event::Stop, AboutContainer::decode(payload)?),
            "RemoveContainer" => self.changed(Event::Remove, AboutContainer::decode(payload)?),
            "RemovePodSandbox" => self.changed(Event::RemovePod, AboutContainer::decode(payload)?),
            "StateChange" => {
                let StateChange { event, pod, container } = StateChange::decode(payload)?;
                let changes = [Event::RemovePod, Event::Starting, Event::Started, Event::Remove];
                let Some(change) = changes.into_iter().find(|&one| one as i32 == event) else {
                    return Ok(None);
                };
                self.changed(change, AboutContainer { pod, container });
            }
            // The runtime ends, and closes the connection next.
            "Shutdown" => {}
            _ => return Ok(None),
        }
        Ok(Some(Vec::new()))
    }

    fn synchronize(&self, message: Synchronize) -> Synchronized {
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
        Synchronized { more }
    }

    fn changed(&self, event: Event, message: AboutContainer) {
        let (pod, container) = about(message);
        match event {
            Event::RemovePod => self.handler.pod_removed(&pod),
            Event::Create => {}
            Event::Starting => self.handler.starting(&pod, &container),
            Event::Started => self.handler.clone().started(&pod, &container),
            Event::Stop | Event::Remove => self.handler.stopped(&container),
        }
    }
}

fn about(message: AboutContainer) -> (Pod, Container) {
    (message.pod.unwrap_or_default(), message.container.unwrap_or_default())
}

fn refusal(what: String) -> Response {
    let message = format!("Mayfly does not implement {what}");
    Response { status: Some(Status { code: wire::UNIMPLEMENTED, message }), payload: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nri::recorder::Recorder;

    /// The responses' codes and the handler's calls of some requests, by method and message.
    fn outcome(requests: &[(&str, Vec<u8>)]) -> (Vec<i32>, Vec<String>) {
        let recorder = Arc::new(Recorder::default());
        let plugin = Plugin { handler: recorder.clone(), parts: Parts::default() };
        let codes = requests.iter().map(|(method, payload)| {
            let request = Request {
                service: PLUGIN_SERVICE.into(),
                method: (*method).into(),
                payload: payload.clone(),
                timeout_ns: 0,
            };
            plugin.respond(&request).status.map_or(0, |status| status.code)
        });
        (codes.collect(), recorder.calls())
    }

    fn pod_and_container() -> (Option<Pod>, Option<Container>) {
        (
            Some(Pod { id: "p".into(), ..Pod::default() }),
            Some(Container { id: "c".into(), ..Container::default() }),
        )
    }

    #[test]
    fn events_arrive_by_calls_of_their_own_and_by_state_changes() {
        let (pod, container) = pod_and_container();
        let message = AboutContainer { pod: pod.clone(), container: container.clone() }.encode_to_vec();
        let names =
            ["StartContainer", "PostStartContainer", "RemoveContainer", "RemovePodSandbox", "StopContainer"];
        let wanted =
            ["starting p c 0", "started p c 0", "stopped c", "pod removed p", "stopped c"].map(str::to_owned);
        let (codes, calls) = outcome(&names.map(|name| (name, message.clone())));
        assert_eq!((codes, calls), (vec![0; 5], wanted.to_vec()));
        let changes = [Event::Starting, Event::Started, Event::Remove, Event::RemovePod].map(|event| {
            let change = StateChange { event: event as i32, pod: pod.clone(), container: container.clone() };
            ("StateChange", change.encode_to_vec())
        });
        let (codes, calls) = outcome(&changes);
        assert_eq!((codes, calls), (vec![0; 4], wanted[..4].to_vec()));
    }

    #[test]
    fn unknown_methods_events_and_services_are_unimplemented() {
        let (pod, container) = pod_and_container();
        let unknown = StateChange { event: 99, pod, container }.encode_to_vec();
        let (codes, calls) = outcome(&[
            ("ValidateContainerAdjustment", Vec::new()),
            ("PostCreateContainer", Vec::new()),
            ("", Vec::new()),
            ("StateChange", unknown),
        ]);
        assert_eq!((codes, calls), (vec![wire::UNIMPLEMENTED; 4], Vec::new()));
        let plugin = Plugin { handler: Arc::new(Recorder::default()), parts: Parts::default() };
        let request = Request { method: "CreateContainer".into(), ..Request::default() };
        assert_eq!(plugin.respond(&request).status.map(|status| status.code), Some(wire::UNIMPLEMENTED));
    }

    #[test]
    fn undecodable_requests_and_shutdown_keep_no_container_from_starting() {
        let (codes, calls) = outcome(&[("CreateContainer", vec![255; 3]), ("Shutdown", Vec::new())]);
        assert_eq!((codes, calls), (vec![0; 2], Vec::new()));
    }
}
