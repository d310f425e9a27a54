//! The oracle's table (docs/trace.md): for each thread, the class of its n-th allocation, from a recorded
//! run.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::system::files;
use crate::system::paths::PATH_BYTES;
use crate::system::text::warn;
use crate::units::lifetime_class::{CLASSES, FOREVER};

const MAGIC: &[u8; 8] = b"MAYFLYOR";
const HEADER: usize = 16;
static AT: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Reads an oracle table; `false` if it cannot be used.
pub fn load(path: &[u8]) -> bool {
    let mut with_nul = [0; PATH_BYTES];
    let shown = core::str::from_utf8(path).unwrap_or("(not UTF-8)");
    if path.len() >= with_nul.len() {
        warn(format_args!("oracle table: the path is longer than {} bytes; using online", PATH_BYTES - 1));
        return false;
    }
    with_nul[..path.len()].copy_from_slice(path);
    let Some((at, bytes)) = files::map_file(&with_nul[..=path.len()]) else {
        warn(format_args!("oracle table {shown} cannot be read; using online"));
        return false;
    };
    // SAFETY: a fresh private mapping of that many bytes, never unmapped.
    let file = unsafe { core::slice::from_raw_parts(at as *const u8, bytes) };
    match check(file) {
        Ok(()) => install(file),
        Err(what) => {
            warn(format_args!("oracle table {shown}: {what}; using online"));
            return false;
        }
    }
    true
}

fn word(file: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?))
}

fn threads(file: &[u8]) -> usize {
    word(file, 8).map_or(0, |both| (both >> 32) as usize)
}

fn classes(file: &[u8], thread: usize) -> Option<&[u8]> {
    if thread >= threads(file) {
        return None;
    }
    let start = word(file, HEADER + thread * 16)? as usize;
    let count = word(file, HEADER + thread * 16 + 8)? as usize;
    file.get(start..start.checked_add(count)?)
}

/// Checks a table; the error names its fault.
///
/// # Errors
/// The first fault of the table, for the one line that the program prints.
pub fn check(file: &[u8]) -> Result<(), &'static str> {
    if file.len() < HEADER || &file[..8] != MAGIC {
        return Err("it does not begin with MAYFLYOR");
    }
    if u32::from_le_bytes([file[8], file[9], file[10], file[11]]) != 1 {
        return Err("its version is not 1");
    }
    for thread in 0..threads(file) {
        let Some(classes) = classes(file, thread) else {
            return Err("a thread's classes lie beyond its end");
        };
        if classes.iter().any(|&class| class as usize >= CLASSES) {
            return Err("it holds a class above 6");
        }
    }
    Ok(())
}

/// Installs a checked table.
fn install(file: &'static [u8]) {
    AT.store(file.as_ptr() as usize, Relaxed);
    BYTES.store(file.len(), Relaxed);
}

/// The class of a thread's n-th allocation; beyond the table, ∞.
pub fn class(thread: u32, sequence: u32) -> usize {
    // SAFETY: both were set together from a slice that is never unmapped, before the source became the
    // oracle.
    let file = unsafe { core::slice::from_raw_parts(AT.load(Relaxed) as *const u8, BYTES.load(Relaxed)) };
    let class = classes(file, thread as usize).and_then(|classes| classes.get(sequence as usize));
    class.map_or(FOREVER, |&class| class as usize)
}

#[cfg(test)]
mod tests {
    use super::check;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn table(classes: &[u8]) -> Vec<u8> {
        let mut file = b"MAYFLYOR\x01\0\0\0\x01\0\0\0".to_vec();
        file.extend(32u64.to_le_bytes());
        file.extend((classes.len() as u64).to_le_bytes());
        file.extend(classes);
        file
    }

    #[test]
    fn accepts_a_table_and_names_the_fault() {
        assert_eq!(check(&table(&[0, 6, 3])), Ok(()));
        assert_eq!(check(&table(&[7])), Err("it holds a class above 6"));
        assert_eq!(check(b"MAYFLY"), Err("it does not begin with MAYFLYOR"));
        let whole = table(&[1, 2, 3]);
        assert_eq!(check(&whole[..whole.len() - 1]), Err("a thread's classes lie beyond its end"));
    }

    proptest! {
        #[test]
        fn rejects_hostile_tables(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), keep in 0usize..3) {
            if keep > 0 && bytes.len() > 16 {
                bytes[..12].copy_from_slice(b"MAYFLYOR\x01\0\0\0");
            }
            let _ = check(&bytes);
        }
    }
}
