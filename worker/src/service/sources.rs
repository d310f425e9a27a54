//! What calls functions of the template without a client: queues and schedules.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::control::Worker;
use crate::events::async_invokes::Events;
use crate::events::event_sources::EventSources;
use crate::events::schedules::Schedules;
use crate::function::schedule::Scheduled;
use crate::function::template::QueueSource;

/// The queues and schedules of a template, by what they call.
#[derive(Clone, Default)]
pub(crate) struct Sources {
    pub queues: BTreeMap<String, Vec<QueueSource>>,
    pub schedules: BTreeMap<String, Vec<Scheduled>>,
}

/// Those that run now.
pub(crate) struct Running {
    queues: EventSources,
    schedules: Schedules,
}

impl Running {
    pub fn new(worker: &Arc<Worker>, events: &Events) -> Running {
        Running { queues: EventSources::new(worker.clone()), schedules: Schedules::new(events.clone()) }
    }

    /// Runs these from now on, and no others. Unchanged ones go on.
    pub fn set(&self, wanted: Sources) {
        self.queues.set(wanted.queues);
        self.schedules.set(wanted.schedules);
    }
}
