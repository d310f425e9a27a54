//! All instances of the VM: their names, partitions and output. Each running instance has a thread that
//! supervises it: it waits for the instance's end, cleans up after it, and only then reports it to the host.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, waitpid};
use vm_protocol::{
    ErrorKind, Event, ExitReason, FromAgent, InstanceInfo, Layout, PartitionNumber, Refusal, Spawn,
    TakeSnapshot, Taken,
};

use crate::cgroup::KILL_PATIENCE;
use crate::held_partitions::{HeldPartitions, move_file_pages};
use crate::instance::{self, Allowance, Instance, STACK_BYTES, StartedInstance};
use crate::memory;
use crate::output::Output;
use crate::port::SendQueue;
use crate::refusal::{failed, no_such, refusal};
use crate::relay::Streams;
use crate::snapshots::Snapshots;

/// How many ended instances' output is kept.
const KEPT_OUTPUTS: usize = 64;
/// How long the kernel may take to tear down an ended instance's mounts, in the background; until then files
/// in them keep pages in use.
const TEARDOWN_PATIENCE: Duration = Duration::from_millis(500);

/// All instances.
pub struct Instances {
    state: Mutex<State>,
    /// Signalled when an instance was started, or failed to start.
    settled: Condvar,
    to_host: SendQueue,
    relay: Option<Arc<Streams>>,
    pub held: Arc<HeldPartitions>,
    pub snapshots: Snapshots,
}

/// The output of an instance's program, and of its extensions.
type Outputs = [Arc<Output>; 2];

#[derive(Default)]
struct State {
    running: HashMap<String, Arc<Instance>>,
    /// Instances being started, whose names and partitions are reserved.
    starting: HashMap<String, Vec<PartitionNumber>>,
    /// Names and output of those that have ended, the latest last.
    ended: VecDeque<(String, Outputs)>,
}

impl Instances {
    pub fn new(to_host: SendQueue, relay: Option<Arc<Streams>>) -> Arc<Instances> {
        let held = HeldPartitions::new(to_host.clone());
        let (state, settled) = (Mutex::default(), Condvar::new());
        Arc::new(Instances { state, settled, to_host, relay, held, snapshots: Snapshots::default() })
    }

    /// Starts an instance that was reserved; returns its first process and its extensions.
    pub fn spawn(
        self: &Arc<Self>,
        order: Spawn,
        allowance: Allowance,
    ) -> Result<(u32, Vec<String>), Refusal> {
        let (nodes, files_to) = (allowance.nodes.clone(), allowance.files_to);
        let outcome = instance::start(&order, allowance, self.relay.as_ref());
        let mut state = self.state.lock().expect("not poisoned");
        state.starting.remove(&order.instance);
        if let Ok(StartedInstance { instance, .. }) = &outcome {
            state.running.insert(order.instance, Arc::clone(instance));
        }
        drop(state);
        self.settled.notify_all();
        let mut started = outcome?;
        let (pid, extensions) = (started.instance.pid, std::mem::take(&mut started.extensions));
        let (all, instance) = (Arc::clone(self), Arc::clone(&started.instance));
        let supervise = move || all.supervise(started, &nodes, files_to);
        if let Err(error) = Builder::new().stack_size(STACK_BYTES).spawn(supervise) {
            self.give_up(&instance);
            return Err(failed("a thread")(error));
        }
        Ok((pid, extensions))
    }

    /// Kills an instance for which no supervising thread could be started; otherwise it would keep its
    /// partition for ever.
    fn give_up(&self, instance: &Instance) {
        let group = &instance.group;
        let removed = group
            .kill()
            .and_then(|()| group.wait_empty(KILL_PATIENCE))
            .and_then(|()| group.remove_within(KILL_PATIENCE));
        if let Err(error) = removed {
            eprintln!("vm-agent: instance {}: not all of it could be removed: {error}", instance.name);
        }
        let _ = Pid::from_raw(instance.pid as i32).map(|pid| waitpid(Some(pid), WaitOptions::empty()));
        self.state.lock().expect("not poisoned").running.remove(&instance.name);
        instance.set_ended(ExitReason::AgentLost);
    }

    /// Reserves an instance's name and, if it must be alone there, its partition. Requests about the instance
    /// wait until it has started.
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
        let taken = |number: &PartitionNumber| Some((*number, state.user_of(*number)?));
        if alone && let Some((partition, user)) = partitions.iter().find_map(taken) {
            return Err(refusal(
                ErrorKind::Busy,
                format!("partition {partition} is used by instance {user}"),
            ));
        }
        state.starting.insert(name.clone(), partitions);
        Ok(())
    }

    /// Waits for an instance's end, and reports it once nothing of the instance is left.
    fn supervise(&self, started: StartedInstance, nodes: &[(PartitionNumber, u32)], files_to: Option<u32>) {
        let StartedInstance { instance, child, reports, .. } = started;
        let (reason, all_ended) = instance.wait_and_clean_up(child, reports, |reason| {
            let instance = instance.name.clone();
            self.to_host.send(FromAgent::Event(Event::Ended { instance, reason }));
        });
        let group = &instance.group;
        if let Some(to) = files_to {
            group.reclaim();
            nodes.iter().for_each(|(_, node)| move_file_pages(*node, to));
        }
        if let Err(error) = all_ended.and_then(|()| group.remove_within(KILL_PATIENCE)) {
            let message = format!("instance {}: not all of it could be removed: {error}", instance.name);
            self.to_host.send(FromAgent::Event(Event::Notice { message }));
        }
        let held = |(partition, node): &(PartitionNumber, u32)| {
            memory::wait_unused(*node, TEARDOWN_PATIENCE);
            self.held.record_user(*partition, &instance.name);
            self.held.check(*partition, *node, TEARDOWN_PATIENCE)
        };
        let mut held = nodes.iter().map(|one| (one.0, held(one))).collect::<Vec<_>>().into_iter();
        let mut state = self.state.lock().expect("not poisoned");
        state.running.remove(&instance.name);
        state.ended.push_back((instance.name.clone(), outputs(&instance)));
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
        self.to_host.send(FromAgent::Event(event));
        for (partition, why) in held.filter_map(|(partition, why)| Some((partition, why?))) {
            self.to_host.send(FromAgent::Event(Event::Held { partition, why }));
        }
        instance.set_ended(reason);
    }

    /// Stops an instance: SIGTERM to all its processes, then SIGKILL. Returns when all have ended.
    pub fn stop(&self, name: &str, grace: Duration) -> Result<ExitReason, Refusal> {
        self.find(name)?.stop(grace)
    }

    /// Ends a function's program: SIGTERM, and the next time SIGKILL. Its extensions live on.
    pub fn terminate(&self, name: &str) -> Result<(), Refusal> {
        self.find(name)?.terminate()
    }

    /// Connects to a server inside a function, and opens a stream for the connection with the host's token.
    pub fn connect(&self, name: &str, port: u16, token: u32) -> Result<(), Refusal> {
        self.find(name)?.connect(port, token)
    }

    /// Takes an instance that waits, and keeps the snapshot.
    pub fn take_snapshot(&self, order: &TakeSnapshot, layout: &Layout) -> Result<Taken, Refusal> {
        let instance = self.find(&order.instance)?;
        self.snapshots.take(order, &instance, layout)
    }

    /// Freezes all processes of an instance, or thaws them.
    pub fn freeze(&self, name: &str, frozen: bool) -> Result<(), Refusal> {
        let instance = self.find(name)?;
        let group = &instance.group;
        if frozen { group.freeze() } else { group.thaw() }.map_err(failed("a control group"))
    }

    /// Kills all instances.
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

    /// The output of an instance's program, or of its extensions.
    pub fn output(&self, name: &str, of_extensions: bool) -> Result<Arc<Output>, Refusal> {
        let state = self.state.lock().expect("not poisoned");
        let running = state.running.get(name).map(|instance| outputs(instance));
        // The latest instance of that name.
        let ended = || state.ended.iter().rev().find(|(ended, _)| ended == name);
        let found = running.or_else(|| ended().map(|(_, outputs)| outputs.clone()));
        let [own, extensions] = found.ok_or_else(|| no_such(name))?;
        Ok(if of_extensions { extensions } else { own })
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
    pub fn user_of(&self, partition: PartitionNumber) -> Option<String> {
        self.state.lock().expect("not poisoned").user_of(partition)
    }

    /// A running instance; waits for it if it is being started.
    fn find(&self, name: &str) -> Result<Arc<Instance>, Refusal> {
        let state = self.state.lock().expect("not poisoned");
        let state = self.settled.wait_while(state, |state| state.starting.contains_key(name));
        state.expect("not poisoned").running.get(name).cloned().ok_or_else(|| no_such(name))
    }

    /// Cancels a reservation.
    pub fn release(&self, name: &str) {
        self.state.lock().expect("not poisoned").starting.remove(name);
        self.settled.notify_all();
    }
}

fn outputs(instance: &Instance) -> Outputs {
    [Arc::clone(&instance.output), Arc::clone(&instance.of_extensions)]
}

impl State {
    fn user_of(&self, partition: PartitionNumber) -> Option<String> {
        let running = self.running.values().map(|instance| (&instance.name, &instance.partitions));
        let mut all = running.chain(&self.starting);
        all.find(|(_, taken)| taken.contains(&partition)).map(|(name, _)| name.clone())
    }
}
