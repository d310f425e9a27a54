//! Tells systemd how it stands, where that has started the worker (sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Requests are taken. It is also said that this process is the service now: another one may have been
/// before.
pub fn ready() {
    tell(&format!("MAINPID={}\nREADY=1", std::process::id()));
}

/// The service is another process now.
pub fn is_now(process: u32) {
    tell(&format!("MAINPID={process}"));
}

fn tell(what: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let told = || {
        let address = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(&path)?,
        };
        UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address)
    };
    if let Err(error) = told() {
        tracing::warn!("systemd does not hear of it: {error}");
    }
}
