//! What the host knows about a VM: whether its agent answers, the state of each partition, and who runs where.
//!
//! News from QEMU and the agent is entered as it comes and never waits for anything but the lock. Operations enter what
//! they are about to do, and only then do it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use tracing::{info, warn};
use vm_protocol::{Agent, Event as AgentEvent, ExitReason};

use crate::base::error::Error;
use crate::model::partition::{Event, Partition, State};
use crate::model::report::GuestStatus;

/// How the last instances ended is kept for those who ask late.
const ENDED_KEPT: usize = 1024;

/// Whether the agent answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// Not yet, or not any more.
    Down(String),
    /// One has opened its port and has not been greeted.
    New,
    /// Yes.
    Up(Agent),
    /// QEMU has ended.
    Ended(String),
}

pub(crate) struct Known {
    pub(crate) line: Line,
    pub(crate) partitions: Vec<Partition>,
    /// Instances outside all partitions.
    pub(crate) outside: BTreeSet<String>,
    pub(crate) ended: VecDeque<(String, ExitReason)>,
}

/// The record of a VM.
pub(crate) struct Record {
    known: Mutex<Known>,
    changed: Condvar,
}

impl Record {
    pub(crate) fn new(partitions: u32) -> Record {
        let known = Known {
            line: Line::Down("it has not started yet".to_string()),
            partitions: (0..partitions).map(Partition::new).collect(),
            outside: BTreeSet::new(),
            ended: VecDeque::new(),
        };
        Record { known: Mutex::new(known), changed: Condvar::new() }
    }

    pub(crate) fn read(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no panic under this lock")
    }

    /// Changes what is known and tells all who wait.
    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        let result = change(&mut self.read());
        self.changed.notify_all();
        result
    }

    /// Waits until `look` finds what it looks for; `None` at the deadline.
    pub(crate) fn wait<T>(&self, deadline: Instant, mut look: impl FnMut(&Known) -> Option<T>) -> Option<T> {
        let mut known = self.read();
        loop {
            if let Some(found) = look(&known) {
                return Some(found);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            known = self.changed.wait_timeout(known, left).expect("no panic under this lock").0;
        }
    }

    /// Enters an event from the agent.
    pub(crate) fn agent_event(&self, event: AgentEvent) {
        match event {
            AgentEvent::Ready(agent) => self.write(|known| {
                match &known.line {
                    Line::Ended(_) => return,
                    Line::Up(last) if last.agent_id == agent.agent_id => return,
                    Line::Up(_) => known.lose_agent(),
                    _ => {}
                }
                known.line = Line::New;
            }),
            AgentEvent::Exited { instance, partition, reason, held } => self.write(|known| {
                let had = known.partitions_of(&instance);
                known.exited(&instance, reason);
                known.look_at(partition.filter(|number| had.contains(number)), held);
            }),
            AgentEvent::Held { partition, why } => {
                self.write(|known| known.look_at(Some(partition), Some(why)));
            }
            AgentEvent::Released { partition } => self.write(|known| known.look_at(Some(partition), None)),
            AgentEvent::Notice { message } => info!("guest: {message}"),
        }
    }

    /// An agent opened its port. The agent itself tells that as well, but on another line: whichever comes first.
    pub(crate) fn agent_came(&self) {
        self.write(|known| {
            if let Line::Down(_) = known.line {
                known.line = Line::New;
            }
        });
    }

    /// The agent closed its port: it died.
    pub(crate) fn agent_lost(&self) {
        self.write(|known| {
            if let Line::Up(_) | Line::New = known.line {
                known.lose_agent();
                known.line = Line::Down("its agent died and has not come back yet".to_string());
            }
        });
    }

    /// QEMU has ended, and all memory with it.
    pub(crate) fn ended(&self, why: String) {
        self.write(|known| {
            for index in 0..known.partitions.len() {
                if let Some(instance) = known.partitions[index].state.instance().map(str::to_string) {
                    known.keep_reason(instance, ExitReason::AgentLost);
                }
                known.enter(index as u32, Event::VmEnded);
            }
            known.lose_outside();
            known.line = Line::Ended(why);
        });
    }
}

impl Known {
    /// Fails unless the agent answers.
    pub(crate) fn require_guest(&self) -> Result<(), Error> {
        match &self.line {
            Line::Up(_) => Ok(()),
            Line::New => Err(Error::GuestDown("its agent has just started".to_string())),
            Line::Down(why) => Err(Error::GuestDown(why.clone())),
            Line::Ended(why) => Err(Error::Ended(why.clone())),
        }
    }

    pub(crate) fn guest_status(&self) -> GuestStatus {
        match &self.line {
            Line::Up(agent) => GuestStatus::Up { kernel: agent.kernel.clone() },
            Line::New => GuestStatus::Down { why: "its agent has just started".to_string() },
            Line::Down(why) => GuestStatus::Down { why: why.clone() },
            Line::Ended(why) => GuestStatus::Ended { why: why.clone() },
        }
    }

    /// The partition of that number.
    pub(crate) fn partition(&mut self, number: u32) -> Result<&mut Partition, Error> {
        let count = self.partitions.len() as u32;
        self.partitions.get_mut(number as usize).ok_or(Error::NoSuchPartition { partition: number, count })
    }

    /// Enters news about a partition, which cannot be refused.
    pub(crate) fn enter(&mut self, number: u32, event: Event) {
        let partition = &mut self.partitions[number as usize];
        if let Err(error) = partition.apply(event) {
            warn!("partition {number}: {error}");
        }
    }

    /// The partitions that an instance has.
    pub(crate) fn partitions_of(&self, instance: &str) -> Vec<u32> {
        let has = |partition: &&Partition| partition.state.instance() == Some(instance);
        self.partitions.iter().filter(has).map(|partition| partition.number).collect()
    }

    /// Whether an instance of that name runs or may still run.
    pub(crate) fn runs(&self, instance: &str) -> bool {
        self.outside.contains(instance) || !self.partitions_of(instance).is_empty()
    }

    pub(crate) fn exited(&mut self, instance: &str, reason: ExitReason) {
        let numbers = self.partitions_of(instance);
        if numbers.is_empty() && !self.outside.remove(instance) {
            return;
        }
        numbers.into_iter().for_each(|number| self.enter(number, Event::Exited(instance)));
        self.keep_reason(instance.to_string(), reason);
    }

    /// Enters what the agent found in a partition that nobody uses.
    pub(crate) fn look_at(&mut self, number: Option<u32>, held: Option<String>) {
        let Some(number) = number.filter(|number| (*number as usize) < self.partitions.len()) else { return };
        self.enter(number, held.as_deref().map_or(Event::Released, Event::Held));
    }

    /// How the last instance of that name ended.
    pub(crate) fn reason(&self, instance: &str) -> Option<ExitReason> {
        self.ended.iter().rev().find(|(name, _)| name == instance).map(|(_, reason)| reason.clone())
    }

    fn keep_reason(&mut self, instance: String, reason: ExitReason) {
        self.ended.push_back((instance, reason));
        if self.ended.len() > ENDED_KEPT {
            self.ended.pop_front();
        }
    }

    fn lose_agent(&mut self) {
        for index in 0..self.partitions.len() {
            if let State::InUse { instance } = &self.partitions[index].state {
                self.keep_reason(instance.clone(), ExitReason::AgentLost);
            }
            self.enter(index as u32, Event::AgentLost);
        }
        self.lose_outside();
    }

    fn lose_outside(&mut self) {
        for instance in std::mem::take(&mut self.outside).into_iter() {
            self.keep_reason(instance, ExitReason::AgentLost);
        }
    }
}
