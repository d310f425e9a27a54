//! A snapshot in a folder, which a later process on the same machine loads.
//!
//! ```text
//!   NAME.pages     its pages, a copy
//!   NAME.program   the restorer's program
//!   NAME.about     the digest of the rest; what it was taken on and for; the digests of both
//! ```
//! The description is written last, under another name, and renamed: without it nothing is loaded. A file
//! that was cut or has changed does not fit its digest, and is not used.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use mappings::SNAPSHOT;
use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::address_space::MappedFile;
use crate::own_folder::Entry;
use crate::take::Snapshot;
use crate::{Error, While, program};

/// Of what is written here; it changes with every change of a snapshot's meaning.
const FORMAT: u32 = 1;
const PIECE: usize = 1 << 20;
/// A description is not larger: a thousand files in a folder of its own, and some hundred mapped ones.
const MOST_ABOUT: u64 = 16 << 20;
/// A digest in hexadecimal digits.
const DIGITS: usize = 64;
/// The endings of a snapshot's files, in the order in which they go.
const ENDINGS: [&str; 4] = [".about", ".new", ".pages", ".program"];

/// What a snapshot was taken on. It is of use only where all of it is the same: code may have chosen
/// instructions by the CPU's features, the vDSO is the kernel's, and clocks run on until the machine stops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    kernel: String,
    boot: String,
    cpu: String,
}

impl System {
    /// This machine now.
    ///
    /// # Errors
    /// There is no /proc.
    pub fn now() -> Result<System, Error> {
        let read = |path: &str| std::fs::read_to_string(path).during("the machine cannot be described");
        let processors = read("/proc/cpuinfo")?;
        let flags = processors.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        Ok(System {
            kernel: read("/proc/version")?.trim().into(),
            boot: read("/proc/sys/kernel/random/boot_id")?.trim().into(),
            cpu: digest(flags.as_bytes()),
        })
    }

    /// What is another now.
    fn difference(&self, now: &System) -> Option<&'static str> {
        let parts = [
            (self.kernel == now.kernel, "the kernel is another"),
            (self.cpu == now.cpu, "the CPU has other features"),
            (self.boot == now.boot, "the machine has started anew"),
        ];
        parts.into_iter().find_map(|(is_same, what)| (!is_same).then_some(what))
    }
}

#[derive(Serialize, Deserialize)]
struct About {
    format: u32,
    system: System,
    /// What the caller took it for; see [`save`].
    purpose: String,
    files: Vec<Mapped>,
    entries: Vec<Entry>,
    bytes: u64,
    size: u64,
    mappings: usize,
    reads_its_line: bool,
    pages: String,
    program: String,
}

/// A file that is mapped, and the digest of its contents where the caller may lay it down anew.
#[derive(Serialize, Deserialize)]
struct Mapped {
    file: MappedFile,
    contents: Option<String>,
}

/// Why a saved snapshot is not used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It was taken for something else, or on another system.
    #[error("{0}")]
    Changed(String),
    /// It is not as it was written.
    #[error("it is broken: {0}")]
    Broken(String),
    /// A call of the system failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Whether snapshots can be saved in this folder: on a disk whose files may be executed.
pub fn can_save(folder: BorrowedFd<'_>) -> bool {
    program::disk_file(folder).is_some()
}

/// Saves a snapshot, in place of an earlier one of this name. `purpose` says all that the caller took it for:
/// it is loaded for the same alone. `outside` opens those mapped files that may be laid down anew, so that
/// their contents count and not their numbers. Blocks.
///
/// # Errors
/// The disk is full or fails. Then there is none of this name.
pub fn save(
    snapshot: &Snapshot,
    folder: BorrowedFd<'_>,
    name: &str,
    purpose: &str,
    outside: impl Fn(&MappedFile) -> Option<File>,
) -> Result<(), Error> {
    remove(folder, name);
    let saved = || {
        let files = snapshot.files().iter().map(|file| {
            let contents = outside(file).map(|opened| copied(&opened, None)).transpose()?;
            Ok(Mapped { file: file.clone(), contents })
        });
        let about = About {
            format: FORMAT,
            system: System::now()?,
            purpose: purpose.into(),
            files: files
                .collect::<std::io::Result<_>>()
                .during("a file that it has mapped cannot be read")?,
            entries: snapshot.entries().to_vec(),
            bytes: snapshot.bytes(),
            size: snapshot.size(),
            mappings: snapshot.mappings(),
            reads_its_line: snapshot.reads_its_line(),
            pages: put(folder, name, ".pages", snapshot.pages())?,
            program: put(folder, name, ".program", snapshot.program())?,
        };
        let text = serde_json::to_vec(&about).during("the snapshot cannot be described")?;
        let file = File::from(create(folder, &format!("{name}.new"))?);
        let write = || {
            (&file).write_all(digest(&text).as_bytes())?;
            (&file).write_all(&text)?;
            file.sync_all()
        };
        write().during("the snapshot cannot be saved")?;
        rustix::fs::renameat(folder, format!("{name}.new"), folder, format!("{name}.about"))
            .during("the snapshot cannot be saved")
    };
    saved().inspect_err(|_| remove(folder, name))
}

/// The saved snapshot of this name, or none. `now` gives a mapped file as it is now, where it may have been
/// laid down anew. Blocks.
///
/// # Errors
/// It cannot be used.
pub fn load(
    folder: BorrowedFd<'_>,
    name: &str,
    purpose: &str,
    now: impl Fn(&MappedFile) -> Option<(MappedFile, File)>,
) -> Result<Option<Snapshot>, Unusable> {
    let Some(about) = about(folder, name)? else { return Ok(None) };
    if about.purpose != purpose {
        return Err(Unusable::Changed("code, settings, packages or the worker have changed".into()));
    }
    if let Some(what) = about.system.difference(&System::now()?) {
        return Err(Unusable::Changed(what.into()));
    }
    let files = about.files.into_iter().map(|mapped| again(mapped, &now)).collect::<Result<_, _>>()?;
    let pages = opened(folder, &format!("{name}.pages"))?;
    check("its pages", &pages, &about.pages, None)?;
    if rustix::fs::fstat(&pages).during("its pages cannot be read")?.st_size as u64 != about.size {
        return Err(Unusable::Broken("its pages have another size".into()));
    }
    let program = program::memory_file()?;
    let sealed = File::from(program.try_clone().during("no descriptor is left")?);
    check("its program", &opened(folder, &format!("{name}.program"))?, &about.program, Some(&sealed))?;
    drop(sealed);
    program::seal(&program)?;
    let pages = OwnedFd::from(pages);
    program::drop_unused(&pages);
    Ok(Some(Snapshot {
        program,
        pages,
        files,
        entries: about.entries,
        bytes: about.bytes,
        size: about.size,
        mappings: about.mappings,
        reads_its_line: about.reads_its_line,
        is_on_disk: true,
        why_copied: None,
    }))
}

/// Removes the saved snapshot of this name, if there is one.
pub fn remove(folder: BorrowedFd<'_>, name: &str) {
    for ending in ENDINGS {
        // Most often there is none.
        let _ = rustix::fs::unlinkat(folder, format!("{name}{ending}"), AtFlags::empty());
    }
}

fn about(folder: BorrowedFd<'_>, name: &str) -> Result<Option<About>, Unusable> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match rustix::fs::openat(folder, format!("{name}.about"), flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(Error::System("its description cannot be read", error.into()).into()),
    };
    let mut text = Vec::new();
    file.take(MOST_ABOUT).read_to_end(&mut text).during("its description cannot be read")?;
    let broken = || Unusable::Broken("its description differs from its digest".into());
    let (given, text) = text.split_at_checked(DIGITS).ok_or_else(broken)?;
    if given != digest(text).as_bytes() {
        return Err(broken());
    }
    let about: About = serde_json::from_slice(text).map_err(|_| another_format())?;
    if about.format == FORMAT { Ok(Some(about)) } else { Err(another_format()) }
}

fn another_format() -> Unusable {
    Unusable::Changed("another version of the worker has saved it".into())
}

/// A file that was mapped, as it has to be now.
fn again(
    mapped: Mapped,
    now: &impl Fn(&MappedFile) -> Option<(MappedFile, File)>,
) -> Result<MappedFile, Unusable> {
    let Mapped { file, contents: Some(contents) } = mapped else { return Ok(mapped.file) };
    match now(&file) {
        Some((current, _)) if current == file => Ok(file),
        Some((current, opened)) if copied(&opened, None).is_ok_and(|digest| digest == contents) => {
            Ok(current)
        }
        _ => Err(Unusable::Changed(format!("{} has changed", file.path.display()))),
    }
}

/// Opens a saved file by a name that goes at once: as with every snapshot, its mappings are of a file without
/// a name.
fn opened(folder: BorrowedFd<'_>, name: &str) -> Result<File, Unusable> {
    let shown = format!("{SNAPSHOT}.{name}.{}", std::process::id());
    let broken = |_| Unusable::Broken(format!("{name} is missing"));
    let _ = rustix::fs::unlinkat(folder, &shown, AtFlags::empty()); // of a process of this number that was killed
    rustix::fs::linkat(folder, name, folder, &shown, AtFlags::empty()).map_err(broken)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(folder, &shown, flags, Mode::empty());
    rustix::fs::unlinkat(folder, &shown, AtFlags::empty()).during("a name cannot be removed")?;
    Ok(file.map_err(broken)?.into())
}

fn check(what: &str, file: &File, wanted: &str, copy: Option<&File>) -> Result<(), Unusable> {
    match copied(file, copy).during("it cannot be read")? == wanted {
        true => Ok(()),
        false => Err(Unusable::Broken(format!("{what} differ from their digest"))),
    }
}

fn create(folder: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Error> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR).during("the snapshot cannot be saved")
}

/// Writes a copy of a file, to the disk; returns its digest.
fn put(folder: BorrowedFd<'_>, name: &str, ending: &str, from: BorrowedFd<'_>) -> Result<String, Error> {
    // Another file than the descriptor, whose place others share.
    let path = format!("/proc/self/fd/{}", from.as_raw_fd());
    let from = File::open(path).during("the snapshot cannot be read")?;
    let file = create(folder, &format!("{name}{ending}"))?;
    let copy = File::from(file.try_clone().during("no descriptor is left")?);
    let digest = copied(&from, Some(&copy)).and_then(|digest| copy.sync_data().map(|()| digest));
    let digest = digest.during("the snapshot cannot be saved")?;
    program::drop_unused(&file);
    Ok(digest)
}

/// The digest of a file, which is copied on the way.
fn copied(from: &File, to: Option<&File>) -> std::io::Result<String> {
    let (mut hash, mut buffer, mut at) = (Sha256::new(), vec![0; PIECE], 0);
    loop {
        let read = from.read_at(&mut buffer, at)?;
        if read == 0 {
            return Ok(digits(&hash.finalize()));
        }
        hash.update(&buffer[..read]);
        if let Some(to) = to {
            to.write_all_at(&buffer[..read], at)?;
        }
        at += read as u64;
    }
}

/// The SHA-256 of bytes, in hexadecimal digits.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    digits(&Sha256::digest(bytes))
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_that_differs_in_anything_is_another() {
        let now = System::now().unwrap();
        assert_eq!(now.difference(&now), None);
        let changes: [fn(&mut System); 3] =
            [|it| it.kernel.push('x'), |it| it.boot.push('x'), |it| it.cpu.push('x')];
        let mut said = std::collections::BTreeSet::new();
        for change in changes {
            let mut other = now.clone();
            change(&mut other);
            said.insert(other.difference(&now).unwrap());
        }
        assert_eq!(said.len(), 3);
    }
}
