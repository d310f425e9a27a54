//! Events that earlier workers still run after they have handed over.
//!
//! Each worker reads the state that the one before it has closed. An event stands there until it is done, and
//! the earlier worker reports which of them it has begun. Its later reports say which are done, and which are
//! to be tried again.
//!
//! While such an event runs, this worker may hand over itself. It then counts the event among those begun,
//! passes the reports on, and stays until there are no more. Otherwise the third worker would find the event
//! in the state and run it beside the first one.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::events::async_invokes::{Events, QueueSlot};
use crate::invocation::id::InvocationId;
use crate::state::event_store::StoredEvent;
use crate::state::handover::{Predecessor, Report};
use worker_system::lock::lock;

/// The events of earlier workers, each counted in this worker's queue.
pub(crate) struct Elsewhere(BTreeMap<InvocationId, (StoredEvent, QueueSlot)>);

impl Elsewhere {
    /// Those that the predecessor has reported as begun, of the events that stood in the state.
    pub(crate) fn new(events: &Events, begun: Vec<StoredEvent>) -> Elsewhere {
        lock(&events.begun).extend(begun.iter().map(|event| event.id));
        let counted = |event: StoredEvent| {
            let slot = events.place(event.payload.len());
            (event.id, (event, slot))
        };
        Elsewhere(begun.into_iter().map(counted).collect())
    }

    /// Receives the results of these events from the predecessor, on a thread of its own. If it ends without
    /// them, they are run again.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(crate) fn follow(mut self, events: Events, mut predecessor: Predecessor) -> Result<()> {
        let runtime = tokio::runtime::Handle::current();
        let hear = move || {
            let _in_runtime = runtime.enter();
            while let Some(report) = predecessor.next() {
                runtime.block_on(self.apply(&events, report));
            }
            while let Some((_, (event, slot))) = self.0.pop_first() {
                runtime.block_on(self.apply(&events, Report::Again(event)));
                drop(slot);
            }
        };
        std::thread::Builder::new().name("predecessor".into()).spawn(hear)?;
        Ok(())
    }

    /// Persists the result, and runs the event if it has to be tried again. After a handover the next worker
    /// does both.
    async fn apply(&mut self, events: &Events, report: Report) {
        let handed_over = events.worker.handed_over.read().await;
        let id = match &report {
            Report::State(_) => return,
            Report::Done(id) => *id,
            Report::Again(event) => event.id,
        };
        // It counts until the report is passed on: this worker ends when its queue is empty.
        let _slot = self.0.remove(&id);
        lock(&events.begun).remove(&id);
        let Some(store) = &events.store else { return };
        if let Some(handed_over) = &*handed_over {
            return handed_over.report(&report);
        }
        let persisted = match &report {
            Report::Again(event) => store.put(event),
            _ => store.forget(id),
        };
        if let Err(error) = persisted {
            tracing::error!("an event of the earlier worker: {error:#}");
        }
        if let Report::Again(event) = report {
            events.start(event);
        }
    }
}
