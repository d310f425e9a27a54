//! One instance: its start, and its end, with which nothing of it is left.

use std::io::PipeWriter;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use vm_protocol::{ErrorKind, ExitReason, Refusal, Spawn};

use crate::cgroup::Group;
use crate::confine::{self, Confined, Reports, Share};
use crate::output::Output;
use crate::packet_tunnel::Link;
use crate::refusal::{failed, refusal};
use crate::relay::{Ends, Listener, Streams};

/// The kernel frees a killed process's memory meanwhile.
pub const KILL_PATIENCE: Duration = Duration::from_secs(60);
pub const STACK_BYTES: usize = 128 << 10;

/// One instance, from its start until its last process is gone.
pub struct Instance {
    pub name: String,
    pub partitions: Vec<u32>,
    pub pid: u32,
    pub started: Instant,
    pub group: Group,
    /// Whether its first process is the agent's, which only reaps.
    pub confined: bool,
    pub input: Mutex<Option<ChildStdin>>,
    pub output: Arc<Output>,
    /// Open as long as it runs, if it may call the host.
    lines: Mutex<Lines>,
    reason: Mutex<Option<ExitReason>>,
    ended: Condvar,
}

/// What an instance may use.
pub struct Allowance {
    /// Its memory; none for a tool.
    pub share: Option<Share>,
    /// The limit for its memory, and whether page tables and the like come on top of it.
    pub memory: Option<(u64, bool)>,
    /// Its partitions that are nodes, and which.
    pub nodes: Vec<(u32, u32)>,
    /// Where page cache that lies there has to go with the instance, if it may lie there.
    pub files_to: Option<u32>,
}

/// An instance that runs, and what its watcher needs.
pub struct Begun {
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

    /// It ends with its first process, and what else is left of it is killed: why it has ended, and whether all is gone.
    pub fn outlive(&self, mut child: Child, reports: Option<Reports>) -> (ExitReason, std::io::Result<()>) {
        let told = reports.and_then(|mut reports| reports.ended());
        let (told, extension) = told.unzip();
        let status = child.wait().map(|status| told.unwrap_or(status));
        // Whatever waits for it in this pipe is nobody's any more.
        drop(self.input.lock().expect("not poisoned").take());
        let group = &self.group;
        let gone = group.kill().and_then(|()| group.wait_empty(KILL_PATIENCE));
        drop(std::mem::take(&mut *self.lines.lock().expect("not poisoned")));
        let reason = match status {
            // Other reasons to be killed leave this counter alone.
            Ok(status) if status.signal() == Some(libc::SIGKILL) && group.memory_kills() > 0 => {
                ExitReason::Overflow
            }
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => ExitReason::Code { code },
                (None, signal) => ExitReason::Signal { signal: signal.unwrap_or(0) },
            },
            Err(_) => ExitReason::AgentLost,
        };
        let reason = match extension.flatten() {
            Some(name) if reason != ExitReason::Overflow => {
                ExitReason::Extension { name, how: Box::new(reason) }
            }
            _ => reason,
        };
        (reason, gone)
    }

    /// Nothing of it is left: those who wait for that hear of it.
    pub fn is_gone(&self, reason: ExitReason) {
        *self.reason.lock().expect("not poisoned") = Some(reason);
        self.ended.notify_all();
    }

    /// Ends it: SIGTERM to all its processes, then SIGKILL. Returns when all are gone.
    pub fn stop(&self, grace: Duration) -> Result<ExitReason, Refusal> {
        if !grace.is_zero() {
            // What is frozen hears no SIGTERM; the group may have gone in this moment.
            let _ = self.group.freeze(false);
            for pid in self.group.processes() {
                // Gone already is as good.
                let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::TERM));
            }
            if let Some(reason) = self.wait(grace) {
                return Ok(reason);
            }
        }
        // The group may have gone in this moment.
        let _ = self.group.kill();
        let late = || {
            refusal(
                ErrorKind::TimedOut,
                format!("instance {}: killed, but not gone after {KILL_PATIENCE:?}", self.name),
            )
        };
        self.wait(KILL_PATIENCE + KILL_PATIENCE).ok_or_else(late)
    }
}

type Started = (Child, Option<Reports>, Vec<String>, Lines);

/// By which an instance reaches the host, and further.
#[derive(Default)]
struct Lines {
    _listener: Option<Listener>,
    _link: Option<Link>,
}

impl Lines {
    fn new(instance: &str, ends: Ends, relay: Option<&Arc<Streams>>) -> std::io::Result<Lines> {
        if ends.listener.is_none() && ends.tunnel.is_none() {
            return Ok(Lines::default());
        }
        let relay = relay.ok_or_else(|| std::io::Error::other("the VM has no relay"))?;
        Ok(Lines {
            _listener: ends.listener.map(|listener| relay.serve(instance, listener)).transpose()?,
            _link: ends.tunnel.map(|tunnel| Link::new(relay, instance, tunnel)).transpose()?,
        })
    }
}

/// Starts an instance.
pub fn start(order: &Spawn, allowance: Allowance, relay: Option<&Arc<Streams>>) -> Result<Begun, Refusal> {
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
    let group = Group::create(&order.instance, bytes, apart.unwrap_or(false), order.vcpus_milli, weight)
        .map_err(failed("a control group"))?;
    let spawned = match &allowance.share {
        None => confine::start_tool(order, &group, writer)
            .map(|child| (child, None, Vec::new(), Lines::default())),
        Some(share) => start_confined(order, &group, share, writer, relay),
    };
    let (mut child, reports, extensions, lines) = match spawned {
        Ok(spawned) => spawned,
        Err(error) => {
            let _ = group.kill().and_then(|()| group.wait_empty(KILL_PATIENCE));
            let _ = group.remove();
            let text = error.to_string();
            let named = if text.contains(program) { text } else { format!("{program}: {text}") };
            let message = format!("instance {}: {named}", order.instance);
            return Err(refusal(ErrorKind::CannotStart, message));
        }
    };
    let output = Arc::new(Output::default());
    let filled = Arc::clone(&output);
    let reading = Builder::new().stack_size(STACK_BYTES).spawn(move || filled.fill(reader));
    if let Err(error) = reading {
        let _ = group.kill();
        let _ = child.wait();
        let _ = group.wait_empty(KILL_PATIENCE).and_then(|()| group.remove());
        return Err(failed("a thread")(error));
    }
    let instance = Instance {
        name: order.instance.clone(),
        partitions: order.partitions(),
        pid: child.id(),
        started: Instant::now(),
        group,
        confined: reports.is_some(),
        input: Mutex::new(child.stdin.take()),
        output,
        lines: Mutex::new(lines),
        reason: Mutex::new(None),
        ended: Condvar::new(),
    };
    Ok(Begun { instance: Arc::new(instance), child, reports, extensions })
}

fn start_confined(
    order: &Spawn,
    group: &Group,
    share: &Share,
    output: PipeWriter,
    relay: Option<&Arc<Streams>>,
) -> std::io::Result<Started> {
    let same = output.try_clone()?;
    let errors = output.try_clone()?;
    let stdio = |command: &mut Command| {
        command.stdin(Stdio::piped()).stdout(output).stderr(errors);
    };
    let Confined { child, reports, extensions, ends } = confine::start(order, group, share, stdio, &same)?;
    Ok((child, Some(reports), extensions, Lines::new(&order.instance, ends, relay)?))
}

/// The kernel's word for a vCPU that is not there is "Invalid argument".
fn check_cpus(order: &Spawn) -> Result<(), Refusal> {
    // SAFETY: takes a number, returns one.
    let there = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u32;
    match order.cpus.iter().find(|cpu| **cpu >= there) {
        None => Ok(()),
        Some(cpu) => Err(refusal(
            ErrorKind::CannotStart,
            format!("instance {}: no vCPU {cpu}: the VM has 0 to {}", order.instance, there - 1),
        )),
    }
}
