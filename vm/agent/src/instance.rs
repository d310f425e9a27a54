//! Instances: start, output, end. Each one that runs has a thread that watches over it: waits for its end, sees to it that
//! nothing of it is left, and only then reports it.

use std::collections::{HashMap, VecDeque};
use std::io::{PipeWriter, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use vm_protocol::{ErrorKind, Event, ExitReason, FromAgent, InstanceInfo, Refusal, Spawn};

use crate::cgroup::Group;
use crate::confine::{self, Confined, Reports, Share};
use crate::held::{Holds, move_file_pages};
use crate::memory;
use crate::output::Output;
use crate::port::Outbox;
use crate::refusal::{failed, no_such, refusal};
use crate::relay::{Listener, Relay};

/// How many ended instances' output is kept.
const KEPT_OUTPUTS: usize = 64;
/// The kernel frees a killed process's memory meanwhile.
const KILL_PATIENCE: Duration = Duration::from_secs(60);
/// The kernel takes an ended instance's mounts down in the background; the next one should not meet what was in them.
const TEARDOWN_PATIENCE: Duration = Duration::from_millis(500);
const STACK_BYTES: usize = 128 << 10;

/// One instance, from its start until its last process is gone.
pub struct Instance {
    name: String,
    partitions: Vec<u32>,
    pid: u32,
    started: Instant,
    group: Group,
    /// Whether its first process is the agent's, which only reaps.
    confined: bool,
    input: Mutex<Option<ChildStdin>>,
    output: Arc<Output>,
    /// Open as long as it runs, if it may call the host.
    _listener: Option<Listener>,
    reason: Mutex<Option<ExitReason>>,
    ended: Condvar,
}

/// All instances.
pub struct Instances {
    state: Mutex<State>,
    /// One more has been started, or could not be.
    settled: Condvar,
    outbox: Outbox,
    relay: Option<Arc<Relay>>,
    pub holds: Arc<Holds>,
}

#[derive(Default)]
struct State {
    running: HashMap<String, Arc<Instance>>,
    /// Being started: names and partitions that are taken already.
    starting: HashMap<String, Vec<u32>>,
    ended: VecDeque<(String, Arc<Output>)>,
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

impl Instances {
    pub fn new(outbox: Outbox, relay: Option<Arc<Relay>>) -> Arc<Instances> {
        let holds = Holds::new(outbox.clone());
        Arc::new(Instances { state: Mutex::default(), settled: Condvar::new(), outbox, relay, holds })
    }

    /// Starts an instance that was reserved; returns its first process, and its extensions.
    pub fn spawn(
        self: &Arc<Self>,
        order: Spawn,
        allowance: Allowance,
    ) -> Result<(u32, Vec<String>), Refusal> {
        let (nodes, files_to) = (allowance.nodes.clone(), allowance.files_to);
        let outcome = self.start(&order, allowance);
        let mut state = self.state.lock().expect("not poisoned");
        state.starting.remove(&order.instance);
        if let Ok(Begun { instance, .. }) = &outcome {
            state.running.insert(order.instance, Arc::clone(instance));
        }
        drop(state);
        self.settled.notify_all();
        let Begun { instance, child, reports, extensions } = outcome?;
        let pid = instance.pid;
        let all = Arc::clone(self);
        let watch = move || all.watch_over(&instance, child, reports, &nodes, files_to);
        Builder::new().stack_size(STACK_BYTES).spawn(watch).map_err(failed("a thread"))?;
        Ok((pid, extensions))
    }

    /// Takes an instance's name and, if it has to be alone there, its partition. Until it is started, others wait for it.
    pub fn reserve(&self, order: &Spawn, alone: bool) -> Result<(), Refusal> {
        let name = &order.instance;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(plain) {
            return Err(refusal(
                ErrorKind::CannotStart,
                format!("{name:?}: an instance's name is letters, digits, '-', '_', '.'"),
            ));
        }
        let mut state = self.state.lock().expect("not poisoned");
        if state.running.contains_key(name) || state.starting.contains_key(name) {
            return Err(refusal(ErrorKind::InstanceExists, format!("instance {name} runs already")));
        }
        let partitions = order.partitions();
        let taken = |number: &u32| Some((*number, state.user_of(*number)?));
        if alone && let Some((partition, user)) = partitions.iter().find_map(taken) {
            return Err(refusal(
                ErrorKind::Busy,
                format!("partition {partition} is used by instance {user}"),
            ));
        }
        state.starting.insert(name.clone(), partitions);
        Ok(())
    }

    fn start(&self, order: &Spawn, allowance: Allowance) -> Result<Begun, Refusal> {
        let [program, ..] = &order.argv[..] else {
            return Err(refusal(
                ErrorKind::CannotStart,
                format!("instance {}: no program given", order.instance),
            ));
        };
        check_cpus(order)?;
        let (bytes, apart) = allowance.memory.unzip();
        let weight = order.confinement.as_ref().map(|confinement| confinement.limits.cpu_weight);
        let group = Group::create(&order.instance, bytes, apart.unwrap_or(false), order.vcpus_milli, weight)
            .map_err(failed("a control group"))?;
        let (reader, writer) = std::io::pipe().map_err(failed("a pipe"))?;
        let spawned = match &allowance.share {
            None => confine::start_tool(order, &group, writer).map(|child| (child, None, Vec::new(), None)),
            Some(share) => self.start_confined(order, &group, share, writer),
        };
        let (mut child, reports, extensions, listener) = match spawned {
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
            _listener: listener,
            reason: Mutex::new(None),
            ended: Condvar::new(),
        };
        Ok(Begun { instance: Arc::new(instance), child, reports, extensions })
    }

    fn start_confined(
        &self,
        order: &Spawn,
        group: &Group,
        share: &Share,
        output: PipeWriter,
    ) -> std::io::Result<Started> {
        let same = output.try_clone()?;
        let errors = output.try_clone()?;
        let stdio = |command: &mut Command| {
            command.stdin(Stdio::piped()).stdout(output).stderr(errors);
        };
        let Confined { child, reports, extensions, listener } =
            confine::start(order, group, share, stdio, &same)?;
        let listener = match (listener, self.relay.as_ref()) {
            (None, _) => None,
            (Some(listener), Some(relay)) => Some(relay.serve(&order.instance, listener)?),
            (Some(_), None) => return Err(std::io::Error::other("the VM has no relay")),
        };
        Ok((child, Some(reports), extensions, listener))
    }

    /// An instance ends with its first process, and what else is left of it is killed.
    fn watch_over(
        &self,
        instance: &Arc<Instance>,
        mut child: Child,
        reports: Option<Reports>,
        nodes: &[(u32, u32)],
        files_to: Option<u32>,
    ) {
        let told = reports.and_then(|mut reports| reports.ended());
        let (told, extension) = told.unzip();
        let status = child.wait().map(|status| told.unwrap_or(status));
        // Whatever waits for it in this pipe is nobody's any more.
        drop(instance.input.lock().expect("not poisoned").take());
        let group = &instance.group;
        let gone = group.kill().and_then(|()| group.wait_empty(KILL_PATIENCE));
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
        if let Some(to) = files_to {
            group.reclaim();
            nodes.iter().for_each(|(_, node)| move_file_pages(*node, to));
        }
        if let Err(error) = gone.and_then(|()| group.remove()) {
            let message = format!("instance {}: not all of it could be removed: {error}", instance.name);
            self.outbox.send(FromAgent::Event(Event::Notice { message }));
        }
        let held = |(partition, node): &(u32, u32)| {
            memory::wait_unused(*node, TEARDOWN_PATIENCE);
            self.holds.left_by(*partition, &instance.name);
            self.holds.look(*partition, *node, TEARDOWN_PATIENCE)
        };
        let mut held = nodes.iter().map(|one| (one.0, held(one))).collect::<Vec<_>>().into_iter();
        let mut state = self.state.lock().expect("not poisoned");
        state.running.remove(&instance.name);
        state.ended.push_back((instance.name.clone(), Arc::clone(&instance.output)));
        if state.ended.len() > KEPT_OUTPUTS {
            state.ended.pop_front();
        }
        drop(state);
        let (name, partition) = (instance.name.clone(), instance.partitions.first().copied());
        let event = Event::Exited {
            instance: name,
            partition,
            reason: reason.clone(),
            held: held.next().and_then(|one| one.1),
        };
        self.outbox.send(FromAgent::Event(event));
        for (partition, why) in held.filter_map(|(partition, why)| Some((partition, why?))) {
            self.outbox.send(FromAgent::Event(Event::Held { partition, why }));
        }
        *instance.reason.lock().expect("not poisoned") = Some(reason);
        instance.ended.notify_all();
    }

    /// Ends an instance: SIGTERM to all its processes, then SIGKILL. Returns when all are gone.
    pub fn stop(&self, name: &str, grace: Duration) -> Result<ExitReason, Refusal> {
        let instance = self.find(name)?;
        if !grace.is_zero() {
            // What is frozen hears no SIGTERM; the group may have gone in this moment.
            let _ = instance.group.freeze(false);
            for pid in instance.group.processes() {
                // Gone already is as good.
                let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::TERM));
            }
            if let Some(reason) = instance.wait(grace) {
                return Ok(reason);
            }
        }
        // The group may have gone in this moment.
        let _ = instance.group.kill();
        let late = || {
            refusal(
                ErrorKind::TimedOut,
                format!("instance {name}: killed, but not gone after {KILL_PATIENCE:?}"),
            )
        };
        instance.wait(KILL_PATIENCE + KILL_PATIENCE).ok_or_else(late)
    }

    /// Stops all that runs in an instance, or lets it go on.
    pub fn freeze(&self, name: &str, frozen: bool) -> Result<(), Refusal> {
        self.find(name)?.group.freeze(frozen).map_err(failed("a control group"))
    }

    /// Ends all instances at once.
    pub fn stop_all(&self) {
        let all: Vec<_> = self.state.lock().expect("not poisoned").running.values().cloned().collect();
        all.iter().for_each(|instance| drop(instance.group.kill()));
        for instance in all {
            instance.wait(KILL_PATIENCE);
        }
    }

    pub fn list(&self) -> Vec<InstanceInfo> {
        let all: Vec<_> = self.state.lock().expect("not poisoned").running.values().cloned().collect();
        let info = |instance: &Arc<Instance>| InstanceInfo {
            instance: instance.name.clone(),
            partition: instance.partitions.first().copied(),
            more: instance.partitions.iter().skip(1).copied().collect(),
            pid: instance.pid,
            processes: instance.group.processes().len() as u32 - u32::from(instance.confined),
            age_ns: instance.started.elapsed().as_nanos() as u64,
        };
        let mut list: Vec<_> = all.iter().map(info).collect();
        list.sort_by(|a, b| a.instance.cmp(&b.instance));
        list
    }

    pub fn output(&self, name: &str) -> Result<Arc<Output>, Refusal> {
        let state = self.state.lock().expect("not poisoned");
        if let Some(instance) = state.running.get(name) {
            return Ok(Arc::clone(&instance.output));
        }
        // The latest, where a name was used again.
        let ended = state.ended.iter().rev().find(|(ended, _)| ended == name);
        ended.map(|(_, output)| Arc::clone(output)).ok_or_else(|| no_such(name))
    }

    /// Writes to an instance's standard input; waits while its pipe is full.
    pub fn input(&self, name: &str, text: &str, close: bool) -> Result<(), Refusal> {
        let instance = self.find(name)?;
        let mut input = instance.input.lock().expect("not poisoned");
        let closed = || refusal(ErrorKind::Failed, format!("instance {name}: its standard input is closed"));
        input.as_mut().ok_or_else(closed)?.write_all(text.as_bytes()).map_err(failed("standard input"))?;
        if close {
            *input = None;
        }
        Ok(())
    }

    /// The instance that is in a partition, or is being started there.
    pub fn user_of(&self, partition: u32) -> Option<String> {
        self.state.lock().expect("not poisoned").user_of(partition)
    }

    /// An instance that runs; one that is being started is waited for.
    fn find(&self, name: &str) -> Result<Arc<Instance>, Refusal> {
        let state = self.state.lock().expect("not poisoned");
        let state = self.settled.wait_while(state, |state| state.starting.contains_key(name));
        state.expect("not poisoned").running.get(name).cloned().ok_or_else(|| no_such(name))
    }

    /// Gives a reservation up.
    pub fn release(&self, name: &str) {
        self.state.lock().expect("not poisoned").starting.remove(name);
        self.settled.notify_all();
    }
}

impl State {
    fn user_of(&self, partition: u32) -> Option<String> {
        let running = self.running.values().map(|instance| (&instance.name, &instance.partitions));
        let mut all = running.chain(&self.starting);
        all.find(|(_, taken)| taken.contains(&partition)).map(|(name, _)| name.clone())
    }
}

impl Instance {
    /// Waits until it has ended.
    fn wait(&self, patience: Duration) -> Option<ExitReason> {
        let reason = self.reason.lock().expect("not poisoned");
        self.ended
            .wait_timeout_while(reason, patience, |reason| reason.is_none())
            .expect("not poisoned")
            .0
            .clone()
    }
}

/// An instance that runs, and what its watcher needs.
struct Begun {
    instance: Arc<Instance>,
    child: Child,
    reports: Option<Reports>,
    extensions: Vec<String>,
}

type Started = (Child, Option<Reports>, Vec<String>, Option<Listener>);

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
