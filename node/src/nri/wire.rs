//! Messages on the connection to the runtime, which carries two ttrpc connections, multiplexed in frames.
//! Numbers are big-endian.
//!
//! ```text
//! frame     connection 32, length 32                           several make a message, one may hold several
//! message   length 32, stream 32, kind 8, flags 8, then protobuf   ttrpc: a request, or the response on that stream
//! ```
//!
//! The crate `ttrpc` 0.10 has no multiplexer, and with its code generator it would add thirty crates for the
//! ten bytes of a message's header. NRI's protobuf file is in a Go module, and compiling it would need that
//! module and a compiler wherever Mayfly is built. So both are here, and tests on two versions of containerd
//! check them.

use std::collections::HashMap;
use std::io;

use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The connection on which the runtime sends requests.
pub const PLUGIN_SERVICE_CONNECTION: u32 = 1;
/// The connection on which the agent sends requests.
pub const RUNTIME_SERVICE_CONNECTION: u32 = 2;

/// The size of the runtime's read buffer: it refuses a longer frame.
const MAX_SENT_BYTES: usize = 4096;
const HEADER_BYTES: usize = 10;
/// ttrpc's limit.
const MAX_BODY_BYTES: usize = 4 << 20;
const MAX_FRAME_BYTES: usize = HEADER_BYTES + MAX_BODY_BYTES;
pub(super) const REQUEST: u8 = 1;
pub(super) const RESPONSE: u8 = 2;
/// gRPC's code by which a server refuses a method: the runtime then calls the one that older plugins have.
pub const UNIMPLEMENTED: i32 = 12;

/// ttrpc's `Request`.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// Package and service.
    #[prost(string, tag = "1")]
    pub service: String,
    /// The method.
    #[prost(string, tag = "2")]
    pub method: String,
    /// The method's own message.
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
    /// How long the caller waits.
    #[prost(int64, tag = "4")]
    pub timeout_ns: i64,
}

/// ttrpc's `Response`.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    /// None, or code 0: success.
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    /// The method's own message.
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

/// gRPC's `Status`.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// gRPC's codes.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The reason, for people.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// A message that the runtime sent, with its ttrpc stream.
#[derive(Debug, PartialEq)]
pub enum Received {
    /// A request to the agent.
    Request(u32, Request),
    /// The response to a request of the agent's.
    Response(u32, Response),
    /// A message of another kind, by its number: streaming calls have such.
    Unknown(u32, u8),
}

fn invalid(reason: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not NRI's protocol: {reason}"))
}

/// The reading end.
pub struct Reader<R> {
    from: R,
    /// By connection.
    partial: HashMap<u32, Partial>,
}

/// The bytes received that are no message yet. Of those before `start` a message was made.
#[derive(Default)]
struct Partial {
    bytes: Vec<u8>,
    start: usize,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads messages from a connection.
    pub fn new(from: R) -> Self {
        let connections = [PLUGIN_SERVICE_CONNECTION, RUNTIME_SERVICE_CONNECTION];
        Reader { from, partial: connections.map(|connection| (connection, Partial::default())).into() }
    }

    /// The next message; none when the runtime has closed the connection.
    ///
    /// # Errors
    /// The connection fails, or the bytes are no valid messages.
    pub async fn next(&mut self) -> io::Result<Option<Received>> {
        loop {
            for partial in self.partial.values_mut() {
                if let Some(message) = partial.take_first()? {
                    return Ok(Some(message));
                }
            }
            let connection = match self.from.read_u32().await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                other => other?,
            };
            let length = self.from.read_u32().await? as usize;
            if length > MAX_FRAME_BYTES {
                return Err(invalid(format_args!("a frame of {length} bytes")));
            }
            let mut frame = vec![0; length];
            self.from.read_exact(&mut frame).await?;
            // A later version of NRI may have other connections, too.
            if let Some(partial) = self.partial.get_mut(&connection) {
                partial.extend(&frame);
            }
        }
    }
}

impl Partial {
    /// Appends bytes of a frame. Only here are earlier ones moved: a frame can hold many messages.
    fn extend(&mut self, frame: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.start));
        self.bytes.extend_from_slice(frame);
    }

    /// Takes the first message, if it is complete.
    fn take_first(&mut self) -> io::Result<Option<Received>> {
        let pending = &self.bytes[self.start..];
        let Some((header, rest)) = pending.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [l0, l1, l2, l3, s0, s1, s2, s3, kind, _] = *header;
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_BODY_BYTES {
            return Err(invalid(format_args!("a message of {length} bytes")));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let stream = u32::from_be_bytes([s0, s1, s2, s3]);
        let message = match kind {
            REQUEST => Received::Request(stream, Request::decode(body).map_err(invalid)?),
            RESPONSE => Received::Response(stream, Response::decode(body).map_err(invalid)?),
            other => Received::Unknown(stream, other),
        };
        self.start += HEADER_BYTES + length;
        Ok(Some(message))
    }
}

/// Sends a request.
///
/// # Errors
/// The connection's.
pub async fn send_request(
    to: &mut (impl AsyncWrite + Unpin),
    stream: u32,
    request: &Request,
) -> io::Result<()> {
    send(to, RUNTIME_SERVICE_CONNECTION, stream, REQUEST, &request.encode_to_vec()).await
}

/// Sends a response.
///
/// # Errors
/// The connection's.
pub async fn send_response(
    to: &mut (impl AsyncWrite + Unpin),
    stream: u32,
    response: &Response,
) -> io::Result<()> {
    send(to, PLUGIN_SERVICE_CONNECTION, stream, RESPONSE, &response.encode_to_vec()).await
}

/// Sends a message of this kind.
pub(super) async fn send(
    to: &mut (impl AsyncWrite + Unpin),
    connection: u32,
    stream: u32,
    kind: u8,
    body: &[u8],
) -> io::Result<()> {
    let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
    message.extend((body.len() as u32).to_be_bytes());
    message.extend(stream.to_be_bytes());
    message.extend([kind, 0]);
    message.extend(body);
    for frame in message.chunks(MAX_SENT_BYTES) {
        to.write_u32(connection).await?;
        to.write_u32(frame.len() as u32).await?;
        to.write_all(frame).await?;
    }
    to.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// The output of [`send`], divided into frames of another size.
    fn repacked(bytes: &[u8], size: usize) -> Vec<u8> {
        let (mut out, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            let (connection, length) = (number(at), number(at + 4) as usize);
            assert!(length <= MAX_SENT_BYTES);
            for part in bytes[at + 8..at + 8 + length].chunks(size) {
                out.extend(connection.to_be_bytes());
                out.extend((part.len() as u32).to_be_bytes());
                out.extend(part);
            }
            at += 8 + length;
        }
        out
    }

    #[test]
    fn reads_whole_messages_from_frames_of_any_size() {
        let request =
            Request { service: "s".into(), method: "m".into(), payload: vec![7; 9000], timeout_ns: 5 };
        let mut sent = Vec::new();
        block_on(send_request(&mut sent, 1, &request)).unwrap();
        let response = Response { status: None, payload: vec![9; 5] };
        block_on(send_response(&mut sent, 3, &response)).unwrap();
        for size in [1, 3, 10, 4096] {
            let bytes = repacked(&sent, size);
            let mut reader = Reader::new(&bytes[..]);
            assert_eq!(block_on(reader.next()).unwrap(), Some(Received::Request(1, request.clone())));
            assert_eq!(block_on(reader.next()).unwrap(), Some(Received::Response(3, response.clone())));
            assert_eq!(block_on(reader.next()).unwrap(), None);
        }
    }

    #[test]
    fn reports_messages_of_unknown_kinds_and_reads_on() {
        let mut bytes = vec![0, 0, 0, 1, 0, 0, 0, 12, 0, 0, 0, 2, 0, 0, 0, 5, 3, 0, 8, 8];
        let response = Response { status: None, payload: Vec::new() };
        block_on(send_response(&mut bytes, 7, &response)).unwrap();
        let mut reader = Reader::new(&bytes[..]);
        assert_eq!(block_on(reader.next()).unwrap(), Some(Received::Unknown(5, 3)));
        assert_eq!(block_on(reader.next()).unwrap(), Some(Received::Response(7, response)));
    }

    #[test]
    fn many_messages_of_one_frame_are_read_without_moving_the_rest_for_each() {
        let count = MAX_FRAME_BYTES / HEADER_BYTES;
        let mut bytes = PLUGIN_SERVICE_CONNECTION.to_be_bytes().to_vec();
        bytes.extend(((count * HEADER_BYTES) as u32).to_be_bytes());
        (0..count).for_each(|_| bytes.extend([0, 0, 0, 0, 0, 0, 0, 1, 3, 0]));
        // It would take minutes, if the rest moved each time.
        let read = block_on(async {
            let (mut reader, mut read) = (Reader::new(&bytes[..]), 0);
            while reader.next().await.unwrap().is_some() {
                read += 1;
            }
            read
        });
        assert_eq!(read, count);
    }

    #[test]
    fn too_long_frame_or_message_ends_the_connection() {
        let frame = [0, 0, 0, 1, 255, 255, 255, 255];
        assert!(block_on(Reader::new(&frame[..]).next()).is_err());
        let message = [0, 0, 0, 1, 0, 0, 0, 10, 255, 255, 255, 255, 0, 0, 0, 1, 1, 0];
        assert!(block_on(Reader::new(&message[..]).next()).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut frame = vec![0, 0, 0, 1];
            frame.extend((bytes.len() as u32).to_be_bytes());
            frame.extend(&bytes);
            let mut reader = Reader::new(&frame[..]);
            while let Ok(Some(_)) = block_on(reader.next()) {}
        }
    }
}
