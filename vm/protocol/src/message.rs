//! Requests, answers and events. Every field of time or size has its unit in its name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::stats::Stats;

/// What the host asks, with the number that the reply will carry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the host; never used twice on one connection.
    pub id: u64,
    /// What to do.
    #[serde(flatten)]
    pub op: Operation,
}

/// What the host asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Operation {
    /// The first request on a connection, and after each [`Event::Ready`]. Answer: [`Answer::Hello`].
    Hello {
        /// The host's [`crate::VERSION`].
        version: u32,
        /// How the VM was made.
        layout: Layout,
    },
    /// Waits until the partition's memory is online (QEMU's `size` changes before that) and makes it free to take.
    /// `partition` is `None` for the shared partition and, in mode `plain`, for the one device.
    /// Answer: [`Answer::Confirmed`].
    PlugConfirm {
        /// Which one.
        partition: Option<u32>,
        /// How much of it must be online.
        bytes: u64,
        /// When to give up with [`ErrorKind::TimedOut`].
        timeout_ms: u64,
    },
    /// Starts an instance. Answer: [`Answer::Spawned`].
    Spawn(Spawn),
    /// Ends an instance and all its processes: SIGTERM, after `grace_ms` SIGKILL. The answer comes when every one of
    /// them is gone: [`Answer::Stopped`]. Its [`Event::Exited`] comes as well, before the answer.
    Stop {
        /// Which one.
        instance: String,
        /// Between SIGTERM and SIGKILL; 0: SIGKILL at once.
        grace_ms: u64,
    },
    /// Stops all that runs in an instance, or lets it go on. Answer: [`Answer::Done`]. One that is stopped ends as any other.
    Freeze {
        /// Which one.
        instance: String,
        /// Whether it is stopped from now on.
        frozen: bool,
    },
    /// What runs. Answer: [`Answer::Instances`].
    List,
    /// Memory by partition, and the kernel's counters. Answer: [`Answer::Stats`].
    Stats,
    /// What an instance wrote to stdout and stderr, from a byte position on. Answer: [`Answer::Output`].
    /// Kept for the last 64 instances that ended.
    Output {
        /// Which one.
        instance: String,
        /// 0: all that is still kept.
        from: u64,
    },
    /// Writes to an instance's standard input. Answer: [`Answer::Done`].
    Input {
        /// Which one.
        instance: String,
        /// What to write.
        text: String,
        /// Close it afterwards.
        close: bool,
    },
    /// Closes a partition to new instances, checks that nobody uses it, and moves or drops what else lies there (page
    /// cache). A used one is refused with [`ErrorKind::Busy`] and stays open. Answer: [`Answer::Prepared`].
    PrepareUnplug {
        /// Which one.
        partition: u32,
    },
    /// Opens a prepared partition again: the unplug was given up. Answer: [`Answer::Done`].
    CancelUnplug {
        /// Which one.
        partition: u32,
    },
    /// Waits until no memory of the partition is online any more. `None` and `bytes` as for plugging: at most `bytes`
    /// stay. Answer: [`Answer::Confirmed`].
    UnplugConfirm {
        /// Which one.
        partition: Option<u32>,
        /// How much may stay online.
        bytes: u64,
        /// When to give up with [`ErrorKind::TimedOut`].
        timeout_ms: u64,
    },
    /// Stops all instances and powers the VM off. Answer: [`Answer::Done`], before the power goes.
    Shutdown,
}

/// An instance to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    /// Its name, unique among those that run: letters, digits, `-`, `_` and `.`.
    pub instance: String,
    /// Where its memory comes from. `None`: outside all partitions, from boot memory (tools, not instances).
    pub partition: Option<u32>,
    /// Further partitions of which its memory may be, all of them its own; not in mode `hotmem`, where the kernel gives an
    /// address space one.
    #[serde(default)]
    pub more: Vec<u32>,
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
    /// For a function of the worker's: it has code that others have not, may call the host, and does not own its root.
    #[serde(default)]
    pub confinement: Option<Box<Confinement>>,
}

impl Spawn {
    /// All partitions that are its own; none for a tool.
    pub fn partitions(&self) -> Vec<u32> {
        self.partition.into_iter().chain(self.more.iter().copied()).collect()
    }
}

/// How a function of the worker's runs in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// User and group, without any capability.
    pub user: u32,
    /// The TCP port on the loopback device of its own network whose connections go to the host ([`crate::relay`]).
    pub port: u16,
    /// A way out besides, if it has one.
    #[serde(default)]
    pub network: Option<Network>,
    /// The folder of the code disk that is its root: that of a container image. The guest's own by default.
    #[serde(default)]
    pub root: Option<String>,
    /// Folders and files of the code disk that it sees, and where. It sees no others of it.
    pub binds: Vec<(String, String)>,
    /// Without ASLR, so that pages with pointers are alike in all instances of a function and can be merged.
    #[serde(default)]
    pub fixed_layout: bool,
    /// What it may use of what it was given.
    pub limits: Limits,
}

/// An interface whose packets go to the host ([`crate::relay`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its address, of a net of four.
    pub address: std::net::Ipv4Addr,
    /// What `/etc/resolv.conf` says.
    pub resolvers: String,
}

/// Limits of a function, which may be tighter than its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of its processes.
    pub memory_bytes: u64,
    /// Its files in memory: /tmp and what else it writes.
    pub file_bytes: u64,
    /// Its part of the vCPUs where they are short, 1 to 10000; 100 is what others have.
    pub cpu_weight: u32,
}

/// What the agent sends: a reply or an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FromAgent {
    /// To a request.
    Reply(Reply),
    /// By itself.
    Event(Event),
}

/// The reply to one request: `{"id": 7, "ok": {...}}` or `{"id": 7, "error": {"kind": ..., "message": ...}}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's. 0 if the request could not be read so far: only with [`ErrorKind::Malformed`].
    pub id: u64,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done.
    Ok(Answer),
    /// It was not.
    Error(Refusal),
}

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub kind: ErrorKind,
    /// One line for people: what is wrong and where.
    pub message: String,
}

/// Why a request was not done, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Not a frame, not JSON, or not a request.
    Malformed,
    /// [`crate::VERSION`] differs.
    Version,
    /// The kernel cannot do what the mode needs.
    WrongKernel,
    /// No such partition, or it is not plugged.
    NotPlugged,
    /// The partition is used, or is being unplugged.
    Busy,
    /// Nobody uses the partition, and yet pages of it are in use. The message is only the reason.
    Held,
    /// No instance of that name.
    NoSuchInstance,
    /// An instance of that name runs.
    InstanceExists,
    /// The program could not be started.
    CannotStart,
    /// The kernel did not finish in time.
    TimedOut,
    /// Something else failed in the guest.
    Failed,
}

/// What a request gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// To [`Operation::Hello`].
    Hello(Agent),
    /// To [`Operation::PlugConfirm`] and [`Operation::UnplugConfirm`].
    Confirmed {
        /// What is online now.
        online_bytes: u64,
        /// How long the agent waited for it.
        waited_ns: u64,
        /// Why a partition that nobody uses is not empty, if it is not.
        #[serde(default)]
        held: Option<String>,
    },
    /// To [`Operation::Spawn`].
    Spawned {
        /// Its first process in the guest.
        pid: u32,
        /// The extensions that were started beside its program (Lambda's, in /opt/extensions).
        #[serde(default)]
        extensions: Vec<String>,
    },
    /// To [`Operation::Stop`].
    Stopped {
        /// How its first process ended.
        reason: ExitReason,
    },
    /// To [`Operation::List`].
    Instances {
        /// Those that run.
        instances: Vec<InstanceInfo>,
    },
    /// To [`Operation::Stats`].
    Stats(Stats),
    /// To [`Operation::Output`].
    Output {
        /// What is kept from there on, at most 256 KiB; bytes that are not UTF-8 are replaced.
        text: String,
        /// Where `text` starts: later than asked for when older output is gone.
        from: u64,
        /// Where to ask next.
        next: u64,
        /// Nothing more will come.
        ended: bool,
    },
    /// To [`Operation::PrepareUnplug`].
    Prepared {
        /// Pages that still lay in the empty partition (page cache) and were dropped or moved.
        dropped_pages: u64,
    },
    /// To what has nothing to tell.
    Done,
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// The agent's [`crate::VERSION`].
    pub version: u32,
    /// Differs for each start of an agent: another one means that the last agent died, and its instances with it.
    pub agent_id: u64,
    /// `uname -r`.
    pub kernel: String,
    /// Whether the kernel has HotMem's partitions.
    pub hotmem: bool,
    /// From the kernel's start to the agent's.
    pub boot_ns: u64,
}

/// What happens without being asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// An agent has started. Before it says so it kills what instances a former agent left.
    Ready(Agent),
    /// All processes of an instance are gone.
    Exited {
        /// Which one.
        instance: String,
        /// Where its memory was.
        partition: Option<u32>,
        /// How its first process ended.
        reason: ExitReason,
        /// What is left of it in its partition, and who has it: nobody can have the partition until that is gone.
        #[serde(default)]
        held: Option<String>,
    },
    /// Nobody uses a partition, and yet it is not empty: one of the further ones of an instance that has just ended.
    Held {
        /// Which one.
        partition: u32,
        /// What is left of it, and who has it.
        why: String,
    },
    /// What was left in a partition is gone.
    Released {
        /// Which one.
        partition: u32,
    },
    /// Something a person may want to know.
    Notice {
        /// One line.
        message: String,
    },
}

/// How an instance ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ExitReason {
    /// Its first process exited.
    Code {
        /// With this code.
        code: i32,
    },
    /// A signal ended its first process.
    Signal {
        /// This one.
        signal: i32,
    },
    /// An extension ended, and with it the instance.
    Extension {
        /// Which one.
        name: String,
        /// In this way.
        how: Box<ExitReason>,
    },
    /// It needed more memory than its partition has and was killed (HotMem §4).
    Overflow,
    /// The agent that watched it died.
    AgentLost,
}

/// An instance that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceInfo {
    /// Its name.
    pub instance: String,
    /// Where its memory comes from.
    pub partition: Option<u32>,
    /// And where more of it does.
    #[serde(default)]
    pub more: Vec<u32>,
    /// Its first process.
    pub pid: u32,
    /// All its processes.
    pub processes: u32,
    /// Since its start.
    pub age_ns: u64,
}
