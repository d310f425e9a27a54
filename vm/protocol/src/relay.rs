//! The relay: forwards connections of functions in the guest to the host, where the worker serves Lambda's
//! Runtime API, over a virtio-serial port of its own. It also forwards connections of the worker to servers
//! of functions, and the packets of functions that have network access.
//!
//! A frame is a header of eight bytes and at most [`MOST_BYTES`]. The agent opens a stream for each
//! connection that it accepts for an instance, or makes at the host's request, and either side closes it.
//! Neither side sends more bytes of a stream than it was granted ([`crate::window`]), so that a slow reader
//! of one stream delays no other stream.

/// The virtio-serial port.
pub const PORT: &str = "org.mayfly.relay";
/// Bytes of one frame, at most.
pub const MOST_BYTES: usize = 64 << 10;
/// Size of a frame's header.
pub const HEADER_BYTES: usize = 8;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A new stream, from the agent; the bytes are the instance's name.
    Open,
    /// A new stream, from the agent, to a server inside an instance; the bytes are the token of the host's
    /// request ([`crate::Operation::Connect`]), four bytes, little endian.
    Inside,
    /// As [`Kind::Open`], for a stream of packets: each data frame, either way, is one IPv4 packet and may
    /// get lost. There are no grants.
    Link,
    /// Bytes of the stream.
    Data,
    /// How many more bytes of the stream may be sent: four bytes, little endian.
    Grant,
    /// The stream is closed both ways.
    Close,
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Which stream; the agent never uses a number twice.
    pub stream: u32,
    /// Its kind.
    pub kind: Kind,
    /// How many bytes follow.
    pub bytes: usize,
}

impl Header {
    /// Its bytes on the wire.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let kind = match self.kind {
            Kind::Open => b'O',
            Kind::Inside => b'I',
            Kind::Link => b'L',
            Kind::Data => b'D',
            Kind::Grant => b'G',
            Kind::Close => b'C',
        };
        let [a, b, c, d] = self.stream.to_le_bytes();
        let [e, f, g, _] = (self.bytes as u32).to_le_bytes();
        [kind, a, b, c, d, e, f, g]
    }

    /// Parses a header. `None`: these bytes are none, so the two sides are out of step.
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Option<Header> {
        let [kind, a, b, c, d, e, f, g] = bytes;
        let kind = match kind {
            b'O' => Kind::Open,
            b'I' => Kind::Inside,
            b'L' => Kind::Link,
            b'D' => Kind::Data,
            b'G' => Kind::Grant,
            b'C' => Kind::Close,
            _ => return None,
        };
        let bytes = u32::from_le_bytes([e, f, g, 0]) as usize;
        let stream = u32::from_le_bytes([a, b, c, d]);
        (bytes <= MOST_BYTES).then_some(Header { stream, kind, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_decode_as_encoded() {
        for kind in [Kind::Open, Kind::Inside, Kind::Link, Kind::Data, Kind::Grant, Kind::Close] {
            let header = Header { stream: 0x0102_0304, kind, bytes: MOST_BYTES };
            assert_eq!(Header::decode(header.encode()), Some(header));
        }
        assert_eq!(Header::decode([0; 8]), None);
        assert_eq!(Header::decode([b'D', 0, 0, 0, 0, 1, 0, 1]), None, "longer than allowed");
    }
}
