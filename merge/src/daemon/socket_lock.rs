//! The lock of a socket, held by a thread with a file table of its own: when the process ends, its lock ends
//! too, even while another of its files blocks in close.

use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::base::error::Error;

/// A socket's lock; dropping it unlocks.
pub struct SocketLock(Option<(Sender<()>, JoinHandle<()>)>);

impl SocketLock {
    /// Locks `file`, and creates the socket's folder if there is none.
    ///
    /// # Errors
    /// `EADDRINUSE` if another daemon has the lock, or the system's error.
    pub fn take(socket: &Path, file: &Path) -> Result<SocketLock, Error> {
        let (keep_locked, unlocked) = channel::<()>();
        let (sender, receiver) = channel();
        let (socket, file) = (socket.to_owned(), file.to_owned());
        let hold = move || {
            // SAFETY: the file table of this thread only; the files that it then closes stay open in the
            // process. No signal may be handled here: its handler would write to a file that this thread does
            // not have.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
                if libc::unshare(libc::CLONE_FILES) == 0 {
                    libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0); // musl has no name for it
                }
            }
            let lock = lock(&socket, &file);
            let failed = lock.as_ref().err().cloned();
            let _ = sender.send(failed);
            // Until the lock is dropped.
            let _ = unlocked.recv();
            drop(lock);
        };
        let thread = std::thread::Builder::new().name("lock".into()).stack_size(64 * 1024).spawn(hold);
        let thread = thread.map_err(|error| {
            Error::new(
                error.raw_os_error().unwrap_or(libc::EAGAIN),
                format!("a thread for the lock: {error}"),
            )
        })?;
        match receiver.recv() {
            Ok(None) => Ok(SocketLock(Some((keep_locked, thread)))),
            Ok(Some(error)) => Err(error),
            Err(_) => Err(Error::new(libc::EIO, "the thread of the lock has ended")),
        }
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        if let Some((keep_locked, thread)) = self.0.take() {
            drop(keep_locked);
            let _ = thread.join();
        }
    }
}

/// Any user who can open a file, if only to read it, can lock it, and so could keep the next daemon from its
/// socket.
const OWN: u32 = 0o600;

fn lock(socket: &Path, file: &Path) -> Result<File, Error> {
    let failed = |what: &str, error: std::io::Error| {
        let line = format!("{what} {}: {error}", socket.display());
        Error::new(error.raw_os_error().unwrap_or(libc::EIO), line)
    };
    if let Some(folder) = socket.parent()
        && !folder.as_os_str().is_empty()
        && !folder.exists()
    {
        // The system's store is for all users, a user's own for that user only.
        let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(folder)
            .map_err(|error| failed("cannot make the folder of", error))?;
    }
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(OWN)
        .custom_flags(libc::O_NOFOLLOW)
        .open(file)
        .map_err(|error| failed("cannot open the lock of", error))?;
    // A lock file of an earlier version is open to all.
    let _ = file.set_permissions(Permissions::from_mode(OWN));
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(Error::new(
            libc::EADDRINUSE,
            format!("another page store serves {}: stop it, or choose another socket", socket.display()),
        )),
    }
}
