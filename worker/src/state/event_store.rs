//! Asynchronous invocations on disk: an accepted one stays until it is done, also if the worker is killed.

use std::path::Path;

use anyhow::Result;
use redb::{ReadableDatabase, ReadableTable};
use serde::{Deserialize, Serialize};

use crate::base::name::Target;
use crate::base::time::now_ms;
use crate::invocation::id::InvocationId;
use crate::invocation::request::Invocation;
use crate::state::state_file::{StateFile, Table};

/// By request id: a [`StoredEvent`] in JSON.
const EVENTS: Table = Table::new("events");

/// An invocation that was accepted and is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredEvent {
    /// The function's name, with `:QUALIFIER` where a version or an alias was called.
    pub function: String,
    /// The request's id, the same at each attempt.
    pub id: InvocationId,
    /// The event: JSON.
    pub payload: String,
    /// `X-Amz-Client-Context`, decoded.
    pub client_context: Option<String>,
    /// `X-Amzn-Trace-Id`.
    pub trace_id: String,
    /// `X-Amz-Tenant-Id`.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Attempts that failed.
    pub failures: u32,
    /// When it was accepted, in milliseconds since 1970.
    #[serde(default = "now_ms")]
    pub accepted_ms: u64,
    /// How many results in a row led to it: 0 for a caller's event.
    #[serde(default)]
    pub hops: u32,
}

impl StoredEvent {
    /// An event that is accepted now.
    pub fn new(target: &Target, invocation: Invocation, hops: u32) -> StoredEvent {
        StoredEvent {
            function: target.to_string(),
            id: invocation.id,
            payload: String::from_utf8_lossy(&invocation.payload).into_owned(),
            client_context: invocation.client_context,
            trace_id: invocation.trace_id,
            tenant: invocation.tenant,
            failures: 0,
            accepted_ms: now_ms(),
            hops,
        }
    }
}

/// The file of accepted events. One worker has it at a time.
pub struct EventStore(StateFile);

impl EventStore {
    /// Opens the file in this folder, or makes it.
    ///
    /// # Errors
    /// Another worker has it, or it cannot be read or written.
    pub fn open(folder: &Path) -> Result<EventStore> {
        Ok(EventStore(StateFile::open(folder, "events.redb", &[EVENTS])?))
    }

    /// Closes the file for another worker, or opens it again.
    ///
    /// # Errors
    /// Another worker has it, or it cannot be read or written.
    pub fn set_in_use(&self, in_use: bool) -> Result<()> {
        self.0.set_in_use(in_use)
    }

    /// Stores an event; it is on the disk when this returns.
    ///
    /// # Errors
    /// It could not be written.
    pub fn put(&self, event: &StoredEvent) -> Result<()> {
        self.0.change(|begun| {
            begun.open_table(EVENTS)?.insert(&*event.id.to_string(), &*serde_json::to_vec(event)?)?;
            Ok(())
        })
    }

    /// Deletes an event and stores another, both or neither.
    ///
    /// # Errors
    /// It could not be written.
    pub fn replace(&self, id: InvocationId, by: &StoredEvent) -> Result<()> {
        self.0.change(|begun| {
            let mut events = begun.open_table(EVENTS)?;
            events.remove(&*id.to_string())?;
            events.insert(&*by.id.to_string(), &*serde_json::to_vec(by)?)?;
            Ok(())
        })
    }

    /// Deletes an event.
    ///
    /// # Errors
    /// It could not be written.
    pub fn forget(&self, id: InvocationId) -> Result<()> {
        self.0.change(|begun| {
            begun.open_table(EVENTS)?.remove(&*id.to_string())?;
            Ok(())
        })
    }

    /// All stored events.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn all(&self) -> Result<Vec<StoredEvent>> {
        self.0.read(|database| {
            let table = database.begin_read()?.open_table(EVENTS)?;
            table.iter()?.map(|entry| Ok(serde_json::from_slice(entry?.1.value())?)).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_there_when_the_store_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let invocation = || Invocation {
            tenant: Some("blue".into()),
            ..Invocation::new(String::new(), "{}".into(), None, Some("trace"))
        };
        let [a, b, c, z] = std::array::from_fn(|_| InvocationId::random());
        let event = |id| StoredEvent {
            id,
            accepted_ms: 1,
            ..StoredEvent::new(&crate::base::name::parse("f").unwrap(), invocation(), 0)
        };
        let store = EventStore::open(folder.path()).unwrap();
        assert!(EventStore::open(folder.path()).is_err(), "one at a time");
        store.put(&event(a)).unwrap();
        store.put(&event(b)).unwrap();
        store.forget(a).unwrap();
        store.put(&event(z)).unwrap();
        store.replace(z, &event(b)).unwrap();
        store.set_in_use(false).unwrap();
        assert!(store.put(&event(c)).is_err(), "it is another's");
        let other = EventStore::open(folder.path()).unwrap();
        assert_eq!(other.all().unwrap(), [event(b)]);
        assert!(store.set_in_use(true).is_err());
        drop(other);
        store.set_in_use(true).unwrap();
        assert_eq!(store.all().unwrap(), [event(b)]);
    }
}
