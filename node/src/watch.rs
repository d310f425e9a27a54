//! Whether a program has what its container was given, seen from outside, once it runs.

use std::fs;
use std::io::Read;

use object::Endianness;
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};

/// Headers of a program lie in its first bytes.
const HEADERS_BYTES: u64 = 1 << 16;

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The libraries are in the program.
    InPlace,
    /// It has no loader that could have taken them.
    Static,
    /// Its loader did not take them.
    NotTaken,
    /// It has ended.
    Ended,
}

impl Outcome {
    /// For metrics.
    pub fn label(self) -> &'static str {
        match self {
            Outcome::InPlace => "in_place",
            Outcome::Static => "static",
            Outcome::NotTaken => "not_taken",
            Outcome::Ended => "ended",
        }
    }
}

/// Looks at a process for any of these libraries, by their files' names.
pub fn look(process: u32, libraries: &[&str]) -> Outcome {
    let Ok(maps) = fs::read_to_string(format!("/proc/{process}/maps")) else { return Outcome::Ended };
    if maps.is_empty() {
        return Outcome::Ended; // a zombie
    }
    if libraries.iter().all(|library| maps.contains(library)) {
        return Outcome::InPlace;
    }
    let mut headers = Vec::new();
    let read = fs::File::open(format!("/proc/{process}/exe"))
        .and_then(|file| file.take(HEADERS_BYTES).read_to_end(&mut headers));
    match read {
        Ok(_) if is_static(&headers) => Outcome::Static,
        _ => Outcome::NotTaken,
    }
}

fn is_static(headers: &[u8]) -> bool {
    let Ok(header) = FileHeader64::<Endianness>::parse(headers) else { return false };
    let Ok(endian) = header.endian() else { return false };
    let Ok(segments) = header.program_headers(endian, headers) else { return false };
    !segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_loader_and_the_c_library() {
        let own = std::process::id();
        assert_eq!(look(own, &["libc.so"]), Outcome::InPlace);
        assert_eq!(look(own, &["libmayfly_heap.so"]), Outcome::NotTaken);
        assert_eq!(look(u32::MAX, &["x"]), Outcome::Ended);
        assert!(!is_static(b"\x7fELF") && !is_static(b""));
    }
}
