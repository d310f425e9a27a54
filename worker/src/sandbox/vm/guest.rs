//! What the guest reports of its memory. A thread of its own asks, one question at a time, so that a guest
//! that hangs delays no reader.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vm::protocol::{Merged, NodeStats, PartitionNumber};

use super::Running;

/// Memory of each partition.
pub type Partitions = BTreeMap<PartitionNumber, NodeStats>;

/// The guest's report.
#[derive(Clone, Default)]
pub struct GuestMemory {
    pub partitions: Partitions,
    /// What its kernel has merged.
    pub merged: Merged,
}

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The last answer, and whether a question is in flight.
#[derive(Default)]
pub struct Guest {
    report: Mutex<Report>,
    answered: Condvar,
}

#[derive(Default)]
struct Report {
    asking: bool,
    last: GuestMemory,
}

impl Guest {
    /// A new report, or the last one if the guest is slow.
    pub fn memory(&self, running: &Arc<Running>) -> GuestMemory {
        let asked = running.clone();
        self.ask(move || {
            let stats = asked.vm.memory().map(|memory| memory.guest).unwrap_or_default();
            let nodes = stats.nodes.into_iter();
            let partitions = nodes.filter_map(|node| Some((node.partition?, node))).collect();
            asked.guest.receive(GuestMemory { partitions, merged: stats.merged });
        })
    }

    /// Memory of a partition, as last reported.
    pub fn partition(&self, partition: PartitionNumber) -> Option<NodeStats> {
        self.lock().last.partitions.get(&partition).cloned()
    }

    /// Has `question` asked, which ends with [`Guest::receive`], unless another is on its way; waits a little
    /// for the answer.
    fn ask(&self, question: impl FnOnce() + Send + 'static) -> GuestMemory {
        let mut report = self.lock();
        if !report.asking {
            report.asking = std::thread::Builder::new().name("guest".into()).spawn(question).is_ok();
        }
        let waited = self.answered.wait_timeout_while(report, PATIENCE, |report| report.asking);
        waited.unwrap_or_else(PoisonError::into_inner).0.last.clone()
    }

    fn receive(&self, memory: GuestMemory) {
        *self.lock() = Report { asking: false, last: memory };
        self.answered.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const NODE: NodeStats = NodeStats {
        node: 5,
        partition: Some(PartitionNumber(3)),
        total_bytes: 2,
        free_bytes: 1,
        anonymous_bytes: 1,
        file_bytes: 0,
    };

    #[test]
    fn hanging_guest_is_asked_once_and_delays_no_reader() {
        let guest = Arc::new(Guest::default());
        let (questions, (release, held)) = (Arc::new(Mutex::new(0)), mpsc::channel::<()>());
        let held = Mutex::new(Some(held));
        let ask = || {
            let (asked, questions, held) = (guest.clone(), questions.clone(), held.lock().unwrap().take());
            guest.ask(move || {
                *questions.lock().unwrap() += 1;
                if let Some(held) = held {
                    let _ = held.recv();
                }
                asked.receive(GuestMemory {
                    partitions: [(PartitionNumber(3), NODE)].into(),
                    merged: Merged::default(),
                });
            })
        };
        assert!(ask().partitions.is_empty() && ask().partitions.is_empty(), "no report yet");
        assert_eq!(*questions.lock().unwrap(), 1);
        release.send(()).unwrap();
        assert!(ask().partitions.contains_key(&PartitionNumber(3)), "the answer came, late");
    }
}
