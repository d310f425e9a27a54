//! Files that the heap maps at a program's start: the table of sites, the oracle's table; and the notes of a
//! mapped program, which hold its build-id, against `object`'s reading of them.

#![no_main]

use heap::lifetime::{oracle, table_file, unwind};
use libfuzzer_sys::fuzz_target;
use object::read::elf::ElfFile64;
use object::{Endianness, Object};
use xxhash_rust::xxh3::xxh3_64;

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (kind, mut bytes) = input;
    match kind % 3 {
        0 => {
            // A right checksum, for no input meets it by chance.
            if bytes.len() >= 64 {
                bytes[..8].copy_from_slice(b"MAYFLYTB");
                bytes[8..16].copy_from_slice(&[1, 0, 0, 0, 48, 0, 0, 0]);
                let count = (bytes.len() as u64 - 64) / 48;
                bytes[16..24].copy_from_slice(&count.to_le_bytes());
                bytes[32..40].fill(0);
                let sum = xxh3_64(&bytes[32..]);
                bytes[24..32].copy_from_slice(&sum.to_le_bytes());
            }
            if let Ok(sound) = table_file::learn(&bytes) {
                assert!(sound <= bytes.len() / 48);
            }
        }
        1 => {
            if kind & 4 == 0 && bytes.len() >= 16 {
                bytes[..12].copy_from_slice(b"MAYFLYOR\x01\0\0\0");
            }
            let _ = oracle::check(&bytes);
        }
        _ => {
            if bytes.len() >= 64 {
                bytes[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
            }
            let bytes = bytes.into_boxed_slice();
            let start = bytes.as_ptr() as usize;
            let module = unwind::Module { start, end: start + bytes.len(), load_address: start, path: b"" };
            if let Some(ours) = unwind::build_id(&module) {
                assert!(bytes.as_ptr_range().contains(&ours.as_ptr()) || ours.is_empty());
                let theirs = ElfFile64::<Endianness>::parse(&*bytes);
                if let Ok(Ok(Some(theirs))) = theirs.map(|file| file.build_id()) {
                    let _ = theirs; // it takes the first of several notes by other rules
                }
            }
        }
    }
});
