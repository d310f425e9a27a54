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
    /// Who started it, in its container, gave it another environment.
    NotTold,
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
            Outcome::NotTold => "not_told",
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
        _ if is_told(process, libraries) => Outcome::NotTaken,
        _ => Outcome::NotTold,
    }
}

/// Whether the environment that it was started with names the libraries.
fn is_told(process: u32, libraries: &[&str]) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{process}/environ")) else { return true };
    let text = String::from_utf8_lossy(&environment);
    let Some(preload) = text.split('\0').find_map(|each| each.strip_prefix("LD_PRELOAD=")) else {
        return false;
    };
    libraries.iter().all(|library| preload.contains(library))
}

fn is_static(headers: &[u8]) -> bool {
    let Ok(header) = FileHeader64::<Endianness>::parse(headers) else { return false };
    let Ok(endian) = header.endian() else { return false };
    let Ok(segments) = header.program_headers(endian, headers) else { return false };
    !segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn this_process_has_a_loader_and_the_c_library() {
        let own = std::process::id();
        assert_eq!(look(own, &["libc.so"]), Outcome::InPlace);
        assert_eq!(look(own, &["libmayfly_heap.so"]), Outcome::NotTold);
        assert_eq!(look(u32::MAX, &["x"]), Outcome::Ended);
        assert!(!is_static(b"\x7fELF") && !is_static(b""));
    }

    #[test]
    fn an_environment_that_was_lost_is_told_from_a_loader_that_did_not_take_it() {
        let look_at = |preload: Option<&str>| {
            let mut command = std::process::Command::new("/bin/cat");
            command.env_clear().envs(preload.map(|path| ("LD_PRELOAD", path)));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut process = command.spawn().unwrap();
            // It answers: it runs, and is past its loader.
            process.stdin.as_mut().unwrap().write_all(b"?").unwrap();
            process.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            let outcome = look(process.id(), &["libmayfly_heap.so"]);
            drop(process.stdin.take());
            process.wait().unwrap();
            outcome
        };
        assert_eq!(look_at(None), Outcome::NotTold);
        assert_eq!(look_at(Some("/nowhere/other.so")), Outcome::NotTold);
        assert_eq!(look_at(Some("/nowhere/libmayfly_heap.so")), Outcome::NotTaken);
    }
}
