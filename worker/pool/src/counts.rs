//! How many instances are in which phase, and how many requests they have: for the page and the metrics.

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
    /// Requests that instances have.
    pub running: u32,
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
            running: self.running + other.running,
            queued: self.queued + other.queued,
        }
    }
}

impl Pool {
    /// The name of an instance's phase.
    pub fn phase(&self, instance: InstanceId) -> &'static str {
        match self.instances.get(&instance) {
            Some(known) if known.phase == Phase::Starting => "starting",
            Some(known) if known.idle().is_some() => "idle",
            Some(known) if known.phase == Phase::Serving => "busy",
            _ => "stopping",
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
                Phase::Serving if instance.idle().is_some() => &mut counts.idle,
                Phase::Serving => &mut counts.busy,
                Phase::Stopping => &mut counts.stopping,
            } += 1;
            counts.running += instance.running.len() as u32;
        }
        let length = |function: &Function| function.queue.len() as u32;
        counts.queued = match function {
            Some(id) => self.functions.get(&id).map_or(0, length),
            None => self.functions.values().map(length).sum(),
        };
        counts
    }
}
