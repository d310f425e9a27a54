//! Flow control of a relay stream: how much either end may send before the other's reader has read it.
//!
//! ```text
//!   sender ── credit ──▶ Data ─▶ queue ── pop ───▶ reader
//!                ▲                                   │ taken
//!                └────────────── Grant ◀─────────────┘ in halves of the window
//! ```
//! Each direction begins with a credit of [`WINDOW_BYTES`]. The receiver queues data until its reader takes
//! it, then grants the same amount again. So it never has to stop reading the port that all streams share,
//! and queues at most one window of each.

use std::collections::VecDeque;

use crate::relay::MOST_BYTES;

/// How much one end may send before the other's reader has read it.
pub const WINDOW_BYTES: usize = 256 << 10;

/// The other end violates flow control: it sent more than it was granted, or grants more than was sent to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun;

/// One end of a stream, for both directions.
#[derive(Debug)]
pub struct Window {
    /// Received data that the reader has not taken.
    queue: VecDeque<Vec<u8>>,
    /// How much the other end may still send.
    expected: usize,
    /// How much the reader has taken that was not granted again yet.
    taken: usize,
    /// How much this end may still send.
    credit: usize,
    /// No more data will arrive.
    closed: bool,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            queue: VecDeque::new(),
            expected: WINDOW_BYTES,
            taken: 0,
            credit: WINDOW_BYTES,
            closed: false,
        }
    }
}

impl Window {
    /// Queues received data for the reader.
    ///
    /// # Errors
    /// The other end was not granted as much; none of it is queued.
    pub fn arrive(&mut self, bytes: Vec<u8>) -> Result<(), Overrun> {
        self.expected = self.expected.checked_sub(bytes.len()).ok_or(Overrun)?;
        // Merged, because many small buffers would take more memory than their content.
        match self.queue.back_mut().filter(|last| last.len() + bytes.len() <= MOST_BYTES) {
            Some(last) => last.extend_from_slice(&bytes),
            None if bytes.is_empty() => {}
            None => self.queue.push_back(bytes),
        }
        Ok(())
    }

    /// The next part of the received data, in order. Call [`Window::taken`] when the reader has it.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        self.queue.pop_front()
    }

    /// The reader has taken this much. `Some`: send this grant to the other end.
    pub fn taken(&mut self, bytes: usize) -> Option<[u8; 4]> {
        self.taken += bytes;
        let granted = (self.taken >= WINDOW_BYTES / 2).then(|| std::mem::take(&mut self.taken))?;
        self.expected += granted;
        Some((granted as u32).to_le_bytes())
    }

    /// How much this end may send now, in one frame.
    pub fn room(&self) -> usize {
        self.credit.min(MOST_BYTES)
    }

    /// This end sends this much, at most [`Window::room`].
    pub fn sent(&mut self, bytes: usize) {
        self.credit -= bytes;
    }

    /// The other end grants more: the bytes of its frame.
    ///
    /// # Errors
    /// It grants more than was sent to it.
    pub fn granted(&mut self, grant: &[u8]) -> Result<(), Overrun> {
        let bytes = u32::from_le_bytes(grant.try_into().map_err(|_| Overrun)?) as usize;
        let credit = self.credit + bytes;
        if credit > WINDOW_BYTES {
            return Err(Overrun);
        }
        self.credit = credit;
        Ok(())
    }

    /// No more data will arrive; queued data stays readable.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether no more data will arrive.
    pub fn is_closed(&self) -> bool {
        self.closed
    }
}
