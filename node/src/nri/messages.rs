//! The messages that the agent reads and writes, without the fields that it does not use, which protobuf
//! allows.

use std::collections::HashMap;

use prost::Message;

/// An event of a container or pod, as NRI numbers it; a subscription is a mask of `1 << (number - 1)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The runtime removes the pod.
    RemovePod = 3,
    /// The runtime is about to create the container.
    Create = 4,
    /// The container is created, and the runtime is about to start its program.
    Starting = 6,
    /// Its program runs.
    Started = 7,
    /// The runtime stops it.
    Stop = 10,
    /// The runtime removes it.
    Remove = 11,
}

impl Event {
    /// For a subscription.
    pub fn mask(self) -> i32 {
        1 << (self as i32 - 1)
    }
}

/// `RegisterPluginRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct Register {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its place among plugins, two digits.
    #[prost(string, tag = "2")]
    pub index: String,
}

/// `ConfigureRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct Configure {
    /// `containerd`, `cri-o`.
    #[prost(string, tag = "2")]
    pub runtime: String,
    /// Its version.
    #[prost(string, tag = "3")]
    pub version: String,
}

/// `ConfigureResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct Configured {
    /// A mask of events.
    #[prost(int32, tag = "2")]
    pub events: i32,
}

/// `SynchronizeRequest`: all pods and containers, when the agent connects.
#[derive(Clone, PartialEq, Message)]
pub struct Synchronize {
    /// Pods.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<Pod>,
    /// Containers.
    #[prost(message, repeated, tag = "2")]
    pub containers: Vec<Container>,
    /// Whether another such message follows.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// `SynchronizeResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct Synchronized {
    /// Whether another such message is expected.
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// `CreateContainerRequest`, `StartContainerRequest`, `PostStartContainerRequest`, `StopContainerRequest` and
/// `RemoveContainerRequest`, which have the same fields; `RemovePodSandboxRequest` has the first.
#[derive(Clone, PartialEq, Message)]
pub struct AboutContainer {
    /// Its pod.
    #[prost(message, optional, tag = "1")]
    pub pod: Option<Pod>,
    /// The container.
    #[prost(message, optional, tag = "2")]
    pub container: Option<Container>,
}

/// `CreateContainerResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct Created {
    /// The changes to the container.
    #[prost(message, optional, tag = "1")]
    pub adjustment: Option<Adjustment>,
}

/// `StateChangeEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct StateChange {
    /// [`Event`].
    #[prost(int32, tag = "1")]
    pub event: i32,
    /// Its pod.
    #[prost(message, optional, tag = "2")]
    pub pod: Option<Pod>,
    /// The container.
    #[prost(message, optional, tag = "3")]
    pub container: Option<Container>,
}

/// `PodSandbox`.
#[derive(Clone, PartialEq, Message)]
pub struct Pod {
    /// The runtime's name for it.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Kubernetes' identity.
    #[prost(string, tag = "3")]
    pub uid: String,
    /// Its namespace.
    #[prost(string, tag = "4")]
    pub namespace: String,
    /// Its labels.
    #[prost(map = "string, string", tag = "5")]
    pub labels: HashMap<String, String>,
    /// Its annotations.
    #[prost(map = "string, string", tag = "6")]
    pub annotations: HashMap<String, String>,
}

/// `Container`.
#[derive(Clone, PartialEq, Message)]
pub struct Container {
    /// The runtime's name for it.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its pod's.
    #[prost(string, tag = "2")]
    pub pod_id: String,
    /// Its name in the pod.
    #[prost(string, tag = "3")]
    pub name: String,
    /// 3 while it runs.
    #[prost(int32, tag = "4")]
    pub state: i32,
    /// `NAME=VALUE`.
    #[prost(string, repeated, tag = "8")]
    pub environment: Vec<String>,
    /// Its mounts.
    #[prost(message, repeated, tag = "9")]
    pub mounts: Vec<Mount>,
    /// Its first process, 0 before there is one.
    #[prost(uint32, tag = "12")]
    pub process: u32,
}

/// `ContainerState`'s number for one that runs.
pub const RUNNING: i32 = 3;

/// `Mount`.
#[derive(Clone, PartialEq, Message)]
pub struct Mount {
    /// In the container.
    #[prost(string, tag = "1")]
    pub destination: String,
    /// `bind`.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// On the node.
    #[prost(string, tag = "3")]
    pub source: String,
    /// As mount(8) has them.
    #[prost(string, repeated, tag = "4")]
    pub options: Vec<String>,
}

/// `ContainerAdjustment`.
#[derive(Clone, PartialEq, Message)]
pub struct Adjustment {
    /// Added mounts.
    #[prost(message, repeated, tag = "3")]
    pub mounts: Vec<Mount>,
    /// Variables to set, or to remove if the name begins with `-`.
    #[prost(message, repeated, tag = "4")]
    pub environment: Vec<Variable>,
    /// Added devices.
    #[prost(message, optional, tag = "6")]
    pub linux: Option<LinuxAdjustment>,
}

/// `KeyValue`.
#[derive(Clone, PartialEq, Message)]
pub struct Variable {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `LinuxContainerAdjustment`.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxAdjustment {
    /// Added devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// `LinuxDevice`.
#[derive(Clone, PartialEq, Message)]
pub struct Device {
    /// In the container.
    #[prost(string, tag = "1")]
    pub path: String,
    /// `c`.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// Its major number.
    #[prost(int64, tag = "3")]
    pub major: i64,
    /// Its minor number.
    #[prost(int64, tag = "4")]
    pub minor: i64,
    /// Permissions.
    #[prost(message, optional, tag = "5")]
    pub mode: Option<Mode>,
}

/// `OptionalFileMode`.
#[derive(Clone, PartialEq, Message)]
pub struct Mode {
    /// The bits.
    #[prost(uint32, tag = "1")]
    pub value: u32,
}
