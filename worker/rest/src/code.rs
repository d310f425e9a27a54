//! Whether code of this process may empty memory past the C library (`mappings::raw_calls`): what it empties
//! must not have been merged.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use mappings::{Area, raw_calls};

/// What was looked through: files are loaded one by one, at imports.
struct Seen {
    parts: Vec<((u64, u64), u64)>,
    found: bool,
}

static SEEN: Mutex<Seen> = Mutex::new(Seen { parts: Vec::new(), found: false });

/// Looks through the code of these mappings that is new. A file that cannot be read may hold anything.
pub fn empties_by_itself(maps: &[u8]) -> bool {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    for area in mappings::each(maps).filter(|area| area.executable && !raw_calls::is_known(area.name)) {
        // Files without a name are the snapshot's, or what compilers at run time have written.
        let Some(file) = area.file.filter(|_| !area.name.ends_with(b" (deleted)")) else { continue };
        if seen.found || seen.parts.contains(&(file, area.offset)) {
            continue;
        }
        seen.parts.push((file, area.offset));
        seen.found = has(&area);
    }
    seen.found
}

fn has(area: &Area<&[u8]>) -> bool {
    let part = area.offset..area.offset.saturating_add(area.range.len() as u64);
    let found = File::open(OsStr::from_bytes(area.name)).and_then(|file| raw_calls::are_in(&file, part));
    found.unwrap_or(true)
}
