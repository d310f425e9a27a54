//! An instance's life in a partition: spawn, stop, wait. The host names the partition; what an unclear answer leaves
//! behind is for the keeper to find out.

use std::time::{Duration, Instant};

use vm_protocol::{Answer, ErrorKind, ExitReason, Mode, Operation, Spawn};

use crate::base::error::Error;
use crate::model::partition::{Event, State};
use crate::model::partitions::{AskError, Machine, MemorySource, Partitions, elapsed_ns};
use crate::model::record::Known;
use crate::model::report::Spawned;

impl<M: Machine> Partitions<M> {
    /// Starts an instance.
    pub(crate) fn spawn(&self, memory: MemorySource, mut spawn: Spawn) -> Result<Spawned, Error> {
        check_instance_name(&spawn.instance)?;
        if !spawn.more.is_empty() && self.layout.mode == Mode::Hotmem {
            let line =
                "mode hotmem: an instance has one partition, for the kernel gives an address space one";
            return Err(Error::Setting(line.to_string()));
        }
        let name = spawn.instance.clone();
        let started = Instant::now();
        let claim = |known: &mut Known| {
            known.require_guest()?;
            if known.runs(&name) {
                return Err(Error::InstanceExists(name.clone()));
            }
            Ok(())
        };
        let mut guards = Vec::new();
        match memory {
            MemorySource::Boot => self.record.write(|known| {
                claim(known)?;
                known.outside.insert(name.clone());
                Ok(())
            })?,
            memory => guards.push(self.begin(|known| {
                claim(known)?;
                let ready = known
                    .partitions
                    .iter()
                    .find(|partition| partition.state == State::Ready && !partition.driven);
                let number = match memory {
                    MemorySource::Partition(number) => number,
                    _ => ready.ok_or(Error::NoneReady)?.number,
                };
                known.partition(number)?;
                Ok((number, Event::Spawn(name.as_str())))
            })?),
        }
        spawn.partition = guards.first().map(|guard| guard.number);
        for &number in &spawn.more {
            let guard =
                self.begin(|known| known.partition(number).map(|_| (number, Event::Spawn(name.as_str()))));
            guards.push(
                guard.inspect_err(|_| {
                    guards.iter().for_each(|guard| guard.enter(Event::SpawnRefused(&name)))
                })?,
            );
        }
        let (partition, more) = (spawn.partition, spawn.more.clone());
        let outcome = self.machine.ask(Operation::Spawn(spawn), self.patience);
        let enter = |event: Event, runs: bool| match &guards[..] {
            [] if !runs => self.record.write(|known| {
                known.outside.remove(&name);
            }),
            guards => guards.iter().for_each(|guard| guard.enter(event.clone())),
        };
        match outcome {
            Ok(Answer::Spawned { pid, extensions }) => {
                let total_ns = elapsed_ns(started);
                Ok(Spawned { instance: name, partition, more, pid, extensions, total_ns })
            }
            Ok(other) => {
                enter(Event::SpawnUnsure(&name), true);
                Err(Error::Failed(format!("the agent's answer to spawn is {other:?}")))
            }
            Err(AskError::Refused(refusal)) => {
                enter(Event::SpawnRefused(&name), false);
                match &guards[..] {
                    [] => Err(Error::Refused(refusal)),
                    [guard] => {
                        guard.enter_if_held(&refusal);
                        Err(Error::refused(guard.number, refusal))
                    }
                    // It does not say which of them is held.
                    guards => {
                        guards.iter().for_each(|guard| self.look_at(guard.number));
                        Err(Error::Refused(refusal))
                    }
                }
            }
            Err(AskError::Unsendable(why)) => {
                enter(Event::SpawnRefused(&name), false);
                Err(Error::Failed(why))
            }
            // The agent's death, or the VM's, was entered by those who saw it, or soon will be.
            Err(AskError::Lost) => {
                enter(Event::SpawnUnsure(&name), true);
                self.record.read().require_guest()?;
                Err(Error::AgentLost(format!("start {name}")))
            }
            Err(AskError::TimedOut) => {
                enter(Event::SpawnUnsure(&name), true);
                let consequence = "; if it was started, it is being stopped";
                Err(Error::TimedOut { what: format!("starting {name}"), after: self.patience, consequence })
            }
        }
    }

    /// Ends an instance; returns when all its processes are gone.
    pub(crate) fn stop(&self, instance: &str, grace: Duration) -> Result<ExitReason, Error> {
        let numbers = {
            let known = self.record.read();
            known.require_guest()?;
            if !known.runs(instance) {
                return Err(Error::NoSuchInstance(instance.to_string()));
            }
            known.partitions_of(instance)
        };
        let number = numbers.first().copied();
        let guard = match number {
            Some(number) => Some(self.begin(|_| Ok((number, Event::Stop(instance))))?),
            None => None,
        };
        let op = Operation::Stop { instance: instance.to_string(), grace_ms: grace.as_millis() as u64 };
        let mut seen_to = true;
        let reason = match self.ask_until(op, Instant::now() + grace + self.patience, "stop an instance") {
            Ok(Answer::Stopped { reason }) => reason,
            Ok(other) => return Err(Error::Failed(format!("the agent's answer to stop is {other:?}"))),
            // It ended by itself, or with the agent.
            Err(error) if error.is_refusal(ErrorKind::NoSuchInstance) => {
                seen_to = false;
                self.record.read().reason(instance).unwrap_or(ExitReason::AgentLost)
            }
            Err(error) => return Err(error),
        };
        // The event that it exited came before the answer. If it did not, its agent died; and then only this partition
        // may be touched: by now another instance may have the name.
        self.record.write(|known| match number {
            Some(number) if known.partitions[number as usize].state.instance() == Some(instance) => {
                known.exited(instance, reason.clone());
            }
            Some(_) => {}
            None => {
                known.outside.remove(instance);
            }
        });
        // Nobody has said how it left its partitions.
        if !seen_to {
            numbers.into_iter().for_each(|number| self.look_at(number));
        }
        drop(guard);
        Ok(reason)
    }

    /// Waits until an instance has ended.
    pub(crate) fn wait(&self, instance: &str, deadline: Instant) -> Result<Option<ExitReason>, Error> {
        let over = |known: &Known| match known.runs(instance) {
            true => None,
            false => Some(known.reason(instance).ok_or(Error::NoSuchInstance(instance.to_string()))),
        };
        self.record.wait(deadline, over).transpose()
    }
}

fn check_instance_name(name: &str) -> Result<(), Error> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=64).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.') {
        return Ok(());
    }
    Err(Error::Setting(format!(
        "an instance's name has 1 to 64 letters, digits, '-', '_' and '.', unlike {name:?}"
    )))
}
