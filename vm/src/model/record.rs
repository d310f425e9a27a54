//! The host's record of a VM: whether its agent answers, the state of each partition, and the instance in
//! each.
//!
//! The threads that read from the hypervisor and from the agent record events as they arrive, and wait for
//! nothing but the lock. Operations record what they are about to do before they do it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use tracing::{info, warn};
use vm_protocol::{Agent, Event as AgentEvent, ExitReason, Layout, PartitionNumber};

use crate::base::error::Error;
use crate::model::partition::{Event, Partition, State};
use crate::model::report::GuestStatus;

/// How many ended instances' exit reasons are kept, for calls of `wait` that come late.
const ENDED_KEPT: usize = 1024;

/// How many processes of an instance are recorded to have ended: its program, and at most ten extensions. A
/// guest is not trusted.
const ENDS_KEPT: usize = 16;

/// The state of the connection to the guest's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AgentLink {
    /// No agent has connected yet, or the last one died; with the reason.
    Down(String),
    /// An agent has opened its port, and the host has not said hello to it.
    New,
    /// The agent answers.
    Up(Agent),
    /// The hypervisor has ended.
    Ended(String),
}

/// The state of a VM as the host knows it.
pub(crate) struct VmState {
    pub(crate) agent: AgentLink,
    pub(crate) partitions: Vec<Partition>,
    /// Instances outside all partitions.
    pub(crate) outside: BTreeSet<String>,
    pub(crate) ended: VecDeque<(String, ExitReason)>,
    /// By instance, how its program and its extensions have ended, in this order.
    pub(crate) ends: BTreeMap<String, Vec<ExitReason>>,
}

/// A [`VmState`] under a lock, with a condition variable for its changes.
pub(crate) struct Record {
    state: Mutex<VmState>,
    changed: Condvar,
}

impl Record {
    pub(crate) fn new(layout: &Layout) -> Record {
        let state = VmState {
            agent: AgentLink::Down("it has not started yet".to_string()),
            partitions: layout.numbers().map(Partition::new).collect(),
            outside: BTreeSet::new(),
            ended: VecDeque::new(),
            ends: BTreeMap::new(),
        };
        Record { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(crate) fn read(&self) -> MutexGuard<'_, VmState> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Changes the state and wakes the threads in [`Record::wait`].
    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut VmState) -> T) -> T {
        let result = change(&mut self.read());
        self.changed.notify_all();
        result
    }

    /// Waits until `look` returns a value; `None` at the deadline.
    pub(crate) fn wait<T>(
        &self,
        deadline: Instant,
        mut look: impl FnMut(&VmState) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.read();
        loop {
            if let Some(found) = look(&state) {
                return Some(found);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            state = self.changed.wait_timeout(state, left).expect("no panic under this lock").0;
        }
    }

    /// Why the hypervisor has ended, once it has closed its connections; waits for its end.
    pub(crate) fn why_it_ended(&self, deadline: Instant) -> Option<Error> {
        self.wait(deadline, |state| match &state.agent {
            AgentLink::Ended(why) => Some(Error::Ended(why.clone())),
            _ => None,
        })
    }

    /// Records an event from the agent.
    pub(crate) fn agent_event(&self, event: AgentEvent) {
        match event {
            AgentEvent::Ready(agent) => self.write(|state| {
                match &state.agent {
                    AgentLink::Ended(_) => return,
                    AgentLink::Up(last) if last.agent_id == agent.agent_id => return,
                    AgentLink::Up(_) => state.lose_agent(),
                    _ => {}
                }
                state.agent = AgentLink::New;
            }),
            AgentEvent::Ended { instance, reason } => {
                self.write(|state| state.process_ended(instance, reason))
            }
            AgentEvent::Exited { instance, partition, reason, held } => self.write(|state| {
                let had = state.partitions_of(&instance);
                state.exited(&instance, reason);
                state.set_held(partition.filter(|number| had.contains(number)), held);
            }),
            AgentEvent::Held { partition, why } => {
                self.write(|state| state.set_held(Some(partition), Some(why)));
            }
            AgentEvent::Released { partition } => self.write(|state| state.set_held(Some(partition), None)),
            AgentEvent::Notice { message } => info!("guest: {message}"),
        }
    }

    /// The hypervisor reports that an agent opened its port. The agent itself sends Ready, over that port;
    /// either may come first.
    pub(crate) fn agent_connected(&self) {
        self.write(|state| {
            if let AgentLink::Down(_) = state.agent {
                state.agent = AgentLink::New;
            }
        });
    }

    /// The hypervisor reports that the agent's port was closed: the agent died.
    pub(crate) fn agent_lost(&self) {
        self.write(|state| {
            if let AgentLink::Up(_) | AgentLink::New = state.agent {
                state.lose_agent();
                state.agent = AgentLink::Down("its agent died and has not come back yet".to_string());
            }
        });
    }

    /// The hypervisor has ended, and with it all memory of the guest.
    pub(crate) fn ended(&self, why: String) {
        self.write(|state| {
            for index in 0..state.partitions.len() {
                if let Some(instance) = state.partitions[index].state.instance().map(str::to_string) {
                    state.keep_reason(instance, ExitReason::AgentLost);
                }
                state.apply(state.partitions[index].number, Event::VmEnded);
            }
            state.lose_outside();
            state.agent = AgentLink::Ended(why);
        });
    }
}

impl VmState {
    /// Fails unless the agent answers.
    pub(crate) fn require_guest(&self) -> Result<(), Error> {
        match &self.agent {
            AgentLink::Up(_) => Ok(()),
            AgentLink::New => Err(Error::GuestDown("its agent has just started".to_string())),
            AgentLink::Down(why) => Err(Error::GuestDown(why.clone())),
            AgentLink::Ended(why) => Err(Error::Ended(why.clone())),
        }
    }

    pub(crate) fn guest_status(&self) -> GuestStatus {
        match &self.agent {
            AgentLink::Up(agent) => GuestStatus::Up { kernel: agent.kernel.clone() },
            AgentLink::New => GuestStatus::Down { why: "its agent has just started".to_string() },
            AgentLink::Down(why) => GuestStatus::Down { why: why.clone() },
            AgentLink::Ended(why) => GuestStatus::Ended { why: why.clone() },
        }
    }

    /// The partition of that number.
    pub(crate) fn partition(&mut self, number: PartitionNumber) -> Result<&mut Partition, Error> {
        let count = self.partitions.len() as u32;
        self.partitions.get_mut(number.index()).ok_or(Error::NoSuchPartition { partition: number, count })
    }

    /// Applies an event that cannot be refused to a partition.
    pub(crate) fn apply(&mut self, number: PartitionNumber, event: Event) {
        let partition = &mut self.partitions[number.index()];
        if let Err(error) = partition.apply(event) {
            warn!("partition {number}: {error}");
        }
    }

    /// The partitions that an instance has.
    pub(crate) fn partitions_of(&self, instance: &str) -> Vec<PartitionNumber> {
        let has = |partition: &&Partition| partition.state.instance() == Some(instance);
        self.partitions.iter().filter(has).map(|partition| partition.number).collect()
    }

    /// Whether an instance of that name runs, or may run.
    pub(crate) fn runs(&self, instance: &str) -> bool {
        self.outside.contains(instance) || !self.partitions_of(instance).is_empty()
    }

    pub(crate) fn exited(&mut self, instance: &str, reason: ExitReason) {
        let numbers = self.partitions_of(instance);
        if numbers.is_empty() && !self.outside.remove(instance) {
            return;
        }
        numbers.into_iter().for_each(|number| self.apply(number, Event::Exited(instance)));
        self.keep_reason(instance.to_string(), reason);
    }

    fn process_ended(&mut self, instance: String, reason: ExitReason) {
        if self.runs(&instance) {
            let ends = self.ends.entry(instance).or_default();
            if ends.len() < ENDS_KEPT {
                ends.push(reason);
            }
        }
    }

    /// Records whether pages of an unused partition are still in use, and why.
    pub(crate) fn set_held(&mut self, number: Option<PartitionNumber>, held: Option<String>) {
        let Some(number) = number.filter(|number| number.index() < self.partitions.len()) else { return };
        self.apply(number, held.as_deref().map_or(Event::Released, Event::Held));
    }

    /// How the last instance of that name ended.
    pub(crate) fn reason(&self, instance: &str) -> Option<ExitReason> {
        self.ended.iter().rev().find(|(name, _)| name == instance).map(|(_, reason)| reason.clone())
    }

    fn keep_reason(&mut self, instance: String, reason: ExitReason) {
        self.ended.push_back((instance, reason));
        if self.ended.len() > ENDED_KEPT
            && let Some((forgotten, _)) = self.ended.pop_front()
        {
            self.ends.remove(&forgotten);
        }
    }

    fn lose_agent(&mut self) {
        for index in 0..self.partitions.len() {
            if let State::InUse { instance } = &self.partitions[index].state {
                self.keep_reason(instance.clone(), ExitReason::AgentLost);
            }
            self.apply(self.partitions[index].number, Event::AgentLost);
        }
        self.lose_outside();
    }

    fn lose_outside(&mut self) {
        for instance in std::mem::take(&mut self.outside).into_iter() {
            self.keep_reason(instance, ExitReason::AgentLost);
        }
    }
}
