//! The partitions of a VM, and the guard that lets one thread at a time operate on a partition. The
//! operations are in [`crate::model::plug`] (plug, unplug) and [`crate::model::instances`] (spawn, stop,
//! wait).
//!
//! The rule that keeps a partition from leaking: the thread that operates on one holds a [`PartitionGuard`].
//! If the guard is dropped while the partition is in transition (plugging, draining, unplugging), the
//! partition is abandoned, and the recovery thread finishes the operation.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vm_protocol::{Answer, ErrorKind, Layout, Operation, PartitionNumber, Refusal};

use crate::base::error::Error;
use crate::model::hypervisor::{AskError, Hypervisor};
use crate::model::partition::{Event, State};
use crate::model::record::{AgentLink, Record, VmState};

/// Where an instance gets its memory from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemorySource {
    /// The partition of this number.
    Partition(PartitionNumber),
    /// The first partition that is ready.
    FirstReady,
    /// Boot memory; for tools.
    Boot,
}

/// The partitions of one VM.
pub(crate) struct Partitions<H: ?Sized> {
    pub(crate) record: Arc<Record>,
    pub(crate) layout: Layout,
    pub(crate) patience: Duration,
    pub(crate) limit_bytes: u64,
    /// The device of modes with one for all partitions. Locked while it is resized.
    pub(crate) one_device: Mutex<OneDevice>,
    pub(crate) hypervisor: H,
}

/// The one virtio-mem device that has all partitions (modes `ranges` and `plain`).
pub(crate) struct OneDevice {
    /// Which partitions are in the size that was requested of it last.
    pub(crate) plugged: Vec<bool>,
    /// The partition for which that was requested, if the guest has not followed.
    pub(crate) unsettled: Option<PartitionNumber>,
}

/// Exclusive right to operate on a partition, until this is dropped.
pub(crate) struct PartitionGuard<'a> {
    record: &'a Record,
    pub(crate) number: PartitionNumber,
    /// An earlier operation was abandoned in transition: the partition may be partly plugged.
    pub(crate) resumed: bool,
}

impl Drop for PartitionGuard<'_> {
    fn drop(&mut self) {
        self.record.write(|state| state.partitions[self.number.index()].driven = false);
    }
}

impl PartitionGuard<'_> {
    pub(crate) fn apply(&self, event: Event) {
        self.record.write(|state| state.apply(self.number, event));
    }

    /// Records that the partition is held, if that is why the agent refused a request.
    pub(crate) fn apply_if_held(&self, refusal: &Refusal) {
        if refusal.kind == ErrorKind::Held {
            self.apply(Event::Held(&refusal.message));
        }
    }
}

impl<H: Hypervisor> Partitions<H> {
    pub(crate) fn new(
        hypervisor: H,
        record: Arc<Record>,
        layout: Layout,
        limit_bytes: u64,
        patience: Duration,
    ) -> Partitions<H> {
        let plugged = vec![false; layout.partition_bytes.len()];
        let one_device = Mutex::new(OneDevice { plugged, unsettled: None });
        Partitions { record, layout, patience, limit_bytes, one_device, hypervisor }
    }
}

impl<H: Hypervisor + ?Sized> Partitions<H> {
    /// Sends a request to the agent; if the agent dies, sends it to its successor. Only for idempotent
    /// requests.
    pub(crate) fn ask_until(&self, op: Operation, deadline: Instant, what: &str) -> Result<Answer, Error> {
        loop {
            let up = self.record.wait(deadline, |state| match state.agent {
                AgentLink::Up(_) | AgentLink::Ended(_) => Some(state.require_guest()),
                _ => None,
            });
            let Some(up) = up else {
                return self.record.read().require_guest().and(Err(self.timed_out(what)));
            };
            up?;
            let left = deadline.saturating_duration_since(Instant::now());
            match self.hypervisor.ask_agent(op.clone(), left) {
                Ok(answer) => return Ok(answer),
                Err(AskError::Refused(refusal)) => return Err(Error::Refused(refusal)),
                Err(AskError::Unsendable(why)) => return Err(Error::Failed(why)),
                Err(AskError::TimedOut) => return Err(self.timed_out(what)),
                // The thread that noticed the agent's death is about to record it.
                Err(AskError::Lost) => std::thread::sleep(Duration::from_millis(10)),
            }
            if Instant::now() >= deadline {
                return Err(self.timed_out(what));
            }
        }
    }

    pub(crate) fn timed_out(&self, what: &str) -> Error {
        Error::TimedOut {
            what: format!("the guest's agent, asked to {what},"),
            after: self.patience,
            consequence: "",
        }
    }

    /// Records the operation that is about to start on a partition, and returns the guard for it.
    pub(crate) fn begin<'e>(
        &self,
        decide: impl Fn(&mut VmState) -> Result<(PartitionNumber, Event<'e>), Error>,
    ) -> Result<PartitionGuard<'_>, Error> {
        loop {
            let guard = self.record.write(|state| {
                let (number, event) = decide(state)?;
                let partition = state.partition(number)?;
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
                // The thread that brought the partition into this state is about to drop its guard.
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// Nanoseconds since then, for reports.
pub(crate) fn elapsed_ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}
