//! The partitions of a VM, and whose turn it is to work on one. The operations are in [`crate::plug`] (plug, unplug) and
//! [`crate::spawn`] (spawn, stop, wait).
//!
//! The rule that keeps a partition from leaking: whoever is at work on one holds a [`Turn`]; when the turn ends and the
//! partition is still on its way (plugging, draining, unplugging), it is abandoned, and the keeper goes on with it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vm_protocol::{Answer, ErrorKind, Layout, Mode, Operation, Refusal};

use crate::book::{Book, Line, Page};
use crate::device::Device;
use crate::error::Error;
use crate::guest::AskError;
use crate::partition::{Event, State};

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
    pub(crate) limit_bytes: u64,
    /// Mode `plain`: what of the one device each partition counts for, and whose turn it is to change it.
    pub(crate) plain: Mutex<Vec<bool>>,
}

/// Somebody is at work on a partition, until this is dropped.
pub(crate) struct Turn<'a> {
    book: &'a Book,
    pub(crate) number: u32,
    /// Somebody was at work on it before and left it on its way: it may not be whole.
    pub(crate) resumed: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.book.write(|page| page.partitions[self.number as usize].driven = false);
    }
}

impl Turn<'_> {
    pub(crate) fn enter(&self, event: Event) {
        self.book.write(|page| page.enter(self.number, event));
    }

    /// Enters that the partition is held, if that is why the agent refused something.
    pub(crate) fn enter_if_held(&self, refusal: &Refusal) {
        if refusal.kind == ErrorKind::Held {
            self.enter(Event::Held(&refusal.message));
        }
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
        let plain = Mutex::new(vec![false; layout.partition_bytes.len()]);
        Pool { machine, book, layout, patience, limit_bytes, plain }
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

    pub(crate) fn timed_out(&self, what: &str) -> Error {
        Error::TimedOut {
            what: format!("the guest's agent, asked to {what},"),
            after: self.patience,
            consequence: "",
        }
    }

    /// Enters what is about to be done to a partition and takes the turn.
    pub(crate) fn begin<'e>(
        &self,
        decide: impl Fn(&mut Page) -> Result<(u32, Event<'e>), Error>,
    ) -> Result<Turn<'_>, Error> {
        loop {
            let turn = self.book.write(|page| {
                let (number, event) = decide(page)?;
                let partition = page.partition(number)?;
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
                Ok(Some(Turn { book: &self.book, number, resumed }))
            })?;
            match turn {
                Some(turn) => return Ok(turn),
                // Whoever brought it there is about to end the turn.
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// As reports have it.
pub(crate) fn elapsed_ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}
