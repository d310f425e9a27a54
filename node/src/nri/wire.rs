//! Messages on the connection to the runtime. Numbers are big-endian.
//!
//! ```text
//! piece     stream 32, length 32                               several make a message, one may hold several
//! message   length 32, call 32, kind 8, flags 8, then protobuf   ttrpc: a request, or the response to that call
//! ```
//!
//! The crate `ttrpc` would bring forty others, a code generator among them, for these forty bytes of headers.

use std::collections::HashMap;
use std::io;

use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The stream on which the runtime asks.
pub const QUESTIONS: u32 = 1;
/// The stream on which the agent asks.
pub const REGISTRATION: u32 = 2;

/// What the other end reads into: a longer piece is refused there.
const MOST_SENT: usize = 4096;
const HEADER: usize = 10;
/// Of ttrpc.
const MOST_BODY: usize = 4 << 20;
const MOST_PIECE: usize = HEADER + MOST_BODY;
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;

/// ttrpc's `Request`.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// Package and service.
    #[prost(string, tag = "1")]
    pub service: String,
    /// What is called.
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
    /// None, or code 0: it went well.
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
    /// A line for people.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// A whole message that has come.
#[derive(Debug, PartialEq)]
pub enum Received {
    /// The runtime asks: the call's number, and what.
    Request(u32, Request),
    /// The runtime answers.
    Response(u32, Response),
}

fn invalid(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not NRI's protocol: {what}"))
}

/// The reading end.
pub struct Reader<R> {
    from: R,
    /// What came of a stream's message that is not whole yet.
    begun: HashMap<u32, Vec<u8>>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads messages from a connection.
    pub fn new(from: R) -> Self {
        Reader { from, begun: HashMap::from([(QUESTIONS, Vec::new()), (REGISTRATION, Vec::new())]) }
    }

    /// The next message; none when the connection has ended.
    ///
    /// # Errors
    /// The connection's, or it is another protocol.
    pub async fn next(&mut self) -> io::Result<Option<Received>> {
        loop {
            for begun in self.begun.values_mut() {
                if let Some(message) = first_of(begun)? {
                    return Ok(Some(message));
                }
            }
            let stream = match self.from.read_u32().await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                other => other?,
            };
            let length = self.from.read_u32().await? as usize;
            if length > MOST_PIECE {
                return Err(invalid(format_args!("a piece of {length} bytes")));
            }
            let mut piece = vec![0; length];
            self.from.read_exact(&mut piece).await?;
            // Other streams are of a later version.
            if let Some(begun) = self.begun.get_mut(&stream) {
                begun.extend(piece);
            }
        }
    }
}

/// Takes a whole message off the beginning.
fn first_of(begun: &mut Vec<u8>) -> io::Result<Option<Received>> {
    loop {
        let Some((header, rest)) = begun.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [l0, l1, l2, l3, c0, c1, c2, c3, kind, _] = *header;
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if length > MOST_BODY {
            return Err(invalid(format_args!("a message of {length} bytes")));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let call = u32::from_be_bytes([c0, c1, c2, c3]);
        let message = match kind {
            REQUEST => Some(Received::Request(call, Request::decode(body).map_err(invalid)?)),
            RESPONSE => Some(Received::Response(call, Response::decode(body).map_err(invalid)?)),
            _ => None, // data of streaming calls, which NRI has not
        };
        begun.drain(..HEADER + length);
        if message.is_some() {
            return Ok(message);
        }
    }
}

/// Sends a request.
///
/// # Errors
/// The connection's.
pub async fn ask(to: &mut (impl AsyncWrite + Unpin), call: u32, request: &Request) -> io::Result<()> {
    send(to, REGISTRATION, call, REQUEST, &request.encode_to_vec()).await
}

/// Sends a response.
///
/// # Errors
/// The connection's.
pub async fn answer(to: &mut (impl AsyncWrite + Unpin), call: u32, payload: Vec<u8>) -> io::Result<()> {
    let response = Response { status: None, payload };
    send(to, QUESTIONS, call, RESPONSE, &response.encode_to_vec()).await
}

async fn send(
    to: &mut (impl AsyncWrite + Unpin),
    stream: u32,
    call: u32,
    kind: u8,
    body: &[u8],
) -> io::Result<()> {
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend((body.len() as u32).to_be_bytes());
    message.extend(call.to_be_bytes());
    message.extend([kind, 0]);
    message.extend(body);
    for piece in message.chunks(MOST_SENT) {
        to.write_u32(stream).await?;
        to.write_u32(piece.len() as u32).await?;
        to.write_all(piece).await?;
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

    /// What [`send`] writes, in pieces of another size.
    fn repacked(bytes: &[u8], size: usize) -> Vec<u8> {
        let (mut out, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            let (stream, length) = (number(at), number(at + 4) as usize);
            assert!(length <= MOST_SENT);
            for part in bytes[at + 8..at + 8 + length].chunks(size) {
                out.extend(stream.to_be_bytes());
                out.extend((part.len() as u32).to_be_bytes());
                out.extend(part);
            }
            at += 8 + length;
        }
        out
    }

    #[test]
    fn messages_come_whole_however_they_are_divided() {
        let request =
            Request { service: "s".into(), method: "m".into(), payload: vec![7; 9000], timeout_ns: 5 };
        let mut sent = Vec::new();
        block_on(ask(&mut sent, 1, &request)).unwrap();
        block_on(answer(&mut sent, 3, vec![9; 5])).unwrap();
        for size in [1, 3, 10, 4096] {
            let bytes = repacked(&sent, size);
            let mut reader = Reader::new(&bytes[..]);
            assert_eq!(block_on(reader.next()).unwrap(), Some(Received::Request(1, request.clone())));
            let answered = Response { status: None, payload: vec![9; 5] };
            assert_eq!(block_on(reader.next()).unwrap(), Some(Received::Response(3, answered)));
            assert_eq!(block_on(reader.next()).unwrap(), None);
        }
    }

    #[test]
    fn what_is_too_long_ends_the_connection() {
        let piece = [0, 0, 0, 1, 255, 255, 255, 255];
        assert!(block_on(Reader::new(&piece[..]).next()).is_err());
        let message = [0, 0, 0, 1, 0, 0, 0, 10, 255, 255, 255, 255, 0, 0, 0, 1, 1, 0];
        assert!(block_on(Reader::new(&message[..]).next()).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut piece = vec![0, 0, 0, 1];
            piece.extend((bytes.len() as u32).to_be_bytes());
            piece.extend(&bytes);
            let mut reader = Reader::new(&piece[..]);
            while let Ok(Some(_)) = block_on(reader.next()) {}
        }
    }
}
