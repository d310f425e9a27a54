//! Files from clients, before they are checked. Closing a file calls its file system, which may be the
//! client's own and never answer (FUSE's FLUSH); closing a socket may wait until its peer reads (SO_LINGER).
//! So the daemon looks only at an untrusted file's seals, which involves no file system, and closes it on a
//! thread of its own, which may block for ever.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads of a domain that may block in close before it accepts no more files.
const MAX_PENDING_CLOSES: usize = 32;

/// Counts the files of a domain's clients that are being closed.
#[derive(Clone, Default)]
pub struct PendingCloses(Arc<AtomicUsize>);

impl PendingCloses {
    /// Whether the domain may receive another file. If not, files stay in their messages: the kernel drops
    /// them without calling their file systems.
    pub fn has_room(&self) -> bool {
        self.0.load(Ordering::Relaxed) < MAX_PENDING_CLOSES
    }
}

/// A file that has not been checked.
pub struct UntrustedFd(Option<OwnedFd>, PendingCloses);

impl UntrustedFd {
    /// From a message.
    pub fn new(file: OwnedFd, closing: &PendingCloses) -> UntrustedFd {
        UntrustedFd(Some(file), closing.clone())
    }

    /// To check it.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    /// For a file that has proved to be a memory file: closing it does not block.
    pub fn into_memory(mut self) -> Option<OwnedFd> {
        self.0.take()
    }
}

impl Drop for UntrustedFd {
    fn drop(&mut self) {
        let Some(file) = self.0.take() else { return };
        let PendingCloses(count) = self.1.clone();
        count.fetch_add(1, Ordering::Relaxed);
        let mut file = std::mem::ManuallyDrop::new(file);
        let close = move || {
            // SAFETY: not used again.
            unsafe { std::mem::ManuallyDrop::drop(&mut file) };
            count.fetch_sub(1, Ordering::Relaxed);
        };
        // Without a thread the file stays open, and counts for ever as being closed.
        if let Err(error) = on_thread(close) {
            tracing::debug!("a file could not be closed on a thread: {error}");
        }
    }
}

/// Closes a connection on a thread: files still in its queue close with it, which may block.
pub fn close_on_thread(connection: OwnedFd) {
    let _ = on_thread(move || drop(connection));
}

fn on_thread(close: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name("close-fd".into()).stack_size(64 * 1024).spawn(close).map(drop)
}
