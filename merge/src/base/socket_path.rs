//! The store's socket: `MAYFLY_SHARE_SOCKET`, else a user's own, else the system's.

use std::path::{Path, PathBuf};

/// The variable that names the socket, for programs and for `mayfly share`.
pub const VARIABLE: &str = "MAYFLY_SHARE_SOCKET";

const SYSTEM: &str = "/run/mayfly/share.socket";

fn of_user() -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty())?;
    Some(Path::new(&folder).join("mayfly/share.socket"))
}

fn set() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The socket of a daemon that was given none.
pub fn to_serve() -> PathBuf {
    if let Some(path) = set() {
        return path;
    }
    if rustix::process::geteuid().is_root() {
        SYSTEM.into()
    } else {
        of_user().unwrap_or_else(|| SYSTEM.into())
    }
}

/// The socket that a program connects to.
pub fn to_reach() -> PathBuf {
    set().unwrap_or_else(|| of_user().filter(|path| path.exists()).unwrap_or_else(|| SYSTEM.into()))
}
