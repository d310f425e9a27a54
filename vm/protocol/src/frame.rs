//! Frames: a length (u32, little endian, at most 1 MiB) and that many bytes of JSON, always one object.
//!
//! The stream is self-synchronizing. A length below 2^24 ends in a zero byte and is followed by `{`, and JSON
//! text never contains a zero byte. So wherever the bytes `00 7b` occur, a frame starts three bytes before
//! them. After garbage, or half a frame whose writer died, a reader continues at the next frame.

use std::fmt;

use serde::Serialize;

/// The longest JSON text in a frame.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

const HEADER_BYTES: usize = 4;

/// A message that cannot be sent, or bytes that are no frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameError {
    /// The message to send is longer than [`MAX_FRAME_BYTES`].
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The message to send is not a JSON object.
    NotAnObject,
    /// Bytes between two frames, or the first part of a frame whose rest never came: dropped.
    OutOfStep {
        /// How many bytes were dropped.
        dropped_bytes: u64,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong { bytes } => {
                write!(f, "a message of {bytes} bytes is longer than a frame ({MAX_FRAME_BYTES} bytes)")
            }
            FrameError::NotAnObject => f.write_str("a message must be a JSON object"),
            FrameError::OutOfStep { dropped_bytes } => {
                write!(f, "{dropped_bytes} bytes were no frame and were dropped")
            }
        }
    }
}

impl std::error::Error for FrameError {}

/// The frame that carries `message`.
///
/// # Errors
/// It is too long, or not an object.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; HEADER_BYTES];
    serde_json::to_writer(&mut frame, message).map_err(|_| FrameError::NotAnObject)?;
    let bytes = frame.len() - HEADER_BYTES;
    if bytes > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong { bytes });
    }
    if frame.get(HEADER_BYTES) != Some(&b'{') {
        return Err(FrameError::NotAnObject);
    }
    frame[..HEADER_BYTES].copy_from_slice(&(bytes as u32).to_le_bytes());
    Ok(frame)
}

/// Turns bytes, as they arrive, into frames. It buffers at most one frame and the bytes pushed last.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes at the front of `buffer` that were consumed.
    start: usize,
    /// Bytes of the frame at `start` in which no other frame starts.
    scanned: usize,
    dropped_bytes: u64,
}

impl Decoder {
    /// A decoder with an empty buffer.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Adds bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Discards half a frame, because the peer that sent it has disconnected.
    pub fn reset(&mut self) {
        *self = Decoder::default();
    }

    /// The JSON text of the next frame, or `None` until more bytes come.
    ///
    /// # Errors
    /// Bytes were dropped. The next call continues after them.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        loop {
            let pending = &self.buffer[self.start..];
            if pending.len() <= HEADER_BYTES {
                return Ok(None);
            }
            let Some(bytes) = frame_length(pending) else {
                let next = next_start(pending, 1);
                self.drop_bytes(next);
                continue;
            };
            // Another frame starts inside this one: the rest of this one was never sent.
            let end = pending.len().min(HEADER_BYTES + bytes);
            if let Some(inner) = find_start(&pending[..end], self.scanned.max(1)) {
                self.drop_bytes(inner);
                continue;
            }
            if pending.len() < HEADER_BYTES + bytes {
                // The last four bytes may begin a header.
                self.scanned = end.saturating_sub(HEADER_BYTES);
                return Ok(None);
            }
            let text = &pending[HEADER_BYTES..HEADER_BYTES + bytes];
            // Half a frame that ends in the next one's header.
            if text.last() != Some(&b'}') || text.contains(&0) {
                self.drop_bytes(1);
                continue;
            }
            if self.dropped_bytes > 0 {
                return Err(FrameError::OutOfStep { dropped_bytes: std::mem::take(&mut self.dropped_bytes) });
            }
            let text = text.to_vec();
            self.start += HEADER_BYTES + bytes;
            self.scanned = 0;
            return Ok(Some(text));
        }
    }

    fn drop_bytes(&mut self, count: usize) {
        self.start += count;
        self.scanned = 0;
        self.dropped_bytes += count as u64;
    }
}

/// The length that a frame at the front of `bytes` (five or more) announces, if one can start there.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let length = u32::from_le_bytes(bytes[..HEADER_BYTES].try_into().expect("four bytes")) as usize;
    (bytes[HEADER_BYTES] == b'{' && (2..=MAX_FRAME_BYTES).contains(&length)).then_some(length)
}

/// Where the first frame at or after `from` starts.
fn find_start(bytes: &[u8], from: usize) -> Option<usize> {
    (from..bytes.len().saturating_sub(HEADER_BYTES)).find(|&at| frame_length(&bytes[at..]).is_some())
}

/// Where to scan next: the next frame, or the bytes at the end that may begin one.
fn next_start(bytes: &[u8], from: usize) -> usize {
    find_start(bytes, from).unwrap_or(bytes.len() - HEADER_BYTES).max(from)
}
