//! Trust domains: which processes share with which. A process that may map a segment can read all of it, so a
//! store serves one domain only.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use cgroups::Membership;

use crate::base::error::{Error, While};

/// What two programs of one domain have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The same user.
    User,
    /// The same user in the same cgroup: containers.
    Cgroup,
    /// Being able to connect. Tenants can then find out what others have in memory (UPM §IV-E).
    Everyone,
}

/// A trust domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrustDomain {
    /// A user.
    User(u32),
    /// A user in a cgroup.
    Cgroup(u32, String),
    /// All processes.
    Everyone,
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrustDomain::User(user) => write!(f, "uid {user}"),
            TrustDomain::Cgroup(user, path) => write!(f, "uid {user} in {path}"),
            TrustDomain::Everyone => f.write_str("everyone"),
        }
    }
}

/// The process at the other end of a connection, as the kernel reports it.
pub struct Peer {
    /// Its process ID; 0 if it is in a namespace that the daemon cannot see.
    pub pid: i32,
    /// Its user.
    pub user: u32,
    /// Its trust domain.
    pub domain: TrustDomain,
}

/// `SO_PEERPIDFD`, Linux 6.5.
const PEER_PIDFD: i32 = 77;

fn peer_pidfd(socket: impl AsFd) -> std::io::Result<OwnedFd> {
    let (mut file, mut length) = (-1i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel writes one descriptor into `file`, which is then ours.
    unsafe {
        let socket = socket.as_fd().as_raw_fd();
        let written =
            libc::getsockopt(socket, libc::SOL_SOCKET, PEER_PIDFD, (&raw mut file).cast(), &raw mut length);
        if written == 0 && file >= 0 {
            Ok(OwnedFd::from_raw_fd(file))
        } else {
            Err(std::io::Error::last_os_error())
        }
    }
}

/// Whether this kernel can identify a connection's process for certain, which domains by cgroup need.
pub fn has_peer_pidfd() -> bool {
    std::os::unix::net::UnixStream::pair().is_ok_and(|(one, _other)| peer_pidfd(&one).is_ok())
}

impl Rule {
    /// The process at the other end.
    ///
    /// # Errors
    /// The kernel does not name the process, or not its cgroup.
    pub fn peer(self, socket: impl AsFd) -> Result<Peer, Error> {
        let (pid, user) = crate::base::channel::peer(&socket).while_doing("the connecting process")?;
        let domain = match self {
            Rule::User => TrustDomain::User(user),
            Rule::Everyone => TrustDomain::Everyone,
            Rule::Cgroup => TrustDomain::Cgroup(user, cgroup_of(pid, &socket)?),
        };
        Ok(Peer { pid, user, domain })
    }
}

fn cgroup_of(pid: i32, socket: impl AsFd) -> Result<String, Error> {
    if pid == 0 {
        return Err(Error::new(libc::ESRCH, "the process is in a namespace whose cgroups cannot be seen"));
    }
    let number = |error: &std::io::Error, else_: i32| match error.raw_os_error() {
        Some(errno @ (libc::EMFILE | libc::ENFILE)) => errno,
        _ => else_,
    };
    let process = peer_pidfd(socket).map_err(|error| {
        let line = format!("domains by cgroup need Linux 6.5 (SO_PEERPIDFD): {error}");
        Error::new(number(&error, libc::ENOTSUP), line)
    })?;
    let membership = Membership::of(pid).map_err(|error| {
        Error::new(number(&error, libc::ESRCH), format!("cgroup of process {pid}: {error}"))
    })?;
    // If the process lives now, the ID was still its own when the file was read.
    // SAFETY: signal 0 to a process that our descriptor names: checks whether it lives.
    let lives = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), 0, std::ptr::null::<u8>(), 0) == 0
            || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
    };
    if !lives {
        return Err(Error::new(libc::ESRCH, format!("process {pid} has ended")));
    }
    let none = || Error::new(libc::ENOTSUP, format!("process {pid} is in no memory cgroup"));
    membership.memory().map(str::to_owned).ok_or_else(none)
}

/// Checks that a program is in a cgroup that the file names, or in one below it.
///
/// # Errors
/// It is not, or the file cannot be read: then no program is a member.
pub fn check_member(socket: impl AsFd, pid: i32, members: &Path) -> Result<(), Error> {
    let own = cgroup_of(pid, socket)?;
    let text = std::fs::read_to_string(members).map_err(|error| {
        let line = format!("cannot read which cgroups may connect: {}: {error}", members.display());
        Error::new(error.raw_os_error().unwrap_or(libc::EIO), line)
    })?;
    if text.lines().any(|named| is_within(&own, named)) {
        return Ok(());
    }
    Err(Error::new(libc::EACCES, format!("process {pid} of cgroup {own} is no member of this store")))
}

fn is_within(cgroup: &str, named: &str) -> bool {
    let rest = cgroup.strip_prefix(named);
    named.len() > 1 && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_a_cgroup_and_those_below_it() {
        assert!(is_within("/pods/a", "/pods/a") && is_within("/pods/a/b", "/pods/a"));
        // A container that can create cgroups may give one another's name, but only below its own.
        assert!(!is_within("/pods/evil/pods/a", "/pods/a"));
        assert!(!is_within("/pods/ab", "/pods/a") && !is_within("/pods", "/pods/a"));
        assert!(!is_within("/pods/a", "/") && !is_within("/pods/a", ""));
    }

    #[test]
    fn peer_identifies_the_connecting_process() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = Rule::User.peer(&one).unwrap();
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_eq!(peer.domain, TrustDomain::User(rustix::process::geteuid().as_raw()));
        if has_peer_pidfd() {
            assert!(matches!(Rule::Cgroup.peer(&one).unwrap().domain, TrustDomain::Cgroup(..)));
        }
    }
}
