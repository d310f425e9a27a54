//! The memory of each container with an injection and of each page store: what `GET /memory` answers, and
//! what `mayfly node top` shows.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

use crate::base::cgroup;
use crate::domains::trust_domain::TrustDomain;
use crate::observe::containers::InjectedContainer;
use crate::observe::shared_memory;
use crate::service::agent::Agent;

/// An agent has that long to answer, and its answer has at most so many bytes.
const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_BYTES: usize = 64 << 20;

/// A container with an injection.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ContainerMemory {
    /// Its pod's namespace; empty by CDI.
    pub namespace: String,
    /// Its pod; empty by CDI.
    pub pod: String,
    /// Its name; by CDI its short ID.
    pub container: String,
    /// Where the lifetimes of its heap come from, as an annotation requests it; `None` without the heap.
    pub heap: Option<String>,
    /// The trust domain in which it shares pages.
    pub domain: Option<String>,
    /// Memory charged to its own cgroup. Pages of a store are charged to the store's.
    pub charged_bytes: Option<u64>,
    /// Pages of its store that it maps: private memory without the store. `None` if it shares none.
    pub shared_mapped_bytes: Option<u64>,
    /// The same, each page divided by the number of processes that map it.
    pub shared_bytes: Option<u64>,
}

impl ContainerMemory {
    fn measure(container: &InjectedContainer) -> ContainerMemory {
        let cgroup = container.cgroup.as_deref();
        let shared = container.domain.is_some().then(|| {
            let processes = cgroup.map(cgroup::processes_below).unwrap_or_default();
            shared_memory::of_processes(&processes)
        });
        ContainerMemory {
            namespace: container.namespace.clone(),
            pod: container.pod.clone(),
            container: container.name.clone(),
            heap: container.heap.as_ref().map(ToString::to_string),
            domain: container.domain.as_ref().map(ToString::to_string),
            charged_bytes: cgroup.and_then(cgroup::charged_bytes),
            shared_mapped_bytes: shared.map(|shared| shared.mapped_bytes),
            shared_bytes: shared.map(|shared| shared.proportional_bytes),
        }
    }

    /// Memory that the node has for others because this container shares.
    pub fn saved_bytes(&self) -> u64 {
        self.shared_mapped_bytes.unwrap_or(0).saturating_sub(self.shared_bytes.unwrap_or(0))
    }
}

/// The page store of a trust domain.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct StoreMemory {
    /// The trust domain.
    pub domain: String,
    /// Its namespace; empty by CDI.
    pub namespace: String,
    /// Whether it runs.
    pub is_up: bool,
    /// Memory charged to its own cgroup.
    pub charged_bytes: Option<u64>,
    /// The limit of this cgroup.
    pub limit_bytes: u64,
}

/// All memory of a node that the agent knows.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct NodeMemory {
    /// Running containers with an injection.
    pub containers: Vec<ContainerMemory>,
    /// Page stores.
    pub stores: Vec<StoreMemory>,
}

/// The running containers' memory.
pub fn container_memory(agent: &Agent) -> Vec<ContainerMemory> {
    // The runtime reports no container whose creation failed afterwards; such have no cgroup.
    let containers = agent.containers();
    let running = containers.values().filter(|container| container.cgroup.is_some());
    running.map(ContainerMemory::measure).collect()
}

impl NodeMemory {
    /// The memory now.
    pub fn measure(agent: &Agent) -> NodeMemory {
        let store = |(domain, state): (&TrustDomain, &crate::domains::page_stores::State)| StoreMemory {
            domain: domain.to_string(),
            namespace: domain.namespace().to_owned(),
            is_up: state.process.is_some(),
            charged_bytes: state.memory_bytes,
            limit_bytes: state.limit_bytes,
        };
        NodeMemory {
            containers: container_memory(agent),
            stores: agent.stores.states().iter().map(store).collect(),
        }
    }

    /// As JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers") + "\n"
    }

    /// Reads it from the agent that listens at an address.
    ///
    /// # Errors
    /// There is no agent, or it does not answer.
    pub async fn read(agent: SocketAddr) -> Result<NodeMemory> {
        let answer = tokio::time::timeout(TIMEOUT, get(agent)).await;
        let text = answer.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in {} s", TIMEOUT.as_secs())));
        let text = text.with_context(|| {
            format!("no agent answers at {agent}: is it running, and is that its `mayfly node --listen`?")
        })?;
        serde_json::from_slice(&text).with_context(|| format!("{agent} is no agent of this release"))
    }
}

async fn get(agent: SocketAddr) -> Result<Bytes> {
    let stream = TcpStream::connect(agent).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get("/memory").header("host", agent.to_string()).body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    ensure!(answer.status().is_success(), "it answers {} to GET /memory", answer.status());
    let body =
        Limited::new(answer.into_body(), MAX_BYTES).collect().await.map_err(anyhow::Error::from_boxed)?;
    Ok(body.to_bytes())
}
