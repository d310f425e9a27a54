//! A profile's file, as `mayfly profile` reads the heap's. What is read and written again must read the same.

#![no_main]

use std::path::Path;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use lifetime::code::symbols::made_code;
use lifetime::profile::contents::Profile;

const HEADER: usize = 256;
const SIZES: [usize; 3] = [320, 736, 32];

#[derive(Debug, Arbitrary)]
struct Input {
    /// Entries of each table, which are few.
    counts: [u8; 3],
    pairs: u8,
    /// Numbers in the header, behind the sizes of the tables.
    header: [u64; 8],
    left_ns: u64,
    /// Small numbers that are put into the tables: where, and which.
    words: Vec<(u16, u8)>,
    bytes: Vec<(u16, u8)>,
    cut: Option<u16>,
    map: Vec<u8>,
}

impl Input {
    fn file(&self) -> Vec<u8> {
        let counts = self.counts.map(|count| usize::from(count) % 5);
        let mut file = b"MAYFLYPF\x01\0\0\0\x07\0\0\0".to_vec();
        for (count, size) in counts.iter().zip(SIZES) {
            file.extend((*count as u32).to_le_bytes());
            file.extend((size as u32).to_le_bytes());
        }
        self.header.iter().chain([&self.left_ns]).for_each(|number| file.extend(number.to_le_bytes()));
        let pairs = usize::from(self.pairs) % 5;
        [1, pairs as u32, 16].iter().for_each(|number| file.extend(number.to_le_bytes()));
        file.resize(HEADER, 0);
        let tables: usize = counts.iter().zip(SIZES).map(|(count, size)| count * size).sum();
        file.resize(HEADER + tables + 8 + 16 * pairs, 0);
        let room = file.len() - HEADER;
        for (at, byte) in &self.words {
            let at = HEADER + (usize::from(*at) * 8) % room;
            file[at] = *byte;
        }
        for (at, byte) in &self.bytes {
            let at = usize::from(*at) % file.len();
            file[at] = *byte;
        }
        file.truncate(self.cut.map_or(usize::MAX, usize::from));
        file
    }
}

/// What a file says, without what writing it may change: the identity of contexts that only freed.
fn shown(profile: &Profile) -> String {
    format!("{profile:?}")
}

fuzz_target!(|input: Input| {
    made_code(&input.map);
    let Ok(profile) = Profile::parse(&input.file()) else { return };
    for context in &profile.contexts {
        assert!(context.frames.len() <= 64);
        let _ = context.censored();
    }
    let folder = Path::new("/dev/shm").join(format!("mayfly-fuzz-{}.profile", std::process::id()));
    profile.write(&folder).expect("there is room");
    let again = Profile::read(&folder).expect("it has just been written");
    std::fs::remove_file(&folder).expect("it is there");
    // Numbers of a merged profile may be anything; those of one are what a heap can have written.
    assert_eq!(again.contexts.len(), profile.contexts.len());
    assert_eq!(again.modules.len(), profile.modules.len());
    profile.write(&folder).expect("there is room");
    let twice = Profile::read(&folder).expect("it has just been written");
    std::fs::remove_file(&folder).expect("it is there");
    assert_eq!(shown(&again), shown(&twice));
});
