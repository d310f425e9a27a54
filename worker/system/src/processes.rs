//! Files of /proc of another process, where this one may not read them as itself.
//!
//! A worker that is root without `CAP_SYS_PTRACE`, as in its systemd unit, reads them as the process's own
//! user. A process that has closed itself to its user (`PR_SET_DUMPABLE`) stays unread.

use std::fs;
use std::io::{self, ErrorKind};

/// The thread's user and group for access to files, which are root's again when this is dropped.
struct AsUser;

impl AsUser {
    fn new(user: u32) -> AsUser {
        // SAFETY: passes numbers, and changes this thread alone: glibc does not carry it to others.
        unsafe {
            libc::setfsgid(user);
            libc::setfsuid(user);
        }
        AsUser
    }
}

impl Drop for AsUser {
    fn drop(&mut self) {
        // SAFETY: as above. It cannot fail: both are this process's real user and group.
        unsafe {
            libc::setfsuid(libc::getuid());
            libc::setfsgid(libc::getgid());
        }
    }
}

/// Runs `work` as it is, and if it is refused as this user of files, whose group has the same number. A
/// process whose user may not see it is not there (`ProtectProc=invisible`).
///
/// # Errors
/// That of the last attempt.
pub fn or_as_user<T>(user: Option<u32>, work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match (work(), user) {
        (Err(error), Some(user))
            if [ErrorKind::PermissionDenied, ErrorKind::NotFound].contains(&error.kind()) =>
        {
            let _as_user = AsUser::new(user);
            work()
        }
        (done, _) => done,
    }
}

/// Reads a file of a process's folder in /proc; `user` is the user of the process, if it has one of its own.
///
/// # Errors
/// It has ended, or neither this process nor its user may read it.
pub fn read(process: i32, file: &str, user: Option<u32>) -> io::Result<Vec<u8>> {
    or_as_user(user, || fs::read(format!("/proc/{process}/{file}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    const USER: u32 = 2_000_999_999;

    fn is_root() -> bool {
        // SAFETY: passes nothing.
        unsafe { libc::geteuid() == 0 }
    }

    #[test]
    fn work_that_fails_is_tried_as_the_user_and_the_thread_is_itself_again() {
        if !is_root() {
            eprintln!("skipped: work_that_fails_is_tried_as_the_user: needs root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let place = folder.path().join("file");
        let tries = std::cell::Cell::new(0);
        let made = or_as_user(Some(USER), || {
            tries.set(tries.get() + 1);
            if tries.get() == 1 { Err(ErrorKind::PermissionDenied.into()) } else { fs::File::create(&place) }
        });
        use std::os::unix::fs::MetadataExt;
        assert_eq!((made.unwrap().metadata().unwrap().uid(), tries.get()), (USER, 2));
        let own = fs::File::create(folder.path().join("own")).unwrap();
        assert_eq!(own.metadata().unwrap().uid(), 0);
    }

    #[test]
    fn a_process_of_another_user_is_read_without_the_right_to_trace() {
        if !is_root() {
            eprintln!("skipped: a_process_of_another_user_is_read: needs root");
            return;
        }
        let mut child =
            Command::new("sleep").arg("60").stdin(Stdio::null()).uid(USER).gid(USER).spawn().unwrap();
        let id = child.id() as i32;
        let read = std::thread::spawn(move || {
            give_up_the_right_to_trace();
            (
                fs::read(format!("/proc/{id}/smaps_rollup")).is_err(),
                read(id, "smaps_rollup", Some(USER)).is_ok(),
            )
        });
        let (refused, is_read) = read.join().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(refused, "root without these capabilities may not");
        assert!(is_read, "but its user may");
    }

    /// Of this thread alone. In later Linux two other rights allow it to read, too.
    fn give_up_the_right_to_trace() {
        const CAP_SYS_PTRACE: u64 = 19;
        const CAP_SYS_ADMIN: u64 = 21;
        const CAP_PERFMON: u64 = 38;
        let header = [0x2008_0522_u32, 0]; // _LINUX_CAPABILITY_VERSION_3, this thread
        let mut sets = [[0_u32; 3]; 2];
        // SAFETY: the kernel reads the header and writes two structures of three numbers.
        assert_eq!(unsafe { libc::syscall(libc::SYS_capget, &raw const header, &raw mut sets) }, 0);
        let kept: u64 = !(1 << CAP_SYS_PTRACE | 1 << CAP_SYS_ADMIN | 1 << CAP_PERFMON);
        for (half, sets) in [kept as u32, (kept >> 32) as u32].into_iter().zip(&mut sets) {
            sets.iter_mut().for_each(|set| *set &= half);
        }
        // SAFETY: the kernel reads the header and two structures of three numbers.
        assert_eq!(unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const sets) }, 0);
    }
}
