//! The agent under CRI-O, whose part a peer plays: it sends what CRI-O's sources send (server/nri-api.go,
//! internal/nri, and the version of NRI in go.mod), in the same order. No CRI-O runs in the tests.

use std::sync::Arc;

use prost::Message;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::nri::messages::{
    AboutContainer, Configure, Configured, Container, Created, Event, Pod, RUNNING, Register, StateChange,
    Synchronize, Synchronized,
};
use crate::nri::plugin::{RuntimeHandler, connect};
use crate::nri::recorder::Recorder;
use crate::nri::wire::{
    self, PLUGIN_SERVICE_CONNECTION, REQUEST, RESPONSE, RUNTIME_SERVICE_CONNECTION, Reader, Received,
    Request, Response,
};

/// CRI-O's end of the connection.
struct Crio {
    reader: Reader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    stream: u32,
}

impl Crio {
    /// Accepts the plugin's registration.
    async fn accept(listener: &UnixListener) -> Crio {
        let (from, writer) = listener.accept().await.unwrap().0.into_split();
        let mut crio = Crio { reader: Reader::new(from), writer, stream: 1 };
        let Some(Received::Request(stream, request)) = crio.reader.next().await.unwrap() else {
            panic!("no registration")
        };
        assert_eq!(request.service, "nri.pkg.api.v1alpha1.Runtime");
        assert_eq!(request.method, "RegisterPlugin");
        let Register { name, index } = Register::decode(&*request.payload).unwrap();
        assert_eq!((name.as_str(), index.as_str()), ("mayfly", "99"));
        let response = Response::default().encode_to_vec();
        wire::send(&mut crio.writer, RUNTIME_SERVICE_CONNECTION, stream, RESPONSE, &response).await.unwrap();
        crio
    }

    /// Sends a request to the plugin, and returns its response, which must be no refusal.
    async fn call<T: Message + Default>(&mut self, method: &str, message: &impl Message) -> T {
        // And a field that the agent does not know.
        let payload = [message.encode_to_vec(), vec![0xf2, 0x3f, 2, b'n', b'o']].concat();
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Plugin".into(),
            method: method.into(),
            payload,
            // nri_plugin_request_timeout.
            timeout_ns: 2_000_000_000,
        };
        let (stream, body) = (self.stream, request.encode_to_vec());
        self.stream += 2;
        wire::send(&mut self.writer, PLUGIN_SERVICE_CONNECTION, stream, REQUEST, &body).await.unwrap();
        let Some(Received::Response(answered, response)) = self.reader.next().await.unwrap() else {
            panic!("no response to {method}")
        };
        assert_eq!((answered, response.status), (stream, None), "{method}");
        T::decode(&*response.payload).unwrap()
    }
}

fn pod() -> Pod {
    let annotations = [("mayfly.dev/heap".into(), "online".into())].into();
    Pod { id: "p".into(), name: "web".into(), namespace: "shop".into(), annotations, ..Pod::default() }
}

fn container(process: u32, state: i32) -> Container {
    let (id, pod_id, name) = ("c".into(), "p".into(), "main".into());
    Container { id, pod_id, name, process, state, ..Container::default() }
}

fn about(process: u32, state: i32) -> AboutContainer {
    AboutContainer { pod: Some(pod()), container: Some(container(process, state)) }
}

/// The handler's calls in a container's life. Up to NRI 0.11 most of it arrives as `StateChange`.
async fn calls_of(version: &str, has_calls: bool) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let recorder = Arc::new(Recorder::default());
    let handler: Arc<dyn RuntimeHandler> = recorder.clone();
    let agent = tokio::spawn(async move { connect(&socket, handler).await });
    let mut crio = Crio::accept(&listener).await;
    let configure = Configure { runtime: "cri-o".into(), version: version.into() };
    let configured: Configured = crio.call("Configure", &configure).await;
    // NRI 0.2, of CRI-O 1.26, refuses a plugin that asks for a later event than RemoveContainer.
    assert_eq!(configured.events & !((1 << Event::Remove as i32) - 1), 0);
    assert_ne!(configured.events & Event::Create.mask(), 0);
    let all = Synchronize { pods: vec![pod()], containers: vec![container(7, RUNNING)], more: false };
    let _: Synchronized = crio.call("Synchronize", &all).await;
    // CRI-O has made no process yet.
    let created: Created = crio.call("CreateContainer", &about(0, 0)).await;
    assert_eq!(created.adjustment.unwrap().environment[0].name, "LD_PRELOAD");
    let events = [
        ("StartContainer", Event::Starting, about(8, 1)),
        ("PostStartContainer", Event::Started, about(8, RUNNING)),
        ("StopContainer", Event::Stop, about(8, 4)),
        ("RemoveContainer", Event::Remove, about(8, 4)),
        ("RemovePodSandbox", Event::RemovePod, AboutContainer { pod: Some(pod()), container: None }),
    ];
    for (method, event, message) in events {
        if has_calls || method == "StopContainer" {
            let _: Synchronized = crio.call(method, &message).await;
        } else {
            let AboutContainer { pod, container } = message;
            let change = StateChange { event: event as i32, pod, container };
            let _: Synchronized = crio.call("StateChange", &change).await;
        }
    }
    crio.writer.shutdown().await.unwrap();
    drop(crio);
    agent.await.unwrap().unwrap();
    recorder.calls()
}

#[tokio::test]
async fn the_agent_sees_a_containers_life_under_crio() {
    // NRI 0.6 and 0.12.
    for (version, has_calls) in [("1.30.0", false), ("1.37.0", true)] {
        let calls = calls_of(version, has_calls).await;
        let configured = format!("configured cri-o {version}");
        let wanted = [
            configured.as_str(),
            "synchronize 1 1",
            "create online 0",
            "starting p c 8",
            "started p c 8",
            "stopped c",
            "stopped c",
            "pod removed p",
        ];
        assert_eq!(calls, wanted);
    }
}
