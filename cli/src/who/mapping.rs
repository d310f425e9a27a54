//! A process's mappings with their anonymous memory, from /proc/PID/smaps.

use std::io::Result;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One mapping.
#[derive(Clone, Debug, Default)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// `rw-p`
    pub permissions: String,
    /// Where it begins in its file.
    pub offset: u64,
    /// Whether it is of a file, a shared one without a name included.
    pub is_file: bool,
    /// The file, or a name in brackets; empty for none.
    pub name: String,
    /// Resident bytes that no file has.
    pub anonymous_bytes: u64,
    /// The kernel's two-letter marks.
    pub marks: String,
}

impl Mapping {
    /// Whether the kernel gave it this mark.
    pub fn has(&self, mark: &str) -> bool {
        self.marks.split_whitespace().any(|one| one == mark)
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The path of its file.
    pub fn path(&self) -> Option<&Path> {
        (self.is_file && self.name.starts_with('/')).then(|| Path::new(&self.name))
    }

    /// The name that the program gave it (PR_SET_VMA_ANON_NAME).
    pub fn given_name(&self) -> Option<&str> {
        self.name.strip_prefix("[anon:")?.strip_suffix(']').map(str::trim)
    }
}

/// The mappings of a process, by address.
///
/// # Errors
/// There is no such process, or it is another user's.
pub fn of_process(pid: u32) -> Result<Vec<Mapping>> {
    let text = std::fs::read(PathBuf::from(format!("/proc/{pid}/smaps")))?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

fn parse(text: &str) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        if let Some(mapping) = first_line(line) {
            found.push(mapping);
            continue;
        }
        let Some(mapping) = found.last_mut() else { continue };
        if let Some(kib) = line.strip_prefix("Anonymous:") {
            let kib = kib.trim().trim_end_matches(" kB").parse::<u64>();
            mapping.anonymous_bytes = kib.unwrap_or(0) << 10;
        } else if let Some(marks) = line.strip_prefix("VmFlags:") {
            marks.trim().clone_into(&mut mapping.marks);
        }
    }
    found
}

/// `7f10-7f20 rw-p 00000000 00:00 0    [heap]`; `None` for a line about the last mapping.
fn first_line(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        range: number(start)?..number(end)?,
        permissions: words.next()?.to_owned(),
        offset: number(words.next()?)?,
        is_file: words.nth(1)? != "0",
        name: words.next().unwrap_or_default().trim().to_owned(),
        ..Mapping::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_have_their_names_and_sizes() {
        let text = "\
55f0-5600 r-xp 00001000 fe:00 1234                       /opt/a server (deleted)
Rss:                   4 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
7f00-7f10 rw-p 00000000 00:00 0                          [anon: Go: heap]
Anonymous:            24 kB
VmFlags: rd wr mr mw me ac nh
7f10-7f20 ---p 00000000 00:00 0
VmFlags: mr mw me
";
        let found = parse(text);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].path(), Some(Path::new("/opt/a server (deleted)")));
        assert_eq!((found[0].offset, found[0].range.clone()), (0x1000, 0x55f0..0x5600));
        assert_eq!(found[1].given_name(), Some("Go: heap"));
        assert_eq!(found[1].anonymous_bytes, 24 << 10);
        assert!(found[1].has("nh") && !found[0].has("nh"));
        assert_eq!((found[2].name.as_str(), found[2].is_file), ("", false));
    }
}
