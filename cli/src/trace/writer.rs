//! Writes traces in the format that the heap records: for tests, and for programs with traces of their own.

use std::io::{self, Write};

use crate::trace::file::{HEADER_BYTES, Header, MAGIC, Operation, RECORD_BYTES, Record, VERSION};

/// A trace that is being written.
pub struct Writer<W> {
    output: W,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// The errors of `output`.
    pub fn new(mut output: W, header: Header) -> io::Result<Self> {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
        bytes[16..20].copy_from_slice(&header.pid.to_le_bytes());
        bytes[20..24].copy_from_slice(&(header.state as u32).to_le_bytes());
        bytes[24..32].copy_from_slice(&header.start_unix_ns.to_le_bytes());
        output.write_all(&bytes)?;
        Ok(Writer { output })
    }

    /// Appends one record.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0..8].copy_from_slice(&record.time_ns.to_le_bytes());
        bytes[8..16].copy_from_slice(&record.address.to_le_bytes());
        bytes[16..24].copy_from_slice(&record.size_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&record.caller.to_le_bytes());
        bytes[32..36].copy_from_slice(&record.thread.to_le_bytes());
        bytes[36..40].copy_from_slice(&record.sequence.to_le_bytes());
        let operation: u32 = if record.operation == Operation::Allocation { 1 } else { 2 };
        bytes[40..44].copy_from_slice(&operation.to_le_bytes());
        bytes[44..48].copy_from_slice(&record.stack_height.to_le_bytes());
        self.output.write_all(&bytes)
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }
}
