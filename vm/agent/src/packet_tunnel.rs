//! Forwards packets between the host and instances that have a network (vm-protocol's `relay`).
//!
//! Such an instance has a TUN device in its network namespace. The guest only forwards its packets; the host
//! checks their source addresses and decides where they may go.

use std::fs::File;
use std::io::{Read, Result};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::Builder;

use rustix::event::{PollFd, PollFlags, poll};
use vm_protocol::relay::Kind;
use vm_sandbox::network::PACKET_BYTES;

use crate::relay::{STACK_BYTES, Stream, Streams};

/// Forwards packets until it is dropped.
pub struct PacketTunnel {
    /// Dropping this end of a pipe ends the thread that reads packets.
    _ends: std::io::PipeWriter,
}

impl PacketTunnel {
    /// Starts to forward the packets of an instance's TUN device.
    pub fn new(relay: &Arc<Streams>, instance: &str, device: File) -> Result<PacketTunnel> {
        let (ended, ends) = std::io::pipe()?;
        let (relay, device) = (Arc::clone(relay), Arc::new(device));
        let number =
            relay.open_stream(Kind::Link, instance.as_bytes(), Stream::Packets(Arc::clone(&device)))?;
        let forwarding = Arc::clone(&relay);
        let started = Builder::new().stack_size(STACK_BYTES).spawn(move || {
            forward(&forwarding, number, &device, &ended);
            forwarding.close_stream(number);
        });
        if let Err(error) = started {
            relay.close_stream(number);
            return Err(error);
        }
        Ok(PacketTunnel { _ends: ends })
    }
}

/// Sends the instance's packets to the host.
fn forward(relay: &Streams, number: u32, device: &File, ended: &std::io::PipeReader) {
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
