//! A process's mappings, from lines of /proc/PID/maps, its page map, words that a child finds zero, and
//! whether its code empties memory by itself. Only a name that is kept is allocated.

pub mod page_map;
pub mod per_process;
pub mod raw_calls;

use std::ops::Range;

/// A mapping; its name is borrowed from the line or owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area<Name = String> {
    /// Its addresses.
    pub range: Range<usize>,
    /// Its protection.
    pub readable: bool,
    /// See `readable`.
    pub writable: bool,
    /// See `readable`.
    pub executable: bool,
    /// Whether other processes see writes.
    pub shared: bool,
    /// Device and inode of its file; none for anonymous memory.
    pub file: Option<(u64, u64)>,
    /// The offset in the file where it begins.
    pub offset: u64,
    /// The kernel's name for it.
    pub name: Name,
}

impl From<Area<&[u8]>> for Area {
    fn from(area: Area<&[u8]>) -> Area {
        let Area { range, readable, writable, executable, shared, file, offset, name } = area;
        let name = String::from_utf8_lossy(name).into_owned();
        Area { range, readable, writable, executable, shared, file, offset, name }
    }
}

/// The name of files with the memory of a process that was taken (`worker/snapshot`).
pub const SNAPSHOT: &str = "mayfly-snapshot";

/// Whether the kernel's name of a mapping is that of a snapshot's file: a memory file, or one of the disk
/// that was removed.
pub fn is_of_snapshot(name: &[u8]) -> bool {
    let last = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let last = last.strip_prefix(b"memfd:").unwrap_or(last);
    last.starts_with(SNAPSHOT.as_bytes()) && last.ends_with(b" (deleted)")
}

/// Parses a line, whose name may be cut off.
pub fn parse(line: &[u8]) -> Option<Area<&[u8]>> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut next = || fields.next().and_then(|field| std::str::from_utf8(field).ok());
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = next()?.split_once('-')?;
    let rights = next()?.as_bytes();
    let offset = next()?;
    let (major, minor) = next()?.split_once(':')?;
    let inode: u64 = next()?.parse().ok()?;
    let name = fields.next().unwrap_or_default().trim_ascii_start();
    let device = libc::makedev(hexadecimal(major)? as u32, hexadecimal(minor)? as u32);
    Some(Area {
        range: hexadecimal(start)? as usize..hexadecimal(end)? as usize,
        readable: rights.first() == Some(&b'r'),
        writable: rights.get(1) == Some(&b'w'),
        executable: rights.get(2) == Some(&b'x'),
        shared: rights.get(3) == Some(&b's'),
        file: (inode != 0).then_some((device, inode)),
        offset: hexadecimal(offset)?,
        name,
    })
}

/// Parses a file of such lines.
pub fn each(text: &[u8]) -> impl Iterator<Item = Area<&[u8]>> {
    text.split(|&byte| byte == b'\n').filter_map(parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_every_field_of_a_line() {
        let line =
            b"7f20000-7f30000 r-xp 00010000 fe:01 1234                       /opt/a folder/x.so (deleted)";
        let expected = Area {
            range: 0x7f2_0000..0x7f3_0000,
            readable: true,
            writable: false,
            executable: true,
            shared: false,
            file: Some((libc::makedev(0xfe, 1), 1234)),
            offset: 0x1_0000,
            name: "/opt/a folder/x.so (deleted)".to_owned(),
        };
        assert_eq!(parse(line).map(Area::from), Some(expected));
        let area = parse(b"1000-3000 -w-s 00000000 00:00 0 ").unwrap();
        assert!(!area.readable && area.writable && !area.executable && area.shared);
        assert_eq!((area.file, area.name), (None, &b""[..]));
    }

    #[test]
    fn skips_malformed_lines() {
        for text in [
            "",
            "1000",
            "1000-x rw-p 0 0:0 0",
            "1000-2000 rw-p 0 00 0",
            "1000-2000 rw-p 0 0:0",
            "Size: 4 kB",
            "VmFlags: rd wr",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        let text = b"1000-2000 rw-p 0 0:0 0\nSize: 4 kB\n3000-4000 rw-p 0 0:0 0 [heap]\n";
        let ranges: Vec<_> = each(text).map(|area| area.range).collect();
        assert_eq!(ranges, [0x1000..0x2000, 0x3000..0x4000]);
    }

    #[test]
    fn finds_this_programs_own_mapping() {
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let here = finds_this_programs_own_mapping as *const () as usize;
        let area = each(&maps).find(|area| area.range.contains(&here)).unwrap();
        assert!(area.executable && !area.writable && area.file.is_some());
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        assert_eq!(area.name, program.as_os_str().as_encoded_bytes());
        assert_eq!(each(&maps).count(), maps.iter().filter(|&&byte| byte == b'\n').count());
    }
}
