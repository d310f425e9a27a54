//! What this process may do, which a systemd unit may have restricted.

use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{CapabilitySet, capabilities};

/// How an operator gives the unit more rights.
const HOW: &str = "under systemd: the lines of /usr/share/doc/mayfly/examples";

/// Whether this process is root, and so may run others as users of their own.
pub fn worker_is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where root keeps sockets: the unit's own folder (`RuntimeDirectory=`), else /run.
pub fn run_folder() -> PathBuf {
    let given = std::env::var("RUNTIME_DIRECTORY").ok();
    first_folder(given.as_deref()).unwrap_or("/run").into()
}

/// systemd names several with colons between them.
fn first_folder(given: Option<&str>) -> Option<&str> {
    given?.split(':').find(|folder| folder.starts_with('/'))
}

/// Why instances can have no `Network: outside`, if they cannot.
pub fn no_network() -> Option<String> {
    if !worker_is_root() {
        return Some("Network: outside needs root".into());
    }
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None);
    let error = socket.err()?;
    Some(format!("Network: outside needs netlink sockets ({error}); {HOW}/worker-network.conf"))
}

/// Why instances cannot be paged out, if they cannot.
pub fn no_page_out() -> Option<String> {
    if !worker_is_root() {
        return Some("PageOutAfter needs root".into());
    }
    (!has(CapabilitySet::SYS_NICE))
        .then(|| format!("PageOutAfter needs CAP_SYS_NICE; {HOW}/worker-page-out.conf"))
}

/// Why no snapshot of an instance can be taken, if none can. A worker that is not root may trace its own
/// instances.
pub fn no_snapshots() -> Option<String> {
    (worker_is_root() && !has(CapabilitySet::SYS_PTRACE))
        .then(|| "snapshots (SnapStart) need CAP_SYS_PTRACE, which this worker lacks".into())
}

fn has(right: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_units_folder_is_the_first_of_its_list() {
        assert_eq!(first_folder(None), None);
        assert_eq!(first_folder(Some("")), None);
        assert_eq!(first_folder(Some("/run/a:/run/b")), Some("/run/a"));
    }

    #[test]
    fn root_with_all_rights_lacks_nothing_and_other_users_need_root() {
        let why = [no_network(), no_page_out()];
        assert_eq!(no_snapshots(), None);
        match worker_is_root() {
            true => assert_eq!(why, [None, None]),
            false => {
                assert!(why.iter().all(|why| why.as_ref().is_some_and(|why| why.ends_with("needs root"))))
            }
        }
    }
}
