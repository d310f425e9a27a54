//! User namespaces, one for each partition. An instance's root is an unprivileged user in the guest: it owns
//! no files of the guest or of other instances, and its capabilities have no effect outside the namespace.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::plan::Identity;

/// Cached namespaces. A namespace has no state that one instance could leave for the next.
static MADE: Mutex<Option<HashMap<Identity, Arc<OwnedFd>>>> = Mutex::new(None);

/// The namespace of this identity.
pub fn namespace(identity: Identity) -> io::Result<Arc<OwnedFd>> {
    let mut made = MADE.lock().expect("not poisoned");
    let made = made.get_or_insert_default();
    if let Some(namespace) = made.get(&identity) {
        return Ok(Arc::clone(namespace));
    }
    // Each function of a worker has a user of its own, so the cache would grow.
    if made.len() > 256 {
        made.clear();
    }
    let namespace = Arc::new(make(identity)?);
    made.insert(identity, Arc::clone(&namespace));
    Ok(namespace)
}

/// Makes a namespace. A child process creates it and waits while this process, from outside, writes its user
/// maps.
fn make(identity: Identity) -> io::Result<OwnedFd> {
    let (entered, report) = io::pipe()?;
    // SAFETY: the child only makes system calls, and is killed without running other code of this process.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let outcome = [u8::from(libc::unshare(libc::CLONE_NEWUSER) == 0)];
            libc::write(std::os::fd::AsRawFd::as_raw_fd(&report), outcome.as_ptr().cast(), 1);
            loop {
                libc::pause();
            }
        }
    }
    let child = Pid::from_raw(child).ok_or_else(io::Error::last_os_error)?;
    drop(report);
    let open = || {
        let mut outcome = [0];
        rustix::io::read(&entered, &mut outcome)?;
        if outcome == [0] {
            return Err(io::Error::other("the kernel makes no user namespaces"));
        }
        let process = format!("/proc/{}", child.as_raw_nonzero());
        fs::write(format!("{process}/uid_map"), identity.map())?;
        fs::write(format!("{process}/gid_map"), identity.map())?;
        Ok(File::open(format!("{process}/ns/user"))?.into())
    };
    let namespace = open();
    let _ = kill_process(child, Signal::KILL);
    let _ = waitpid(Some(child), WaitOptions::empty());
    namespace
}
