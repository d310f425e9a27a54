//! The recovery thread finishes operations that a failure has interrupted. It greets each new agent, stops
//! instances that may still run in draining partitions, and unplugs partitions whose plug or unplug was
//! abandoned, until it succeeds.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use vm_protocol::{Answer, ErrorKind, Operation, PartitionNumber, Refusal, VERSION};

use crate::base::error::Error;
use crate::model::hypervisor::{AskError, Hypervisor};
use crate::model::partition::{Partition, State};
use crate::model::partitions::Partitions;
use crate::model::record::{AgentLink, Record, VmState};

/// Between two attempts that fail.
const PAUSE: Duration = if cfg!(test) { Duration::from_millis(2) } else { Duration::from_secs(1) };

/// The thread's main loop, until the VM has ended or `partitions` is dropped.
pub(crate) fn run<H: Hypervisor + ?Sized>(record: &Arc<Record>, partitions: &Weak<Partitions<H>>) {
    loop {
        let work = |state: &VmState| match &state.agent {
            AgentLink::Ended(_) => Some(None),
            AgentLink::New => Some(Some(Work::Greet)),
            AgentLink::Up(_) => abandoned(state).map(|all| Some(Work::Abandoned(all))),
            AgentLink::Down(_) => None,
        };
        let found = record.wait(Instant::now() + PAUSE, work);
        let Some(partitions) = partitions.upgrade() else { return };
        match found {
            None => partitions.refresh_all_held(),
            Some(None) => return,
            Some(Some(work)) => {
                if let Err(error) = partitions.recover(work) {
                    warn!("{error}");
                    drop(partitions);
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
}

/// What the thread has to do.
pub(crate) enum Work {
    /// A new agent has started: say hello to it.
    Greet,
    /// Partitions in transition on which no thread operates.
    Abandoned(Vec<(PartitionNumber, State)>),
}

fn abandoned(state: &VmState) -> Option<Vec<(PartitionNumber, State)>> {
    let all: Vec<_> = state
        .partitions
        .iter()
        .filter(|partition| partition.is_abandoned())
        .map(|partition| (partition.number, partition.state.clone()))
        .collect();
    (!all.is_empty()).then_some(all)
}

impl<H: Hypervisor + ?Sized> Partitions<H> {
    pub(crate) fn recover(&self, work: Work) -> Result<(), Error> {
        match work {
            Work::Greet => self.greet(),
            // In parallel: a partition that is stuck must not delay the others.
            Work::Abandoned(all) => std::thread::scope(|scope| {
                let workers: Vec<_> = all
                    .iter()
                    .map(|(number, state)| scope.spawn(move || self.finish(*number, state)))
                    .collect();
                workers.into_iter().try_for_each(|worker| worker.join().expect("recovery does not panic"))
            }),
        }
    }

    /// Asks the agent about each held partition: its Released event may have come before the host knew of the
    /// hold.
    fn refresh_all_held(&self) {
        let is_held =
            |partition: &&Partition| matches!(partition.state, State::Held { .. }) && !partition.driven;
        let held: Vec<_> =
            self.record.read().partitions.iter().filter(is_held).map(|partition| partition.number).collect();
        for number in held {
            // Only a release is recorded: the count in this answer may be older than a Released event.
            if let Some(None) = self.why_held(number) {
                self.record.write(|state| state.set_held(Some(number), None));
            }
        }
    }

    /// Records whether an unused partition is empty, if the agent answers.
    pub(crate) fn refresh_held(&self, number: PartitionNumber) {
        if let Some(held) = self.why_held(number) {
            self.record.write(|state| state.set_held(Some(number), held));
        }
    }

    /// Why an unused partition is not empty: `Some(None)` if it is empty, `None` if the agent does not
    /// answer.
    fn why_held(&self, number: PartitionNumber) -> Option<Option<String>> {
        let (bytes, timeout_ms) = (self.layout.bytes_of(number), 0);
        let op = Operation::PlugConfirm { partition: Some(number), bytes, timeout_ms };
        if !self.layout.mode.has_nodes() {
            return None;
        }
        match self.hypervisor.ask_agent(op, self.patience) {
            Ok(Answer::Confirmed { held, .. }) => Some(held),
            _ => None,
        }
    }

    fn finish(&self, number: PartitionNumber, state: &State) -> Result<(), Error> {
        let outcome = match state {
            State::Draining { instance } => self.stop(instance, Duration::ZERO).map(drop),
            State::Plugging | State::Unplugging => self.unplug(number).map(drop),
            _ => Ok(()),
        };
        match outcome {
            // Another thread was faster, or the partition is used after all.
            Err(
                Error::Moving { .. }
                | Error::NoSuchInstance(_)
                | Error::Absent(_)
                | Error::Refused(_)
                | Error::Held { .. },
            ) => Ok(()),
            other => other,
        }
    }

    /// Sends a new agent the VM's layout and the partitions that are plugged.
    pub(crate) fn greet(&self) -> Result<(), Error> {
        let hello = Operation::Hello { version: VERSION, layout: self.layout.clone() };
        let mut requests = vec![hello];
        if self.layout.mode.has_nodes() {
            let timeout_ms = self.patience.as_millis() as u64;
            let state = self.record.read();
            let settled = state.partitions.iter().filter(|partition| {
                !matches!(partition.state, State::Absent | State::Plugging | State::Unplugging)
            });
            requests.extend(settled.map(|partition| Operation::PlugConfirm {
                partition: Some(partition.number),
                bytes: self.layout.bytes_of(partition.number),
                timeout_ms,
            }));
        }
        let mut greeted = None;
        for request in requests {
            let greeting = matches!(request, Operation::Hello { .. });
            let about = match request {
                Operation::PlugConfirm { partition, .. } => partition,
                _ => None,
            };
            match self.hypervisor.ask_agent(request, self.patience) {
                Ok(Answer::Hello(agent)) => greeted = Some(agent),
                Ok(Answer::Confirmed { held, .. }) => self.record.write(|state| state.set_held(about, held)),
                Ok(_) => {}
                // A partition that the guest does not confirm must not keep the others from being used.
                Err(AskError::Refused(refusal)) if !greeting => warn!("{}", refusal.message),
                Err(AskError::Refused(refusal)) => return Err(Error::Refused(refusal)),
                Err(error) => {
                    return Err(Error::GuestDown(format!("its agent does not answer hello ({error:?})")));
                }
            }
        }
        let agent =
            greeted.ok_or_else(|| Error::Failed("the agent gave another answer to hello".to_string()))?;
        if self.layout.mode.is_kernels() && !agent.hotmem {
            let message = format!(
                "mode {} needs Mayfly's kernel, the guest runs {}: mayfly vm image --kernel hotmem",
                self.layout.mode.name(),
                agent.kernel
            );
            return Err(Error::Refused(Refusal { kind: ErrorKind::WrongKernel, message }));
        }
        self.record.write(|state| {
            if state.agent == AgentLink::New {
                info!(kernel = agent.kernel, "the guest's agent answers");
                state.agent = AgentLink::Up(agent);
            }
        });
        Ok(())
    }
}
