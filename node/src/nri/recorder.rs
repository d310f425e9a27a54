//! A handler for tests.

use std::sync::{Arc, Mutex};

use crate::nri::messages::{Adjustment, Container, Pod, Variable};
use crate::nri::plugin::RuntimeHandler;

/// Records the calls, and sets a variable in each container.
#[derive(Default)]
pub struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    /// The calls so far.
    pub fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn add(&self, call: String) {
        self.0.lock().unwrap().push(call);
    }
}

impl RuntimeHandler for Recorder {
    fn configured(&self, runtime: &str, version: &str) {
        self.add(format!("configured {runtime} {version}"));
    }
    fn synchronize(&self, pods: Vec<Pod>, containers: Vec<Container>) {
        self.add(format!("synchronize {} {}", pods.len(), containers.len()));
    }
    fn create(&self, pod: &Pod, container: &Container) -> Adjustment {
        self.add(format!("create {} {}", pod.annotations["mayfly.dev/heap"], container.process));
        let variable = Variable { name: "LD_PRELOAD".into(), value: "x.so".into() };
        Adjustment { environment: vec![variable], ..Adjustment::default() }
    }
    fn starting(&self, pod: &Pod, container: &Container) {
        self.add(format!("starting {} {} {}", pod.id, container.id, container.process));
    }
    fn started(self: Arc<Self>, pod: &Pod, container: &Container) {
        self.add(format!("started {} {} {}", pod.id, container.id, container.process));
    }
    fn stopped(&self, container: &Container) {
        self.add(format!("stopped {}", container.id));
    }
    fn pod_removed(&self, pod: &Pod) {
        self.add(format!("pod removed {}", pod.id));
    }
}
