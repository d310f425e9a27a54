//! Messages with at most one file each, over a Unix socket that keeps their boundaries.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::{Errno, IoSlice, IoSliceMut, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends one message.
///
/// # Errors
/// The kernel's error; EMSGSIZE if it took only a part.
pub fn send(socket: impl AsFd, bytes: &[u8], file: Option<BorrowedFd<'_>>, flags: SendFlags) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let files;
    if let Some(file) = file {
        files = [file];
        beside.push(SendAncillaryMessage::ScmRights(&files));
    }
    let sent = loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut beside, flags | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    if sent == bytes.len() { Ok(()) } else { Err(Errno::MSGSIZE) }
}

/// Process and user at the other end, as the kernel reports them. The process is 0 if it is in another
/// namespace.
///
/// # Errors
/// The socket is none of the Unix domain.
pub fn peer(socket: impl AsFd) -> Result<(i32, u32)> {
    let mut about = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel fills `about`, within the size passed.
    let failed = unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, (&raw mut about).cast(), &raw mut bytes)
    } != 0;
    if failed {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Errno::from_raw_os_error(errno));
    }
    Ok((about.pid, about.uid))
}

/// A received message.
pub struct Received {
    /// Bytes of the message; 0 if the peer has closed the connection.
    pub bytes: usize,
    /// The file sent with it; of several the first, since the kernel drops the others.
    pub file: Option<OwnedFd>,
    /// Whether the peer sent more files than the caller asked for.
    pub left_files: bool,
}

/// Peeks at the next message and leaves it and the files sent with it in the queue. Returns its length, and
/// whether there are files.
///
/// # Errors
/// `MSGSIZE` if it does not fit, or the system's error.
pub fn peek(socket: impl AsFd, buffer: &mut [u8], flags: RecvFlags) -> Result<(usize, bool)> {
    let seen = receive(socket, buffer, flags | RecvFlags::PEEK, false)?;
    Ok((seen.bytes, seen.left_files))
}

/// Receives one message into `buffer`, and the file sent with it if `wants_file` is set.
///
/// # Errors
/// `MSGSIZE` if it does not fit, or the system's error.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], flags: RecvFlags, wants_file: bool) -> Result<Received> {
    // Room for one and no more: this process must close what the kernel puts into its table.
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1)) - 4];
    let room = if wants_file { &mut space[..] } else { &mut [] };
    let mut beside = RecvAncillaryBuffer::new(room);
    let message = loop {
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut beside, flags) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut file = None;
    for piece in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = piece {
            for each in files {
                file.get_or_insert(each);
            }
        }
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    let left_files = message.flags.contains(ReturnFlags::CTRUNC);
    Ok(Received { bytes: message.bytes, file, left_files })
}
