//! Flow control of a stream of the relay: what either end may send before the other's reader has taken it.
//!
//! ```text
//!   sender ── credit ──▶ Data ──▶ came ── pop ───▶ reader
//!                ▲                                   │ taken
//!                └────────────── Grant ◀─────────────┘ by halves of the window
//! ```
//! Each way begins with a credit of [`WINDOW_BYTES`]. Whoever receives keeps what came until its reader takes it, and grants as much
//! again. So it never has to stop reading the line that all streams share, and keeps no more of any of them than a window.

use std::collections::VecDeque;

use crate::relay::MOST_BYTES;

/// What one end may send before the other's reader has taken it.
pub const WINDOW_BYTES: usize = 256 << 10;

/// The other end keeps to no window: it sent more than it was granted, or grants more than it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun;

/// One end of a stream, both ways.
#[derive(Debug)]
pub struct Window {
    /// What came and waits for its reader.
    came: VecDeque<Vec<u8>>,
    /// What the other end may still send.
    expected: usize,
    /// What the reader has taken and the other end was not granted again.
    taken: usize,
    /// What this end may still send.
    credit: usize,
    /// Nothing more will come.
    closed: bool,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            came: VecDeque::new(),
            expected: WINDOW_BYTES,
            taken: 0,
            credit: WINDOW_BYTES,
            closed: false,
        }
    }
}

impl Window {
    /// Keeps what came for the reader.
    ///
    /// # Errors
    /// The other end may not send as much; nothing of it is kept.
    pub fn arrive(&mut self, bytes: Vec<u8>) -> Result<(), Overrun> {
        self.expected = self.expected.checked_sub(bytes.len()).ok_or(Overrun)?;
        // Many small ones would take more memory than what is in them.
        match self.came.back_mut().filter(|last| last.len() + bytes.len() <= MOST_BYTES) {
            Some(last) => last.extend_from_slice(&bytes),
            None if bytes.is_empty() => {}
            None => self.came.push_back(bytes),
        }
        Ok(())
    }

    /// The next part of what came, in order. [`Window::taken`] is told when the reader has it.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        self.came.pop_front()
    }

    /// The reader has so much of what came. `Some`: as much is to be granted to the other end.
    pub fn taken(&mut self, bytes: usize) -> Option<[u8; 4]> {
        self.taken += bytes;
        let granted = (self.taken >= WINDOW_BYTES / 2).then(|| std::mem::take(&mut self.taken))?;
        self.expected += granted;
        Some((granted as u32).to_le_bytes())
    }

    /// What this end may send now, in one frame.
    pub fn room(&self) -> usize {
        self.credit.min(MOST_BYTES)
    }

    /// This end sends so much, of [`Window::room`] at most.
    pub fn sent(&mut self, bytes: usize) {
        self.credit -= bytes;
    }

    /// The other end grants more: the bytes of its frame.
    ///
    /// # Errors
    /// It grants more than it was sent.
    pub fn granted(&mut self, grant: &[u8]) -> Result<(), Overrun> {
        let bytes = u32::from_le_bytes(grant.try_into().map_err(|_| Overrun)?) as usize;
        let credit = self.credit + bytes;
        if credit > WINDOW_BYTES {
            return Err(Overrun);
        }
        self.credit = credit;
        Ok(())
    }

    /// Nothing more will come; what came is still there.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether nothing more will come.
    pub fn is_closed(&self) -> bool {
        self.closed
    }
}
