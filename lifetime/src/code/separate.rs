//! The files that have a module's names: itself, and the separate ones that a distribution or a build keeps
//! its debug symbols in. A file counts only if it is of the build that ran: by build-id, or by the checksum
//! that the program has of it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::{Endianness, Object, ObjectSection, ReadCache, read::elf::ElfFile64};

use crate::code::root::Root;
use crate::profile::contents::Module;

/// What distributions put below: their debug symbols.
const DEBUG: &str = "/usr/lib/debug";

/// A module's files.
pub struct Files {
    /// The one with symbols, or the module itself.
    pub main: File,
    /// The one that several share strings and types in (`dwz`).
    pub shared: Option<File>,
    /// All split debug symbols in one (`.dwp`).
    pub package: Option<File>,
    /// Why names are missing though the files are of the build that ran.
    pub lacks: Option<String>,
}

/// What a file says about itself.
#[derive(Default)]
struct About {
    build_id: Vec<u8>,
    has_dwarf: bool,
    has_symbols: bool,
    /// Compressed symbols of functions alone (MiniDebugInfo).
    is_mini: bool,
    /// The name and checksum of the file with its debug symbols.
    link: Option<(PathBuf, u32)>,
    /// The path and build-id of the file that it shares with others.
    shared: Option<(PathBuf, Vec<u8>)>,
    /// Tables for debuggers alone, which no unwinder in the process finds.
    is_for_debuggers: bool,
}

impl About {
    fn of(file: &File) -> Result<Self, String> {
        let told = |error: object::Error| error.to_string();
        let parts = ReadCache::new(file.try_clone().map_err(|error| error.to_string())?);
        let elf: ElfFile64<Endianness, &ReadCache<File>> = ElfFile64::parse(&parts).map_err(told)?;
        let holds = |name: &str| elf.section_by_name(name).is_some_and(|section| section.size() > 0);
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        Ok(Self {
            build_id: elf.build_id().map_err(told)?.unwrap_or_default().to_vec(),
            has_dwarf: holds(".debug_info") || holds(".zdebug_info"),
            has_symbols: holds(".symtab"),
            is_mini: holds(".gnu_debugdata"),
            link: elf.gnu_debuglink().map_err(told)?.map(|(name, sum)| (path(name), sum)),
            shared: elf.gnu_debugaltlink().map_err(told)?.map(|(name, id)| (path(name), id.to_vec())),
            // Go unwinds its own code by a table of its own.
            is_for_debuggers: holds(".debug_frame") && !holds(".gopclntab"),
        })
    }
}

/// Finds the files of a module.
///
/// # Errors
/// There is none, or the module's is of another build; the reason is for people.
pub fn find(root: &Root, module: &Module) -> Result<Files, String> {
    let own = root.open(&module.path).map_err(|error| error.to_string());
    let by_id = separate_file(&module.build_id).and_then(|path| Root::Own.open(&path).ok());
    let by_id = by_id.filter(|file| About::of(file).is_ok_and(|about| about.build_id == module.build_id));
    let (main, about) = match (by_id, own) {
        (Some(file), _) => {
            let about = About::of(&file)?;
            (file, about)
        }
        (None, own) => {
            let own = own?;
            let about = About::of(&own)?;
            if about.build_id != module.build_id {
                return Err(
                    "its build-id is not that of the file that ran; rebuilt or upgraded since?".into()
                );
            }
            match if about.has_dwarf { None } else { linked(root, module, &about) } {
                Some(file) => {
                    let about = About::of(&file)?;
                    (file, about)
                }
                None => (own, about),
            }
        }
    };
    let shared = about.shared.as_ref().and_then(|(path, id)| shared(root, module, path, id));
    let mut name = module.path.clone().into_os_string();
    name.push(".dwp");
    let package = root.open(Path::new(&name)).ok();
    let lacks = match &about.shared {
        Some((path, _)) if about.has_dwarf && shared.is_none() => {
            Some(format!("its debug symbols share {} with others, which is not there", path.display()))
        }
        _ if !about.has_dwarf && !about.has_symbols && about.is_mini => {
            Some("it has only MiniDebugInfo, which is not read: install its debug symbols".into())
        }
        _ => None,
    };
    Ok(Files { main, shared, package, lacks })
}

/// Whether the code of a module has tables for debuggers alone (`.debug_frame`).
pub fn is_for_debuggers(root: &Root, module: &Module) -> bool {
    let own = root.open(&module.path).ok();
    own.and_then(|file| About::of(&file).ok()).is_some_and(|about| about.is_for_debuggers)
}

/// A build-id in hexadecimal.
pub fn hexadecimal(build_id: &[u8]) -> String {
    build_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The path at which distributions put a debug file.
fn separate_file(build_id: &[u8]) -> Option<PathBuf> {
    let name = hexadecimal(build_id);
    let (first, rest) = name.split_at_checked(2)?;
    Some(PathBuf::from(format!("{DEBUG}/.build-id/{first}/{rest}.debug")))
}

/// The file that `.gnu_debuglink` names, where debuggers look for it.
fn linked(root: &Root, module: &Module, about: &About) -> Option<File> {
    let (name, sum) = about.link.as_ref()?;
    let name = name.file_name()?; // no way to another folder
    let folder = module.path.parent()?;
    let below = Path::new(DEBUG).join(folder.strip_prefix("/").unwrap_or(folder));
    let folders = [folder.to_owned(), folder.join(".debug"), below];
    folders.iter().filter_map(|folder| root.open(&folder.join(name)).ok()).find(|file| {
        let is_same = About::of(file).is_ok_and(|found| found.build_id == about.build_id);
        is_same && (!about.build_id.is_empty() || checksum(file) == Some(*sum))
    })
}

/// As `.gnu_debuglink` has it.
fn checksum(mut file: &File) -> Option<u32> {
    let (mut sum, mut buffer) = (flate2::Crc::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(sum.sum()),
            length => sum.update(&buffer[..length]),
        }
    }
}

/// The file that `.gnu_debugaltlink` names: by build-id, or by its path, which may be relative to the file
/// that names it.
fn shared(root: &Root, module: &Module, path: &Path, id: &[u8]) -> Option<File> {
    let folder = module.path.parent()?;
    let by_id = separate_file(id).and_then(|path| Root::Own.open(&path).ok());
    let beside = Path::new(DEBUG).join(".dwz").join(path.file_name()?);
    let named = [folder.join(path), beside.clone()].into_iter().filter_map(|path| root.open(&path).ok());
    let all = by_id.into_iter().chain(named).chain(Root::Own.open(&beside).ok());
    all.into_iter().find(|file| About::of(file).is_ok_and(|about| about.build_id == id))
}

/// The path of an open file.
pub fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
