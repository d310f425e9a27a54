//! Messages with at most one file each, over a Unix socket that keeps their boundaries.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::{Errno, IoSlice, IoSliceMut, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends one message.
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

/// What came.
pub struct Received {
    /// Bytes of the message; 0 if the other side has gone.
    pub bytes: usize,
    /// The file beside it. Of more than one the first.
    pub file: Option<OwnedFd>,
}

/// Receives one message into `buffer`.
///
/// # Errors
/// `MSGSIZE` if it does not fit; what the system says.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], flags: RecvFlags) -> Result<Received> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
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
    Ok(Received { bytes: message.bytes, file })
}
