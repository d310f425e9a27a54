//! The host's end of a VM's relay, on what a hostile guest says.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vm_protocol::relay::{Header, Kind};
use worker::fuzzing::relay;

#[derive(Debug, Arbitrary)]
enum Frame {
    Open(u8, bool),
    Inside(u8, Vec<u8>),
    Link(u8),
    Data(u8, Vec<u8>, u8),
    Grant(u8, u32),
    Close(u8),
    Bytes(Vec<u8>),
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let (stream, kind, bytes): (&u8, Kind, Vec<u8>) = match self {
            Frame::Open(stream, known) => {
                (stream, Kind::Open, if *known { b"a".to_vec() } else { b"b".to_vec() })
            }
            Frame::Inside(stream, token) => (stream, Kind::Inside, token.clone()),
            Frame::Link(stream) => (stream, Kind::Link, b"a".to_vec()),
            Frame::Data(stream, bytes, repeats) => {
                (stream, Kind::Data, bytes.repeat(usize::from(*repeats) + 1))
            }
            Frame::Grant(stream, bytes) => (stream, Kind::Grant, bytes.to_le_bytes().to_vec()),
            Frame::Close(stream) => (stream, Kind::Close, Vec::new()),
            Frame::Bytes(bytes) => return bytes.clone(),
        };
        let header = Header { stream: u32::from(stream % 8), kind, bytes: bytes.len() };
        [&header.encode()[..], &bytes].concat()
    }
}

fuzz_target!(|frames: Vec<Frame>| {
    let bytes: Vec<u8> = frames.iter().take(64).flat_map(Frame::bytes).collect();
    // Time stands still but where all wait, so that nothing waits in truth.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(relay(&bytes));
});
