//! Names for return addresses: from symbol tables and DWARF, inlined functions included, demangled. Files are
//! found by path and checked by build-id, so a library that was replaced since is not mistaken for the one
//! that ran.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use addr2line::{Loader, demangle_auto};
use object::{Endianness, Object, ReadCache, read::elf::ElfFile64};

use crate::code::perf_map::PerfMap;
use crate::code::root::Root;
pub use crate::code::separate::hexadecimal;
use crate::code::separate::{self, Files, path_of};
use crate::profile::contents::{Context, Frame, Module, Profile};

/// A function on the stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// Demangled; `module+0xoffset` where no symbol is known, and [`ANONYMOUS`] outside all modules.
    pub name: String,
    /// Its source file; empty when it is not known.
    pub file: String,
    /// The line of the call, 0 when it is not known.
    pub line: u32,
}

/// Separates the functions of one frame, where calls were inlined.
pub const INLINED_SEPARATOR: &str = ";";

/// The name of all code that is in no file but was generated at run time: its address differs from run to
/// run, and the heap, which predicts by this name, has no other for it.
pub const ANONYMOUS: &str = "[anonymous]";

/// A stack of fewer frames did not end where a thread begins: the C library has two functions there.
const SHORT: usize = 3;

/// Finds and caches names. A module's file is opened for the first of its frames that is looked up.
pub struct Symbols<'a> {
    modules: &'a [Module],
    root: &'a Root,
    loaders: Vec<OnceCell<Option<Opened>>>,
    known: HashMap<Frame, Vec<Function>>,
    /// Names of code generated at run time.
    made: PerfMap,
    /// Modules whose file is not the one that ran, and why.
    pub missing: Vec<String>,
}

/// Reads a map of code made at run time, for `fuzz/`.
#[cfg(fuzzing)]
pub fn made_code(map: &[u8]) {
    PerfMap::read(map).check();
}

impl<'a> Symbols<'a> {
    /// Names from the files of a profile's modules, on this machine.
    pub fn new(profile: &'a Profile) -> Self {
        Self::below(&Root::Own, profile)
    }

    /// Names from the files of a profile's modules below its program's root.
    pub fn below(root: &'a Root, profile: &'a Profile) -> Self {
        Self { made: PerfMap::of(root, profile), ..Self::of_modules(root, &profile.modules) }
    }

    /// Names from the files of these modules below their program's root.
    pub fn of_modules(root: &'a Root, modules: &'a [Module]) -> Self {
        let loaders = modules.iter().map(|_| OnceCell::new()).collect();
        Self { modules, root, loaders, known: HashMap::new(), made: PerfMap::default(), missing: Vec::new() }
    }

    fn opened(&mut self, number: usize) -> Option<&Opened> {
        let module = &self.modules[number];
        let missing = &mut self.missing;
        let mut open = || {
            let opened = open(self.root, module);
            let why =
                opened.as_ref().map_or_else(|why| Some(why.clone()), |opened| opened.files.lacks.clone());
            why.into_iter().for_each(|why| missing.push(format!("{}: {why}", module.path.display())));
            opened.ok()
        };
        self.loaders[number].get_or_init(&mut open).as_ref()
    }

    /// The modules that stacks of this profile end in, since their code has tables for debuggers alone
    /// (`.debug_frame`), which no unwinder in a process finds.
    pub fn ends_of_stacks(&self, profile: &Profile) -> Vec<&'a Path> {
        let ends = |number: usize| {
            let in_module = |frame: &&Frame| frame.module == Some(number);
            let is_short = |context: &&Context| context.frames.len() < SHORT;
            profile.contexts.iter().filter(is_short).any(|c| c.frames.last().filter(in_module).is_some())
        };
        let numbered = self.modules.iter().enumerate();
        let found = numbered
            .filter(|&(number, module)| ends(number) && separate::is_for_debuggers(self.root, module));
        found.map(|(_, module)| module.path.as_path()).collect()
    }

    /// The functions of a frame, innermost first: more than one where calls were inlined.
    pub fn of(&mut self, frame: Frame) -> &[Function] {
        if !self.known.contains_key(&frame) {
            let opened = frame.module.and_then(|number| self.opened(number));
            // The call is before the address that it returns to.
            let found = opened.map(|opened| functions(&opened.loader, frame.offset.wrapping_sub(1)));
            let found = found.filter(|found| !found.is_empty());
            let found = found.unwrap_or_else(|| vec![self.unknown(frame)]);
            self.known.insert(frame, found);
        }
        &self.known[&frame]
    }

    fn unknown(&self, frame: Frame) -> Function {
        let name = match frame.module.map(|number| self.modules[number].path.file_name().unwrap_or_default())
        {
            Some(file) => format!("{}+{:#x}", file.to_string_lossy(), frame.offset),
            None => self.made.at(frame.offset.wrapping_sub(1)).unwrap_or(ANONYMOUS).to_owned(),
        };
        Function { name, file: String::new(), line: 0 }
    }

    /// A frame's text for training: the names of its functions, innermost first.
    pub fn text_of(&mut self, frame: Frame) -> String {
        if frame.module.is_none() {
            return ANONYMOUS.to_owned(); // not the name for people: the heap has none
        }
        let names: Vec<&str> = self.of(frame).iter().map(|function| plain(&function.name)).collect();
        names.join(INLINED_SEPARATOR)
    }

    /// The loader of a module's names, and the file that it reads.
    pub(crate) fn loader(&mut self, module: usize) -> Option<(&Loader, &Path)> {
        self.opened(module).map(|opened| (&opened.loader, opened.path.as_path()))
    }
}

/// A name without its version: `@` separates frames.
pub(crate) fn plain(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

/// The functions at an address, innermost first; none if none is known.
fn functions(loader: &Loader, address: u64) -> Vec<Function> {
    let mut functions = Vec::new();
    if let Ok(mut frames) = loader.find_frames(address) {
        while let Ok(Some(frame)) = frames.next() {
            let Some(function) = frame.function else { continue };
            let Ok(name) = function.demangle() else { continue };
            let (file, line) = frame.location.map_or((None, None), |location| (location.file, location.line));
            functions.push(Function {
                name: name.into_owned(),
                file: file.unwrap_or_default().to_owned(),
                line: line.unwrap_or_default(),
            });
        }
    }
    if functions.is_empty()
        && let Some(symbol) = loader.find_symbol(address)
    {
        let name = demangle_auto(Cow::Borrowed(symbol), None).into_owned();
        functions.push(Function { name, file: String::new(), line: 0 });
    }
    functions
}

/// A module's files with symbols, kept open while their paths, those of the descriptors, are in use.
struct Opened {
    loader: Loader,
    path: PathBuf,
    files: Files,
}

/// Opens the files with a module's symbols.
fn open(root: &Root, module: &Module) -> Result<Opened, String> {
    let files = separate::find(root, module)?;
    let path = path_of(&files.main);
    let shared = files.shared.as_ref().map(path_of);
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let loader = match &files.package {
        None => Loader::new_with_sup(&path, shared).map_err(|error| told(&error))?,
        // The loader looks for it beside the other, under its name.
        Some(package) => {
            let folder = tempfile::tempdir().map_err(|error| told(&error))?;
            let [beside, main] = ["main.dwp", "main"].map(|name| folder.path().join(name));
            for (from, to) in [(path_of(package), &beside), (path.clone(), &main)] {
                std::os::unix::fs::symlink(from, to).map_err(|error| told(&error))?;
            }
            Loader::new_with_sup(&main, shared).map_err(|error| told(&error))?
        }
    };
    Ok(Opened { loader, path, files })
}

/// The build-id of a program or library, empty if it has none. Little more than the headers is read.
///
/// # Errors
/// The file cannot be read, or is neither.
pub fn build_id(path: &Path) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let parts = ReadCache::new(file);
    let file: ElfFile64<Endianness, &ReadCache<File>> =
        ElfFile64::parse(&parts).map_err(|error| error.to_string())?;
    let id = file.build_id().map_err(|error| error.to_string())?;
    Ok(id.unwrap_or_default().to_vec())
}
