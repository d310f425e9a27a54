//! Asynchronous invocations on disk: one that was accepted is there until it is done, whatever becomes of the worker.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use anyhow::{Context, Result, anyhow};
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
    /// How many events before it told of one another's end.
    #[serde(default)]
    pub hops: u32,
}

/// A file of them. One worker has it at a time.
pub struct EventStore {
    path: PathBuf,
    /// None while another worker may have it.
    database: RwLock<Option<Database>>,
}

impl EventStore {
    /// Opens the file in this folder, or makes it.
    ///
    /// # Errors
    /// Another worker has it, or it cannot be read or written.
    pub fn open(folder: &Path) -> Result<EventStore> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let store = EventStore { path: folder.join(FILE), database: RwLock::default() };
        store.open_again()?;
        Ok(store)
    }

    /// Closes the file, when what is being written is; another worker may open it then.
    pub fn close(&self) {
        *self.database.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Opens it again.
    ///
    /// # Errors
    /// Another worker has it, or it cannot be read or written.
    pub fn open_again(&self) -> Result<()> {
        let path = &self.path;
        let database = Database::create(path)
            .with_context(|| format!("cannot open {} (has another worker this --state?)", path.display()))?;
        let begun = database.begin_write()?;
        begun.open_table(EVENTS)?;
        begun.commit()?;
        *self.database.write().unwrap_or_else(PoisonError::into_inner) = Some(database);
        Ok(())
    }

    fn with<T>(&self, what: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        what(database.as_ref().ok_or_else(|| anyhow!("another worker has {}", self.path.display()))?)
    }

    /// Keeps one; it is on the disk when this returns.
    ///
    /// # Errors
    /// It could not be written.
    pub fn keep(&self, event: &Kept) -> Result<()> {
        self.with(|database| {
            let begun = database.begin_write()?;
            begun.open_table(EVENTS)?.insert(&*event.id, &*serde_json::to_vec(event)?)?;
            Ok(begun.commit()?)
        })
    }

    /// Forgets one and keeps another, both or neither.
    ///
    /// # Errors
    /// It could not be written.
    pub fn replace(&self, id: &str, by: &Kept) -> Result<()> {
        self.with(|database| {
            let begun = database.begin_write()?;
            begun.open_table(EVENTS)?.remove(id)?;
            begun.open_table(EVENTS)?.insert(&*by.id, &*serde_json::to_vec(by)?)?;
            Ok(begun.commit()?)
        })
    }

    /// Forgets one.
    ///
    /// # Errors
    /// It could not be written.
    pub fn forget(&self, id: &str) -> Result<()> {
        self.with(|database| {
            let begun = database.begin_write()?;
            begun.open_table(EVENTS)?.remove(id)?;
            Ok(begun.commit()?)
        })
    }

    /// All that are kept.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn all(&self) -> Result<Vec<Kept>> {
        self.with(|database| {
            let table = database.begin_read()?.open_table(EVENTS)?;
            table.iter()?.map(|entry| Ok(serde_json::from_slice(entry?.1.value())?)).collect()
        })
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
            hops: 0,
        };
        let store = EventStore::open(folder.path()).unwrap();
        assert!(EventStore::open(folder.path()).is_err(), "one at a time");
        store.keep(&event("a")).unwrap();
        store.keep(&event("b")).unwrap();
        store.forget("a").unwrap();
        store.keep(&event("z")).unwrap();
        store.replace("z", &event("b")).unwrap();
        store.close();
        assert!(store.keep(&event("c")).is_err(), "it is another's");
        let other = EventStore::open(folder.path()).unwrap();
        assert_eq!(other.all().unwrap(), [event("b")]);
        assert!(store.open_again().is_err());
        drop(other);
        store.open_again().unwrap();
        assert_eq!(store.all().unwrap(), [event("b")]);
    }
}
