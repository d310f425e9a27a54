//! Whether code may empty or move memory by system calls of its own, past the C library: then what a mapping
//! of a file does otherwise than anonymous memory shows. Functions of the C library can be interposed. An
//! instruction `syscall` behind one that loads the number of such a call cannot: Go's runtime has them, and
//! Rust programs that use rustix, as wasmtime does.
//!
//! The search knows no instructions, so it may find some that are none. Code that a process has written by
//! itself is not looked at: compilers at run time call functions.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use memchr::memmem;

/// The instruction.
const SYSCALL: &[u8] = b"\x0f\x05";
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
fn loads_number(before: &[u8]) -> bool {
    CALLS.iter().any(|call| {
        let number = call.to_le_bytes();
        let short = [0x6a, number[0], 0x58];
        let is_mov = |five: &[u8]| matches!(five[0], 0xb8 | 0xc0) && five[1..] == number;
        before.windows(5).any(is_mov) || *call < 128 && before.windows(3).any(|three| three == short)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
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
