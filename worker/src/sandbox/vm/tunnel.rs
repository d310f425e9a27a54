//! The way out of an instance in a VM: an interface of the host's, whose packets are carried to and from
//! the guest by the VM's relay.
//!
//! ```text
//!   instance  eth0 ── agent ── relay ── worker ── mfXXXX-N  host ── as a container's from there on (network.rs)
//! ```
//! So the VM has no network device, and what instances may reach is decided on the host alone. The guest
//! is not trusted: a packet that does not come from the instance's own address is dropped.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::io::unix::AsyncFd;
use vm_sandbox::network::PACKET_BYTES;

use crate::sandbox::network::{Network, Pair};

/// An interface of the host's, until it is dropped.
pub struct Tunnel {
    device: AsyncFd<File>,
    /// Its addresses are another's as soon as the interface is removed.
    pair: Pair,
}

impl Tunnel {
    /// Makes one.
    ///
    /// # Errors
    /// There are too many, or the host has no tunnels.
    pub fn new(network: &Arc<Network>) -> Result<Tunnel> {
        let pair = network.take()?;
        let device = vm_sandbox::network::tunnel(&pair.name(), pair.gateway()).context("no tunnel")?;
        // SAFETY: the file stays open, and the same, for as long as it is registered: nothing else owns it.
        let device = unsafe { AsyncFd::register(device) }?;
        Ok(Tunnel { device, pair })
    }

    /// The instance's address.
    pub fn address(&self) -> Ipv4Addr {
        self.pair.own()
    }

    /// Sends a packet of the instance's. Drops bytes that are no packet, and packets from another address.
    pub fn take(&self, packet: &[u8]) {
        if is_from(packet, self.address()) {
            let _ = self.device.get_ref().write(packet);
        }
    }

    /// The next packet for the instance.
    ///
    /// # Errors
    /// The interface was removed.
    pub async fn next(&self) -> std::io::Result<Vec<u8>> {
        let mut packet = vec![0; PACKET_BYTES];
        let length = self
            .device
            .async_io(tokio::io::Interest::READABLE, |mut device| device.read(&mut packet))
            .await?;
        packet.truncate(length);
        Ok(packet)
    }
}

/// Whether this is a packet of IPv4 whose source address is this one.
fn is_from(packet: &[u8], address: Ipv4Addr) -> bool {
    let fits = (20..=PACKET_BYTES).contains(&packet.len());
    fits && packet[0] >> 4 == 4 && packet[12..16] == address.octets()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packets_from_the_instances_own_address_are_taken() {
        let own = Ipv4Addr::new(100, 64, 0, 6);
        let packet = |version: u8, from: [u8; 4]| {
            let mut packet = [0; 28];
            packet[0] = version << 4 | 5;
            packet[12..16].copy_from_slice(&from);
            packet
        };
        assert!(is_from(&packet(4, [100, 64, 0, 6]), own));
        assert!(!is_from(&packet(4, [100, 64, 0, 10]), own), "another instance's");
        assert!(!is_from(&packet(6, [100, 64, 0, 6]), own));
        assert!(!is_from(&packet(4, [100, 64, 0, 6])[..19], own) && !is_from(&[], own), "cut short");
        let mut long = packet(4, [100, 64, 0, 6]).to_vec();
        long.resize(PACKET_BYTES + 1, 0);
        assert!(!is_from(&long, own));
    }
}
