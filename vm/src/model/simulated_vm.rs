//! A simulated VM for tests. It has the true state: the size of each device, the memory that is online, the
//! instances in each partition. A fault makes one request fail: not carried out, carried out without an
//! answer or too late, or the agent dies before or after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vm_protocol::{Agent, Answer, ErrorKind, Event, ExitReason, Operation, PartitionNumber, Refusal};

use crate::base::error::Error;
use crate::model::device::Device;
use crate::model::hypervisor::{AskError, Hypervisor};
use crate::model::record::Record;

/// The size of each partition.
pub(crate) const BYTES: u64 = 128 << 20;

/// One request that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Refused,
    NotDone,
    NoAnswer,
    Late,
    DiesBefore,
    DiesAfter,
    /// The guest does not change the size of the device.
    Stuck,
    /// QEMU refuses.
    Monitor,
}

#[derive(Default)]
pub(crate) struct Truth {
    pub(crate) alive: bool,
    /// QEMU has ended.
    pub(crate) ended: bool,
    agent_id: u64,
    pub(crate) requested: BTreeMap<PartitionNumber, u64>,
    pub(crate) size: BTreeMap<PartitionNumber, u64>,
    pub(crate) online: BTreeMap<PartitionNumber, u64>,
    /// With their partitions.
    pub(crate) instances: BTreeMap<String, Vec<PartitionNumber>>,
    /// Partitions whose instance has passed pages on (through a pipe, say), and partitions held by such
    /// pages.
    pub(crate) leaking: BTreeSet<PartitionNumber>,
    pub(crate) held: BTreeSet<PartitionNumber>,
    /// The partition that the one device of mode `ranges` plugs or unplugs next.
    named: Option<PartitionNumber>,
    late: Vec<Operation>,
    pub(crate) faults: Vec<Fault>,
    /// What the host did and must never do.
    pub(crate) wrong: Vec<String>,
}

pub(crate) struct SimulatedVm {
    pub(crate) truth: Mutex<Truth>,
    pub(crate) record: Arc<Record>,
}

impl Truth {
    fn users(&self, partition: PartitionNumber) -> usize {
        self.instances.values().filter(|used| used.contains(&partition)).count()
    }

    fn agent(&self) -> Agent {
        Agent {
            version: 1,
            agent_id: self.agent_id,
            kernel: "6.12".to_string(),
            hotmem: true,
            boot_ns: 0,
            snapshots: false,
        }
    }

    fn require_qemu(&self) -> Result<(), Error> {
        if self.ended { Err(Error::Ended("QEMU closed its monitor".to_string())) } else { Ok(()) }
    }

    fn refuse(kind: ErrorKind) -> Result<Answer, AskError> {
        Err(AskError::Refused(Refusal { kind, message: format!("{kind:?}") }))
    }

    /// Carries out a request as the agent would; returns the answer and the events that the agent sends
    /// before it.
    fn carry_out(&mut self, op: &Operation) -> (Result<Answer, AskError>, Vec<Event>) {
        let mut events = Vec::new();
        let online = |bytes: u64, held: Option<String>| {
            Ok(Answer::Confirmed { online_bytes: bytes, waited_ns: 0, held })
        };
        let answer = match op {
            Operation::Hello { .. } => Ok(Answer::Hello(self.agent())),
            Operation::PlugConfirm { partition: Some(number), bytes, .. } => {
                let size = self.size.get(number).copied().unwrap_or(0);
                self.online.insert(*number, size);
                let held = if self.users(*number) == 0 { self.why_held(*number) } else { None };
                if size >= *bytes { online(size, held) } else { Truth::refuse(ErrorKind::TimedOut) }
            }
            Operation::UnplugConfirm { partition: Some(number), bytes, .. } => {
                let size = self.size.get(number).copied().unwrap_or(0);
                self.online.insert(*number, size);
                if size <= *bytes { online(size, None) } else { Truth::refuse(ErrorKind::TimedOut) }
            }
            Operation::PrepareUnplug { partition } if self.held.contains(partition) => {
                Truth::refuse(ErrorKind::Held)
            }
            Operation::Spawn(spawn) if spawn.partitions().iter().any(|number| self.held.contains(number)) => {
                Truth::refuse(ErrorKind::Held)
            }
            Operation::PrepareUnplug { partition } if self.users(*partition) > 0 => {
                Truth::refuse(ErrorKind::Busy)
            }
            Operation::NameRange { partition } => {
                self.named = Some(*partition);
                Ok(Answer::Done)
            }
            Operation::PrepareUnplug { .. } => Ok(Answer::Prepared { dropped_pages: 0 }),
            Operation::Spawn(spawn) => {
                let numbers = spawn.partitions();
                for number in &numbers {
                    if self.users(*number) > 0 || self.online.get(number).copied().unwrap_or(0) != BYTES {
                        self.wrong.push(format!("spawn in partition {number}, which is used or not online"));
                    }
                }
                self.instances.insert(spawn.instance.clone(), numbers);
                Ok(Answer::Spawned { pid: 1, extensions: Vec::new() })
            }
            Operation::Stop { instance, .. } => match self.instances.remove(instance) {
                None => Truth::refuse(ErrorKind::NoSuchInstance),
                Some(numbers) => {
                    let reason = ExitReason::Signal { signal: 15 };
                    events.extend(self.exited(instance, &numbers, reason.clone()));
                    Ok(Answer::Stopped { reason })
                }
            },
            _ => Ok(Answer::Done),
        };
        (answer, events)
    }

    /// The events that the agent sends when an instance has ended.
    fn exited(&mut self, instance: &str, numbers: &[PartitionNumber], reason: ExitReason) -> Vec<Event> {
        let mut held =
            numbers.iter().map(|number| (*number, self.leave(*number))).collect::<Vec<_>>().into_iter();
        let (first, why) = held.next().expect("the simulated VM spawns in partitions");
        let exited =
            Event::Exited { instance: instance.to_string(), partition: Some(first), reason, held: why };
        let more = held.filter_map(|(partition, why)| Some(Event::Held { partition, why: why? }));
        [exited].into_iter().chain(more).collect()
    }

    /// The instance of a partition has ended: pages that it has passed on stay in use.
    fn leave(&mut self, partition: PartitionNumber) -> Option<String> {
        if self.leaking.remove(&partition) {
            self.held.insert(partition);
        }
        self.why_held(partition)
    }

    fn why_held(&self, partition: PartitionNumber) -> Option<String> {
        self.held.contains(&partition).then(|| "1 page".to_string())
    }

    /// What a new size of the one device, of which the shared partition has [`BYTES`], means for the
    /// partition that was named: its new size. None: it keeps that.
    fn of_one_device(&mut self, bytes: u64) -> Option<(PartitionNumber, u64)> {
        let requested = BYTES + self.requested.values().sum::<u64>();
        let number = self.named.expect("a partition is named before the device is resized");
        let has_bytes = self.requested.get(&number).copied().unwrap_or(0);
        let new_bytes = (has_bytes + bytes).checked_sub(requested);
        if new_bytes.is_none_or(|new_bytes| new_bytes > BYTES) {
            let line =
                format!("partition {number} has {has_bytes}, the device {requested}, then {bytes} bytes");
            self.wrong.push(line);
            return None;
        }
        // QEMU tells the guest nothing if the size is the same.
        new_bytes.filter(|new_bytes| *new_bytes != has_bytes).map(|new_bytes| (number, new_bytes))
    }

    fn die(&mut self) {
        self.alive = false;
        self.late.clear();
    }
}

impl SimulatedVm {
    /// Kills QEMU: first requests have no answer any more, then the host learns why.
    pub(crate) fn qemu_dies(&self, meanwhile: Duration) {
        self.truth.lock().unwrap().ended = true;
        std::thread::sleep(meanwhile);
        self.record.agent_lost();
        std::thread::sleep(meanwhile);
        self.record.ended("killed".to_string());
    }

    fn deliver(&self, events: Vec<Event>) {
        for event in events {
            self.record.agent_event(event);
        }
    }

    pub(crate) fn agent_dies(&self) {
        let mut truth = self.truth.lock().unwrap();
        if truth.alive {
            truth.die();
            // Under the lock, so that events are recorded in the order in which they happen.
            self.record.agent_lost();
        }
    }

    /// Starts a new agent, which kills the instances that the last one left and sends Ready.
    pub(crate) fn agent_returns(&self) {
        let mut truth = self.truth.lock().unwrap();
        if !truth.alive {
            for number in std::mem::take(&mut truth.instances).into_values().flatten() {
                truth.leave(number);
            }
            truth.alive = true;
            truth.agent_id += 1;
            self.record.agent_event(Event::Ready(truth.agent()));
        }
    }

    /// The instance in a partition passes pages of it on to another process.
    pub(crate) fn leak_pages(&self, partition: PartitionNumber) {
        let mut truth = self.truth.lock().unwrap();
        if truth.users(partition) > 0 {
            truth.leaking.insert(partition);
        }
    }

    /// The process that has these pages frees them.
    pub(crate) fn free_leaked_pages(&self, partition: PartitionNumber) {
        let mut truth = self.truth.lock().unwrap();
        truth.leaking.remove(&partition);
        if truth.held.remove(&partition) && truth.alive && partition.0.is_multiple_of(2) {
            // Half of the time the event is lost.
            self.record.agent_event(Event::Released { partition });
        }
    }

    pub(crate) fn exits(&self, instance: &str) {
        let mut truth = self.truth.lock().unwrap();
        if truth.alive
            && let Some(numbers) = truth.instances.remove(instance)
        {
            let events = truth.exited(instance, &numbers, ExitReason::Code { code: 0 });
            self.deliver(events);
        }
    }
}

impl Hypervisor for SimulatedVm {
    fn request_size(&self, device: Device, bytes: u64) -> Result<(), Error> {
        let mut truth = self.truth.lock().unwrap();
        truth.require_qemu()?;
        let (number, bytes) = match device {
            Device::Partition(number) => (number, bytes),
            Device::All => match truth.of_one_device(bytes) {
                Some(change) => change,
                None => return Ok(()),
            },
            Device::Shared => panic!("the simulated VM has no shared partition"),
        };
        if bytes == 0 && (truth.users(number) > 0 || truth.held.contains(&number)) {
            truth.wrong.push(format!("unplug of partition {number}, which is used or held"));
        }
        match truth.faults.pop() {
            Some(Fault::Monitor) => return Err(Error::Failed("QEMU refuses".to_string())),
            Some(Fault::Stuck) => {}
            fault => {
                truth.faults.extend(fault);
                truth.size.insert(number, bytes);
            }
        }
        truth.requested.insert(number, bytes);
        Ok(())
    }

    fn plugged_size(&self, device: Device) -> Result<u64, Error> {
        let truth = self.truth.lock().unwrap();
        truth.require_qemu()?;
        Ok(match device {
            Device::Partition(number) => truth.size.get(&number).copied().unwrap_or(0),
            Device::All => BYTES + truth.size.values().sum::<u64>(),
            Device::Shared => panic!("the simulated VM has no shared partition"),
        })
    }

    fn ask_agent(&self, op: Operation, _: Duration) -> Result<Answer, AskError> {
        let mut truth = self.truth.lock().unwrap();
        if truth.ended {
            return Err(AskError::Lost);
        }
        if !truth.alive {
            return Err(AskError::TimedOut);
        }
        let mut events = Vec::new();
        for late in std::mem::take(&mut truth.late) {
            events.extend(truth.carry_out(&late).1);
        }
        let fault = match truth.faults.last() {
            Some(Fault::Monitor | Fault::Stuck) | None => None,
            Some(_) => truth.faults.pop(),
        };
        let answer = match fault {
            None | Some(Fault::Monitor | Fault::Stuck) => {
                let (answer, more) = truth.carry_out(&op);
                events.extend(more);
                answer
            }
            Some(Fault::Refused) => Truth::refuse(ErrorKind::Failed),
            Some(Fault::NotDone) => Err(AskError::TimedOut),
            Some(Fault::NoAnswer) => {
                events.extend(truth.carry_out(&op).1);
                Err(AskError::TimedOut)
            }
            Some(Fault::Late) => {
                truth.late.push(op);
                Err(AskError::TimedOut)
            }
            Some(Fault::DiesBefore) => {
                truth.die();
                Err(AskError::Lost)
            }
            Some(Fault::DiesAfter) => {
                events.extend(truth.carry_out(&op).1);
                truth.die();
                Err(AskError::Lost)
            }
        };
        self.deliver(events);
        if answer == Err(AskError::Lost) {
            self.record.agent_lost();
        }
        answer
    }

    fn pid(&self) -> u32 {
        0
    }

    fn kill(&self) {}

    fn require_host_memory(&self, _: &str, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn resident_bytes(&self) -> u64 {
        0
    }
}
