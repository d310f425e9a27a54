//! Finds the program that a command names, and checks whether a preloaded heap can serve it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{EM_X86_64, FileHeader64, PT_INTERP, PT_NOTE, ProgramType, SHN_UNDEF, SHT_DYNSYM};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader, Sym};

/// The headers of a program lie in its first bytes.
const HEADERS_BYTES: u64 = 1 << 16;

/// Why the dynamic loader would not load the heap into a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It runs without the heap: the reason, as the end of "PROGRAM is ...".
    Ignored(String),
    /// It cannot run with a 64-bit x86 library at all.
    Foreign(String),
    /// It has a malloc of its own, a sanitizer's, which refuses to run behind another.
    Sanitizer(&'static str),
    /// It has a malloc of its own, which the heap cannot replace.
    OwnMalloc,
}

/// The file that `command` runs: itself when it has a slash, else the first of that name in `PATH`.
pub fn find(command: &OsStr) -> Option<PathBuf> {
    which::which(command).ok()
}

/// The obstacle in a program, or in a script's interpreter; `None` if there is none.
pub fn obstacle(program: &Path) -> Option<Obstacle> {
    let mut headers = Vec::new();
    File::open(program).ok()?.take(HEADERS_BYTES).read_to_end(&mut headers).ok()?;
    if let Some(interpreter) = interpreter_of_script(&headers) {
        // `#!` lines nearly always name the interpreter in one step.
        return obstacle_of_binary(&interpreter, &read_headers(&interpreter)?);
    }
    obstacle_of_binary(program, &headers)
}

/// Why a program cannot be profiled, and the cure; `None` if it can.
pub fn no_profile(program: &Path) -> Option<String> {
    let program = binary_of(program)?;
    let headers = read_headers(&program)?;
    let why = why_no_profile(&program, &headers)
        .map(str::to_owned)
        .or_else(|| match obstacle_of_binary(&program, &headers)? {
            Obstacle::Ignored(what) if what.starts_with("static") => Some(STATIC.to_owned()),
            Obstacle::Ignored(what) => Some(format!(
                "is {what}: the loader preloads nothing into such programs; profile a copy without these rights, as the user that it needs"
            )),
            Obstacle::Foreign(what) => Some(format!("is {what}: the heap is for x86-64")),
            Obstacle::Sanitizer(_) | Obstacle::OwnMalloc => None,
        })?;
    Some(format!("{} {why}", program.display()))
}

const STATIC: &str =
    "is statically linked: no other heap can be loaded into it; link it dynamically (without -static)";

/// The program itself, or the interpreter of a script.
pub fn binary_of(program: &Path) -> Option<PathBuf> {
    let interpreter = interpreter_of_script(&read_headers(program)?);
    Some(interpreter.unwrap_or_else(|| program.to_owned()))
}

/// Whether a program is written in Go.
pub fn is_go(program: &Path) -> bool {
    read_headers(program).is_some_and(|headers| has(&headers, PT_NOTE, b"Go\0\0"))
}

/// Whether a segment of this kind has the word.
fn has(headers: &[u8], kind: ProgramType, word: &[u8]) -> bool {
    let found = || -> Option<bool> {
        let header = FileHeader64::<Endianness>::parse(headers).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, headers).ok()?;
        let of_kind = segments.iter().filter(|segment| segment.p_type(endian) == kind);
        let mut contents = of_kind.filter_map(|segment| segment.data(endian, headers).ok());
        Some(contents.any(|content| content.windows(word.len()).any(|window| window == word)))
    };
    found().unwrap_or(false)
}

/// The reason in a program's headers, if there is one. Go's programs with C code call malloc there.
fn why_no_profile(program: &Path, headers: &[u8]) -> Option<&'static str> {
    let calls_malloc = || dynamic_symbols(program).iter().any(|(name, _)| name == b"malloc");
    if has(headers, PT_NOTE, b"Go\0\0") && !calls_malloc() {
        return Some("is written in Go, whose objects are not malloc's: use Go's own, runtime/pprof");
    }
    has(headers, PT_INTERP, b"ld-musl")
        .then_some("is linked with musl, whose loader lacks what unwinding needs: profile a build for glibc")
}

fn read_headers(path: &Path) -> Option<Vec<u8>> {
    let mut headers = Vec::new();
    File::open(path).ok()?.take(HEADERS_BYTES).read_to_end(&mut headers).ok()?;
    Some(headers)
}

fn interpreter_of_script(headers: &[u8]) -> Option<PathBuf> {
    let line = headers.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_whitespace();
    let interpreter = words.next()?;
    if interpreter.ends_with("/env") {
        return find(OsStr::new(words.find(|word| !word.starts_with('-') && !word.contains('='))?));
    }
    Some(interpreter.into())
}

fn obstacle_of_binary(path: &Path, headers: &[u8]) -> Option<Obstacle> {
    if gains_privilege(path) {
        return Some(Obstacle::Ignored("setuid, setgid or has capabilities".into()));
    }
    if !headers.starts_with(b"\x7fELF") {
        return None;
    }
    if headers.get(4) == Some(&1) {
        return Some(Obstacle::Foreign("a 32-bit program".into()));
    }
    let header = FileHeader64::<Endianness>::parse(headers).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != EM_X86_64 {
        return Some(Obstacle::Foreign("not an x86-64 program".into()));
    }
    let segments = header.program_headers(endian, headers).ok()?;
    if !segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP) {
        return Some(Obstacle::Ignored("statically linked".into()));
    }
    own_malloc(path)
}

/// The functions that a program built with a sanitizer calls first.
const SANITIZERS: [(&[u8], &str); 4] = [
    (b"__asan_init", "AddressSanitizer"),
    (b"__tsan_init", "ThreadSanitizer"),
    (b"__msan_init", "MemorySanitizer"),
    (b"__hwasan_init", "HWAddressSanitizer"),
];

/// The malloc that a program brings, by its dynamic symbols.
fn own_malloc(path: &Path) -> Option<Obstacle> {
    let symbols = dynamic_symbols(path);
    let known = |name: &[u8]| SANITIZERS.iter().find(|(function, _)| *function == name);
    match symbols.iter().find_map(|(name, _)| known(name)) {
        Some((_, name)) => Some(Obstacle::Sanitizer(name)),
        None => symbols.contains(&(b"malloc".to_vec(), true)).then_some(Obstacle::OwnMalloc),
    }
}

/// The dynamic symbols of a program, and whether it defines them; none where they cannot be read.
pub fn dynamic_symbols(path: &Path) -> Vec<(Vec<u8>, bool)> {
    let found = || -> Option<Vec<(Vec<u8>, bool)>> {
        let file = ReadCache::new(File::open(path).ok()?);
        let header = FileHeader64::<Endianness>::parse(&file).ok()?;
        let endian = header.endian().ok()?;
        let symbols = header.sections(endian, &file).ok()?.symbols(endian, &file, SHT_DYNSYM).ok()?;
        let named = symbols.iter().filter_map(|symbol| {
            let name = Sym::name(symbol, endian, symbols.strings()).ok()?;
            Some((name.to_vec(), symbol.st_shndx(endian) != SHN_UNDEF))
        });
        Some(named.collect())
    };
    found().unwrap_or_default()
}

/// Whether the program runs with more rights than the user who starts it: the loader then drops `LD_PRELOAD`.
fn gains_privilege(path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else { return false };
    let mode = metadata.permissions().mode();
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    (mode & libc::S_ISUID != 0 && metadata.uid() != user)
        || (mode & libc::S_ISGID != 0 && metadata.gid() != group)
        || (user != 0 && has_capabilities(path))
}

fn has_capabilities(path: &Path) -> bool {
    rustix::fs::getxattr(path, "security.capability", &mut [0; 64]).is_ok_and(|length| length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executable(bytes: &[u8]) -> tempfile::TempPath {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file.into_temp_path()
    }

    #[test]
    fn an_ordinary_program_and_a_script_have_no_obstacle() {
        assert_eq!(obstacle(&std::env::current_exe().unwrap()), None);
        assert_eq!(obstacle(&executable(b"#!/bin/sh\nexit\n")), None);
        assert_eq!(obstacle(&executable(b"#!/usr/bin/env -S sh\n")), None);
        assert_eq!(obstacle(&executable(b"")), None);
    }

    #[test]
    fn a_program_without_interpreter_is_static() {
        let mut bytes = read_headers(&std::env::current_exe().unwrap()).unwrap();
        let headers_at = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
        let count = u16::from_le_bytes(bytes[56..58].try_into().unwrap()) as usize;
        for header in 0..count {
            let at = headers_at + 56 * header;
            if bytes[at..at + 4] == PT_INTERP.0.to_le_bytes() {
                bytes[at] = 0;
            }
        }
        assert_eq!(obstacle(&executable(&bytes)), Some(Obstacle::Ignored("statically linked".into())));
        bytes[4] = 1;
        assert_eq!(obstacle(&executable(&bytes)), Some(Obstacle::Foreign("a 32-bit program".into())));
        bytes[4] = 2;
        bytes[18] = 183;
        assert_eq!(obstacle(&executable(&bytes)), Some(Obstacle::Foreign("not an x86-64 program".into())));
    }

    #[test]
    fn names_the_reason_why_a_program_cannot_be_profiled() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(no_profile(&own), None);
        assert_eq!(no_profile(&executable(b"#!/bin/sh\nexit\n")), None);
        let bytes = read_headers(&own).unwrap();
        let with = |from: &[u8], to: &[u8]| {
            let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
            let mut changed = bytes.clone();
            changed[at..at + to.len()].copy_from_slice(to);
            no_profile(&executable(&changed)).unwrap()
        };
        let why = with(b"/lib64/ld-linux-x86-64.so.2", b"/lib/ld-musl-x86_64.so.1\0\0\0");
        assert!(why.contains("is linked with musl"), "{why}");
        let why = with(b"GNU\0", b"Go\0\0");
        assert!(why.contains("is written in Go"), "{why}");
    }

    #[test]
    fn nothing_in_a_file_makes_it_panic() {
        let bytes = read_headers(&std::env::current_exe().unwrap()).unwrap();
        for length in 0..256 {
            obstacle(&executable(&bytes[..length]));
            no_profile(&executable(&bytes[..length]));
        }
        for script in [&b"#!"[..], b"#! \n", b"#!/usr/bin/env\n", b"#!\xff\xfe\n", b"#!/nowhere/sh\n"] {
            assert_eq!(obstacle(&executable(script)), None);
        }
    }
}
