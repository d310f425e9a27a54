//! The lock of a socket, held by a thread with a table of files of its own: when the process ends, its lock ends too, whatever
//! another of its files waits for.

use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::base::error::Error;

/// A socket's lock; let go when dropped.
pub struct Lock(Option<(Sender<()>, JoinHandle<()>)>);

impl Lock {
    /// Takes it, which is that of a file, and makes the socket's folder if there is none.
    ///
    /// # Errors
    /// `EADDRINUSE` if another daemon has it; what the system says.
    pub fn take(socket: &Path, file: &Path) -> Result<Lock, Error> {
        let (keep, kept) = channel::<()>();
        let (tell, told) = channel();
        let (socket, file) = (socket.to_owned(), file.to_owned());
        let hold = move || {
            // SAFETY: the table of files of this thread only; those that it then closes stay open in the process. So no signal
            // may be handled here: its handler would write to a file that this thread does not have.
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
            let _ = tell.send(failed);
            // Until the lock is dropped.
            let _ = kept.recv();
            drop(lock);
        };
        let thread = std::thread::Builder::new().name("lock".into()).stack_size(64 * 1024).spawn(hold);
        let thread = thread.map_err(|error| {
            Error::new(
                error.raw_os_error().unwrap_or(libc::EAGAIN),
                format!("a thread for the lock: {error}"),
            )
        })?;
        match told.recv() {
            Ok(None) => Ok(Lock(Some((keep, thread)))),
            Ok(Some(error)) => Err(error),
            Err(_) => Err(Error::new(libc::EIO, "the thread of the lock has ended")),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some((keep, thread)) = self.0.take() {
            drop(keep);
            let _ = thread.join();
        }
    }
}

/// Whoever can open a file, if only to read it, can lock it: others would keep the next daemon from its socket.
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
        // The system's store is for all users, a user's own for nobody else.
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
    // One that a former version has left is open to all.
    let _ = file.set_permissions(Permissions::from_mode(OWN));
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(Error::new(
            libc::EADDRINUSE,
            format!("another page store serves {}: stop it, or choose another socket", socket.display()),
        )),
    }
}
