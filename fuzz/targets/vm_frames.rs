//! The stream between host and guest agent: frames with garbage and torn frames between them. What is decoded
//! does not depend on how the bytes arrive, every byte is a frame's or is counted as dropped, and frames
//! behind a whole one are all found.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vm_protocol::frame::{Decoder, FrameError, encode};

#[derive(Debug, Arbitrary)]
enum Part {
    /// A frame as it is encoded.
    Frame(String),
    /// As much of one as was written before its writer died.
    Torn(String, u8),
    Bytes(Vec<u8>),
    /// A header.
    Length(u32),
}

#[derive(Debug, Arbitrary)]
struct Input {
    parts: Vec<Part>,
    cuts: Vec<u8>,
}

fn frame(text: &str) -> Vec<u8> {
    encode(&serde_json::json!({ "text": text })).expect("it is short")
}

/// All frames, and how many bytes were dropped before each.
fn decoded(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, u64) {
    let (mut decoder, mut frames, mut dropped) = (Decoder::new(), Vec::new(), 0);
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(text)) => frames.push(text),
                Ok(None) => break,
                Err(FrameError::OutOfStep { dropped_bytes }) => dropped += dropped_bytes,
                Err(other) => panic!("{other}"),
            }
        }
    }
    (frames, dropped)
}

fuzz_target!(|input: Input| {
    let (mut bytes, mut whole, mut is_clean) = (Vec::new(), Vec::new(), true);
    for part in &input.parts {
        match part {
            Part::Frame(text) => {
                let frame = frame(text);
                whole.push(frame[4..].to_vec());
                bytes.extend(frame);
                continue;
            }
            Part::Torn(text, end) => {
                let frame = frame(text);
                bytes.extend(&frame[..usize::from(*end).min(frame.len())]);
            }
            Part::Bytes(more) => bytes.extend(more),
            Part::Length(length) => bytes.extend(length.to_le_bytes()),
        }
        is_clean = false;
    }
    let mut rest = &bytes[..];
    let mut pieces = Vec::new();
    for cut in &input.cuts {
        let (piece, behind) = rest.split_at(usize::from(*cut).min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    pieces.push(rest);
    let (frames, dropped) = decoded(&pieces);
    let taken: usize = frames.iter().map(|text| text.len() + 4).sum();
    assert!(taken as u64 + dropped <= bytes.len() as u64);
    assert!(frames.iter().all(|text| text.first() == Some(&b'{') && text.last() == Some(&b'}')));
    if is_clean {
        assert_eq!((frames, dropped), (whole, 0));
    } else {
        let one_by_one: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(decoded(&one_by_one).0, frames, "it depends on how the bytes arrive");
    }
});
