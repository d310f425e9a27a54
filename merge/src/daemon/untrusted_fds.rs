//! What clients have sent, before it is known what it is. Closing a file asks its file system, which may be of the client's making
//! and never answer (FUSE's FLUSH); closing a socket may wait for whoever is to read what was written to it (SO_LINGER). So a
//! stranger is looked at by what asks nobody, its seals, and is closed on a thread of its own, which may be lost.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that a domain may lose before no more files are taken of its clients.
const MOST_CLOSING: usize = 32;

/// The files of a domain's clients that are being closed.
#[derive(Clone, Default)]
pub struct Closing(Arc<AtomicUsize>);

impl Closing {
    /// Whether another may come. If not, files are left where they are: the kernel drops them without a word to their file
    /// systems.
    pub fn has_room(&self) -> bool {
        self.0.load(Ordering::Relaxed) < MOST_CLOSING
    }
}

/// A file of which nothing is known.
pub struct Stranger(Option<OwnedFd>, Closing);

impl Stranger {
    /// From a message.
    pub fn new(file: OwnedFd, closing: &Closing) -> Stranger {
        Stranger(Some(file), closing.clone())
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
        let Closing(count) = self.1.clone();
        count.fetch_add(1, Ordering::Relaxed);
        let mut file = std::mem::ManuallyDrop::new(file);
        let close = move || {
            // SAFETY: not used again.
            unsafe { std::mem::ManuallyDrop::drop(&mut file) };
            count.fetch_sub(1, Ordering::Relaxed);
        };
        // Without a thread the file stays open, and counts as one that is being closed for ever.
        if let Err(error) = elsewhere(close) {
            tracing::debug!("a file could not be closed elsewhere: {error}");
        }
    }
}

/// Closes a connection: files that were sent over it, and not taken, close with it, and may take their time.
pub fn hang_up(connection: OwnedFd) {
    let _ = elsewhere(move || drop(connection));
}

fn elsewhere(close: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name("stranger".into()).stack_size(64 * 1024).spawn(close).map(drop)
}
