//! Packets of instances that reach the outside world, carried to the host and from there (vm-protocol's `relay`).
//!
//! Such an instance has a tunnel in its network, whose other end is this file. Where its packets may go, and whose they may say
//! they are, is for the host to decide: the guest only carries them.

use std::fs::File;
use std::io::{Read, Result};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::Builder;

use rustix::event::{PollFd, PollFlags, poll};
use vm_protocol::relay::Kind;
use vm_sandbox::network::PACKET_BYTES;

use crate::relay::{STACK_BYTES, Stream, Streams};

/// Carries packets until it is dropped.
pub struct Link {
    /// The thread that reads them looks at the other end of this pipe.
    _ends: std::io::PipeWriter,
}

impl Link {
    /// Begins to carry what an instance sends and gets by this tunnel.
    pub fn new(relay: &Arc<Streams>, instance: &str, device: File) -> Result<Link> {
        let (ended, ends) = std::io::pipe()?;
        let (relay, device) = (Arc::clone(relay), Arc::new(device));
        let number = relay.open_stream(Kind::Link, instance, Stream::Packets(Arc::clone(&device)))?;
        let carrying = Arc::clone(&relay);
        let started = Builder::new().stack_size(STACK_BYTES).spawn(move || {
            carry(&carrying, number, &device, &ended);
            carrying.close_stream(number);
        });
        if let Err(error) = started {
            relay.close_stream(number);
            return Err(error);
        }
        Ok(Link { _ends: ends })
    }
}

/// What the instance sends, to the host.
fn carry(relay: &Streams, number: u32, device: &File, ended: &std::io::PipeReader) {
    let mut packet = [0; PACKET_BYTES];
    loop {
        let mut events =
            [PollFd::new(device, PollFlags::IN), PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN)];
        match poll(&mut events, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) if !events[1].revents().is_empty() => return,
            Ok(_) => {}
        }
        match (&*device).read(&mut packet) {
            Ok(length) => {
                if relay.send(number, Kind::Data, &packet[..length]).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
