//! The runtime's requests to the agent, and what containers ask for in them: annotations, variables, mounts.

#![no_main]

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use node::base::request::{Heap, InjectionRequest, Name};
use node::inject::adjustment::{adjustment, mounts_over, preloaded_libraries, variable_of};
use node::inject::injection::Injection;
use node::nri::messages::{AboutContainer, Adjustment, Container, Mount, Pod, StateChange, Synchronize};
use node::nri::plugin::{RuntimeHandler, respond_to};
use prost::Message;

const METHODS: [&str; 10] = [
    "Configure",
    "Synchronize",
    "CreateContainer",
    "StartContainer",
    "PostStartContainer",
    "StopContainer",
    "RemoveContainer",
    "RemovePodSandbox",
    "StateChange",
    "Shutdown",
];

#[derive(Debug, Arbitrary)]
struct Input {
    requests: Vec<(u8, Payload)>,
    annotations: HashMap<String, String>,
    /// Values of the three annotations that the agent knows.
    known: [Option<String>; 3],
}

#[derive(Debug, Arbitrary)]
enum Payload {
    Bytes(Vec<u8>),
    About { id: String, environment: Vec<String>, mounts: Vec<(String, String)> },
    Change { event: i32, id: String },
    Many { more: bool, pods: Vec<String>, containers: Vec<String> },
}

fn container(id: &str, environment: &[String], mounts: &[(String, String)]) -> Container {
    let mount = |(destination, source): &(String, String)| {
        let (destination, source) = (destination.clone(), source.clone());
        Mount { destination, source, ..Mount::default() }
    };
    let mounts = mounts.iter().map(mount).collect();
    Container { id: id.into(), environment: environment.to_vec(), mounts, ..Container::default() }
}

impl Payload {
    fn bytes(&self) -> Vec<u8> {
        let pod = |id: &String| Pod { id: id.clone(), ..Pod::default() };
        let named = |id: &String| container(id, &[], &[]);
        match self {
            Payload::Bytes(bytes) => bytes.clone(),
            Payload::About { id, environment, mounts } => {
                let container = Some(container(id, environment, mounts));
                AboutContainer { pod: Some(pod(id)), container }.encode_to_vec()
            }
            Payload::Change { event, id } => {
                StateChange { event: *event, pod: Some(pod(id)), container: Some(named(id)) }.encode_to_vec()
            }
            Payload::Many { more, pods, containers } => {
                let pods = pods.iter().map(pod).collect();
                let containers = containers.iter().map(named).collect();
                Synchronize { pods, containers, more: *more }.encode_to_vec()
            }
        }
    }
}

/// Adjusts each container as the agent does.
#[derive(Default)]
struct Handler(Mutex<usize>);

impl Handler {
    fn count(&self) {
        *self.0.lock().expect("no thread has panicked") += 1;
    }
}

impl RuntimeHandler for Handler {
    fn configured(&self, _: &str, _: &str) {
        self.count();
    }
    fn synchronize(&self, _: Vec<Pod>, _: Vec<Container>) {
        self.count();
    }
    fn create(&self, _: &Pod, container: &Container) -> Adjustment {
        self.count();
        let mut injection = Injection::default();
        injection.heap(Path::new("/h"), None, None);
        let preloaded = variable_of(container, "LD_PRELOAD");
        let adjusted = adjustment(&injection, preloaded);
        let value = &adjusted.environment[1].value;
        assert!(preloaded.is_none_or(|own| value.starts_with(own)), "the container's own libraries are gone");
        assert!(preloaded_libraries(container).len() <= 2);
        let _ = mounts_over(container, "/opt/mayfly");
        adjusted
    }
    fn starting(&self, _: &Pod, _: &Container) {
        self.count();
    }
    fn started(self: Arc<Self>, _: &Pod, _: &Container) {
        self.count();
    }
    fn stopped(&self, _: &Container) {
        self.count();
    }
    fn pod_removed(&self, _: &Pod) {
        self.count();
    }
}

fuzz_target!(|input: Input| {
    let handler = Arc::new(Handler::default());
    let requests: Vec<(&str, Vec<u8>)> = input
        .requests
        .iter()
        .map(|(method, payload)| (METHODS[usize::from(*method) % 10], payload.bytes()))
        .collect();
    let responses = respond_to(handler, &requests);
    assert_eq!(responses.len(), requests.len());
    for (response, (method, _)) in responses.iter().zip(&requests) {
        // Any other error would keep a container from starting.
        assert!(response.status.is_none() || *method == "StateChange", "{method}");
    }
    let mut annotations = input.annotations;
    for (name, value) in ["heap", "share", "profile"].iter().zip(input.known) {
        value.into_iter().for_each(|value| drop(annotations.insert(format!("mayfly.dev/{name}"), value)));
    }
    let (request, errors) = InjectionRequest::from_annotations(&annotations);
    assert!(errors.iter().all(|line| !line.contains('\n')), "an error has several lines");
    if let Some(Heap::Model(name)) = &request.heap {
        assert!(!name.as_str().contains('/') && !name.as_str().starts_with('.'));
        assert_eq!(name.as_str().parse::<Name>().as_ref(), Ok(name));
    }
});
