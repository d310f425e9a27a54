//! The functions of a program's allocator, from the symbols of its files: the plugin finds them in the guest
//! by their offset in a page and their first bytes. So a run reports the allocator's cycles, and objects'
//! sizes and lifetimes, without changes to the program.

use std::path::{Path, PathBuf};

use object::{Object, ObjectSection, ObjectSymbol};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Names, and the plugin's name of their kind.
const NAMES: [(&[&str], &str); 8] = [
    (
        &[
            "malloc",
            "PyObject_Malloc",
            "PyMem_Malloc",
            "PyMem_RawMalloc",
            "_Znwm",
            "_Znam",
            "_ZnwmRKSt9nothrow_t",
            "_ZnamRKSt9nothrow_t",
        ],
        "malloc",
    ),
    (&["calloc", "PyObject_Calloc", "PyMem_Calloc", "PyMem_RawCalloc"], "calloc"),
    (&["realloc", "PyObject_Realloc", "PyMem_Realloc", "PyMem_RawRealloc"], "realloc"),
    (&["aligned_alloc", "memalign"], "aligned"),
    (&["posix_memalign"], "posix_memalign"),
    (
        &["free", "PyObject_Free", "PyMem_Free", "PyMem_RawFree", "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm"],
        "free",
    ),
    (&["runtime.mallocgc", "runtime.mementoMalloc", "runtime.mementoSoftware"], "go_malloc"),
    (&["runtime.(*sweepLocked).sweep"], "go_sweep"),
];
/// The plugin compares so many bytes of a function, or its first block if that is shorter.
const BYTES: usize = 64;
/// The C library, which has a program's malloc if no other file does.
const C_LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";

/// A function that begins so leads to another, of the side that was chosen (sim/shim/redirect.h): it is none
/// of the allocator's.
const REDIRECT: [u8; 8] = [0x0f, 0x1f, 0x84, 0x00, 0x17, 0x00, 0x4d, 0x4d];

/// The program's file and the libraries that are preloaded into it. `tree`: the guest's root, as a folder;
/// `program`: the program's file, as the guest names it, or on this machine; `library`: a library of this
/// machine that is preloaded into it.
pub fn files(
    tree: Option<&Path>,
    program: &Path,
    library: Option<&Path>,
    environment: &[String],
) -> Vec<PathBuf> {
    let preloaded = environment.iter().filter_map(|variable| variable.strip_prefix("LD_PRELOAD="));
    let mut files = vec![program.to_owned()];
    files.extend(library.map(Path::to_owned));
    if let Some(tree) = tree {
        let inside = |path: &str| tree.join(path.trim_start_matches('/'));
        if !program.is_file() || program.starts_with("/") && inside(&program.to_string_lossy()).is_file() {
            files[0] = inside(&program.to_string_lossy());
        }
        files.extend(preloaded.flat_map(|list| list.split([':', ' '])).map(inside));
    }
    files
}

/// The content of functions.json for the plugin: those of these files, and of the guest's C library.
pub fn of(tree: Option<&Path>, files: &[PathBuf]) -> Value {
    let library = tree.map(|tree| tree.join(C_LIBRARY.trim_start_matches('/')));
    Value::Array(files.iter().chain(&library).flat_map(|file| functions(file)).collect())
}

/// What these files are, in 16 digits: two runs of one program have the same.
pub fn digest(files: &[PathBuf]) -> String {
    let mut hash = Sha256::new();
    for content in files.iter().filter_map(|file| std::fs::read(file).ok()) {
        hash.update((content.len() as u64).to_le_bytes());
        hash.update(&content);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The functions of one ELF file; none for other files.
fn functions(path: &Path) -> Vec<Value> {
    let Ok(bytes) = std::fs::read(path) else { return Vec::new() };
    let Ok(file) = object::File::parse(&*bytes) else { return Vec::new() };
    let mut found = Vec::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()).filter(|symbol| symbol.is_definition()) {
        let Some(kind) = symbol.name().ok().and_then(kind_of) else { continue };
        let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
        let code =
            section.and_then(|section| section.data_range(symbol.address(), BYTES as u64).ok().flatten());
        let Some(code) = code.filter(|code| !code.starts_with(&REDIRECT)) else { continue };
        let one =
            json!({"kind": kind, "offset": symbol.address() & 0xfff, "size": symbol.size(), "bytes": code});
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

/// A redirected function is `memento_NAME`, or CPython's own, which is then `software_NAME`.
fn kind_of(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("memento_").or(name.strip_prefix("software_")).unwrap_or(name);
    NAMES.iter().find(|(names, _)| names.contains(&name)).map(|(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_those_of_the_c_library() {
        // This test's own program has its malloc from the C library.
        let library = Path::new(C_LIBRARY);
        if !library.is_file() {
            return;
        }
        let all = of(None, &[library.to_owned()]);
        let kinds: Vec<_> = all.as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect();
        for kind in ["malloc", "calloc", "realloc", "free"] {
            assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
        }
        assert_eq!(of(None, &["/etc/passwd".into()]), json!([]), "no ELF file");
    }

    #[test]
    fn both_sides_of_a_program_are_called_as_its_allocator() {
        for name in ["malloc", "memento_malloc", "memento_PyObject_Malloc", "software_PyObject_Malloc"] {
            assert_eq!(kind_of(name), Some("malloc"), "{name}");
        }
        assert_eq!(kind_of("memento_open"), None);
    }

    #[test]
    fn a_digest_is_of_the_files_contents() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b", "c"].map(|name| folder.path().join(name));
        for (path, content) in paths.iter().zip(["program", "program", "library"]) {
            std::fs::write(path, content).unwrap();
        }
        let [a, b, c] = paths.map(|path| vec![path]);
        assert_eq!(digest(&a), digest(&b));
        assert_ne!(digest(&a), digest(&c));
        assert_ne!(digest(&a), digest(&[a.clone(), c].concat()));
        assert_eq!(digest(&a).len(), 16);
    }
}
