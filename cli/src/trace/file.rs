//! The allocation trace that `libmayfly_heap.so` records (`MAYFLY_HEAP_TRACE`), as it is read.
//!
//! The format is described in `docs/trace.md`. A reader never trusts the file: every record is checked, and a
//! refusal names the file and the byte offset. A last record that the process did not finish is dropped.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::failure::plain_reason;

/// First bytes of a trace.
pub const MAGIC: &[u8; 8] = b"MAYFLYTR";
/// The only version.
pub const VERSION: u32 = 1;
/// Length of the header.
pub const HEADER_BYTES: usize = 64;
/// Length of one record.
pub const RECORD_BYTES: usize = 48;

/// x86-64 user addresses end here, five-level page tables included.
const ADDRESS_LIMIT: u64 = 1 << 56;
/// No process lives 146 years; the bound keeps sums of times far from overflow.
const TIME_LIMIT_NS: u64 = 1 << 62;

/// The operation of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `malloc`, `new` and their kin.
    Allocation,
    /// `free`, `delete`.
    Free,
}

/// One allocation or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Time since the start of the trace.
    pub time_ns: u64,
    /// The object's address.
    pub address: u64,
    /// Requested size; 0 for a free.
    pub size_bytes: u64,
    /// Return address of the allocating call; 0 for a free.
    pub caller: u64,
    /// Number of the thread, in order of the threads' first use of the heap.
    pub thread: u32,
    /// The thread's n-th allocation, from 0; 0 for a free.
    pub sequence: u32,
    /// Allocation or free.
    pub operation: Operation,
    /// Depth of the stack at the call: a rough identity of the calling context.
    pub stack_height: u32,
}

/// The header: the traced process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Process id.
    pub pid: u32,
    /// Wall-clock time at which the trace began, since 1970.
    pub start_unix_ns: u64,
    /// Whether the trace ends where its process did.
    pub state: State,
}

/// Whether a trace has all until its process's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Written by a heap that did not say.
    #[default]
    Unknown,
    /// The process records, or was killed, ran another program, or could not write on.
    Open,
    /// It has all.
    Whole,
}

/// A refused trace: one line that names the file, the place and the reason.
#[derive(Debug)]
pub struct TraceError {
    /// The trace.
    pub path: PathBuf,
    /// Offset of the first byte of the header or record at fault.
    pub offset: u64,
    /// The fault.
    pub reason: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: byte {}: {}", self.path.display(), self.offset, self.reason)
    }
}

impl std::error::Error for TraceError {}

/// Reads a trace record by record, in the order of the file.
pub struct Reader<R> {
    input: R,
    path: PathBuf,
    header: Header,
    offset: u64,
    torn_bytes: u64,
    finished: bool,
}

impl Reader<BufReader<File>> {
    /// Opens the trace at `path` and checks its header.
    ///
    /// # Errors
    /// The file cannot be opened, or is no trace of this version.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let refuse =
            |error: io::Error| TraceError { path: path.into(), offset: 0, reason: plain_reason(&error) };
        let file = File::open(path).map_err(refuse)?;
        if file.metadata().map_err(refuse)?.is_dir() {
            return Err(TraceError { path: path.into(), offset: 0, reason: "is a directory".into() });
        }
        Reader::new(BufReader::with_capacity(1 << 20, file), path)
    }
}

impl<R: Read> Reader<R> {
    /// Reads and checks the header. `path` is only for messages.
    ///
    /// # Errors
    /// The input is no trace, or one of another version.
    pub fn new(mut input: R, path: &Path) -> Result<Self, TraceError> {
        let refuse = |reason: String| TraceError { path: path.into(), offset: 0, reason };
        let mut bytes = [0; HEADER_BYTES];
        let length = fill(&mut input, &mut bytes).map_err(|e| refuse(plain_reason(&e)))?;
        if length < MAGIC.len() || &bytes[..MAGIC.len()] != MAGIC {
            return Err(refuse("not a Mayfly trace: it does not begin with MAYFLYTR".into()));
        }
        if length < HEADER_BYTES {
            return Err(refuse(format!("ends after {length} bytes, inside the {HEADER_BYTES}-byte header")));
        }
        let version = u32_at(&bytes, 8);
        if version != VERSION {
            return Err(refuse(format!("trace of version {version}; this mayfly reads version {VERSION}")));
        }
        let record_bytes = u32_at(&bytes, 12);
        if record_bytes as usize != RECORD_BYTES {
            return Err(refuse(format!("records of {record_bytes} bytes; version 1 has {RECORD_BYTES}")));
        }
        let state = match u32_at(&bytes, 20) {
            1 => State::Open,
            2 => State::Whole,
            _ => State::Unknown,
        };
        let header = Header { pid: u32_at(&bytes, 16), start_unix_ns: u64_at(&bytes, 24), state };
        let path = path.to_path_buf();
        Ok(Reader { input, path, header, offset: HEADER_BYTES as u64, torn_bytes: 0, finished: false })
    }

    /// The header.
    pub fn header(&self) -> Header {
        self.header
    }

    /// Bytes of an unfinished last record that were dropped; known once the records have been read.
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    /// The bytes of the file that have been read as header and records.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn refuse(&self, reason: String) -> TraceError {
        TraceError { path: self.path.clone(), offset: self.offset, reason }
    }

    fn read_record(&mut self) -> Result<Option<Record>, TraceError> {
        let mut bytes = [0; RECORD_BYTES];
        let length = fill(&mut self.input, &mut bytes).map_err(|e| self.refuse(plain_reason(&e)))?;
        if length < RECORD_BYTES {
            self.torn_bytes = length as u64;
            return Ok(None);
        }
        let record = decode(&bytes).map_err(|reason| self.refuse(reason))?;
        self.offset += RECORD_BYTES as u64;
        Ok(Some(record))
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let item = self.read_record().transpose();
        self.finished = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Reads until `bytes` is full or the input ends; returns how much was read.
fn fill(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match input.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<Record, String> {
    let operation = match u32_at(bytes, 40) {
        1 => Operation::Allocation,
        2 => Operation::Free,
        other => return Err(format!("operation {other}; only 1 (allocation) and 2 (free) exist")),
    };
    let record = Record {
        time_ns: u64_at(bytes, 0),
        address: u64_at(bytes, 8),
        size_bytes: u64_at(bytes, 16),
        caller: u64_at(bytes, 24),
        thread: u32_at(bytes, 32),
        sequence: u32_at(bytes, 36),
        operation,
        stack_height: u32_at(bytes, 44),
    };
    if record.time_ns >= TIME_LIMIT_NS {
        return Err(format!("time {} ns is not possible", record.time_ns));
    }
    if record.address == 0 || record.address >= ADDRESS_LIMIT {
        return Err(format!("address {:#x} is not possible", record.address));
    }
    if record.size_bytes > ADDRESS_LIMIT - record.address {
        return Err(format!(
            "an object of {} bytes at {:#x} does not fit the address space",
            record.size_bytes, record.address
        ));
    }
    Ok(record)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::writer::Writer;
    use proptest::prelude::*;

    fn arbitrary_record() -> impl Strategy<Value = Record> {
        let address = 1..ADDRESS_LIMIT / 2;
        let numbers = (any::<u64>(), any::<u32>(), any::<u32>(), any::<bool>(), any::<u32>());
        (0..TIME_LIMIT_NS, address, 0..ADDRESS_LIMIT / 2, numbers).prop_map(
            |(time_ns, address, size_bytes, (caller, thread, sequence, free, stack_height))| {
                let operation = if free { Operation::Free } else { Operation::Allocation };
                Record { time_ns, address, size_bytes, caller, thread, sequence, operation, stack_height }
            },
        )
    }

    fn written(header: Header, records: &[Record]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), header).unwrap();
        records.iter().for_each(|record| writer.write(record).unwrap());
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<(Header, Vec<Record>, u64), TraceError> {
        let mut reader = Reader::new(bytes, Path::new("app.trace"))?;
        let records = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
        Ok((reader.header(), records, reader.torn_bytes()))
    }

    fn refusal(bytes: &[u8]) -> String {
        let line = read(bytes).expect_err("must be refused").to_string();
        assert!(!line.contains('\n'));
        line
    }

    const HEADER: Header = Header { pid: 7, start_unix_ns: 9, state: State::Whole };
    const RECORD: Record = Record {
        time_ns: 5,
        address: 0x1000,
        size_bytes: 64,
        caller: 1,
        thread: 0,
        sequence: 0,
        operation: Operation::Allocation,
        stack_height: 0,
    };

    proptest! {
        #[test]
        fn reads_written_records(records in prop::collection::vec(arbitrary_record(), 0..40),
                                   pid in any::<u32>(), start_unix_ns in any::<u64>()) {
            let header = Header { pid, start_unix_ns, state: State::Open };
            prop_assert_eq!(read(&written(header, &records)).unwrap(), (header, records, 0));
        }

        #[test]
        fn a_cut_keeps_every_whole_record(records in prop::collection::vec(arbitrary_record(), 1..20),
                                          cut in any::<prop::sample::Index>()) {
            let bytes = written(HEADER, &records);
            let length = HEADER_BYTES + cut.index(bytes.len() - HEADER_BYTES);
            let (_, kept, torn) = read(&bytes[..length]).unwrap();
            prop_assert_eq!(&kept[..], &records[..(length - HEADER_BYTES) / RECORD_BYTES]);
            prop_assert_eq!(torn as usize, (length - HEADER_BYTES) % RECORD_BYTES);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), framed in any::<bool>()) {
            let mut input = if framed { written(HEADER, &[]) } else { Vec::new() };
            input.extend(bytes);
            let _ = read(&input);
        }

        #[test]
        fn one_changed_byte_never_panics(records in prop::collection::vec(arbitrary_record(), 1..8),
                                         at in any::<prop::sample::Index>(), value in any::<u8>()) {
            let mut bytes = written(HEADER, &records);
            let at = at.index(bytes.len());
            bytes[at] = value;
            if let Err(error) = read(&bytes) {
                prop_assert!(error.offset as usize <= at);
            }
        }
    }

    #[test]
    fn refusals_name_the_file_the_byte_and_the_reason() {
        assert_eq!(refusal(b""), "app.trace: byte 0: not a Mayfly trace: it does not begin with MAYFLYTR");
        assert_eq!(refusal(b"#!/bin/sh\n"), refusal(b""));
        assert_eq!(
            refusal(&written(HEADER, &[])[..63]),
            "app.trace: byte 0: ends after 63 bytes, inside the 64-byte header"
        );
        let mut other_version = written(HEADER, &[RECORD]);
        other_version[8] = 2;
        assert_eq!(
            refusal(&other_version),
            "app.trace: byte 0: trace of version 2; this mayfly reads version 1"
        );
        let mut other_record = written(HEADER, &[RECORD]);
        other_record[12] = 40;
        assert_eq!(refusal(&other_record), "app.trace: byte 0: records of 40 bytes; version 1 has 48");
        let mut operation = written(HEADER, &[RECORD, RECORD]);
        operation[HEADER_BYTES + RECORD_BYTES + 40] = 9;
        assert_eq!(
            refusal(&operation),
            "app.trace: byte 112: operation 9; only 1 (allocation) and 2 (free) exist"
        );
    }

    #[test]
    fn absurd_values_are_refused() {
        for (record, reason) in [
            (Record { address: 0, ..RECORD }, "address 0x0 is not possible"),
            (Record { address: u64::MAX, ..RECORD }, "is not possible"),
            (Record { size_bytes: u64::MAX, ..RECORD }, "does not fit the address space"),
            (Record { time_ns: u64::MAX, ..RECORD }, "ns is not possible"),
        ] {
            let line = refusal(&written(HEADER, &[RECORD, record]));
            assert!(line.starts_with("app.trace: byte 112: ") && line.contains(reason), "{line}");
        }
    }
}
