//! Properties of mappings that only /proc/self/smaps shows. The kernel counts pages for it, so the engine
//! reads it for memory that it has not seen before, up to the end of that memory.

use std::io::{BufRead, BufReader};
use std::ops::Range;

use mappings::parse;

/// Properties that a mapping of the store's pages would lose: the kernel's letters, and what a line says.
const LOST: [(&str, &str); 6] = [
    // This kind has two of the others as well.
    ("dp", "memory that the kernel may empty (MAP_DROPPABLE)"),
    ("lo", "locked memory, which sharing would unlock: munlock it first"),
    ("wf", "memory that a fork wipes (MADV_WIPEONFORK), which children would see"),
    ("dc", "memory that children do not get (MADV_DONTFORK), which they would see"),
    ("dd", "memory that core dumps leave out (MADV_DONTDUMP), which they would hold"),
    ("sl", "sealed memory (mseal), whose pages no call can replace"),
];
const KEYED: &str = "memory under a protection key, which sharing would open";

/// The first mapping in one of the ranges that sharing would take a property from: address and reason.
/// The ranges are in order.
pub fn first_lost(ranges: &[Range<usize>]) -> Option<(usize, &'static str)> {
    let file = std::fs::File::open("/proc/self/smaps").ok()?;
    scan(BufReader::with_capacity(64 << 10, file), ranges)
}

fn scan(lines: impl BufRead, ranges: &[Range<usize>]) -> Option<(usize, &'static str)> {
    let end = ranges.last()?.end;
    let mut current = None;
    for line in lines.split(b'\n') {
        let Ok(line) = line else { return None };
        // Lines of a mapping begin with capitals, the first line of each with its address.
        if line.first().is_some_and(|first| first.is_ascii_hexdigit() && !first.is_ascii_uppercase())
            && let Some(area) = parse(&line)
        {
            if area.range.start >= end {
                return None;
            }
            let is_in = |range: &&Range<usize>| range.start < area.range.end && area.range.start < range.end;
            current = ranges.iter().find(is_in).map(|range| range.start.max(area.range.start));
        } else if let Some(at) = current
            && let Some(reason) = lost(&line)
        {
            return Some((at, reason));
        }
    }
    None
}

fn lost(line: &[u8]) -> Option<&'static str> {
    let line = std::str::from_utf8(line).ok()?;
    if let Some(key) = line.strip_prefix("ProtectionKey:") {
        return (key.trim() != "0").then_some(KEYED);
    }
    let flags = line.strip_prefix("VmFlags:")?;
    LOST.iter()
        .find(|(letters, _)| flags.split_whitespace().any(|flag| flag == *letters))
        .map(|&(_, why)| why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nProtectionKey:         0\nVmFlags: rd wr dd \n\
                        3000-4000 rw-p 00000000 00:00 0 [heap]\nProtectionKey:         2\nVmFlags: rd wr \n\
                        5000-6000 rw-p 00000000 00:00 0 \nVmFlags: rd wr mr wf ac \n";

    fn at(start: usize, end: usize) -> Range<usize> {
        start..end
    }

    fn found(ranges: &[Range<usize>]) -> Option<(usize, &'static str)> {
        scan(TEXT.as_bytes(), ranges)
    }

    #[test]
    fn names_the_first_mapping_in_the_ranges() {
        assert!(
            found(&[at(0x2000, 0x4000)])
                .is_some_and(|(place, why)| place == 0x2000 && why.contains("DONTDUMP"))
        );
        assert!(
            found(&[at(0x3000, 0x6000)]).is_some_and(|(place, why)| place == 0x3000 && why.contains("key"))
        );
        assert!(
            found(&[at(0x100, 0x200), at(0x5000, 0x9000)])
                .is_some_and(|(place, why)| place == 0x5000 && why.contains("WIPEONFORK"))
        );
        assert_eq!(found(&[at(0x4000, 0x5000)]), None);
        assert_eq!(found(&[at(0x6000, 0x9000)]), None);
        assert_eq!(found(&[]), None);
    }
}
