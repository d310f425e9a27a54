//! Instances: spawn, stop, wait. The host chooses the partition. After an ambiguous answer the recovery
//! thread finds out whether the instance runs.

use std::time::{Duration, Instant};

use vm_protocol::{Answer, ErrorKind, ExitReason, Operation, Spawn};

use crate::base::error::Error;
use crate::model::hypervisor::{AskError, Hypervisor};
use crate::model::partition::{Event, State};
use crate::model::partitions::{MemorySource, Partitions, elapsed_ns};
use crate::model::record::VmState;
use crate::model::report::{End, Spawned};

impl<H: Hypervisor + ?Sized> Partitions<H> {
    /// Starts an instance.
    pub(crate) fn spawn(&self, memory: MemorySource, mut spawn: Spawn) -> Result<Spawned, Error> {
        check_instance_name(&spawn.instance)?;
        if !spawn.more.is_empty() && self.layout.mode.is_kernels() {
            let line = format!(
                "mode {}: an instance has one partition, for the kernel gives an address space one",
                self.layout.mode.name()
            );
            return Err(Error::Setting(line));
        }
        let name = spawn.instance.clone();
        let started = Instant::now();
        let claim = |state: &mut VmState| {
            state.require_guest()?;
            if state.runs(&name) {
                return Err(Error::InstanceExists(name.clone()));
            }
            state.ends.remove(&name);
            Ok(())
        };
        let mut guards = Vec::new();
        match memory {
            MemorySource::Boot => self.record.write(|state| {
                claim(state)?;
                state.outside.insert(name.clone());
                Ok(())
            })?,
            memory => guards.push(self.begin(|state| {
                claim(state)?;
                let ready = state
                    .partitions
                    .iter()
                    .find(|partition| partition.state == State::Ready && !partition.driven);
                let number = match memory {
                    MemorySource::Partition(number) => number,
                    _ => ready.ok_or(Error::NoneReady)?.number,
                };
                state.partition(number)?;
                Ok((number, Event::Spawn(name.as_str())))
            })?),
        }
        spawn.partition = guards.first().map(|guard| guard.number);
        for &number in &spawn.more {
            let guard =
                self.begin(|state| state.partition(number).map(|_| (number, Event::Spawn(name.as_str()))));
            guards.push(
                guard.inspect_err(|_| {
                    guards.iter().for_each(|guard| guard.apply(Event::SpawnRefused(&name)))
                })?,
            );
        }
        let (partition, more) = (spawn.partition, spawn.more.clone());
        let outcome = self.hypervisor.ask_agent(Operation::Spawn(spawn), self.patience);
        let apply = |event: Event, runs: bool| match &guards[..] {
            [] if !runs => self.record.write(|state| {
                state.outside.remove(&name);
            }),
            guards => guards.iter().for_each(|guard| guard.apply(event.clone())),
        };
        match outcome {
            Ok(Answer::Spawned { pid, extensions }) => {
                let total_ns = elapsed_ns(started);
                Ok(Spawned { instance: name, partition, more, pid, extensions, total_ns })
            }
            Ok(other) => {
                apply(Event::SpawnUnsure(&name), true);
                Err(Error::Failed(format!("the agent's answer to spawn is {other:?}")))
            }
            Err(AskError::Refused(refusal)) => {
                apply(Event::SpawnRefused(&name), false);
                match &guards[..] {
                    [] => Err(Error::Refused(refusal)),
                    [guard] => {
                        guard.apply_if_held(&refusal);
                        Err(Error::refused(guard.number, refusal))
                    }
                    // The refusal does not name the partition that is held.
                    guards => {
                        guards.iter().for_each(|guard| self.refresh_held(guard.number));
                        Err(Error::Refused(refusal))
                    }
                }
            }
            Err(AskError::Unsendable(why)) => {
                apply(Event::SpawnRefused(&name), false);
                Err(Error::Failed(why))
            }
            // The thread that noticed the end of the agent or the VM has recorded it, or is about to.
            Err(AskError::Lost) => {
                apply(Event::SpawnUnsure(&name), true);
                self.record.read().require_guest()?;
                Err(Error::AgentLost(format!("start {name}")))
            }
            Err(AskError::TimedOut) => {
                apply(Event::SpawnUnsure(&name), true);
                let consequence = "; if it was started, it is being stopped";
                Err(Error::TimedOut { what: format!("starting {name}"), after: self.patience, consequence })
            }
        }
    }

    /// Stops an instance; returns when all its processes have ended.
    pub(crate) fn stop(&self, instance: &str, grace: Duration) -> Result<ExitReason, Error> {
        let numbers = {
            let state = self.record.read();
            state.require_guest()?;
            if !state.runs(instance) {
                return Err(Error::NoSuchInstance(instance.to_string()));
            }
            state.partitions_of(instance)
        };
        let number = numbers.first().copied();
        let guard = match number {
            Some(number) => Some(self.begin(|_| Ok((number, Event::Stop(instance))))?),
            None => None,
        };
        let op = Operation::Stop { instance: instance.to_string(), grace_ms: grace.as_millis() as u64 };
        let mut stopped_by_agent = true;
        let reason = match self.ask_until(op, Instant::now() + grace + self.patience, "stop an instance") {
            Ok(Answer::Stopped { reason }) => reason,
            Ok(other) => return Err(Error::Failed(format!("the agent's answer to stop is {other:?}"))),
            // The instance ended by itself, or with the agent.
            Err(error) if error.is_refusal(ErrorKind::NoSuchInstance) => {
                stopped_by_agent = false;
                self.record.read().reason(instance).unwrap_or(ExitReason::AgentLost)
            }
            Err(error) => return Err(error),
        };
        // The agent sends the Exited event before this answer. If none came, that agent died; then only this
        // partition may be changed, for another instance may have the name by now.
        self.record.write(|state| match number {
            Some(number) if state.partitions[number.index()].state.instance() == Some(instance) => {
                state.exited(instance, reason.clone());
            }
            Some(_) => {}
            None => {
                state.outside.remove(instance);
            }
        });
        // No event reported whether its partitions are empty.
        if !stopped_by_agent {
            numbers.into_iter().for_each(|number| self.refresh_held(number));
        }
        drop(guard);
        Ok(reason)
    }

    /// Waits until an instance has ended.
    pub(crate) fn wait(&self, instance: &str, deadline: Instant) -> Result<Option<ExitReason>, Error> {
        let ended = |state: &VmState| match state.runs(instance) {
            true => None,
            false => Some(state.reason(instance).ok_or(Error::NoSuchInstance(instance.to_string()))),
        };
        self.record.wait(deadline, ended).transpose()
    }

    /// Waits for the next end of an instance's processes, after so many.
    pub(crate) fn next_end(
        &self,
        instance: &str,
        seen: usize,
        deadline: Instant,
    ) -> Result<Option<End>, Error> {
        let next = |state: &VmState| match state.ends.get(instance).and_then(|ends| ends.get(seen)) {
            Some(reason) => Some(Ok(End::Process(reason.clone()))),
            None if state.runs(instance) => None,
            None => {
                let unknown = || Error::NoSuchInstance(instance.to_string());
                Some(state.reason(instance).map(End::All).ok_or_else(unknown))
            }
        };
        self.record.wait(deadline, next).transpose()
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
