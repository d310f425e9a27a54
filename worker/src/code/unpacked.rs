//! A folder with unpacked code, which is removed with its last user.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;
use tokio::runtime::Handle;

/// A folder that is removed with its last user; one that outlives the worker only while the worker allows it.
#[derive(Debug)]
pub(crate) struct Unpacked {
    pub folder: PathBuf,
    may_go: Option<Arc<AtomicBool>>,
}

impl Unpacked {
    /// One that has just been made.
    pub fn new(folder: TempDir, may_go: Option<&Arc<AtomicBool>>) -> Arc<Unpacked> {
        Arc::new(Unpacked { folder: folder.keep(), may_go: may_go.cloned() })
    }

    /// A folder of an earlier worker's.
    pub fn again(folder: PathBuf, may_go: Arc<AtomicBool>) -> Arc<Unpacked> {
        Arc::new(Unpacked { folder, may_go: Some(may_go) })
    }

    /// Has the folder outlive the worker: it is removed with its last user only while `may_go` is set.
    pub fn goes_if(&mut self, may_go: &Arc<AtomicBool>) {
        self.may_go = Some(may_go.clone());
    }
}

impl Drop for Unpacked {
    /// A million files take minutes to remove, and the thread that drops this may hold a lock that others
    /// wait for.
    fn drop(&mut self) {
        if !self.may_go.as_ref().is_none_or(|may_go| may_go.load(Ordering::Relaxed)) {
            return;
        }
        let folder = std::mem::take(&mut self.folder);
        let remove = move || match fs::remove_dir_all(&folder) {
            // The worker's own folder is removed, too, when it ends.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!("cannot remove {}: {error}", folder.display());
            }
            _ => {}
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_does_not_wait_until_it_is_removed() {
        let unpacked = Unpacked::new(tempfile::tempdir().unwrap(), None);
        let folder = unpacked.folder.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let _in_runtime = runtime.enter();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let busy = runtime.spawn_blocking(move || ends.recv());
        drop(unpacked);
        assert!(folder.exists());
        drop(end);
        runtime.block_on(async {
            let _ = busy.await;
            runtime.spawn_blocking(|| ()).await.unwrap();
        });
        assert!(!folder.exists());
    }
}
