//! Frames and messages of NRI: what the agent sends is read back whole, however it is divided; other bytes
//! end the connection, and take no more memory than they have.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use node::nri::wire::{Reader, Received, Request, Response, Status, send_request, send_response};

#[derive(Debug, Arbitrary)]
enum Part {
    Request {
        stream: u32,
        service: String,
        method: String,
        payload: Vec<u8>,
        timeout_ns: i64,
    },
    Response {
        stream: u32,
        status: Option<(i32, String)>,
        payload: Vec<u8>,
    },
    /// A frame of the second connection with these bytes in it.
    Frame {
        connection: u8,
        bytes: Vec<u8>,
    },
    Bytes(Vec<u8>),
}

#[derive(Debug, Arbitrary)]
struct Input {
    parts: Vec<Part>,
    /// Bytes of a frame, as what the agent sends is divided anew.
    size: u8,
}

/// What was sent, in frames of another size.
fn divided(bytes: &[u8], size: usize) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), bytes);
    while let Some((head, body)) = rest.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
        for part in body[..length].chunks(size) {
            out.extend(&head[..4]);
            out.extend((part.len() as u32).to_be_bytes());
            out.extend(part);
        }
        rest = &body[length..];
    }
    out
}

fuzz_target!(|input: Input| {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let (mut bytes, mut sent, mut is_ours) = (Vec::new(), Vec::new(), true);
        for part in input.parts {
            let mut frames = Vec::new();
            match part {
                Part::Request { stream, service, method, payload, timeout_ns } => {
                    let request = Request { service, method, payload, timeout_ns };
                    send_request(&mut frames, stream, &request).await.expect("into memory");
                    sent.push(Received::Request(stream, request));
                }
                Part::Response { stream, status, payload } => {
                    let status = status.map(|(code, message)| Status { code, message });
                    let response = Response { status, payload };
                    send_response(&mut frames, stream, &response).await.expect("into memory");
                    sent.push(Received::Response(stream, response));
                }
                Part::Frame { connection, bytes: part } => {
                    is_ours = false;
                    bytes.extend(u32::from(connection % 4).to_be_bytes());
                    bytes.extend((part.len() as u32).to_be_bytes());
                    bytes.extend(part);
                }
                Part::Bytes(part) => {
                    is_ours = false;
                    bytes.extend(part);
                }
            }
            bytes.extend(divided(&frames, 1 + usize::from(input.size)));
        }
        let (mut reader, mut received) = (Reader::new(&bytes[..]), Vec::new());
        let end = loop {
            match reader.next().await {
                Ok(Some(message)) => received.push(message),
                end => break end,
            }
        };
        if is_ours {
            assert!(matches!(end, Ok(None)));
            assert_eq!(received, sent);
        }
    });
});
