//! Carries out the host's requests: one thread for each, so that a request that waits delays no other.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::parent_id;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::Duration;

use rustix::system::RebootCommand;
use vm_protocol::{
    Agent, Answer, ErrorKind, Event, FromAgent, Layout, Mode, NodeStats, Operation, Outcome, PartitionNumber,
    Refusal, Reply, Request, Spawn, Stats,
};

use crate::boot::limit_cpu_page_lists;
use crate::cgroup;
use crate::confine::{OwnedMemoryBinding, Share};
use crate::instance::Allowance;
use crate::instances::Instances;
use crate::memory::{self, bind_to_node};
use crate::partition::{Partitions, preload};
use crate::port::{Incoming, Port, SendQueue};
use crate::refusal::refusal;
use crate::relay::Streams;

/// How many requests may be under way; further ones are refused.
const MOST_REQUESTS: usize = 512;
const STACK_BYTES: usize = 256 << 10;
const HOTMEM: &str = "/sys/kernel/mm/hotmem";

struct Server {
    agent: Agent,
    layout: Mutex<Option<Layout>>,
    instances: Arc<Instances>,
    partitions: Partitions,
    to_host: SendQueue,
    under_way: AtomicUsize,
    /// How to end the VM: Firecracker ends by a reset, and knows no power-off.
    end: RebootCommand,
}

/// Serves the host for ever.
pub fn serve() -> ! {
    protect();
    if let Err(error) = cgroup::set_up() {
        panic!("control groups: {error}");
    }
    let (mut port, to_host) = Port::open();
    let server = Arc::new(Server {
        agent: describe(),
        layout: Mutex::default(),
        instances: Instances::new(to_host.clone(), Streams::open()),
        partitions: Partitions::default(),
        to_host,
        under_way: AtomicUsize::new(0),
        end: if port.is_vsock() { RebootCommand::Restart } else { RebootCommand::PowerOff },
    });
    server.to_host.send(FromAgent::Event(Event::Ready(server.agent.clone())));
    loop {
        match port.receive() {
            Incoming::Frame(text) => take(&server, &text),
            Incoming::Garbage(what) => server.reply(0, Err(refusal(ErrorKind::Malformed, what))),
            // Instances keep running; a host that reconnects says hello.
            Incoming::Disconnected => {}
        }
    }
}

/// Makes the out-of-memory killer choose other processes first.
fn protect() {
    if parent_id() == 1
        && let Err(error) = fs::write("/proc/self/oom_score_adj", "-1000")
    {
        eprintln!("vm-agent: cannot protect itself from running out of memory: {error}");
    }
}

fn describe() -> Agent {
    let mut id = [0; 8];
    let _ = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Agent {
        version: vm_protocol::VERSION,
        agent_id: u64::from_le_bytes(id),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        hotmem: fs::exists(HOTMEM).unwrap_or(false),
        boot_ns: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64,
        snapshots: true,
    }
}

/// A request of which only the id can be read.
#[derive(serde::Deserialize)]
struct WithId {
    id: u64,
}

fn take(server: &Arc<Server>, text: &[u8]) {
    let request: Request = match serde_json::from_slice(text) {
        Ok(request) => request,
        Err(error) => {
            // With its id, so that the host does not wait for an answer to an operation unknown here.
            let id = serde_json::from_slice(text).map_or(0, |WithId { id }| id);
            let message = format!("not a request that this agent knows: {error}");
            return server.reply(id, Err(refusal(ErrorKind::Malformed, message)));
        }
    };
    let id = request.id;
    // In this thread, because threads started later inherit the memory policy that hello sets.
    if let Operation::Hello { version, layout } = request.op {
        return server.reply(id, server.hello(version, layout));
    }
    // Before the next request is read, which may be about this instance.
    let reserved = match &request.op {
        Operation::Spawn(order) => match server.admit(order) {
            Ok(()) => Some(order.instance.clone()),
            Err(refusal) => return server.reply(id, Err(refusal)),
        },
        _ => None,
    };
    let give_up = |message: String| {
        server.under_way.fetch_sub(1, Ordering::Relaxed);
        reserved.iter().for_each(|name| server.instances.release(name));
        server.reply(id, Err(refusal(ErrorKind::Failed, message)));
    };
    if server.under_way.fetch_add(1, Ordering::Relaxed) >= MOST_REQUESTS {
        return give_up(format!("more than {MOST_REQUESTS} requests at one time"));
    }
    let worker = Arc::clone(server);
    let doing = Builder::new().stack_size(STACK_BYTES).spawn(move || {
        let outcome = worker.perform(request.op);
        worker.under_way.fetch_sub(1, Ordering::Relaxed);
        worker.reply(id, outcome);
    });
    if let Err(error) = doing {
        give_up(format!("a thread for the request: {error}"));
    }
}

impl Server {
    fn reply(&self, id: u64, outcome: Result<Answer, Refusal>) {
        let outcome = outcome.map_or_else(Outcome::Error, Outcome::Ok);
        self.to_host.send(FromAgent::Reply(Reply { id, outcome }));
    }

    fn hello(&self, version: u32, layout: Layout) -> Result<Answer, Refusal> {
        if version != vm_protocol::VERSION {
            let message = format!(
                "the host speaks version {version}, this agent {}: build the image again",
                vm_protocol::VERSION
            );
            return Err(refusal(ErrorKind::Version, message));
        }
        match layout.mode {
            Mode::Hotmem | Mode::Ranges => {
                drop(hotmem_device()?);
                if layout.mode == Mode::Ranges {
                    name_range(None)?;
                }
                limit_cpu_page_lists();
            }
            // Keeps the agent and the page cache that it fills out of the partitions.
            Mode::Nodes => {
                bind_to_node(&[0, layout.shared_node()]).map_err(|error| {
                    refusal(ErrorKind::WrongKernel, format!("the kernel refuses memory policies: {error}"))
                })?;
                limit_cpu_page_lists();
            }
            Mode::Plain | Mode::Static => {}
        }
        // A separate shared partition is preloaded when it is plugged.
        let preloads = layout.mode == Mode::Nodes && layout.shared_bytes == 0;
        let former = self.layout.lock().expect("not poisoned").replace(layout);
        if former.is_none() && preloads {
            std::thread::spawn(|| preload(0));
        }
        Ok(Answer::Hello(self.agent.clone()))
    }

    fn layout(&self) -> Result<Layout, Refusal> {
        let layout = self.layout.lock().expect("not poisoned").clone();
        layout.ok_or_else(|| refusal(ErrorKind::Failed, "the host has not said hello".to_string()))
    }

    fn perform(&self, operation: Operation) -> Result<Answer, Refusal> {
        let milliseconds = Duration::from_millis;
        match operation {
            Operation::Hello { version, layout } => self.hello(version, layout),
            Operation::PlugConfirm { partition, bytes, timeout_ms } => {
                let patience = milliseconds(timeout_ms);
                self.partitions.confirm_plug(&self.layout()?, partition, bytes, patience, &self.instances)
            }
            Operation::UnplugConfirm { partition, bytes, timeout_ms } => {
                self.partitions.confirm_unplug(&self.layout()?, partition, bytes, milliseconds(timeout_ms))
            }
            Operation::PrepareUnplug { partition } => {
                self.partitions.prepare(&self.layout()?, partition, &self.instances)
            }
            Operation::NameRange { partition } => {
                name_range(Some(self.layout()?.node_of(partition)))?;
                Ok(Answer::Done)
            }
            Operation::CancelUnplug { partition } => {
                self.partitions.open(partition);
                Ok(Answer::Done)
            }
            Operation::Spawn(order) => self.spawn(order),
            Operation::Stop { instance, grace_ms } => {
                let reason = self.instances.stop(&instance, milliseconds(grace_ms))?;
                Ok(Answer::Stopped { reason })
            }
            Operation::Terminate { instance } => {
                self.instances.terminate(&instance)?;
                Ok(Answer::Done)
            }
            Operation::Connect { instance, port, token } => {
                self.instances.connect(&instance, port, token)?;
                Ok(Answer::Done)
            }
            Operation::Freeze { instance, frozen } => {
                self.instances.freeze(&instance, frozen)?;
                Ok(Answer::Done)
            }
            Operation::TakeSnapshot(order) => {
                Ok(Answer::Taken(self.instances.take_snapshot(&order, &self.layout()?)?))
            }
            Operation::DropSnapshot { snapshot } => {
                self.instances.snapshots.forget(&snapshot);
                Ok(Answer::Done)
            }
            Operation::List => Ok(Answer::Instances { instances: self.instances.list() }),
            Operation::Stats => Ok(Answer::Stats(self.stats()?)),
            Operation::Output { instance, from, of_extensions } => {
                let excerpt = self.instances.output(&instance, of_extensions)?.read(from);
                Ok(Answer::Output {
                    bytes: excerpt.bytes,
                    from: excerpt.from,
                    next: excerpt.next,
                    ended: excerpt.ended,
                })
            }
            Operation::Input { instance, text, close } => {
                self.instances.input(&instance, &text, close)?;
                Ok(Answer::Done)
            }
            Operation::Shutdown => {
                self.instances.stop_all();
                let end = self.end;
                // After the answer was sent.
                std::thread::spawn(move || {
                    std::thread::sleep(milliseconds(50));
                    rustix::fs::sync();
                    let _ = rustix::system::reboot(end);
                });
                Ok(Answer::Done)
            }
        }
    }

    /// Reserves an instance's name and partition, then checks that the partition is open. The thread that
    /// unplugs closes the partition, then checks for users; so at least one of the two sees the other.
    fn admit(&self, order: &Spawn) -> Result<(), Refusal> {
        let layout = self.layout()?;
        self.instances.reserve(order, layout.mode.has_nodes())?;
        let open = order
            .partitions()
            .into_iter()
            .try_for_each(|partition| self.partitions.check_open(&layout, partition, &self.instances));
        open.inspect_err(|_| self.instances.release(&order.instance))
    }

    /// Starts an instance that was admitted.
    fn spawn(&self, order: Spawn) -> Result<Answer, Refusal> {
        let allowance = self.allowance(&order).inspect_err(|_| self.instances.release(&order.instance))?;
        let (pid, extensions) = self.instances.spawn(order, allowance)?;
        Ok(Answer::Spawned { pid, extensions })
    }

    fn allowance(&self, order: &Spawn) -> Result<Allowance, Refusal> {
        let layout = self.layout()?;
        let partitions = order.partitions();
        let start = self.instances.snapshots.start(order, &layout)?;
        let [partition, more @ ..] = &partitions[..] else {
            return Ok(Allowance { share: None, memory: None, nodes: Vec::new(), files_to: None, start });
        };
        let bytes: u64 = partitions.iter().map(|partition| layout.bytes_of(*partition)).sum();
        let limits = order.confinement.as_ref().map(|confinement| confinement.limits);
        let at_most = |limit: Option<u64>| limit.map_or(bytes, |limit| bytes.min(limit));
        let nodes: Vec<_> = partitions.iter().map(|partition| layout.node_of(*partition)).collect();
        let memory = match layout.mode {
            Mode::Nodes => OwnedMemoryBinding::Nodes(nodes.clone()),
            mode if mode.is_kernels() && more.is_empty() => {
                OwnedMemoryBinding::Hotmem(hotmem_device()?, nodes[0])
            }
            Mode::Hotmem | Mode::Ranges => {
                let message =
                    format!("mode {}: the kernel gives an instance one partition", layout.mode.name());
                return Err(refusal(ErrorKind::CannotStart, message));
            }
            Mode::Plain | Mode::Static => OwnedMemoryBinding::Anywhere,
        };
        let apart = layout.mode.has_nodes();
        Ok(Allowance {
            share: Some(Share {
                partition: *partition,
                memory,
                layer_bytes: at_most(limits.map(|limits| limits.file_bytes)),
            }),
            memory: Some((at_most(limits.map(|limits| limits.memory_bytes)), apart)),
            nodes: if apart { partitions.iter().copied().zip(nodes).collect() } else { Vec::new() },
            files_to: (layout.mode == Mode::Nodes).then(|| layout.shared_node()),
            start,
        })
    }

    fn stats(&self) -> Result<Stats, Refusal> {
        let layout = self.layout()?;
        let of = |node| {
            let memory = memory::of_node(node);
            NodeStats {
                node,
                partition: node
                    .checked_sub(layout.node_of(PartitionNumber(0)))
                    .filter(|_| layout.mode.has_nodes())
                    .map(PartitionNumber),
                total_bytes: memory.total,
                free_bytes: memory.free,
                anonymous_bytes: memory.anonymous,
                file_bytes: memory.file,
            }
        };
        let nodes = memory::nodes().into_iter().map(of).filter(|node| node.total_bytes > 0).collect();
        let counters = fs::read_to_string(format!("{HOTMEM}/counters")).unwrap_or_default();
        let counter = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_string(), value.trim().parse().ok()?))
        };
        Ok(Stats {
            nodes,
            vmstat: memory::vmstat(),
            meminfo_bytes: memory::meminfo_bytes(),
            hotmem: counters.lines().filter_map(counter).collect(),
            merged: memory::merged(),
        })
    }
}

/// `/dev/hotmem`, which Mayfly's kernel has when it was given partitions.
/// The partition that the device's driver plugs or unplugs next, by its node; `None`: the kernel chooses.
fn name_range(node: Option<u32>) -> Result<(), Refusal> {
    let text = node.map_or("-1".to_string(), |node| node.to_string());
    fs::write("/sys/kernel/mm/hotmem/range_node", text).map_err(|error| {
        refusal(
            ErrorKind::WrongKernel,
            format!("the kernel's partitions are no ranges of one device ({error})"),
        )
    })
}

fn hotmem_device() -> Result<OwnedFd, Refusal> {
    let opened = fs::File::options().read(true).write(true).open("/dev/hotmem");
    opened.map(Into::into).map_err(|error| {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let message = format!("kernel {kernel} has no HotMem partitions (/dev/hotmem: {error})");
        refusal(ErrorKind::WrongKernel, message)
    })
}
