//! What /proc says of a process's memory: its mappings with their properties, and the files that they map.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libc::c_int;
use mappings::raw_calls;

use crate::{Error, While, status};

const PAGE: u64 = 4096;
/// Letters of properties that are not restored: devices, reserved huge pages, locked, registered with a
/// userfaultfd, sealed, shadow stacks.
const UNKNOWN: [&str; 9] = ["io", "pf", "ht", "lo", "um", "uw", "ui", "sl", "ss"];

/// Bytes of code that are looked through, of all files: of more it is not known what they do.
const MOST_CODE: u64 = 4 << 30;

/// A mapping, as /proc/PID/smaps describes it.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub range: Range<u64>,
    pub rights: c_int,
    pub shared: bool,
    pub offset: u64,
    pub file: Option<(u64, u64)>,
    pub name: String,
    flags: Vec<String>,
    pub has_pages: bool,
}

impl Mapping {
    /// Whether it has the property of these letters (proc(5), VmFlags).
    pub fn has(&self, letters: &str) -> bool {
        self.flags.iter().any(|flag| flag == letters)
    }

    /// Whether it maps a file.
    pub fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// A link to the file that it maps, in whatever namespace that is. It takes a right that root has.
    pub fn link(&self, process: libc::pid_t) -> PathBuf {
        let Range { start, end } = self.range;
        format!("/proc/{process}/map_files/{start:x}-{end:x}").into()
    }

    /// That file. The list of mappings names another device than stat does on overlays, Btrfs and 9P.
    pub fn mapped_file(&self, process: libc::pid_t) -> Option<MappedFile> {
        MappedFile::now(self.link(process))
    }

    /// Opens that file to read it, if it is a regular one: the process has chosen it.
    pub fn open(&self, process: libc::pid_t) -> Option<File> {
        let link = self.link(process);
        std::fs::metadata(&link).ok().filter(|about| about.is_file()).and_then(|_| File::open(link).ok())
    }

    /// Whether writes to it go, or may go, to its file.
    pub fn is_written_through(&self) -> bool {
        self.shared && self.has("sh") && (self.has("mw") || self.rights & libc::PROT_WRITE != 0)
    }

    /// Memory that every process has fresh: MADV_WIPEONFORK, MAP_DROPPABLE. The keys of random numbers lie
    /// there.
    pub fn is_wiped(&self) -> bool {
        self.has("wf") || self.has("dp")
    }
}

/// A file of the disk that the process has mapped. If it is another now, its memory does not fit it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct MappedFile {
    /// Its path inside.
    pub path: PathBuf,
    /// Device, inode, and bytes.
    pub identity: (u64, u64, u64),
    /// Seconds and nanoseconds of its last change.
    pub changed: (i64, i64),
}

impl MappedFile {
    /// The file that is at this path now.
    pub fn now(path: PathBuf) -> Option<MappedFile> {
        let about = std::fs::metadata(&path).ok()?;
        let identity = (about.dev(), about.ino(), about.len());
        Some(MappedFile { path, identity, changed: (about.ctime(), about.ctime_nsec()) })
    }
}

impl MappedFile {
    /// Whether the path leads to this very file, unchanged.
    pub fn is_unchanged(&self) -> bool {
        MappedFile::now(self.path.clone()).as_ref() == Some(self)
    }

    /// The same where each sandbox has mounts of its own, whose devices differ.
    pub fn is_unchanged_in_another_mount(&self) -> bool {
        let numbers = |file: &MappedFile| (file.identity.1, file.identity.2, file.changed);
        MappedFile::now(self.path.clone()).is_some_and(|now| numbers(&now) == numbers(self))
    }
}

/// A process's mappings, in order.
///
/// # Errors
/// It has ended.
pub fn mappings(process: libc::pid_t) -> Result<Vec<Mapping>, Error> {
    let text = std::fs::read(format!("/proc/{process}/smaps")).during("its mappings cannot be read")?;
    parse(&text, &status::root(process)?)
}

/// The mappings that such a text lists, of a process with this root folder.
///
/// # Errors
/// There is none.
pub fn parse(text: &[u8], root: &Path) -> Result<Vec<Mapping>, Error> {
    let mut all: Vec<Mapping> = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        if let Some(area) = mappings::parse(line) {
            let right = |has: bool, right| if has { right } else { 0 };
            all.push(Mapping {
                range: area.range.start as u64..area.range.end as u64,
                rights: right(area.readable, libc::PROT_READ)
                    | right(area.writable, libc::PROT_WRITE)
                    | right(area.executable, libc::PROT_EXEC),
                shared: area.shared,
                offset: area.offset,
                file: area.file,
                name: inside(root, area.name),
                flags: Vec::new(),
                has_pages: false,
            });
        } else if let Some(mapping) = all.last_mut() {
            let line = String::from_utf8_lossy(line);
            if let Some(flags) = line.strip_prefix("VmFlags:") {
                mapping.flags = flags.split_ascii_whitespace().map(String::from).collect();
            } else if line.starts_with("Rss:") || line.starts_with("Swap:") {
                mapping.has_pages |= !line.ends_with(" 0 kB");
            }
        }
    }
    all.retain(|mapping| mapping.name != "[vsyscall]");
    if all.is_empty() {
        return Err(Error::Unsupported("a process without memory".into()));
    }
    Ok(all)
}

/// The name of a mapping; that of a file as the process itself has it.
fn inside(root: &Path, name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name).into_owned();
    match name.starts_with('/') {
        true => status::inside(root, name.into()).to_string_lossy().into_owned(),
        false => name,
    }
}

/// Whether a mapping can be mapped again; `own` is the folder that each process has for itself.
///
/// # Errors
/// It cannot, and why.
pub fn check(mapping: &Mapping, own: Option<&Path>) -> Result<(), Error> {
    let name = &mapping.name;
    let refuse = |why: String| Err(Error::Unsupported(why));
    if mapping.flags.is_empty() {
        return refuse("memory whose properties the kernel does not show".into());
    }
    if let Some(unknown) = UNKNOWN.iter().find(|letters| mapping.has(letters)) {
        return refuse(format!("memory of the kind '{unknown}' (proc(5), VmFlags)"));
    }
    let is_own = own.is_some_and(|own| Path::new(name).starts_with(own));
    if mapping.shared && (!mapping.is_file() || mapping.is_written_through() && !is_own) {
        return refuse(format!("shared memory ({name})"));
    }
    let is_gone = name.ends_with(" (deleted)") || !name.starts_with('/');
    if mapping.is_file() && is_gone {
        return refuse(format!("a mapping of a file that has no name any more ({name})"));
    }
    let is_known = matches!(name.as_str(), "" | "[heap]" | "[stack]") || name.starts_with("[anon:");
    if !mapping.is_file() && !is_known {
        return refuse(format!("a mapping of the kernel's ({name})"));
    }
    Ok(())
}

/// A file whose code empties or moves memory past the C library, or may.
///
/// # Errors
/// The process has ended.
pub fn empties_by_itself(process: libc::pid_t, all: &[Mapping]) -> Result<Option<&str>, Error> {
    let is_code = |mapping: &&Mapping| mapping.rights & libc::PROT_EXEC != 0 && mapping.is_file();
    let mut left = MOST_CODE;
    for mapping in all.iter().filter(is_code) {
        if raw_calls::is_known(mapping.name.as_bytes()) {
            continue;
        }
        let bytes = mapping.range.end - mapping.range.start;
        let (Some(rest), Some(file)) = (left.checked_sub(bytes), mapping.open(process)) else {
            return Ok(Some(&mapping.name));
        };
        left = rest;
        let part = mapping.offset..mapping.offset.saturating_add(bytes);
        if raw_calls::are_in(&file, part).during("its code cannot be read")? {
            return Ok(Some(&mapping.name));
        }
    }
    Ok(None)
}

/// The fields of /proc/PID/stat, numbered as proc(5) has them; those that are no numbers are 0.
pub struct Stat(Vec<u64>);

impl Stat {
    /// Reads them.
    ///
    /// # Errors
    /// It has ended.
    pub fn read(process: libc::pid_t) -> Result<Stat, Error> {
        Ok(Stat::of(&status::text(process, "stat")?))
    }

    /// Those of such a text.
    pub fn of(stat: &str) -> Stat {
        // The name, in parentheses, may hold anything; the third field follows it.
        let (_, rest) = stat.rsplit_once(')').unwrap_or_default();
        Stat(rest.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
    }

    /// One of them.
    pub fn field(&self, number: usize) -> u64 {
        self.0.get(number - 3).copied().unwrap_or(0)
    }

    /// The pages that hold arguments and environment.
    pub fn words(&self) -> Range<u64> {
        self.field(48) & !(PAGE - 1)..self.field(51).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_in_other_mounts_whatever_their_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("library");
        std::fs::write(&path, "x").unwrap();
        let here = MappedFile::now(path.clone()).unwrap();
        let (device, inode, bytes) = here.identity;
        let elsewhere = MappedFile { identity: (device + 1, inode, bytes), ..here };
        assert!(!elsewhere.is_unchanged() && elsewhere.is_unchanged_in_another_mount());
        std::fs::write(&path, "longer").unwrap();
        assert!(!elsewhere.is_unchanged_in_another_mount());
        std::fs::remove_file(&path).unwrap();
        assert!(!elsewhere.is_unchanged_in_another_mount());
    }
}
