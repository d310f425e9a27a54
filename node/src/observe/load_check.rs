//! Whether a running program has loaded the injected libraries, from `/proc`.

use std::fs;
use std::io::Read;

use object::Endianness;
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};

/// A program's headers are within its first bytes.
const HEADERS_BYTES: u64 = 1 << 16;

/// The result of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LoadOutcome {
    /// The program has loaded the libraries.
    InPlace,
    /// It is linked statically and has no loader.
    Static,
    /// The process that started it gave it another environment.
    EnvironmentReplaced,
    /// Its loader did not load them.
    NotLoaded,
    /// It has exited.
    Exited,
}

impl LoadOutcome {
    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            LoadOutcome::InPlace => "in_place",
            LoadOutcome::Static => "static",
            LoadOutcome::EnvironmentReplaced => "not_told",
            LoadOutcome::NotLoaded => "not_taken",
            LoadOutcome::Exited => "ended",
        }
    }
}

/// Checks whether a process has loaded all of these libraries, by their files' names.
pub fn check(process: u32, libraries: &[&str]) -> LoadOutcome {
    let Ok(maps) = fs::read_to_string(format!("/proc/{process}/maps")) else { return LoadOutcome::Exited };
    if maps.is_empty() {
        return LoadOutcome::Exited; // a zombie
    }
    if libraries.iter().all(|library| maps.contains(library)) {
        return LoadOutcome::InPlace;
    }
    let mut headers = Vec::new();
    let read = fs::File::open(format!("/proc/{process}/exe"))
        .and_then(|file| file.take(HEADERS_BYTES).read_to_end(&mut headers));
    match read {
        Ok(_) if is_static(&headers) => LoadOutcome::Static,
        _ if has_preload(process, libraries) => LoadOutcome::NotLoaded,
        _ => LoadOutcome::EnvironmentReplaced,
    }
}

/// Whether `LD_PRELOAD` in its initial environment names the libraries.
fn has_preload(process: u32, libraries: &[&str]) -> bool {
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
    fn finds_the_c_library_in_this_process() {
        let own = std::process::id();
        assert_eq!(check(own, &["libc.so"]), LoadOutcome::InPlace);
        assert_eq!(check(own, &["libmayfly_heap.so"]), LoadOutcome::EnvironmentReplaced);
        assert_eq!(check(u32::MAX, &["x"]), LoadOutcome::Exited);
        assert!(!is_static(b"\x7fELF") && !is_static(b""));
    }

    #[test]
    fn distinguishes_a_replaced_environment_from_a_library_not_loaded() {
        let outcome_with = |preload: Option<&str>| {
            let mut command = std::process::Command::new("/bin/cat");
            command.env_clear().envs(preload.map(|path| ("LD_PRELOAD", path)));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut process = command.spawn().unwrap();
            // Its output shows that its loader is done.
            process.stdin.as_mut().unwrap().write_all(b"?").unwrap();
            process.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            let outcome = check(process.id(), &["libmayfly_heap.so"]);
            drop(process.stdin.take());
            process.wait().unwrap();
            outcome
        };
        assert_eq!(outcome_with(None), LoadOutcome::EnvironmentReplaced);
        assert_eq!(outcome_with(Some("/nowhere/other.so")), LoadOutcome::EnvironmentReplaced);
        assert_eq!(outcome_with(Some("/nowhere/libmayfly_heap.so")), LoadOutcome::NotLoaded);
    }
}
