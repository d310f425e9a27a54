//! The page store's index, as a client maps it: a file whose header says anything is refused, or searched
//! within its bytes.

#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use merge::base::index::{MIN_LINES, Reader};
use merge::base::page::PageHash;
use merge::base::segment;

const PAGE: u64 = 4096;

#[derive(Debug, Arbitrary)]
struct Input {
    has_magic: bool,
    lines: Lines,
    pages: u8,
    words: Vec<(u16, u64)>,
    hashes: Vec<(u64, u64)>,
}

#[derive(Debug, Arbitrary)]
enum Lines {
    Number(u64),
    PowerOfTwo(u8),
    Least,
}

fuzz_target!(|input: Input| {
    let file = File::from(segment::create().expect("descriptors are left"));
    let bytes = PAGE + MIN_LINES as u64 * 64 + PAGE * u64::from(input.pages);
    file.set_len(bytes).expect("there is room");
    let lines = match input.lines {
        Lines::Number(number) => number,
        Lines::PowerOfTwo(bits) => 1 << (bits % 64),
        Lines::Least => MIN_LINES as u64,
    };
    let magic: &[u8; 8] = if input.has_magic { b"mayflyi1" } else { b"mayflyi2" };
    file.write_all_at(magic, 0).expect("there is room");
    file.write_all_at(&lines.to_le_bytes(), 8).expect("there is room");
    for (at, word) in input.words {
        file.write_all_at(&word.to_le_bytes(), (PAGE + 8 * u64::from(at)).min(bytes - 8))
            .expect("there is room");
    }
    let Ok(reader) = Reader::open(&file) else { return };
    assert!(input.has_magic && lines.is_power_of_two() && PAGE + 64 * lines <= bytes);
    for (place, tag) in input.hashes {
        reader.prefetch(PageHash { place, tag });
        let _ = reader.find(PageHash { place, tag });
    }
    let _ = reader.is_superseded();
});
