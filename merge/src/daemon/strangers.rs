//! Files that clients hand in, before it is known what they are. Closing one asks its file system, which may be of the client's
//! making and never answer (FUSE's FLUSH). So a stranger is looked at by what asks nobody, its seals, and is closed on a
//! thread of its own, which may be lost.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that may be lost before no more files are taken.
const MOST_CLOSING: usize = 32;

static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// Whether another may come. If not, files are left where they are: the kernel drops them without a word to their file
/// systems.
pub fn may_come() -> bool {
    CLOSING.load(Ordering::Relaxed) < MOST_CLOSING
}

/// A file of which nothing is known.
pub struct Stranger(Option<OwnedFd>);

impl Stranger {
    /// From a message.
    pub fn new(file: OwnedFd) -> Stranger {
        Stranger(Some(file))
    }

    /// To look at it.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    /// It is found to be a memory file: closing it waits for nobody.
    pub fn into_memory(mut self) -> Option<OwnedFd> {
        self.0.take()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let Some(file) = self.0.take() else { return };
        CLOSING.fetch_add(1, Ordering::Relaxed);
        let mut file = std::mem::ManuallyDrop::new(file);
        let close = move || {
            // SAFETY: not used again.
            unsafe { std::mem::ManuallyDrop::drop(&mut file) };
            CLOSING.fetch_sub(1, Ordering::Relaxed);
        };
        // Without a thread the file stays open, and counts as one that is being closed for ever.
        let spawned = std::thread::Builder::new().name("stranger".into()).stack_size(64 * 1024).spawn(close);
        if let Err(error) = spawned {
            tracing::debug!("a file could not be closed elsewhere: {error}");
        }
    }
}
