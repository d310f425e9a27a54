//! Connections of functions in the guest, carried to the host over a virtio-serial port of their own: the worker serves
//! Lambda's Runtime API there. And packets of those that reach the outside world.
//!
//! A frame is a header of eight bytes and at most [`MOST_BYTES`]. The agent opens a stream for each connection that it
//! accepts on behalf of an instance, and either side closes it. Neither sends more bytes of a stream than it was granted ([`crate::window`]),
//! so that what one reader leaves lying holds up no other stream.

/// The virtio-serial port.
pub const PORT: &str = "org.mayfly.relay";
/// Bytes of one frame, at most.
pub const MOST_BYTES: usize = 64 << 10;
/// Of a frame's header.
pub const HEADER_BYTES: usize = 8;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A new stream, from the agent; the bytes are the instance's name.
    Open,
    /// The same for a stream of packets: each frame of data is one (IPv4), either way, and may get lost. Nothing is granted.
    Link,
    /// Bytes of the stream.
    Data,
    /// So many more bytes of the stream may be sent: four bytes, the lowest first.
    Grant,
    /// No more bytes will come or be taken.
    Close,
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Which stream; the agent never uses a number twice.
    pub stream: u32,
    /// What it is.
    pub kind: Kind,
    /// How many bytes follow.
    pub bytes: usize,
}

impl Header {
    /// As it is sent.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let kind = match self.kind {
            Kind::Open => b'O',
            Kind::Link => b'L',
            Kind::Data => b'D',
            Kind::Grant => b'G',
            Kind::Close => b'C',
        };
        let [a, b, c, d] = self.stream.to_le_bytes();
        let [e, f, g, _] = (self.bytes as u32).to_le_bytes();
        [kind, a, b, c, d, e, f, g]
    }

    /// Reads one. `None`: it is none, and the two sides are out of step.
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Option<Header> {
        let [kind, a, b, c, d, e, f, g] = bytes;
        let kind = match kind {
            b'O' => Kind::Open,
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
    fn headers_come_back_as_they_were() {
        for kind in [Kind::Open, Kind::Link, Kind::Data, Kind::Grant, Kind::Close] {
            let header = Header { stream: 0x0102_0304, kind, bytes: MOST_BYTES };
            assert_eq!(Header::decode(header.encode()), Some(header));
        }
        assert_eq!(Header::decode([0; 8]), None);
        assert_eq!(Header::decode([b'D', 0, 0, 0, 0, 1, 0, 1]), None, "longer than allowed");
    }
}
