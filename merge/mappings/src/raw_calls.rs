//! Whether code may empty or move memory by system calls of its own, past the C library: then what a mapping
//! of a file does otherwise than anonymous memory shows. Functions of the C library can be interposed. An
//! instruction `syscall` behind one that loads the number of such a call cannot: Go's runtime has them, and
//! Rust programs that use rustix, as wasmtime does.
//!
//! The search knows no instructions, so it may find some that are none. Code that a process has written by
//! itself is not looked at: compilers at run time call functions.

use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use memchr::memmem;

use crate::Area;

/// The instruction: `syscall`, or `svc #0`.
#[cfg(target_arch = "x86_64")]
const SYSCALL: &[u8] = b"\x0f\x05";
#[cfg(target_arch = "aarch64")]
const SYSCALL: &[u8] = b"\x01\0\0\xd4";
/// Bytes before it in which the number is loaded.
const BEFORE: usize = 32;
/// Read at once.
const PART: usize = 1 << 20;
/// madvise, mremap, and process_madvise.
const CALLS: [u32; 3] = [libc::SYS_madvise as u32, libc::SYS_mremap as u32, libc::SYS_process_madvise as u32];
/// Objects whose calls are interposed, or are Mayfly's own: begins of their names.
const KNOWN: [&[u8]; 7] =
    [b"libc.so", b"libc-2", b"libc.musl", b"ld-linux", b"ld-musl", b"libpthread", b"libmayfly_"];

/// Whether an object of this path is the C library, or Mayfly's.
pub fn is_known(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    KNOWN.iter().any(|known| name.starts_with(known))
}

/// Whether a part of a file has such an instruction.
///
/// # Errors
/// It cannot be read.
pub fn are_in(file: &File, part: Range<u64>) -> std::io::Result<bool> {
    let mut at = part.start;
    let mut bytes = vec![0; BEFORE + PART];
    // The end of what was read before.
    let mut kept = 0;
    while at < part.end {
        let most = PART.min((part.end - at) as usize);
        let count = file.read_at(&mut bytes[kept..kept + most], at)?;
        if count == 0 {
            break;
        }
        let filled = kept + count;
        if is_found(&bytes[..filled]) {
            return Ok(true);
        }
        kept = BEFORE.min(filled);
        bytes.copy_within(filled - kept..filled, 0);
        at += count as u64;
    }
    Ok(false)
}

fn is_found(code: &[u8]) -> bool {
    memmem::find_iter(code, SYSCALL).any(|at| loads_number(&code[at.saturating_sub(BEFORE)..at]))
}

/// Whether these instructions load the number of such a call, by `mov` or by `push` and `pop`.
#[cfg(target_arch = "x86_64")]
fn loads_number(before: &[u8]) -> bool {
    CALLS.iter().any(|call| {
        let number = call.to_le_bytes();
        let short = [0x6a, number[0], 0x58];
        let is_mov = |five: &[u8]| matches!(five[0], 0xb8 | 0xc0) && five[1..] == number;
        before.windows(5).any(is_mov) || *call < 128 && before.windows(3).any(|three| three == short)
    })
}

/// The same: `mov w8` or `mov x8`.
#[cfg(target_arch = "aarch64")]
fn loads_number(before: &[u8]) -> bool {
    const INTO_W8: [u32; 2] = [0x5280_0008, 0xd280_0008];
    let is_load = |word: u32| CALLS.iter().any(|call| INTO_W8.iter().any(|into| word == into | call << 5));
    before.rchunks_exact(4).any(|four| is_load(u32::from_le_bytes(four.try_into().expect("4 bytes"))))
}

/// What was looked through of this process: files are loaded one by one.
struct Seen {
    parts: Vec<((u64, u64), u64)>,
    found: Option<PathBuf>,
}

static SEEN: Mutex<Seen> = Mutex::new(Seen { parts: Vec::new(), found: None });

/// A file of this process's code that has such instructions, by its mappings. One that cannot be read may
/// have some. Quick if no file was loaded since the last time.
pub fn here(maps: &[u8]) -> Option<PathBuf> {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    for area in crate::each(maps).filter(|area| area.executable && !is_known(area.name)) {
        // Files without a name are a snapshot's, or what compilers at run time have written.
        let Some(file) = area.file.filter(|_| !area.name.ends_with(b" (deleted)")) else { continue };
        if seen.found.is_some() || seen.parts.contains(&(file, area.offset)) {
            continue;
        }
        seen.parts.push((file, area.offset));
        if may_have(&area) {
            seen.found = Some(Path::new(OsStr::from_bytes(area.name)).into());
        }
    }
    seen.found.clone()
}

fn may_have(area: &Area<&[u8]>) -> bool {
    let part = area.offset..area.offset.saturating_add(area.range.len() as u64);
    File::open(OsStr::from_bytes(area.name)).and_then(|file| are_in(&file, part)).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    #[cfg(target_arch = "aarch64")]
    fn numbers_are_found_before_the_instruction() {
        assert!(is_found(b"\x28\x1d\x80\x52\x1f\x20\x03\xd5\x01\0\0\xd4"), "mov w8, madvise; nop; svc");
        assert!(is_found(b"\x08\x1b\x80\xd2\x01\0\0\xd4"), "mov x8, mremap; svc");
        assert!(!is_found(b"\xc8\x1b\x80\xd2\x01\0\0\xd4"), "another call");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn numbers_are_found_before_the_instruction() {
        let has = |before: &[u8], gap: usize| is_found(&[before, &vec![0x90; gap], SYSCALL].concat());
        assert!(has(b"\xb8\x1c\0\0\0", 0), "mov eax, madvise");
        assert!(has(b"\xb8\x19\0\0\0", 20), "mov eax, mremap");
        assert!(has(b"\x48\xc7\xc0\xb8\x01\0\0", 3), "mov rax, process_madvise");
        assert!(has(b"\x6a\x1c\x58", 9), "push madvise; pop rax");
        assert!(!has(b"\xb8\x1c\0\0\0", 60), "too far away");
        assert!(!has(b"\xb8\x1c\x01\0\0", 0), "another call");
        assert!(!is_found(b"\xb8\x1c\0\0\0\xe8\x0f\x06"), "no syscall");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn instructions_are_found_wherever_a_file_is_cut() {
        for before in [0, PART - 7, PART - 6, PART - 1, PART] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[&vec![0x90; before], &b"\xb8\x1c\0\0\0"[..], SYSCALL].concat()).unwrap();
            let end = before as u64 + 7;
            assert!(are_in(&file, 0..end).unwrap(), "{before}");
            assert!(!are_in(&file, 0..end - 1).unwrap(), "{before}");
        }
    }

    #[test]
    fn c_library_is_known_and_has_them() {
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let is_libc = |area: &crate::Area<&[u8]>| area.executable && area.name.ends_with(b"libc.so.6");
        let area = crate::each(&maps).find(is_libc).expect("tests are linked with it dynamically");
        assert!(is_known(area.name) && !is_known(b"/usr/lib/libcap.so.2"));
        let file = File::open(std::str::from_utf8(area.name).unwrap()).unwrap();
        assert!(are_in(&file, area.offset..area.offset + area.range.len() as u64).unwrap());
    }
}
