//! What calls functions of the template without a client: queues and schedules.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::control::Worker;
use crate::events::async_invokes::Events;
use crate::events::event_sources::EventSources;
use crate::events::schedules::Schedules;
use crate::function::queue_source::Mapping;
use crate::function::schedule::Scheduled;

/// The queues of a template, and its schedules by what they call.
#[derive(Clone, Default)]
pub(crate) struct Sources {
    pub queues: Vec<Mapping>,
    pub schedules: BTreeMap<String, Vec<Scheduled>>,
}

/// Those that run now, and the queues that callers have added.
pub(crate) struct Running {
    worker: Arc<Worker>,
    queues: Arc<EventSources>,
    schedules: Schedules,
}

impl Running {
    /// None runs yet.
    pub fn new(worker: &Arc<Worker>, events: &Events) -> Running {
        let (queues, schedules) = (EventSources::new(worker.clone()), Schedules::new(events.clone()));
        Running { worker: worker.clone(), queues, schedules }
    }

    /// Runs these of the template from now on, and no others of a template. Unchanged ones go on.
    pub fn set(&self, wanted: Sources) {
        self.worker.set_template_mappings(wanted.queues);
        self.queues.set_active(true);
        self.schedules.set(wanted.schedules);
    }

    /// Runs none any more, for another worker.
    pub fn stop(&self) {
        self.queues.set_active(false);
        self.schedules.set(BTreeMap::new());
    }
}
