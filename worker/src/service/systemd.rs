//! Notifies systemd of the service's state, if systemd has started the worker (sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Notifies systemd that requests are accepted.
pub fn ready() {
    notify("READY=1");
}

/// Notifies systemd that the service is another process now. Only the main process may say so
/// (`NotifyAccess=main`): this one, until then.
pub fn is_now(process: u32) {
    notify(&format!("MAINPID={process}"));
}

fn notify(what: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = || {
        let address = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(&path)?,
        };
        UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address)
    };
    if let Err(error) = sent() {
        tracing::warn!("cannot notify systemd: {error}");
    }
}
