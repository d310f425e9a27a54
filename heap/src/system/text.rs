//! Builds text in a buffer of fixed size: messages and statistics must not allocate.

use core::fmt::{self, Write};

use crate::system::{files, observers, process};

/// A line or a page of text; excess text is cut off.
#[derive(Clone)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Text<N> {
    /// None yet.
    pub const fn new() -> Self {
        Self { bytes: [0; N], length: 0 }
    }

    /// The formatted text.
    pub fn of(arguments: fmt::Arguments) -> Self {
        let mut text = Self::default();
        let _ = text.write_fmt(arguments); // cut off at the end, never an error
        text
    }

    /// Begins anew.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = (N - self.length).min(bytes.len());
        self.bytes[self.length..self.length + room].copy_from_slice(&bytes[..room]);
        self.length += room;
    }

    /// What was written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.push(s.as_bytes());
        Ok(())
    }
}

/// Ends the process after a misuse of the heap: one line names the pointer, the object and the caller.
#[cold]
#[inline(never)]
pub fn misuse(what: &str, pointer: usize, size: usize, caller: usize) -> ! {
    let mut line = Text::<256>::of(format_args!("mayfly-heap: {what}: pointer {pointer:#x}"));
    if size > 0 {
        let _ = write!(line, ", {size} bytes");
    }
    if caller > 0 {
        let _ = write!(line, ", called from {caller:#x}");
    }
    let _ = line.write_str("\n");
    observers::before_abort();
    process::abort(line.bytes())
}

/// Logs one line of warning on stderr.
#[cold]
pub fn warn(arguments: fmt::Arguments) {
    let mut line = Text::<512>::of(format_args!("mayfly-heap: {arguments}"));
    let _ = line.write_str("\n");
    files::write(2, line.bytes());
}
