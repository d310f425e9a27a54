//! The network of an instance, which begins with a loopback device that is down.

use std::io::{Error, Result};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Brings up the loopback device of this thread's network namespace.
///
/// # Errors
/// It is not there, or not this process's to bring up.
pub fn loopback_up() -> Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_listens_is_reached_once_the_device_is_up() {
        // SAFETY: takes nothing.
        let as_user = if unsafe { libc::geteuid() } == 0 { 0 } else { libc::CLONE_NEWUSER };
        // SAFETY: changes the namespaces of this thread only.
        if unsafe { libc::unshare(libc::CLONE_NEWNET | as_user) } != 0 {
            // Not by eprintln, which the test program keeps to itself: what was left out must be seen.
            let why = Error::last_os_error();
            writeln!(std::io::stderr(), "\nskipped: vm-sandbox: no network namespace to be had: {why}")
                .unwrap();
            return;
        }
        let reaches = || {
            let listener = TcpListener::bind(("127.0.0.1", 7001))?;
            TcpStream::connect(listener.local_addr()?).map(drop)
        };
        assert!(reaches().is_err(), "before");
        loopback_up().unwrap();
        reaches().unwrap();
    }
}
