//! The operations on a VM's partitions: plug, spawn, stop, unplug (HotMem §4.1), and what becomes of a partition when
//! one of them fails.
//!
//! The rule that keeps a partition from leaking: whoever is at work on one holds a [`Turn`]; when the turn ends and the
//! partition is still on its way (plugging, draining, unplugging), it is abandoned, and the keeper goes on with it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vm_protocol::{Answer, ErrorKind, ExitReason, Layout, Mode, Operation, Refusal, Spawn};

use crate::book::{Book, Line, Page};
use crate::error::Error;
use crate::guest::AskError;
use crate::partition::{Event, State};
use crate::qemu::Device;
use crate::report::{Plugged, Spawned, Unplugged};

/// What operations need of QEMU, the agent and the host.
pub(crate) trait Machine: Send + Sync {
    /// Asks the guest, through QEMU, to have so much of a device plugged.
    fn request(&self, device: Device, bytes: u64) -> Result<(), Error>;
    /// How much of a device is plugged.
    fn size(&self, device: Device) -> Result<u64, Error>;
    /// Asks the agent.
    fn ask(&self, op: Operation, timeout: Duration) -> Result<Answer, AskError>;
    /// Refuses what the host has no memory for.
    fn require_memory(&self, what: &str, bytes: u64) -> Result<(), Error>;
    /// QEMU's resident memory.
    fn resident_bytes(&self) -> u64;
}

/// Where an instance gets its memory from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// This partition.
    Partition(u32),
    /// The first partition that is ready.
    Any,
    /// Boot memory: for tools.
    Outside,
}

/// The partitions of one VM.
pub(crate) struct Pool<M> {
    pub(crate) machine: M,
    pub(crate) book: Arc<Book>,
    pub(crate) layout: Layout,
    pub(crate) patience: Duration,
    limit_bytes: u64,
    /// Mode `plain`: what of the one device each partition counts for, and whose turn it is to change it.
    plain: Mutex<Vec<bool>>,
}

/// Somebody is at work on a partition, until this is dropped.
struct Turn<'a> {
    book: &'a Book,
    number: u32,
    /// Somebody was at work on it before and left it on its way: it may not be whole.
    resumed: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.book.write(|page| page.partitions[self.number as usize].driven = false);
    }
}

impl Turn<'_> {
    fn enter(&self, event: Event) {
        self.book.write(|page| page.enter(self.number, event));
    }
}

impl<M: Machine> Pool<M> {
    pub(crate) fn new(
        machine: M,
        book: Arc<Book>,
        layout: Layout,
        limit_bytes: u64,
        patience: Duration,
    ) -> Pool<M> {
        let plain = Mutex::new(vec![false; layout.partitions as usize]);
        Pool { machine, book, layout, patience, limit_bytes, plain }
    }

    /// Gives a partition memory: the one of that number, or the first absent one.
    pub(crate) fn plug(&self, number: Option<u32>) -> Result<Plugged, Error> {
        let bytes = self.layout.partition_bytes;
        let turn = self.begin(|page| {
            page.require_guest()?;
            let absent = || page.partitions.iter().find(|partition| partition.state == State::Absent);
            let number = match number {
                Some(number) => number,
                None => absent()
                    .map(|partition| partition.number)
                    .ok_or(Error::AllPlugged(self.layout.partitions))?,
            };
            let has =
                page.partitions.iter().filter(|partition| partition.state != State::Absent).count() as u64;
            let has_bytes = self.layout.shared_bytes + has * bytes;
            if page.partition(number)?.state == State::Absent && has_bytes + bytes > self.limit_bytes {
                return Err(Error::Limit { limit_bytes: self.limit_bytes, has_bytes });
            }
            Ok((number, Event::Plug))
        })?;
        let number = turn.number;
        let deadline = Instant::now() + self.patience;
        let outcome = match self.layout.mode {
            Mode::Static => Ok((0, 0)),
            _ => self
                .machine
                .require_memory(&format!("partition {number}"), bytes)
                .and_then(|()| self.grow(number, deadline)),
        };
        match outcome {
            Ok((device_ns, total_ns)) => {
                turn.enter(Event::Plugged);
                Ok(Plugged { partition: number, device_ns, total_ns })
            }
            Err(error) => {
                turn.enter(Event::PlugFailed);
                if self.shrink(number, Instant::now() + self.patience).is_ok() {
                    turn.enter(Event::Unplugged);
                }
                Err(error)
            }
        }
    }

    /// Takes an empty partition's memory back. A used one is refused before anybody is asked.
    pub(crate) fn unplug(&self, number: u32) -> Result<Unplugged, Error> {
        let turn = self.begin(|page| {
            page.require_guest()?;
            page.partition(number)?;
            Ok((number, Event::Unplug))
        })?;
        let deadline = Instant::now() + self.patience;
        let host_before_bytes = self.machine.resident_bytes();
        let started = Instant::now();
        if self.has_nodes() {
            match self.ask_until(
                Operation::PrepareUnplug { partition: number },
                deadline,
                "check a partition",
            ) {
                Ok(_) => {}
                Err(error @ Error::Refused(_)) => {
                    if !turn.resumed || self.give_back(number).is_ok() {
                        turn.enter(Event::UnplugGivenUp);
                    }
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        let prepare_ns = elapsed_ns(started);
        match self.shrink(number, deadline) {
            Ok(device_ns) => {
                let total_ns = elapsed_ns(started);
                let host_after_bytes = self.machine.resident_bytes();
                turn.enter(Event::Unplugged);
                Ok(Unplugged {
                    partition: number,
                    prepare_ns,
                    device_ns,
                    total_ns,
                    host_before_bytes,
                    host_after_bytes,
                })
            }
            Err(error) if is_timeout(&error) => {
                let back = self.give_back(number);
                if back.is_ok() {
                    turn.enter(Event::UnplugGivenUp);
                }
                let consequence = match back {
                    Ok(()) => "; it was given up and the partition is whole again",
                    Err(_) => "; it is tried again in the background",
                };
                Err(Error::TimedOut {
                    what: format!("unplugging partition {number}"),
                    after: self.patience,
                    consequence,
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Starts an instance.
    pub(crate) fn spawn(&self, place: Place, mut spawn: Spawn) -> Result<Spawned, Error> {
        check_instance_name(&spawn.instance)?;
        let name = spawn.instance.clone();
        let started = Instant::now();
        let claim = |page: &mut Page| {
            page.require_guest()?;
            if page.runs(&name) {
                return Err(Error::InstanceExists(name.clone()));
            }
            Ok(())
        };
        let turn = match place {
            Place::Outside => {
                self.book.write(|page| {
                    claim(page)?;
                    page.outside.insert(name.clone());
                    Ok(())
                })?;
                None
            }
            place => Some(self.begin(|page| {
                claim(page)?;
                let ready = page
                    .partitions
                    .iter()
                    .find(|partition| partition.state == State::Ready && !partition.driven);
                let number = match place {
                    Place::Partition(number) => number,
                    _ => ready.ok_or(Error::NoneReady)?.number,
                };
                page.partition(number)?;
                Ok((number, Event::Spawn(name.as_str())))
            })?),
        };
        spawn.partition = turn.as_ref().map(|turn| turn.number);
        let partition = spawn.partition;
        let outcome = self.machine.ask(Operation::Spawn(spawn), self.patience);
        let enter = |event: Event, runs: bool| match &turn {
            Some(turn) => turn.enter(event),
            None if !runs => self.book.write(|page| {
                page.outside.remove(&name);
            }),
            None => {}
        };
        match outcome {
            Ok(Answer::Spawned { pid }) => {
                Ok(Spawned { instance: name, partition, pid, total_ns: elapsed_ns(started) })
            }
            Ok(other) => {
                enter(Event::SpawnUnsure(&name), true);
                Err(Error::Failed(format!("the agent's answer to spawn is {other:?}")))
            }
            Err(AskError::Refused(refusal)) => {
                enter(Event::SpawnRefused(&name), false);
                Err(Error::Refused(refusal))
            }
            Err(AskError::Unsendable(why)) => {
                enter(Event::SpawnRefused(&name), false);
                Err(Error::Failed(why))
            }
            // The agent's death, or the VM's, was entered by those who saw it, or soon will be.
            Err(AskError::Lost) => {
                enter(Event::SpawnUnsure(&name), true);
                self.book.read().require_guest()?;
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
        let number = {
            let page = self.book.read();
            page.require_guest()?;
            if !page.runs(instance) {
                return Err(Error::NoSuchInstance(instance.to_string()));
            }
            page.partition_of(instance)
        };
        let turn = match number {
            Some(number) => Some(self.begin(|_| Ok((number, Event::Stop(instance))))?),
            None => None,
        };
        let op = Operation::Stop { instance: instance.to_string(), grace_ms: grace.as_millis() as u64 };
        let reason = match self.ask_until(op, Instant::now() + grace + self.patience, "stop an instance") {
            Ok(Answer::Stopped { reason }) => reason,
            Ok(other) => return Err(Error::Failed(format!("the agent's answer to stop is {other:?}"))),
            // It ended by itself, or with the agent.
            Err(error) if error.is_refusal(ErrorKind::NoSuchInstance) => {
                self.book.read().reason(instance).unwrap_or(ExitReason::AgentLost)
            }
            Err(error) => return Err(error),
        };
        // The event that it exited came before the answer. If it did not, its agent died; and then only this partition
        // may be touched: by now another instance may have the name.
        self.book.write(|page| match number {
            Some(number) if page.partitions[number as usize].state.instance() == Some(instance) => {
                page.exited(instance, reason);
            }
            Some(_) => {}
            None => {
                page.outside.remove(instance);
            }
        });
        drop(turn);
        Ok(reason)
    }

    /// Waits until an instance has ended.
    pub(crate) fn wait(&self, instance: &str, deadline: Instant) -> Result<Option<ExitReason>, Error> {
        let over = |page: &Page| match page.runs(instance) {
            true => None,
            false => Some(page.reason(instance).ok_or(Error::NoSuchInstance(instance.to_string()))),
        };
        self.book.wait(deadline, over).transpose()
    }

    /// Asks the agent; when it dies, asks its successor. Only for requests that can be made twice.
    pub(crate) fn ask_until(&self, op: Operation, deadline: Instant, what: &str) -> Result<Answer, Error> {
        loop {
            let up = self.book.wait(deadline, |page| match page.line {
                Line::Up(_) | Line::Ended(_) => Some(page.require_guest()),
                _ => None,
            });
            let Some(up) = up else {
                return self.book.read().require_guest().and(Err(self.timed_out(what)));
            };
            up?;
            let left = deadline.saturating_duration_since(Instant::now());
            match self.machine.ask(op.clone(), left) {
                Ok(answer) => return Ok(answer),
                Err(AskError::Refused(refusal)) => return Err(Error::Refused(refusal)),
                Err(AskError::Unsendable(why)) => return Err(Error::Failed(why)),
                Err(AskError::TimedOut) => return Err(self.timed_out(what)),
                // Those who saw the agent go enter that at any moment.
                Err(AskError::Lost) => std::thread::sleep(Duration::from_millis(10)),
            }
            if Instant::now() >= deadline {
                return Err(self.timed_out(what));
            }
        }
    }

    /// Whether partitions are NUMA nodes.
    pub(crate) fn has_nodes(&self) -> bool {
        matches!(self.layout.mode, Mode::Nodes | Mode::Hotmem)
    }

    fn timed_out(&self, what: &str) -> Error {
        Error::TimedOut {
            what: format!("the guest's agent, asked to {what},"),
            after: self.patience,
            consequence: "",
        }
    }

    /// Enters what is about to be done to a partition and takes the turn.
    fn begin<'e>(
        &self,
        decide: impl Fn(&mut Page) -> Result<(u32, Event<'e>), Error>,
    ) -> Result<Turn<'_>, Error> {
        loop {
            let turn = self.book.write(|page| {
                let (number, event) = decide(page)?;
                let partition = page.partition(number)?;
                let mut next = partition.clone();
                next.apply(event)?;
                if partition.driven && matches!(partition.state, State::Ready | State::Absent) {
                    return Ok(None);
                }
                if partition.driven {
                    return Err(Error::Moving { partition: number, doing: partition.state.doing() });
                }
                let resumed = partition.is_abandoned();
                next.driven = true;
                *partition = next;
                Ok(Some(Turn { book: &self.book, number, resumed }))
            })?;
            match turn {
                Some(turn) => return Ok(turn),
                // Whoever brought it there is about to end the turn.
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Plugs a partition whole. Returns the time until QEMU had it plugged, and until the agent had it online.
    fn grow(&self, number: u32, deadline: Instant) -> Result<(u64, u64), Error> {
        if self.has_nodes() {
            return self.plug_device(
                Device::Partition(number),
                Some(number),
                self.layout.partition_bytes,
                deadline,
            );
        }
        let mut parts = self.plain.lock().expect("no panic under this lock");
        parts[number as usize] = true;
        self.plug_device(Device::All, None, self.plain_bytes(&parts), deadline)
    }

    /// Plugs a device up to `bytes`.
    pub(crate) fn plug_device(
        &self,
        device: Device,
        partition: Option<u32>,
        bytes: u64,
        deadline: Instant,
    ) -> Result<(u64, u64), Error> {
        let started = Instant::now();
        self.machine.request(device, bytes)?;
        self.wait_for_size(device, bytes, deadline)?;
        let device_ns = elapsed_ns(started);
        let op = Operation::PlugConfirm { partition, bytes, timeout_ms: left_ms(deadline) };
        self.ask_until(op, deadline, "bring memory online")?;
        Ok((device_ns, elapsed_ns(started)))
    }

    /// Unplugs a partition. Returns the time until QEMU had it back.
    fn shrink(&self, number: u32, deadline: Instant) -> Result<u64, Error> {
        match self.layout.mode {
            Mode::Static => Ok(0),
            Mode::Plain => {
                let mut parts = self.plain.lock().expect("no panic under this lock");
                parts[number as usize] = false;
                self.unplug_device(Device::All, None, self.plain_bytes(&parts), deadline)
            }
            _ => self.unplug_device(Device::Partition(number), Some(number), 0, deadline),
        }
    }

    fn unplug_device(
        &self,
        device: Device,
        partition: Option<u32>,
        bytes: u64,
        deadline: Instant,
    ) -> Result<u64, Error> {
        let started = Instant::now();
        self.machine.request(device, bytes)?;
        self.wait_for_size(device, bytes, deadline)?;
        let device_ns = elapsed_ns(started);
        let op = Operation::UnplugConfirm { partition, bytes, timeout_ms: left_ms(deadline) };
        self.ask_until(op, deadline, "take memory offline")?;
        Ok(device_ns)
    }

    /// The guest does not give a partition back: it gets all of it again.
    fn give_back(&self, number: u32) -> Result<(), Error> {
        let deadline = Instant::now() + self.patience;
        self.grow(number, deadline)?;
        if self.has_nodes() {
            self.ask_until(Operation::CancelUnplug { partition: number }, deadline, "open a partition")?;
        }
        Ok(())
    }

    fn plain_bytes(&self, parts: &[bool]) -> u64 {
        let plugged = parts.iter().filter(|part| **part).count() as u64;
        self.layout.shared_bytes + plugged * self.layout.partition_bytes
    }

    /// QEMU tells a device's size once a second at most, so it is asked.
    fn wait_for_size(&self, device: Device, bytes: u64, deadline: Instant) -> Result<(), Error> {
        let mut pause = Duration::from_micros(500);
        while self.machine.size(device)? != bytes {
            if Instant::now() >= deadline {
                let what = format!("the guest, asked to bring {} to {} MiB,", device.id(), bytes >> 20);
                return Err(Error::TimedOut { what, after: self.patience, consequence: "" });
            }
            std::thread::sleep(pause);
            pause = (pause + pause / 8).min(Duration::from_millis(10));
        }
        Ok(())
    }
}

fn is_timeout(error: &Error) -> bool {
    matches!(error, Error::TimedOut { .. } | Error::Refused(Refusal { kind: ErrorKind::TimedOut, .. }))
}

fn elapsed_ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

fn left_ms(deadline: Instant) -> u64 {
    deadline.saturating_duration_since(Instant::now()).as_millis() as u64
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
