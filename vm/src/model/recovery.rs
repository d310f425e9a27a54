//! The thread that goes on with what was left half done: it greets each new agent, empties partitions whose instance
//! may be gone, and gives back those that nobody wants any more, until they are.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use vm_protocol::{Answer, ErrorKind, Mode, Operation, Refusal, VERSION};

use crate::base::error::Error;
use crate::model::partition::{Partition, State};
use crate::model::partitions::{AskError, Machine, Partitions};
use crate::model::record::{Known, Line, Record};

/// Between two attempts at what does not work.
const PAUSE: Duration = if cfg!(test) { Duration::from_millis(2) } else { Duration::from_secs(1) };

/// Works until the VM has ended or `partitions` is dropped.
pub(crate) fn keep<M: Machine>(record: &Arc<Record>, partitions: &Weak<Partitions<M>>) {
    loop {
        let work = |known: &Known| match &known.line {
            Line::Ended(_) => Some(None),
            Line::New => Some(Some(Work::Greet)),
            Line::Up(_) => abandoned(known).map(|all| Some(Work::Abandoned(all))),
            Line::Down(_) => None,
        };
        let found = record.wait(Instant::now() + PAUSE, work);
        let Some(partitions) = partitions.upgrade() else { return };
        match found {
            None => partitions.look_at_held(),
            Some(None) => return,
            Some(Some(work)) => {
                if let Err(error) = partitions.keep_one(work) {
                    warn!("{error}");
                    drop(partitions);
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
}

/// What there is to do.
pub(crate) enum Work {
    /// An agent has started.
    Greet,
    /// Partitions on which nobody is at work.
    Abandoned(Vec<(u32, State)>),
}

fn abandoned(known: &Known) -> Option<Vec<(u32, State)>> {
    let all: Vec<_> = known
        .partitions
        .iter()
        .filter(|partition| partition.is_abandoned())
        .map(|partition| (partition.number, partition.state.clone()))
        .collect();
    (!all.is_empty()).then_some(all)
}

impl<M: Machine> Partitions<M> {
    /// Does what there is to do.
    pub(crate) fn keep_one(&self, work: Work) -> Result<(), Error> {
        match work {
            Work::Greet => self.greet(),
            // Side by side: one that is stuck must not hold up the others.
            Work::Abandoned(all) => std::thread::scope(|scope| {
                let workers: Vec<_> = all
                    .iter()
                    .map(|(number, state)| scope.spawn(move || self.go_on(*number, state)))
                    .collect();
                workers
                    .into_iter()
                    .try_for_each(|worker| worker.join().expect("the keeper's work does not panic"))
            }),
        }
    }

    /// Asks whether what is held still is: the agent tells that, but perhaps before the host knew that it is held.
    fn look_at_held(&self) {
        let is_held =
            |partition: &&Partition| matches!(partition.state, State::Held { .. }) && !partition.driven;
        let held: Vec<_> =
            self.record.read().partitions.iter().filter(is_held).map(|partition| partition.number).collect();
        for number in held {
            // Only that it is over. That it is not is known, and what the agent counted may be older than its word that it is.
            if let Some(None) = self.why_held(number) {
                self.record.write(|known| known.look_at(Some(number), None));
            }
        }
    }

    /// Enters whether a partition that nobody uses is empty, as far as the agent answers.
    pub(crate) fn look_at(&self, number: u32) {
        if let Some(held) = self.why_held(number) {
            self.record.write(|known| known.look_at(Some(number), held));
        }
    }

    /// Why a partition that nobody uses is not empty, if it is not; `None` where the agent does not answer.
    fn why_held(&self, number: u32) -> Option<Option<String>> {
        let (bytes, timeout_ms) = (self.layout.bytes_of(number), 0);
        let op = Operation::PlugConfirm { partition: Some(number), bytes, timeout_ms };
        if !self.has_nodes() {
            return None;
        }
        match self.machine.ask(op, self.patience) {
            Ok(Answer::Confirmed { held, .. }) => Some(held),
            _ => None,
        }
    }

    fn go_on(&self, number: u32, state: &State) -> Result<(), Error> {
        let outcome = match state {
            State::Draining { instance } => self.stop(instance, Duration::ZERO).map(drop),
            State::Plugging | State::Unplugging => self.unplug(number).map(drop),
            _ => Ok(()),
        };
        match outcome {
            // Somebody else was faster, or it turned out to be used after all.
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

    /// Tells a new agent what the VM is, and which partitions are plugged.
    pub(crate) fn greet(&self) -> Result<(), Error> {
        let hello = Operation::Hello { version: VERSION, layout: self.layout.clone() };
        let mut requests = vec![hello];
        if self.has_nodes() {
            let timeout_ms = self.patience.as_millis() as u64;
            let known = self.record.read();
            let settled = known.partitions.iter().filter(|partition| {
                !matches!(partition.state, State::Absent | State::Plugging | State::Unplugging)
            });
            requests.extend(settled.map(|partition| Operation::PlugConfirm {
                partition: Some(partition.number),
                bytes: self.layout.bytes_of(partition.number),
                timeout_ms,
            }));
        }
        let mut met = None;
        for request in requests {
            let greeting = matches!(request, Operation::Hello { .. });
            let about = match request {
                Operation::PlugConfirm { partition, .. } => partition,
                _ => None,
            };
            match self.machine.ask(request, self.patience) {
                Ok(Answer::Hello(agent)) => met = Some(agent),
                Ok(Answer::Confirmed { held, .. }) => self.record.write(|known| known.look_at(about, held)),
                Ok(_) => {}
                // One partition that is not as it should be must not keep the others from being used.
                Err(AskError::Refused(refusal)) if !greeting => warn!("{}", refusal.message),
                Err(AskError::Refused(refusal)) => return Err(Error::Refused(refusal)),
                Err(error) => {
                    return Err(Error::GuestDown(format!("its agent does not greet back ({error:?})")));
                }
            }
        }
        let agent = met.ok_or_else(|| Error::Failed("the agent's answer to hello is another".to_string()))?;
        if self.layout.mode == Mode::Hotmem && !agent.hotmem {
            let message = format!(
                "mode hotmem needs Mayfly's kernel, the guest runs {}: mayfly vm image --kernel hotmem",
                agent.kernel
            );
            return Err(Error::Refused(Refusal { kind: ErrorKind::WrongKernel, message }));
        }
        self.record.write(|known| {
            if known.line == Line::New {
                info!(kernel = agent.kernel, "the guest's agent answers");
                known.line = Line::Up(agent);
            }
        });
        Ok(())
    }
}
