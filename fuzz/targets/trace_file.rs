//! A trace of allocations. Every record that is read is written back to the same bytes, and the walk over
//! live objects takes any sequence of records.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use mayfly_cli::trace::file::{HEADER_BYTES, RECORD_BYTES, Reader, TraceError};
use mayfly_cli::trace::live_objects::walk;
use mayfly_cli::trace::writer::Writer;

/// A trace whose header is right, and whose records have possible values where `fix` says so.
fn trace(fix: bool, body: &[u8]) -> Vec<u8> {
    let mut trace = b"MAYFLYTR\x01\0\0\0\x30\0\0\0\x07\0\0\0\x02\0\0\0".to_vec();
    trace.resize(HEADER_BYTES, 0);
    for record in body.chunks(RECORD_BYTES) {
        let mut record = record.to_vec();
        if fix && record.len() == RECORD_BYTES {
            record[7] &= 0x3f; // times
            record[13..16].fill(0); // addresses of 40 bits
            record[8] |= 16;
            record[19..24].fill(0); // sizes of 24 bits
            let kind = 1 + (record[40] & 1);
            record[40..44].copy_from_slice(&[kind, 0, 0, 0]);
        }
        trace.extend(record);
    }
    trace
}

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (kind, body) = input;
    let bytes = if kind & 1 == 0 { trace(kind & 2 == 0, &body) } else { body };
    let path = Path::new("a.trace");
    let Ok(mut reader) = Reader::new(&bytes[..], path) else { return };
    let records: Result<Vec<_>, _> = reader.by_ref().collect();
    match &records {
        Err(error) => assert!(error.offset as usize <= bytes.len()),
        Ok(records) => {
            let mut writer = Writer::new(Vec::new(), reader.header()).expect("into memory");
            records.iter().for_each(|record| writer.write(record).expect("into memory"));
            let written = writer.finish().expect("into memory");
            assert_eq!(written.len(), HEADER_BYTES + RECORD_BYTES * records.len());
            assert_eq!(written[HEADER_BYTES..], bytes[HEADER_BYTES..written.len()]);
            assert_eq!(bytes.len() - written.len(), reader.torn_bytes() as usize);
        }
    }
    let reader = Reader::new(&bytes[..], path).expect("it was read above");
    let (mut last_ns, mut live) = (0, 0_u64);
    let walked = walk(
        reader,
        |_| {},
        |change, bytes| {
            assert!(change.time_ns >= last_ns, "time goes back");
            last_ns = change.time_ns;
            live =
                live + change.born.map_or(0, |it| it.size_bytes) - change.died.map_or(0, |it| it.size_bytes);
            assert_eq!(live, bytes);
            Ok::<(), TraceError>(())
        },
    );
    assert_eq!(walked.is_ok(), records.is_ok());
    if let (Ok((totals, objects)), Ok(records)) = (walked, records) {
        assert_eq!(totals.allocations + totals.frees, records.len() as u64);
        assert_eq!(totals.end_live_bytes, objects.iter().map(|object| object.size_bytes).sum::<u64>());
        assert!(totals.peak_live_bytes >= totals.end_live_bytes);
    }
});
