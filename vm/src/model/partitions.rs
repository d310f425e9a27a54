//! The partitions of a VM, and who works on one. The operations are in [`crate::model::plug`] (plug, unplug) and
//! [`crate::model::instances`] (spawn, stop, wait).
//!
//! The rule that keeps a partition from leaking: whoever is at work on one holds a [`PartitionGuard`]; when that is dropped and the
//! partition is still on its way (plugging, draining, unplugging), it is abandoned, and the keeper goes on with it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vm_protocol::{Answer, ErrorKind, Layout, Mode, Operation, Refusal};

use crate::base::error::Error;
use crate::model::device::Device;
use crate::model::partition::{Event, State};
use crate::model::record::{Known, Line, Record};

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

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskError {
    /// The agent said no.
    Refused(Refusal),
    /// The agent died, or the VM ended, before it answered.
    Lost,
    /// It did not answer in time. It may have done what it was asked.
    TimedOut,
    /// The request cannot be sent.
    Unsendable(String),
}

/// Where an instance gets its memory from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemorySource {
    /// This partition.
    Partition(u32),
    /// The first partition that is ready.
    FirstReady,
    /// Boot memory: for tools.
    Boot,
}

/// The partitions of one VM.
pub(crate) struct Partitions<M> {
    pub(crate) machine: M,
    pub(crate) record: Arc<Record>,
    pub(crate) layout: Layout,
    pub(crate) patience: Duration,
    pub(crate) limit_bytes: u64,
    /// Mode `plain`: what of the one device each partition counts for, and whose turn it is to change it.
    pub(crate) plain: Mutex<Vec<bool>>,
}

/// Somebody is at work on a partition, until this is dropped.
pub(crate) struct PartitionGuard<'a> {
    record: &'a Record,
    pub(crate) number: u32,
    /// Somebody was at work on it before and left it on its way: it may not be whole.
    pub(crate) resumed: bool,
}

impl Drop for PartitionGuard<'_> {
    fn drop(&mut self) {
        self.record.write(|known| known.partitions[self.number as usize].driven = false);
    }
}

impl PartitionGuard<'_> {
    pub(crate) fn enter(&self, event: Event) {
        self.record.write(|known| known.enter(self.number, event));
    }

    /// Enters that the partition is held, if that is why the agent refused something.
    pub(crate) fn enter_if_held(&self, refusal: &Refusal) {
        if refusal.kind == ErrorKind::Held {
            self.enter(Event::Held(&refusal.message));
        }
    }
}

impl<M: Machine> Partitions<M> {
    pub(crate) fn new(
        machine: M,
        record: Arc<Record>,
        layout: Layout,
        limit_bytes: u64,
        patience: Duration,
    ) -> Partitions<M> {
        let plain = Mutex::new(vec![false; layout.partition_bytes.len()]);
        Partitions { machine, record, layout, patience, limit_bytes, plain }
    }

    /// Asks the agent; when it dies, asks its successor. Only for requests that can be made twice.
    pub(crate) fn ask_until(&self, op: Operation, deadline: Instant, what: &str) -> Result<Answer, Error> {
        loop {
            let up = self.record.wait(deadline, |known| match known.line {
                Line::Up(_) | Line::Ended(_) => Some(known.require_guest()),
                _ => None,
            });
            let Some(up) = up else {
                return self.record.read().require_guest().and(Err(self.timed_out(what)));
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

    pub(crate) fn timed_out(&self, what: &str) -> Error {
        Error::TimedOut {
            what: format!("the guest's agent, asked to {what},"),
            after: self.patience,
            consequence: "",
        }
    }

    /// Enters what is about to be done to a partition and gives the guard of it.
    pub(crate) fn begin<'e>(
        &self,
        decide: impl Fn(&mut Known) -> Result<(u32, Event<'e>), Error>,
    ) -> Result<PartitionGuard<'_>, Error> {
        loop {
            let guard = self.record.write(|known| {
                let (number, event) = decide(known)?;
                let partition = known.partition(number)?;
                let mut next = partition.clone();
                next.apply(event)?;
                if partition.driven
                    && matches!(partition.state, State::Ready | State::Held { .. } | State::Absent)
                {
                    return Ok(None);
                }
                if partition.driven {
                    return Err(Error::Moving { partition: number, doing: partition.state.doing() });
                }
                let resumed = partition.is_abandoned();
                next.driven = true;
                *partition = next;
                Ok(Some(PartitionGuard { record: &self.record, number, resumed }))
            })?;
            match guard {
                Some(guard) => return Ok(guard),
                // Whoever brought it there is about to drop the guard.
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// As reports have it.
pub(crate) fn elapsed_ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}
