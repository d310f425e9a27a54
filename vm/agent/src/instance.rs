//! One instance: its start, and its end, after which no process of it is left.

use std::io::{PipeReader, PipeWriter};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

use cgroups::Group;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use vm_protocol::{ErrorKind, ExitReason, PartitionNumber, Refusal, Spawn};

use crate::begin::Start;
use crate::cgroup::{self, KILL_PATIENCE};
use crate::confine::{self, Confined, Reports, Share};
use crate::line::{Line, is_fault};
use crate::output::Output;
use crate::packet_tunnel::PacketTunnel;
use crate::refusal::{failed, refusal};
use crate::relay::{Ends, Listener, Servers, Streams};

pub const STACK_BYTES: usize = 128 << 10;

/// One instance, from its start until its last process has ended.
pub struct Instance {
    pub name: String,
    pub partitions: Vec<PartitionNumber>,
    pub pid: u32,
    pub started: Instant,
    pub group: Group,
    /// Whether its first process is `vm-agent launch`, which only reaps.
    pub confined: bool,
    pub input: Mutex<Option<ChildStdin>>,
    pub output: Arc<Output>,
    /// What its extensions write, which comes apart.
    pub of_extensions: Arc<Output>,
    /// Whether it has extensions, which may live on when its program has ended.
    has_extensions: bool,
    /// Its first process, if that passes SIGTERM on.
    first: Option<OwnedFd>,
    /// The agent's end of its line, if it is to be taken.
    line: Mutex<Option<Line>>,
    /// Its connections to the host and the network, open while it runs.
    channels: Mutex<Channels>,
    reason: Mutex<Option<ExitReason>>,
    ended: Condvar,
}

/// What an instance may use.
pub struct Allowance {
    /// Its memory; `None` for a tool.
    pub share: Option<Share>,
    /// Its memory limit, and whether kernel memory (page tables) is allowed on top of it.
    pub memory: Option<(u64, bool)>,
    /// Its partitions and their nodes, in modes where a partition is a node.
    pub nodes: Vec<(PartitionNumber, u32)>,
    /// The node to which page cache in its partitions is moved when it ends, in modes where page cache may be
    /// there.
    pub files_to: Option<u32>,
    /// How it begins.
    pub start: Start,
}

/// An instance that was started, and what the thread that supervises it needs.
pub struct StartedInstance {
    pub instance: Arc<Instance>,
    pub child: Child,
    pub reports: Option<Reports>,
    pub extensions: Vec<String>,
}

impl Instance {
    /// Waits until it has ended.
    pub fn wait(&self, patience: Duration) -> Option<ExitReason> {
        let reason = self.reason.lock().expect("not poisoned");
        self.ended
            .wait_timeout_while(reason, patience, |reason| reason.is_none())
            .expect("not poisoned")
            .0
            .clone()
    }

    /// Waits for its first process to end, then kills all others. Returns why it ended, and whether all
    /// processes have ended. Calls `ended` for its program and each extension that ends before, if it has
    /// extensions.
    pub fn wait_and_clean_up(
        &self,
        mut child: Child,
        reports: Option<Reports>,
        mut ended: impl FnMut(ExitReason),
    ) -> (ExitReason, Result<(), cgroups::Error>) {
        let mut first = None;
        for (status, extension) in reports.into_iter().flat_map(Reports::ends) {
            let reason = self.reason(status, extension);
            if self.has_extensions {
                ended(reason.clone());
            }
            first.get_or_insert(reason);
        }
        let status = child.wait();
        // Unread input in this pipe would keep pages in use.
        drop(self.input.lock().expect("not poisoned").take());
        let group = &self.group;
        let all_ended = group.kill().and_then(|()| group.wait_empty(KILL_PATIENCE));
        self.output.stop_waiting();
        self.of_extensions.stop_waiting();
        drop(std::mem::take(&mut *self.channels.lock().expect("not poisoned")));
        let own = || status.map_or(ExitReason::AgentLost, |status| self.reason(status, None));
        (first.unwrap_or_else(own), all_ended)
    }

    /// Why its program, or this extension, ended with this status.
    fn reason(&self, status: ExitStatus, extension: Option<String>) -> ExitReason {
        let reason = match (status.code(), status.signal()) {
            // Only the out-of-memory killer increments this counter.
            (None, Some(libc::SIGKILL)) if self.group.memory_kills() > 0 => return ExitReason::Overflow,
            (Some(code), _) => ExitReason::Code { code },
            (None, signal) => ExitReason::Signal { signal: signal.unwrap_or(0) },
        };
        match extension {
            Some(name) => ExitReason::Extension { name, how: Box::new(reason) },
            None => reason,
        }
    }

    /// Sends SIGTERM to its program, and the next time SIGKILL. Its extensions live on.
    pub fn terminate(&self) -> Result<(), Refusal> {
        let what = || refusal(ErrorKind::Failed, format!("instance {}: it is no function", self.name));
        let first = self.first.as_ref().ok_or_else(what)?;
        // Frozen processes do not handle SIGTERM. Errors do not matter: it may just have ended.
        let _ = self.group.thaw();
        let _ = pidfd_send_signal(first, Signal::TERM);
        Ok(())
    }

    /// Connects to a server inside, and opens a stream of the relay for the connection.
    pub fn connect(&self, port: u16, token: u32) -> Result<(), Refusal> {
        let servers = self.channels.lock().expect("not poisoned").servers.clone();
        let ended = || refusal(ErrorKind::NoSuchInstance, format!("instance {} has ended", self.name));
        servers.ok_or_else(ended)?.connect(port, token).map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::ConnectionRefused => ErrorKind::NotListening,
                _ => ErrorKind::Failed,
            };
            refusal(kind, format!("instance {}, port {port}: {error}", self.name))
        })
    }

    /// Waits until it waits to be taken.
    pub fn until_it_waits(&self, limit: Duration) -> Result<(), Refusal> {
        let mut line = self.line.lock().expect("not poisoned");
        let none = || refusal(ErrorKind::Failed, format!("instance {} is not to be taken", self.name));
        line.as_mut().ok_or_else(none)?.until_it_waits(limit).map_err(|error| {
            let kind = if is_fault(&error) { ErrorKind::Fault } else { ErrorKind::Failed };
            refusal(kind, error.to_string())
        })
    }

    /// The one process of its program.
    pub fn program(&self) -> Result<i32, Refusal> {
        let processes = self.group.processes();
        let others: Vec<i32> = processes.into_iter().filter(|one| *one != self.pid as i32).collect();
        match others[..] {
            [program] => Ok(program),
            [] => Err(refusal(ErrorKind::Failed, "the process has ended".to_string())),
            _ => Err(refusal(ErrorKind::Unsupported, "more than one process".to_string())),
        }
    }

    /// Records its end once nothing of it is left, and wakes the threads in [`Instance::wait`].
    pub fn set_ended(&self, reason: ExitReason) {
        *self.reason.lock().expect("not poisoned") = Some(reason);
        self.ended.notify_all();
    }

    /// Stops it: SIGTERM to all its processes, then SIGKILL. Returns when all have ended.
    pub fn stop(&self, grace: Duration) -> Result<ExitReason, Refusal> {
        if !grace.is_zero() {
            // Frozen processes do not handle SIGTERM. Errors do not matter: the group may just have been
            // removed.
            let _ = self.group.thaw();
            for pid in self.group.processes() {
                // Errors do not matter: the process may have ended.
                let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::TERM));
            }
            if let Some(reason) = self.wait(grace) {
                return Ok(reason);
            }
        }
        // Errors do not matter: the group may just have been removed.
        let _ = self.group.kill();
        let late = || {
            refusal(
                ErrorKind::TimedOut,
                format!("instance {}: killed, but still running after {KILL_PATIENCE:?}", self.name),
            )
        };
        self.wait(KILL_PATIENCE + KILL_PATIENCE).ok_or_else(late)
    }
}

/// What [`start_confined`] has started.
#[derive(Default)]
struct Own {
    reports: Option<Reports>,
    extensions: Vec<String>,
    channels: Channels,
    line: Option<Line>,
}

/// An instance's connections to the host and to the network.
#[derive(Default)]
struct Channels {
    _listener: Option<Listener>,
    servers: Option<Arc<Servers>>,
    _tunnel: Option<PacketTunnel>,
}

impl Channels {
    fn new(order: &Spawn, ends: Ends, relay: Option<&Arc<Streams>>) -> std::io::Result<Channels> {
        let Some(confinement) = &order.confinement else { return Ok(Channels::default()) };
        let (name, most) = (&order.instance, confinement.connections);
        let relay = relay.ok_or_else(|| std::io::Error::other("the VM has no relay"))?;
        Ok(Channels {
            _listener: ends.listener.map(|listener| relay.serve(name, listener, most)).transpose()?,
            servers: Some(Arc::new(Servers::new(relay, ends.namespace))),
            _tunnel: ends.tunnel.map(|tunnel| PacketTunnel::new(relay, name, tunnel)).transpose()?,
        })
    }
}

/// Starts an instance.
pub fn start(
    order: &Spawn,
    allowance: Allowance,
    relay: Option<&Arc<Streams>>,
) -> Result<StartedInstance, Refusal> {
    let [program, ..] = &order.argv[..] else {
        return Err(refusal(
            ErrorKind::CannotStart,
            format!("instance {}: no program given", order.instance),
        ));
    };
    check_cpus(order)?;
    let (bytes, apart) = allowance.memory.unzip();
    let weight = order.confinement.as_ref().map(|confinement| confinement.limits.cpu_weight);
    let (reader, writer) = std::io::pipe().map_err(failed("a pipe"))?;
    let (of_extensions, extensions_in) =
        order.confinement.is_some().then(std::io::pipe).transpose().map_err(failed("a pipe"))?.unzip();
    let group = cgroup::create(&order.instance, bytes, apart.unwrap_or(false), order.vcpus_milli, weight)
        .map_err(failed("a control group"))?;
    let spawned = match &allowance.share {
        None => confine::start_tool(order, &group, writer).map(|child| (child, Own::default())),
        Some(share) => start_confined(order, &group, share, &allowance.start, writer, extensions_in, relay),
    };
    let (mut child, Own { reports, extensions, channels, line }) = match spawned {
        Ok(spawned) => spawned,
        Err(error) => {
            let _ = group.kill().and_then(|()| group.wait_empty(KILL_PATIENCE));
            let _ = group.remove_within(KILL_PATIENCE);
            let text = error.to_string();
            if is_fault(&error) {
                return Err(refusal(ErrorKind::Fault, text));
            }
            let named = if text.contains(program) { text } else { format!("{program}: {text}") };
            let message = format!("instance {}: {named}", order.instance);
            return Err(refusal(ErrorKind::CannotStart, message));
        }
    };
    let outputs = filled(Some(reader), order.waits_for_reader)
        .and_then(|output| Ok((output, filled(of_extensions, order.waits_for_reader)?)));
    let first = Pid::from_raw(child.id() as i32).filter(|_| order.confinement.is_some());
    let first = first.map(|pid| pidfd_open(pid, PidfdFlags::empty())).transpose();
    let (output, of_extensions, first) = match outputs.and_then(|(one, two)| Ok((one, two, first?))) {
        Ok(all) => all,
        Err(error) => {
            let _ = group.kill();
            let _ = child.wait();
            let _ = group.wait_empty(KILL_PATIENCE).and_then(|()| group.remove_within(KILL_PATIENCE));
            return Err(failed("a thread")(error));
        }
    };
    let instance = Instance {
        name: order.instance.clone(),
        partitions: order.partitions(),
        pid: child.id(),
        started: Instant::now(),
        group,
        confined: reports.is_some(),
        input: Mutex::new(child.stdin.take()),
        output,
        of_extensions,
        has_extensions: !extensions.is_empty(),
        first,
        line: Mutex::new(line),
        channels: Mutex::new(channels),
        reason: Mutex::new(None),
        ended: Condvar::new(),
    };
    Ok(StartedInstance { instance: Arc::new(instance), child, reports, extensions })
}

/// Output that a thread reads from a pipe; without one it has ended.
fn filled(pipe: Option<PipeReader>, waits: bool) -> std::io::Result<Arc<Output>> {
    let output = Arc::new(Output::new(waits));
    let filled = Arc::clone(&output);
    match pipe {
        Some(pipe) => drop(Builder::new().stack_size(STACK_BYTES).spawn(move || filled.fill(pipe))?),
        None => filled.fill(std::io::empty()),
    }
    Ok(output)
}

fn start_confined(
    order: &Spawn,
    group: &Group,
    share: &Share,
    start: &Start,
    output: PipeWriter,
    of_extensions: Option<PipeWriter>,
    relay: Option<&Arc<Streams>>,
) -> std::io::Result<(Child, Own)> {
    let (mut line, theirs) = match start {
        Start::Command => (None, None),
        Start::Taken | Start::Restored(..) => {
            let (ours, theirs) = Line::pair()?;
            (Some(ours), Some(theirs))
        }
    };
    let beginning = start.beginning(theirs.as_ref());
    let same = output.try_clone()?;
    let errors = output.try_clone()?;
    let stdio = |command: &mut Command| {
        command.stdin(Stdio::piped()).stdout(output).stderr(errors);
    };
    let Confined { mut child, reports, extensions, ends } =
        confine::start(order, group, share, beginning, stdio, &same, of_extensions.as_ref())?;
    // From here on the line ends with the process.
    drop(theirs);
    let begun = Channels::new(order, ends, relay).and_then(|channels| {
        if let Start::Restored(_, limit) = start
            && let Some(mut line) = line.take()
        {
            line.begin(&order.env, *limit)?;
        }
        Ok(channels)
    });
    match begun {
        Ok(channels) => Ok((child, Own { reports: Some(reports), extensions, channels, line })),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

/// Refuses vCPUs that do not exist; the kernel's own error would be "Invalid argument".
fn check_cpus(order: &Spawn) -> Result<(), Refusal> {
    // SAFETY: takes a number, returns one.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u32;
    match order.cpus.iter().find(|cpu| **cpu >= count) {
        None => Ok(()),
        Some(cpu) => Err(refusal(
            ErrorKind::CannotStart,
            format!("instance {}: no vCPU {cpu}: the VM has 0 to {}", order.instance, count - 1),
        )),
    }
}
