//! This process's page map, /proc/self/pagemap. A process that has changed its user is not dumpable, and the
//! file then belongs to root: servers that drop root's rights need one that was opened before.

use std::fs::{File, metadata};
use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

/// The file.
pub const PATH: &str = "/proc/self/pagemap";

/// A descriptor that was opened early, and the identity of its file. It stays open: the program may have
/// closed it and use the number for a file of its own.
struct Early {
    file: ManuallyDrop<File>,
    identity: (u64, u64),
}

static EARLY: Mutex<Option<Early>> = Mutex::new(None);

/// Opens the page map.
///
/// # Errors
/// `PermissionDenied` if the process has changed its user since [`open_early`] could open it, or was not
/// root's then.
pub fn open() -> io::Result<File> {
    match File::open(PATH) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => opened_early().ok_or(error),
        other => other,
    }
}

/// Opens it for later, if this process is root's and so may change its user: when a library is loaded, and in
/// each child, whose page map is another.
pub fn open_early() {
    // SAFETY: takes no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    // In a child of one that was forked by clone another thread may have had it, which does not exist here.
    let Ok(mut early) = EARLY.try_lock() else { return };
    let Ok(file) = File::open(PATH) else { return };
    let Ok(about) = file.metadata() else { return };
    let fresh = Early { file: ManuallyDrop::new(file), identity: (about.dev(), about.ino()) };
    if let Some(parents) = early.replace(fresh)
        && parents.is_open()
    {
        drop(ManuallyDrop::into_inner(parents.file));
    }
}

fn opened_early() -> Option<File> {
    let early = EARLY.lock().unwrap_or_else(PoisonError::into_inner);
    let early = early.as_ref().filter(|early| early.is_open())?;
    // A child made without the C library's fork has its parent's.
    let own = metadata(PATH).ok()?;
    (early.identity == (own.dev(), own.ino())).then(|| early.file.try_clone().ok())?
}

impl Early {
    /// Whether the program has left it open.
    fn is_open(&self) -> bool {
        self.file.metadata().is_ok_and(|about| (about.dev(), about.ino()) == self.identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_an_early_descriptor_of_this_process_only() {
        // SAFETY: takes no arguments.
        if unsafe { libc::geteuid() } != 0 {
            return; // only root's processes open it early
        }
        open_early();
        let early = opened_early().unwrap();
        assert_eq!(early.metadata().unwrap().ino(), metadata(PATH).unwrap().ino());
        EARLY.lock().unwrap().as_mut().unwrap().identity.1 += 1;
        assert!(opened_early().is_none(), "another file under the same number");
    }
}
