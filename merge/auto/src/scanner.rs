//! The scanner: advises the parts of a block that have the same bytes at two scans.
//!
//! A scan hashes every 64 KiB. A part that changes between scans is scanned again later; a part that changes
//! after it was shared is left alone for good. A part that a fork shares waits until it does so no longer:
//! until then the store's copy would be one more. The pauses grow from a second to a minute while nothing
//! changes, so that the scanner does not disturb an idle program.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use mappings::page_map;
use twox_hash::XxHash3_64;

use crate::block::{Block, PAGE};
use crate::blocks;
use crate::{library, own_sandbox, scanner_thread};

const PART: usize = 64 << 10;
/// Shared at once, so that a `free` of the block does not wait long.
const MOST_AT_ONCE: usize = 16 << 20;
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The state of 64 KiB.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// Not scanned yet, or not wholly in memory.
    Unknown,
    /// Its hash at the last scan.
    Seen(u64),
    /// Advised, with this hash. Once more if not all of it is shared and it has not changed: a child may have
    /// shared it at the time.
    Shared { hash: u64, again: bool },
    /// Written after it was shared, or of a kind that sharing would change. Left alone from then on.
    Excluded,
}

/// What one scan finds of a part.
enum Look {
    /// Not all of it is in memory.
    Absent,
    /// All of it is the store's.
    OfStore,
    Hash(u64),
}

/// Of a part's pages.
#[derive(PartialEq)]
enum Kinds {
    /// Not all of them are in memory.
    Absent,
    /// All are the store's.
    OfStore,
    /// A fork shares those that are not the store's.
    Forked,
    /// Some are this process's alone.
    Own,
}

struct Scanner {
    parts: HashMap<u64, Vec<Part>>,
    pages: File,
    buffer: Vec<u8>,
    has_shared: bool,
    /// Why some memory cannot be shared.
    refusal: Option<String>,
    has_warned: bool,
}

/// Errors that concern this memory alone (locked, left out of core dumps, sealed, replaced by another
/// mapping), or that last for all of the process.
const OF_MEMORY: [i32; 3] = [libc::ENOTSUP, libc::EBUSY, libc::ENOMEM];
/// A store may be started later; other errors last.
const PASSING: [i32; 4] = [libc::ECONNREFUSED, libc::ECONNRESET, libc::ETIMEDOUT, libc::ENOSPC];

/// Starts to scan, if this process does not yet.
pub fn begin() {
    scanner_thread::begin(run);
}

fn run() {
    let pages = match page_map::open() {
        Ok(pages) => pages,
        Err(_) if own_sandbox::is_there() => return,
        Err(error) => {
            return eprintln!(
                "mayfly-merge: MAYFLY_MERGE_AUTO shares nothing of process {}: {}: {error}",
                std::process::id(),
                page_map::PATH
            );
        }
    };
    let mut scanner = Scanner {
        parts: HashMap::new(),
        pages,
        buffer: vec![0; PART],
        has_shared: false,
        refusal: None,
        has_warned: false,
    };
    let mut list = blocks::empty_list();
    let mut pause = SHORTEST;
    let _keeps = blocks::keep_freed();
    let mut round_ends = None;
    loop {
        scanner_thread::rest(pause, &mut round_ends);
        if scanner_thread::is_over() {
            return;
        }
        let count = blocks::list(&mut list);
        scanner.parts.retain(|number, _| list[..count].iter().any(|block| block.number == *number));
        let mut changed = false;
        for block in &list[..count] {
            match scanner.scan(block) {
                Ok(is_new) => changed |= is_new,
                Err((errno, line)) => {
                    scanner.warn(&line);
                    if !PASSING.contains(&errno) {
                        return;
                    }
                    changed = false;
                    break;
                }
            }
        }
        if let Some(line) = scanner.refusal.take()
            && !scanner.has_shared
        {
            scanner.warn(&line);
        }
        pause = if changed { SHORTEST } else { (pause * 2).min(LONGEST) };
    }
}

impl Scanner {
    /// Says once why nothing is shared.
    fn warn(&mut self, line: &str) {
        if !self.has_warned && !own_sandbox::is_there() {
            eprintln!("mayfly-merge: MAYFLY_MERGE_AUTO shares nothing: {line}");
            self.has_warned = true;
        }
    }

    /// Scans one block and advises unchanged parts. Returns whether a part has changed or was advised.
    fn scan(&mut self, block: &Block) -> Result<bool, (i32, String)> {
        let mut parts = self
            .parts
            .remove(&block.number)
            .unwrap_or_else(|| vec![Part::Unknown; block.bytes.div_ceil(PART)]);
        let mut changed = false;
        let mut outcome = Ok(());
        for first in (0..parts.len()).step_by(MOST_AT_ONCE / PART) {
            if scanner_thread::is_over() {
                break;
            }
            let Some(held) = blocks::hold(block) else { return Ok(true) };
            let some = first..(first + MOST_AT_ONCE / PART).min(parts.len());
            let mut ready = vec![];
            for at in some {
                if parts[at] == Part::Excluded {
                    continue;
                }
                let Some(seen) = self.look(&range_of(block, at)) else { continue };
                let now = match (parts[at], seen) {
                    (Part::Seen(before), Look::Hash(hash)) if before == hash => {
                        ready.push(at);
                        continue;
                    }
                    (Part::Shared { hash: before, again: false }, Look::Hash(hash)) if before == hash => {
                        parts[at] = Part::Shared { hash, again: true };
                        ready.push(at);
                        continue;
                    }
                    (Part::Shared { .. }, Look::Hash(_)) => Part::Excluded,
                    (shared @ Part::Shared { .. }, _) => shared,
                    (_, Look::Absent) => Part::Unknown,
                    (_, Look::OfStore) => Part::Shared { hash: 0, again: true },
                    (_, Look::Hash(hash)) => Part::Seen(hash),
                };
                changed |= now != parts[at];
                parts[at] = now;
            }
            for run in runs(&ready) {
                held.will_be_advised();
                let whole = range_of(block, run.start).start..range_of(block, run.end - 1).end;
                match library::advise(whole) {
                    Ok(()) => {
                        for at in run {
                            let Part::Seen(hash) = parts[at] else { continue };
                            // A child made by clone since the part was looked at shares it: it waits, too.
                            if self.kinds(&range_of(block, at)) != Some(Kinds::Forked) {
                                parts[at] = Part::Shared { hash, again: false };
                            }
                        }
                        (changed, self.has_shared) = (true, true);
                    }
                    Err((errno, line)) if OF_MEMORY.contains(&errno) => {
                        parts[run].fill(Part::Excluded);
                        self.refusal = Some(line);
                    }
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
            }
            if outcome.is_err() {
                break;
            }
        }
        self.parts.insert(block.number, parts);
        outcome.map(|()| changed)
    }

    /// What the pages of a range are. None if they cannot be read.
    fn kinds(&self, range: &Range<usize>) -> Option<Kinds> {
        const PRESENT: u64 = 1 << 63;
        const OF_FILE: u64 = 1 << 61;
        const EXCLUSIVE: u64 = 1 << 56;
        let mut flags = [0u8; PART / PAGE * 8];
        let flags = &mut flags[..range.len() / PAGE * 8];
        self.pages.read_exact_at(flags, (range.start / PAGE * 8) as u64).ok()?;
        let (mut all_present, mut all_of_file, mut any_own) = (true, true, false);
        for entry in flags.chunks_exact(8) {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
            all_present &= entry & PRESENT != 0;
            all_of_file &= entry & (PRESENT | OF_FILE) == PRESENT | OF_FILE;
            any_own |= entry & (PRESENT | OF_FILE | EXCLUSIVE) == PRESENT | EXCLUSIVE;
        }
        Some(match (all_present, all_of_file, any_own) {
            (false, ..) => Kinds::Absent,
            (_, true, _) => Kinds::OfStore,
            (_, _, true) => Kinds::Own,
            _ => Kinds::Forked,
        })
    }

    /// Hashes a range, unless it is the store's. None if a fork shares what is not.
    fn look(&mut self, range: &Range<usize>) -> Option<Look> {
        match self.kinds(range) {
            None | Some(Kinds::Absent) => return Some(Look::Absent),
            Some(Kinds::OfStore) => return Some(Look::OfStore),
            Some(Kinds::Forked) => return None,
            Some(Kinds::Own) => {}
        }
        // Copied by the kernel: other threads may be writing, so a plain read would be a data race.
        let bytes = range.len();
        let local = libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: bytes };
        let remote = libc::iovec { iov_base: range.start as *mut libc::c_void, iov_len: bytes };
        // SAFETY: the buffer has PART bytes, and no range is longer.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        if copied != bytes as isize {
            return Some(Look::Absent);
        }
        Some(Look::Hash(XxHash3_64::oneshot(&self.buffer[..bytes])))
    }
}

fn range_of(block: &Block, part: usize) -> Range<usize> {
    block.start + part * PART..(block.start + (part + 1) * PART).min(block.range().end)
}

/// Neighbouring numbers as ranges.
fn runs(numbers: &[usize]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = vec![];
    for &number in numbers {
        match found.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => found.push(number..number + 1),
        }
    }
    found
}
