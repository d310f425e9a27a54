//! Requests, answers and events. Every field of time or size has its unit in its name.

use serde::{Deserialize, Serialize};

use crate::layout::{Layout, PartitionNumber};
use crate::snapshot::{TakeSnapshot, Taken};
use crate::spawn::Spawn;
use crate::stats::Stats;

/// A request of the host, with the id that the reply will carry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the host; never used twice on one connection.
    pub id: u64,
    /// What to do.
    #[serde(flatten)]
    pub op: Operation,
}

/// The operation that a request asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Operation {
    /// The first request on a connection, and after each [`Event::Ready`]. Answer: [`Answer::Hello`].
    Hello {
        /// The host's [`crate::VERSION`].
        version: u32,
        /// The VM's layout.
        layout: Layout,
    },
    /// Waits until the partition's memory is online (QEMU's `size` changes before that) and opens it to
    /// instances. `partition` is `None` for the shared partition and, in mode `plain`, for the one device.
    /// Answer: [`Answer::Confirmed`].
    PlugConfirm {
        /// Which one.
        partition: Option<PartitionNumber>,
        /// How much of it must be online.
        bytes: u64,
        /// When to give up with [`ErrorKind::TimedOut`].
        timeout_ms: u64,
    },
    /// Starts an instance. Answer: [`Answer::Spawned`].
    Spawn(Spawn),
    /// Ends an instance and all its processes: SIGTERM, after `grace_ms` SIGKILL. The answer is sent when all
    /// of them have ended: [`Answer::Stopped`]. Its [`Event::Exited`] is sent before the answer.
    Stop {
        /// Which one.
        instance: String,
        /// Between SIGTERM and SIGKILL; 0: SIGKILL at once.
        grace_ms: u64,
    },
    /// Sends SIGTERM to the program of a worker's function, and the next time SIGKILL. Its extensions live
    /// on. Answer: [`Answer::Done`].
    Terminate {
        /// Which one.
        instance: String,
    },
    /// Connects to a server inside a worker's function, on its loopback device, and opens a stream for the
    /// connection ([`crate::relay::Kind::Inside`]). Answer: [`Answer::Done`], before or after that frame.
    Connect {
        /// Which one.
        instance: String,
        /// The server's TCP port.
        port: u16,
        /// Sent with the stream, so that the host knows for which request it is.
        token: u32,
    },
    /// Takes an instance that waits, and keeps the snapshot. Answer: [`Answer::Taken`].
    TakeSnapshot(TakeSnapshot),
    /// Forgets a snapshot, if there is one. Instances that were restored live on. Answer: [`Answer::Done`].
    DropSnapshot {
        /// Which one.
        snapshot: String,
    },
    /// Freezes all processes of an instance, or thaws them. Answer: [`Answer::Done`]. A frozen instance can
    /// be stopped.
    Freeze {
        /// Which one.
        instance: String,
        /// Freeze or thaw.
        frozen: bool,
    },
    /// Lists the running instances. Answer: [`Answer::Instances`].
    List,
    /// Returns memory by partition, and the kernel's counters. Answer: [`Answer::Stats`].
    Stats,
    /// Returns an instance's output to stdout and stderr, from a byte position on. Answer:
    /// [`Answer::Output`]. Kept for the last 64 instances that ended.
    Output {
        /// Which one.
        instance: String,
        /// 0: all that is still kept. If the instance waits for its reader, older output has been read, and
        /// is discarded.
        from: u64,
        /// That of its extensions, which comes apart from its program's.
        #[serde(default)]
        of_extensions: bool,
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
    /// Closes a partition to new instances, checks that no instance uses it, and moves or drops page cache
    /// that lies there. A used one is refused with [`ErrorKind::Busy`] and stays open. Answer:
    /// [`Answer::Prepared`].
    PrepareUnplug {
        /// Which one.
        partition: PartitionNumber,
    },
    /// Mode `ranges`: says which partition the one device plugs or unplugs next. Answer: [`Answer::Done`].
    NameRange {
        /// Which one.
        partition: PartitionNumber,
    },
    /// Opens a prepared partition again, after an unplug was given up. Answer: [`Answer::Done`].
    CancelUnplug {
        /// Which one.
        partition: PartitionNumber,
    },
    /// Waits until no memory of the partition is online any more. `None` and `bytes` as for plugging: at most
    /// `bytes` stay. Answer: [`Answer::Confirmed`].
    UnplugConfirm {
        /// Which one.
        partition: Option<PartitionNumber>,
        /// How much may stay online.
        bytes: u64,
        /// When to give up with [`ErrorKind::TimedOut`].
        timeout_ms: u64,
    },
    /// Stops all instances and powers the VM off. Answer: [`Answer::Done`], before the power-off.
    Shutdown,
}

/// A message of the agent: a reply or an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FromAgent {
    /// A reply to a request.
    Reply(Reply),
    /// An event that no request caused.
    Event(Event),
}

/// The reply to one request: `{"id": 7, "ok": {...}}` or `{"id": 7, "error": {"kind": ..., "message": ...}}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's id. 0 if it could not be read: only with [`ErrorKind::Malformed`].
    pub id: u64,
    /// The result.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Success.
    Ok(Answer),
    /// Failure.
    Error(Refusal),
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub kind: ErrorKind,
    /// One line for users: what is wrong and where.
    pub message: String,
}

/// Why a request failed, for programs.
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
    /// No instance uses the partition, and yet pages of it are in use. The message is only the reason.
    Held,
    /// No instance of that name.
    NoSuchInstance,
    /// An instance of that name runs.
    InstanceExists,
    /// Nothing listens on the port.
    NotListening,
    /// The program could not be started.
    CannotStart,
    /// The instance has something that cannot be restored. The message says only what.
    Unsupported,
    /// A process that was to be taken or restored says what is wrong, or did not get there in time.
    Fault,
    /// No snapshot of that name.
    NoSuchSnapshot,
    /// The kernel did not finish in time.
    TimedOut,
    /// Something else failed in the guest.
    Failed,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// To [`Operation::Hello`].
    Hello(Agent),
    /// To [`Operation::PlugConfirm`] and [`Operation::UnplugConfirm`].
    Confirmed {
        /// How much is online now.
        online_bytes: u64,
        /// How long the agent waited for it.
        waited_ns: u64,
        /// Why an unused partition is not empty, if it is not.
        #[serde(default)]
        held: Option<String>,
    },
    /// To [`Operation::Spawn`].
    Spawned {
        /// Its first process in the guest.
        pid: u32,
        /// The Lambda extensions that were started beside its program (in /opt/extensions).
        #[serde(default)]
        extensions: Vec<String>,
    },
    /// To [`Operation::TakeSnapshot`].
    Taken(Taken),
    /// To [`Operation::Stop`].
    Stopped {
        /// How its first process ended.
        reason: ExitReason,
    },
    /// To [`Operation::List`].
    Instances {
        /// The running instances.
        instances: Vec<InstanceInfo>,
    },
    /// To [`Operation::Stats`].
    Stats(Stats),
    /// To [`Operation::Output`].
    Output {
        /// The output kept from there on, at most 256 KiB.
        #[serde(with = "crate::bytes")]
        bytes: Vec<u8>,
        /// Where `bytes` start: later than requested if older output was discarded.
        from: u64,
        /// Where to continue.
        next: u64,
        /// The output has ended.
        ended: bool,
    },
    /// To [`Operation::PrepareUnplug`].
    Prepared {
        /// Page cache that was left in the partition and was dropped or moved, in pages.
        dropped_pages: u64,
    },
    /// To requests without a result.
    Done,
}

/// The agent that answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// The agent's [`crate::VERSION`].
    pub version: u32,
    /// Differs for each start of an agent: another one means that the last agent died, and its instances with
    /// it.
    pub agent_id: u64,
    /// `uname -r`.
    pub kernel: String,
    /// Whether the kernel has HotMem's partitions.
    pub hotmem: bool,
    /// From the kernel's start to the agent's.
    pub boot_ns: u64,
    /// Whether it knows of snapshots; earlier agents do not.
    #[serde(default)]
    pub snapshots: bool,
}

/// A report that no request caused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// An agent has started. Before it sends this, it kills the instances that a former agent left.
    Ready(Agent),
    /// The program of a worker's function that has extensions has ended, or one of these. The others live on
    /// until the host stops the instance.
    Ended {
        /// Which one.
        instance: String,
        /// How it ended.
        reason: ExitReason,
    },
    /// All processes of an instance have ended.
    Exited {
        /// Which one.
        instance: String,
        /// Where its memory was.
        partition: Option<PartitionNumber>,
        /// How its program ended, or the extension that ended first.
        reason: ExitReason,
        /// Pages of it still in use in its partition, and which process holds them. Until they are free no
        /// instance can have the partition.
        #[serde(default)]
        held: Option<String>,
    },
    /// A further partition of an instance that has just ended is unused, and yet not empty.
    Held {
        /// Which one.
        partition: PartitionNumber,
        /// Which pages are still in use, and which process holds them.
        why: String,
    },
    /// A held partition is empty now.
    Released {
        /// Which one.
        partition: PartitionNumber,
    },
    /// A message for the log.
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
    /// An extension ended.
    Extension {
        /// Which one.
        name: String,
        /// How the extension ended.
        how: Box<ExitReason>,
    },
    /// It needed more memory than its partition has, and the kernel killed it (HotMem §4).
    Overflow,
    /// The agent that supervised it died.
    AgentLost,
}

/// A running instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceInfo {
    /// Its name.
    pub instance: String,
    /// The partition that its memory comes from.
    pub partition: Option<PartitionNumber>,
    /// Further partitions that its memory comes from.
    #[serde(default)]
    pub more: Vec<PartitionNumber>,
    /// Its first process.
    pub pid: u32,
    /// How many processes it has.
    pub processes: u32,
    /// Since its start.
    pub age_ns: u64,
}
