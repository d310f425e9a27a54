//! Lines of /proc/PID/maps: every line that the kernel writes is read as it stands.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Line {
    Bytes(Vec<u8>),
    /// As the kernel writes it.
    Area {
        start: u64,
        bytes: u32,
        rights: [bool; 4],
        offset: u64,
        device: (u16, u16),
        inode: u64,
        name: Vec<u8>,
    },
}

fuzz_target!(|lines: Vec<Line>| {
    let mut text = Vec::new();
    let mut count = 0;
    for line in &lines {
        match line {
            Line::Bytes(bytes) => text.extend(bytes.iter().filter(|byte| **byte != b'\n')),
            Line::Area { start, bytes, rights, offset, device, inode, name } => {
                let end = start.saturating_add((*bytes).into());
                let letters: Vec<char> = rights
                    .iter()
                    .zip("rwxs".chars())
                    .zip("---p".chars())
                    .map(|((has, yes), no)| if *has { yes } else { no })
                    .collect();
                let letters: String = letters.into_iter().collect();
                let (major, minor) = (device.0 & 0xfff, device.1);
                let line =
                    format!("{start:08x}-{end:08x} {letters} {offset:08x} {major:02x}:{minor:02x} {inode} ");
                let at = text.len();
                text.extend(line.bytes());
                text.resize(text.len().max(at + 73), b' ');
                // The kernel escapes line breaks, and no name begins with a space.
                let name: Vec<u8> = name.iter().copied().filter(|byte| *byte != b'\n').collect();
                let name = name.trim_ascii_start();
                text.extend(name);
                let area = mappings::parse(&text[at..]).expect("the kernel writes such lines");
                assert_eq!(area.range, *start as usize..end as usize);
                let read = [area.readable, area.writable, area.executable, area.shared];
                assert_eq!((read, area.offset), (*rights, *offset));
                assert_eq!(area.file.map(|file| file.1), (*inode != 0).then_some(*inode));
                assert_eq!(area.name, name);
            }
        }
        count += 1;
        text.push(b'\n');
    }
    assert!(mappings::each(&text).count() <= count);
});
