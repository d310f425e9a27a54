//! Advises the process's memory, piece by piece: the ranges that its code has named (UPM §IV-C), or with
//! `MAYFLY_REST_ADVISE=whole` all anonymous memory, unless some code may empty its own past the C library.
//!
//! A sandbox allows only the userfaultfd that needs no permission. It holds writers of plain stores, but
//! fails a system call that writes to a frozen page. So all other threads must wait where they make no such
//! call: for each other (futex), or for time to pass. A process with a thread elsewhere is not merged.

use std::ffi::{c_int, c_uint};
use std::fs;
use std::ops::Range;
use std::sync::OnceLock;

use mappings::{Area, raw_calls};

use crate::library::NO_SYSCALLS;
use crate::{Rest, library};

/// Mappings smaller than this hold little.
const SMALLEST: usize = 256 << 10;
/// Advised at once: some milliseconds' worth, the longest that arriving work waits.
const PIECE: usize = 8 << 20;

/// Advises until all is examined or `work` is readable.
pub fn merge(work: c_int, named: &[crate::Range]) -> Rest {
    let before = library::shared_pages();
    let mut rest = Rest { complete: 1, ..Rest::default() };
    for mapping in wanted(named) {
        for start in mapping.clone().step_by(PIECE) {
            let piece = start..mapping.end.min(start + PIECE);
            if is_readable(work) {
                rest.complete = 0;
            } else if let Some(flags) = flags() {
                match library::advise(&piece, flags) {
                    // This piece is locked or cannot be shared; the others can.
                    Ok(()) | Err(libc::ENOTSUP | libc::ENOMEM) => rest.advised_bytes += piece.len() as u64,
                    Err(errno) => rest.errno = errno,
                }
            } else {
                rest.errno = libc::EBUSY;
            }
            if rest.complete == 0 || rest.errno != 0 {
                rest.complete = 0;
                rest.shared_pages = library::shared_pages().saturating_sub(before);
                return rest;
            }
        }
    }
    rest.shared_pages = library::shared_pages().saturating_sub(before);
    rest
}

/// The ranges to advise, in order.
fn wanted(named: &[crate::Range]) -> Vec<Range<usize>> {
    let before = BEFORE_SNAPSHOT.get().map_or(&[][..], Vec::as_slice);
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let mut mappings = anonymous(&maps, before);
    let is_whole = std::env::var("MAYFLY_REST_ADVISE").is_ok_and(|how| how == "whole");
    if is_whole && raw_calls::here(&maps).is_none() {
        mappings.retain(|mapping| mapping.len() >= SMALLEST);
        return mappings;
    }
    let end = |range: &crate::Range| range.start.saturating_add(range.bytes);
    let mut named: Vec<Range<usize>> = named.iter().map(|range| range.start..end(range)).collect();
    named.sort_by_key(|range| range.start);
    common(&mappings, &joined(named.into_iter()))
}

/// What was anonymous when this process was taken as a snapshot. The rest of what a restored process has from
/// the snapshot is data of libraries, those that merge among them, which must not be frozen by themselves.
static BEFORE_SNAPSHOT: OnceLock<Vec<Range<usize>>> = OnceLock::new();

/// Notes all memory that no file has, before the process is taken, and returns it. Its code is looked through
/// once for all restored processes.
pub fn before_snapshot() -> &'static [Range<usize>] {
    BEFORE_SNAPSHOT.get_or_init(|| {
        let maps = fs::read("/proc/self/maps").unwrap_or_default();
        raw_calls::here(&maps);
        all_memory(&maps)
    })
}

/// All memory that no file has.
fn all_memory(maps: &[u8]) -> Vec<Range<usize>> {
    let is_own = |area: &Area<&[u8]>| area.file.is_none() && !area.shared && !area.name.starts_with(b"[v");
    joined(mappings::each(maps).filter(is_own).map(|area| area.range))
}

/// Anonymous memory; what is restored from a snapshot as far as it was anonymous before.
fn anonymous(maps: &[u8], before: &[Range<usize>]) -> Vec<Range<usize>> {
    let of_snapshot =
        |area: &Area<&[u8]>| mappings::is_of_snapshot(area.name) && is_writable(area) && !area.shared;
    let restored: Vec<_> = mappings::each(maps).filter(of_snapshot).map(|area| area.range).collect();
    let mut all: Vec<_> = mappings::each(maps).filter(is_anonymous).map(|area| area.range).collect();
    all.extend(common(&restored, before));
    all.sort_by_key(|range| range.start);
    joined(all.into_iter())
}

/// The intersection of two lists of ranges, both in order and without overlaps.
fn common(ones: &[Range<usize>], others: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut one, mut other, mut both) = (0, 0, Vec::new());
    while let (Some(a), Some(b)) = (ones.get(one), others.get(other)) {
        let part = a.start.max(b.start)..a.end.min(b.end);
        if !part.is_empty() {
            both.push(part);
        }
        if a.end < b.end { one += 1 } else { other += 1 }
    }
    both
}

/// Operations of futex(2) that only wait. The kernel itself writes the words of locks with priority
/// inheritance.
const WAIT: u64 = libc::FUTEX_WAIT as u64;
const WAIT_BITSET: u64 = libc::FUTEX_WAIT_BITSET as u64;
const FUTEX_FLAGS: u64 = (libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u64;

/// Flags that hold for the other threads now; `None` if merging is not safe. Read for every piece, since
/// threads start and end. The library does not share their stacks, which the kernel writes when it wakes
/// them.
fn flags() -> Option<c_uint> {
    // SAFETY: takes nothing.
    let own = unsafe { libc::gettid() }.to_string();
    let mut others = 0;
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        if task.file_name().to_string_lossy() == own {
            continue;
        }
        others += 1;
        let call = fs::read_to_string(task.path().join("syscall")).ok()?;
        if !only_waits(&call) {
            return None;
        }
    }
    Some(if others == 0 { 0 } else { NO_SYSCALLS })
}

/// Whether the kernel writes nothing but the thread's stack before the call returns, by a line of
/// /proc/PID/task/TID/syscall.
fn only_waits(call: &str) -> bool {
    let mut words = call.split_ascii_whitespace();
    let Some(number) = words.next().and_then(|number| number.parse::<i64>().ok()) else { return false };
    let operation = words
        .nth(1)
        .and_then(|word| word.strip_prefix("0x"))
        .and_then(|word| u64::from_str_radix(word, 16).ok());
    match number {
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => true,
        libc::SYS_futex => operation.is_some_and(|all| matches!(all & !FUTEX_FLAGS, WAIT | WAIT_BITSET)),
        _ => false,
    }
}

/// Ranges that touch or overlap become one: an earlier merge that was interrupted has left shared pieces
/// between others.
fn joined(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// Whether it is private, writable memory of no file: a mapping without a name, malloc's heap, or pages that
/// were merged before and may have been written since.
fn is_anonymous(area: &Area<&[u8]>) -> bool {
    let merged = area.name.starts_with(b"/memfd:mayfly-pages");
    let unnamed = area.file.is_none() && matches!(area.name, b"" | b"[heap]");
    is_writable(area) && !area.shared && (merged || unnamed)
}

fn is_writable(area: &Area<&[u8]>) -> bool {
    area.readable && area.writable && !area.executable
}

fn is_readable(descriptor: c_int) -> bool {
    let mut wanted = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure that outlives the call.
    unsafe { libc::poll(&mut wanted, 1, 0) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_futex_waits_and_sleeps_allow_merging() {
        for (call, waits) in [
            ("202 0x7f0000001000 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd0000 0x7f00\n", true),
            ("202 0x7f0000001000 0x80 0x2 0x0 0x0 0x0 0x7ffd0000 0x7f00\n", true),
            ("202 0x7f0000001000 0x86 0x1 0x0 0x0 0x0 0x7ffd0000 0x7f00\n", false), // FUTEX_LOCK_PI
            ("230 0x1 0x1 0x7ffd 0x0 0x0 0x0 0x7ffd0000 0x7f00\n", true),
            ("0 0x3 0x7f0000001000 0x1000 0x0 0x0 0x0 0x7ffd0000 0x7f00\n", false),
            ("running\n", false),
        ] {
            assert_eq!(only_waits(call), waits, "{call}");
        }
    }

    #[test]
    fn named_ranges_are_advised_where_mapped() {
        let mappings = [0x1000..0x6000, 0x8000..0x9000, 0xa000..0xc000];
        assert_eq!(common(&mappings, std::slice::from_ref(&(0..usize::MAX))), mappings);
        assert_eq!(
            common(&mappings, &[0x2000..0x3000, 0x5000..0xb000]),
            [0x2000..0x3000, 0x5000..0x6000, 0x8000..0x9000, 0xa000..0xb000]
        );
        assert_eq!(common(&mappings, &[0x6000..0x8000, 0xc000..0xd000]), []);
    }

    #[test]
    fn merged_pages_are_advised_again_with_their_neighbours() {
        let maps = b"\
1000-3000 rw-p 00000000 00:00 0
3000-5000 rw-p 00001000 00:01 77                         /memfd:mayfly-pages (deleted)
5000-6000 rw-p 00000000 00:00 0                          [heap]
8000-9000 rw-p 00000000 00:00 0
9000-a000 r--p 00000000 00:00 0
a000-b000 rw-p 00000000 fe:00 9                          /usr/lib/x.so
b000-c000 rw-p 00000000 00:01 79                         /memfd:mayfly-snapshot (deleted)
c000-d000 rw-s 00000000 00:01 78                         /memfd:mayfly-pages (deleted)
e000-f000 rw-p 00000000 00:00 0                          [stack]
";
        assert_eq!(anonymous(maps, &[]), [0x1000..0x6000, 0x8000..0x9000]);
        let before = [0x2000..0x3000, 0xb000..0xb800];
        assert_eq!(anonymous(maps, &before), [0x1000..0x6000, 0x8000..0x9000, 0xb000..0xb800]);
    }
}
