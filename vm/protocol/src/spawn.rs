//! What the host says of an instance that is to start.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::layout::PartitionNumber;

/// An instance to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    /// Its name, unique among those that run: letters, digits, `-`, `_` and `.`.
    pub instance: String,
    /// Where its memory comes from. `None`: outside all partitions, from boot memory (tools, not instances).
    pub partition: Option<PartitionNumber>,
    /// Further partitions for its memory, for it alone. Not in mode `hotmem`, where the kernel gives an
    /// address space one partition.
    #[serde(default)]
    pub more: Vec<PartitionNumber>,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its whole environment, apart from defaults for PATH and HOME.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Its working directory; `/` by default.
    #[serde(default)]
    pub cwd: Option<String>,
    /// The vCPUs it may run on; all by default (HotMem §5.5 pins instances).
    #[serde(default)]
    pub cpus: Vec<u32>,
    /// How much of their time it may use, in thousandths of a vCPU (HotMem Table 1); all by default.
    #[serde(default)]
    pub vcpus_milli: Option<u32>,
    /// Whether it waits when it has written as much output as the agent keeps, until the host has read some.
    /// By default the agent discards the oldest, for output that may have no reader.
    #[serde(default)]
    pub waits_for_reader: bool,
    /// How its program begins. All but [`Beginning::Command`] need an agent whose
    /// [`crate::Agent::snapshots`] is set.
    #[serde(default)]
    pub beginning: Beginning,
    /// Set for a worker's function: it sees its own code, may call the host, and does not own its root.
    #[serde(default)]
    pub confinement: Option<Box<Confinement>>,
}

impl Spawn {
    /// All its partitions; none for a tool.
    pub fn partitions(&self) -> Vec<PartitionNumber> {
        self.partition.into_iter().chain(self.more.iter().copied()).collect()
    }
}

/// How an instance's program begins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Beginning {
    /// As its command says.
    #[default]
    Command,
    /// The same, with a line to the agent, at which it waits for [`crate::Operation::TakeSnapshot`].
    Taken,
    /// It becomes the process that was taken, and reads its environment. It has started when it runs.
    Restored {
        /// From which snapshot.
        snapshot: String,
        /// When to give up with [`crate::ErrorKind::Fault`].
        timeout_ms: u64,
    },
}

/// How a worker's function runs in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// User and group; it has no capabilities.
    pub user: u32,
    /// The TCP port on its loopback device whose connections the agent forwards to the host
    /// ([`crate::relay`]).
    pub port: u16,
    /// How many of them there may be at one time.
    pub connections: u32,
    /// Its network device, if it has network access.
    #[serde(default)]
    pub network: Option<Network>,
    /// The folder of the code disk that is its root, for a container image. The guest's root disk by default.
    #[serde(default)]
    pub root: Option<String>,
    /// The folders and files of the code disk that it sees, and no others: source and target.
    pub binds: Vec<(String, String)>,
    /// Without ASLR, so that pages with pointers are equal in all instances of a function and can be merged.
    #[serde(default)]
    pub fixed_layout: bool,
    /// Its limits.
    pub limits: Limits,
}

/// A network device whose packets the agent forwards to the host ([`crate::relay`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its address, in a subnet of four.
    pub address: std::net::Ipv4Addr,
    /// Content of `/etc/resolv.conf`.
    pub resolvers: String,
}

/// Limits of a function, which may be tighter than its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of its processes.
    pub memory_bytes: u64,
    /// Its files in memory: /tmp and its writable layer.
    pub file_bytes: u64,
    /// Its share of the vCPUs when they are short, 1 to 10000; the default of others is 100.
    pub cpu_weight: u32,
}
