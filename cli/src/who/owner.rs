//! Allocators and runtimes in a process's files: which has malloc, and which take memory from the kernel past
//! it.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use lifetime::code::root::Root;
use memchr::memmem;
use object::Endianness;
use object::elf::{FileHeader64, PT_LOAD, PT_NOTE, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader, Sym};

/// Something that takes memory from the kernel itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// `V8`, `jemalloc`
    pub name: &'static str,
    /// The name of the file that has it.
    pub file: String,
}

/// Symbols of runtimes and allocators that programs and libraries may have inside. The first that a file has
/// decides.
const RUNTIMES: [(&[u8], &str); 8] = [
    (b"JNI_CreateJavaVM", "the JVM"),
    (b"napi_create_object", "V8"),
    (b"luaJIT_setmode", "LuaJIT"),
    (b"_emalloc", "PHP"),
    (b"coreclr_initialize", ".NET"),
    (b"enif_alloc", "Erlang"),
    (b"_cgo_topofstack", "Go"),
    (b"Py_BytesMain", CPYTHON),
];
const ALLOCATORS: [(&[u8], &str); 10] = [
    (b"mayfly_malloc", MAYFLY),
    (b"mallocx", "jemalloc"),
    (b"je_mallocx", "jemalloc"),
    (b"_rjem_mallocx", "jemalloc"),
    (b"duckdb_je_mallocx", "jemalloc"),
    (b"je_arrow_mallocx", "jemalloc"),
    (b"mi_malloc", "mimalloc"),
    (b"tc_malloc", "tcmalloc"),
    (b"TCMallocInternalMalloc", "tcmalloc"),
    (b"rpmalloc", "rpmalloc"),
];
/// What allocators print, which a file without symbols has as well.
const TEXTS: [(&[u8], &str); 2] = [(b"<jemalloc>", "jemalloc"), (b"mimalloc: ", "mimalloc")];
/// Its arenas.
pub const CPYTHON: &str = "CPython's arenas";
/// This project's heap.
pub const MAYFLY: &str = "Mayfly's heap";

/// The symbol of Mayfly's table of objects that have mappings of their own.
const OBJECTS: &[u8] = b"mayfly_heap_objects";

/// A mapped file that is a program or a library.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Its bytes in memory, from its first segment to the end of the data that follows the file's.
    pub bytes: u64,
    /// Whether it defines malloc for others.
    pub has_malloc: bool,
    /// Whether it may have one for itself alone.
    pub may_have_malloc: bool,
    /// The C library: its own malloc is what is left.
    pub is_libc: bool,
    /// Where the table of large objects of Mayfly's heap is, from the file's beginning in memory.
    pub objects: Option<u64>,
    /// The allocators in it.
    pub allocators: Vec<&'static str>,
    /// The runtime in it.
    pub runtime: Option<&'static str>,
}

/// What a file of a process is; `None` for one that is no 64-bit ELF file or cannot be read.
pub fn image(root: &Root, path: &Path) -> Option<Image> {
    let file = root.open(path).ok()?;
    let cache = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &cache).ok()?;
    let loaded = || segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD);
    let first = loaded().map(|segment| segment.p_vaddr(endian)).min()? & !4095;
    let end = loaded().filter_map(|one| one.p_vaddr(endian).checked_add(one.p_memsz(endian))).max()?;
    let is_go = segments
        .iter()
        .filter(|segment| segment.p_type(endian) == PT_NOTE)
        .any(|note| note.data(endian, &cache).is_ok_and(|text| memmem::find(text, b"Go\0\0").is_some()));
    let (exported, is_stripped) = symbols(header, endian, &cache);
    let has = |names: &HashSet<Vec<u8>>, wanted: &[u8]| names.contains(wanted);
    let of = |known: &[(&'static [u8], &'static str)]| -> Vec<&'static str> {
        known.iter().filter(|(symbol, _)| has(&exported.all, symbol)).map(|&(_, name)| name).collect()
    };
    let mut allocators = of(&ALLOCATORS);
    if allocators.is_empty() && is_stripped {
        allocators =
            TEXTS.iter().filter(|(text, _)| contains(root, path, text)).map(|&(_, name)| name).collect();
    }
    allocators.dedup();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Some(Image {
        bytes: end.next_multiple_of(4096).saturating_sub(first),
        has_malloc: has(&exported.dynamic, b"malloc"),
        may_have_malloc: has(&exported.all, b"malloc") || is_stripped,
        is_libc: name.starts_with("libc.so") || name.starts_with("libc-") || name.starts_with("ld-musl"),
        objects: exported.objects.and_then(|address| address.checked_sub(first)),
        allocators,
        runtime: if is_go { Some("Go") } else { of(&RUNTIMES).first().copied() },
    })
}

#[derive(Default)]
struct Symbols {
    dynamic: HashSet<Vec<u8>>,
    all: HashSet<Vec<u8>>,
    /// The address of [`OBJECTS`].
    objects: Option<u64>,
}

/// The symbols of interest that a file defines, and whether it has no table of all of them.
fn symbols(header: &FileHeader64<Endianness>, endian: Endianness, file: &ReadCache<File>) -> (Symbols, bool) {
    let mut found = Symbols::default();
    let mut is_stripped = true;
    let wanted: HashSet<&[u8]> =
        RUNTIMES.iter().chain(&ALLOCATORS).map(|&(name, _)| name).chain([&b"malloc"[..]]).collect();
    let Ok(sections) = header.sections(endian, file) else { return (found, true) };
    for kind in [SHT_DYNSYM, SHT_SYMTAB] {
        let Ok(table) = sections.symbols(endian, file, kind) else { continue };
        is_stripped &= kind != SHT_SYMTAB || table.is_empty();
        for symbol in table.iter().filter(|symbol| symbol.st_shndx(endian) != SHN_UNDEF) {
            let Ok(name) = Sym::name(symbol, endian, table.strings()) else { continue };
            if name == OBJECTS {
                found.objects = Some(symbol.st_value(endian));
            }
            if wanted.contains(name) {
                found.all.insert(name.to_vec());
                if kind == SHT_DYNSYM {
                    found.dynamic.insert(name.to_vec());
                }
            }
        }
    }
    (found, is_stripped)
}

/// Whether a file has the bytes; reads it in parts.
fn contains(root: &Root, path: &Path, text: &[u8]) -> bool {
    const PART: usize = 1 << 20;
    let Ok(mut file) = root.open(path) else { return false };
    let finder = memmem::Finder::new(text);
    let mut part = vec![0; PART];
    let mut kept = 0;
    while let Ok(read) = file.read(&mut part[kept..]) {
        if read == 0 {
            break;
        }
        let there = kept + read;
        if finder.find(&part[..there]).is_some() {
            return true;
        }
        kept = there.min(text.len() - 1);
        part.copy_within(there - kept..there, 0);
    }
    false
}
