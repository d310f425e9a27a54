//! Names of code that a program generated at run time, from `/tmp/perf-PID.map`, which V8
//! (`--perf-basic-prof`), the JVM's agents and CPython write for Linux' perf. They are for people: the heap,
//! which predicts, knows no names.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::code::root::Root;
use crate::profile::contents::Profile;

/// No more of a file is read: a day of V8's is some MiB, and the program's file is untrusted.
const MOST_BYTES: u64 = 256 << 20;
/// A file written to so long after the profile's end belongs to another process with the same PID.
const AFTERWARDS: Duration = Duration::from_secs(60);

/// Code by its address.
#[derive(Debug, Default)]
pub(crate) struct PerfMap {
    /// By its beginning: the first address behind it, and its name. No two overlap.
    code: BTreeMap<u64, (u64, String)>,
}

impl PerfMap {
    /// The map that the process of a profile wrote during it. Empty if there is none, or if the profile is of
    /// several processes, whose addresses cannot be told apart.
    pub(crate) fn of(root: &Root, profile: &Profile) -> Self {
        let made_code = |frame: &crate::profile::contents::Frame| frame.module.is_none();
        if profile.processes > 1
            || !profile.contexts.iter().any(|context| context.frames.iter().any(made_code))
        {
            return Self::default();
        }
        let path = format!("/tmp/perf-{}.map", profile.pid);
        let Ok(file) = root.open(Path::new(&path)) else { return Self::default() };
        let start = UNIX_EPOCH + Duration::from_nanos(profile.start_unix_ns);
        let during = start..=start + Duration::from_nanos(profile.duration_ns) + AFTERWARDS;
        match file.metadata().and_then(|known| known.modified()) {
            Ok(written) if during.contains(&written) => Self::read(BufReader::new(file.take(MOST_BYTES))),
            _ => Self::default(),
        }
    }

    /// Lines of beginning and bytes, in hexadecimal, and a name. Of two that overlap the later counts: it
    /// reused the place.
    pub(crate) fn read(mut lines: impl BufRead) -> Self {
        let (mut map, mut line) = (Self::default(), Vec::new());
        while lines.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            if let Some((start, end, name)) = parsed(String::from_utf8_lossy(&line).trim_end()) {
                map.add(start, end, name);
            }
            line.clear();
        }
        map
    }

    /// Checks that no two overlap.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn check(&self) {
        let mut free = 0;
        for (start, (end, _)) in &self.code {
            assert!(*start >= free && start < end, "code overlaps");
            free = *end;
        }
    }

    fn add(&mut self, start: u64, end: u64, name: String) {
        while let Some((&before, &(its_end, _))) = self.code.range(..end).next_back()
            && its_end > start
        {
            self.code.remove(&before);
        }
        self.code.insert(start, (end, name));
    }

    /// The name of the code at an address.
    pub(crate) fn at(&self, address: u64) -> Option<&str> {
        let (_, (end, name)) = self.code.range(..=address).next_back()?;
        (address < *end).then_some(name)
    }
}

fn parsed(line: &str) -> Option<(u64, u64, String)> {
    let mut parts = line.splitn(3, ' ');
    let mut number = || u64::from_str_radix(parts.next()?.trim_start_matches("0x"), 16).ok();
    let (start, bytes) = (number()?, number()?);
    let name = parts.next().filter(|name| !name.is_empty() && bytes > 0)?;
    Some((start, start.checked_add(bytes)?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_name_of_an_address_counts() {
        let text = "1000 20 JS:*serve server.js:3:1\n1020 10 Builtin:Call\nnonsense\n2000 zz bad\n\n3000 0 none\n0x1018 0x10 JS:~later\n\
                    ffffffffffffffff 2 beyond\n";
        let map = PerfMap::read(text.as_bytes());
        map.check();
        assert_eq!(map.at(0x1018), Some("JS:~later"));
        assert_eq!(map.at(0x1027), Some("JS:~later"));
        for unnamed in [0x1000, 0x1017, 0x1028, 0x2000, 0x3000, u64::MAX] {
            assert_eq!(map.at(unnamed), None, "{unnamed:#x}");
        }
        let map = PerfMap::read(&b"1000 20 JS:*serve server.js:3:1\n1020 10 Builtin:Call"[..]);
        assert_eq!(map.at(0x101f), Some("JS:*serve server.js:3:1"));
        assert_eq!((map.at(0x1020), map.at(0xfff)), (Some("Builtin:Call"), None));
    }
}
