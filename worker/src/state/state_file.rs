//! A file of `--state`. One worker has it at a time: the next one opens it after this one has closed it.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use redb::{Database, DatabaseError, TableDefinition, WriteTransaction};

/// A process that a killed worker had just forked holds the file's lock until it runs another program.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// By name: something in JSON.
pub(crate) type Table = TableDefinition<'static, &'static str, &'static [u8]>;

/// The file.
pub(crate) struct StateFile {
    path: PathBuf,
    tables: &'static [Table],
    /// None while another worker may have it.
    database: RwLock<Option<Database>>,
}

impl StateFile {
    /// Opens it in this folder, or makes it.
    ///
    /// # Errors
    /// Another worker has it, or it cannot be read or written.
    pub fn open(folder: &Path, name: &str, tables: &'static [Table]) -> Result<StateFile> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let file = StateFile { path: folder.join(name), tables, database: RwLock::default() };
        file.set_in_use(true)?;
        Ok(file)
    }

    /// Closes it after pending writes, so that another worker may open it; or opens it again.
    ///
    /// # Errors
    /// Another worker has it, or it cannot be read or written.
    pub fn set_in_use(&self, in_use: bool) -> Result<()> {
        let database = in_use.then(|| self.opened()).transpose()?;
        *self.database.write().unwrap_or_else(PoisonError::into_inner) = database;
        Ok(())
    }

    fn opened(&self) -> Result<Database> {
        let path = self.path.display();
        let database = create(&self.path)
            .with_context(|| format!("cannot open {path} (has another worker this --state?)"))?;
        let begun = database.begin_write()?;
        for table in self.tables {
            begun.open_table(*table)?;
        }
        begun.commit()?;
        Ok(database)
    }

    /// Calls `what` with the open database.
    ///
    /// # Errors
    /// Another worker has it, or the error of `what`.
    pub fn read<T>(&self, what: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        what(database.as_ref().ok_or_else(|| anyhow!("another worker has {}", self.path.display()))?)
    }

    /// Makes a change, whole or not at all; it is on the disk when this returns.
    ///
    /// # Errors
    /// Another worker has it, or it could not be written.
    pub fn change(&self, what: impl FnOnce(&WriteTransaction) -> Result<()>) -> Result<()> {
        self.read(|database| {
            let begun = database.begin_write()?;
            what(&begun)?;
            Ok(begun.commit()?)
        })
    }
}

/// Opens the file, or makes it, once no other process holds its lock.
fn create(path: &Path) -> Result<Database, DatabaseError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match Database::create(path) {
            Err(DatabaseError::DatabaseAlreadyOpen) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn opening_waits_for_a_lock_that_goes_away() {
        let folder = tempfile::tempdir().unwrap();
        let held = Database::create(folder.path().join("state")).unwrap();
        let (opened, is_open) = channel();
        let place = folder.path().to_path_buf();
        let opening = std::thread::spawn(move || {
            opened.send(StateFile::open(&place, "state", &[]).map(drop).is_ok()).unwrap();
        });
        assert!(is_open.recv_timeout(Duration::from_millis(300)).is_err(), "it waits");
        drop(held);
        assert!(is_open.recv().unwrap());
        opening.join().unwrap();
    }
}
