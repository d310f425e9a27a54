//! Asynchronous invocations on disk: one that was accepted is there until it is done, whatever becomes of the worker.

use std::path::Path;

use anyhow::{Context, Result};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};

/// By request id: a [`Kept`] in JSON.
const EVENTS: TableDefinition<&str, &[u8]> = TableDefinition::new("events");
const FILE: &str = "events.redb";

/// An invocation that was accepted and is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The function's name, with `:QUALIFIER` where a version or an alias was called.
    pub function: String,
    /// The request's id, the same at each attempt.
    pub id: String,
    /// The event: JSON.
    pub payload: String,
    /// `X-Amz-Client-Context`, decoded.
    pub client_context: Option<String>,
    /// `X-Amzn-Trace-Id`.
    pub trace_id: String,
    /// Attempts that failed.
    pub failures: u32,
}

/// A file of them. One worker has it at a time.
pub struct EventStore(Database);

impl EventStore {
    /// Opens the file in this folder, or makes it.
    ///
    /// # Errors
    /// Another worker has it, or it cannot be read or written.
    pub fn open(folder: &Path) -> Result<EventStore> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join(FILE);
        let database = Database::create(&path)
            .with_context(|| format!("cannot open {} (has another worker this --state?)", path.display()))?;
        let begun = database.begin_write()?;
        begun.open_table(EVENTS)?;
        begun.commit()?;
        Ok(EventStore(database))
    }

    /// Keeps one; it is on the disk when this returns.
    ///
    /// # Errors
    /// It could not be written.
    pub fn keep(&self, event: &Kept) -> Result<()> {
        let begun = self.0.begin_write()?;
        begun.open_table(EVENTS)?.insert(&*event.id, &*serde_json::to_vec(event)?)?;
        Ok(begun.commit()?)
    }

    /// Forgets one.
    ///
    /// # Errors
    /// It could not be written.
    pub fn forget(&self, id: &str) -> Result<()> {
        let begun = self.0.begin_write()?;
        begun.open_table(EVENTS)?.remove(id)?;
        Ok(begun.commit()?)
    }

    /// All that are kept.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn all(&self) -> Result<Vec<Kept>> {
        let table = self.0.begin_read()?.open_table(EVENTS)?;
        table.iter()?.map(|entry| Ok(serde_json::from_slice(entry?.1.value())?)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_there_when_it_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let event = |id: &str| Kept {
            function: "f".into(),
            id: id.into(),
            payload: "{}".into(),
            client_context: None,
            trace_id: String::new(),
            failures: 1,
        };
        let store = EventStore::open(folder.path()).unwrap();
        assert!(EventStore::open(folder.path()).is_err(), "one at a time");
        store.keep(&event("a")).unwrap();
        store.keep(&event("b")).unwrap();
        store.forget("a").unwrap();
        drop(store);
        assert_eq!(EventStore::open(folder.path()).unwrap().all().unwrap(), [event("b")]);
    }
}
