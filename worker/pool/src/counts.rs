//! How many instances are in which phase: for the page and the metrics.

use std::collections::BTreeSet;

use super::{Function, FunctionId, InstanceId, Phase, Pool};

/// Numbers for the page and the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instances that are starting.
    pub starting: u32,
    /// Instances without work.
    pub idle: u32,
    /// Instances with a request.
    pub busy: u32,
    /// Instances that are stopping.
    pub stopping: u32,
    /// Requests that wait.
    pub queued: u32,
}

impl Counts {
    /// The sum of two.
    #[must_use]
    pub fn and(self, other: Counts) -> Counts {
        Counts {
            starting: self.starting + other.starting,
            idle: self.idle + other.idle,
            busy: self.busy + other.busy,
            stopping: self.stopping + other.stopping,
            queued: self.queued + other.queued,
        }
    }
}

impl Pool {
    /// The name of an instance's phase.
    pub fn phase(&self, instance: InstanceId) -> &'static str {
        match self.instances.get(&instance).map(|known| known.phase) {
            Some(Phase::Starting) => "starting",
            Some(Phase::Idle(_)) => "idle",
            Some(Phase::Busy(_) | Phase::Finishing(_)) => "busy",
            Some(Phase::Stopping) | None => "stopping",
        }
    }

    /// The functions that have requests or instances.
    pub fn functions_in_use(&self) -> BTreeSet<FunctionId> {
        let waiting = self.functions.iter().filter(|(_, function)| !function.queue.is_empty());
        let served = self.instances.values().map(|instance| instance.function);
        served.chain(waiting.map(|(id, _)| *id)).collect()
    }

    /// How many instances are in which phase, of one function or of all.
    pub fn counts(&self, function: Option<FunctionId>) -> Counts {
        let mut counts = Counts::default();
        let chosen = |id: FunctionId| function.is_none_or(|wanted| wanted == id);
        for instance in self.instances.values().filter(|instance| chosen(instance.function)) {
            *match instance.phase {
                Phase::Starting => &mut counts.starting,
                Phase::Idle(_) => &mut counts.idle,
                Phase::Busy(_) | Phase::Finishing(_) => &mut counts.busy,
                Phase::Stopping => &mut counts.stopping,
            } += 1;
        }
        let length = |function: &Function| function.queue.len() as u32;
        counts.queued = match function {
            Some(id) => self.functions.get(&id).map_or(0, length),
            None => self.functions.values().map(length).sum(),
        };
        counts
    }
}
