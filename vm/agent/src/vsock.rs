//! The port to the host where the hypervisor has no virtio-serial device (Firecracker): a connection through
//! a vsock device.

use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Connects to this port of the host; `None`: the guest has no such device, or no host listens.
pub fn connect(port: u32) -> Option<OwnedFd> {
    let socket = socket_with(AddressFamily::VSOCK, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
    let address = libc::sockaddr_vm {
        svm_family: libc::AF_VSOCK as libc::sa_family_t,
        svm_reserved1: 0,
        svm_port: port,
        svm_cid: libc::VMADDR_CID_HOST,
        svm_zero: [0; 4],
    };
    let bytes = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    // SAFETY: the address has that many bytes, all of them initialized, and outlives the call.
    let connected = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
    if connected != 0 {
        return None;
    }
    fcntl_setfl(&socket, OFlags::NONBLOCK).ok()?;
    Some(socket)
}
