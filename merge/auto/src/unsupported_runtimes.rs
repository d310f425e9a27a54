//! Runtimes that map their heaps themselves, past malloc: V8, JVMs, Go, Ruby, PHP. The scanner does not
//! see what they allocate, and the library reports it when it is loaded: once for a program and the workers
//! that it starts by its own file, as Node's cluster does.

use std::ffi::{CStr, c_int, c_void};
use std::fs;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::slice;

/// Identifies a runtime before its main runs: an exported function of the runtime or its launcher.
const BY_SYMBOL: [(&CStr, &str); 5] = [
    (c"napi_create_object", "V8"),
    (c"JLI_Launch", "a JVM"),
    (c"JNI_CreateJavaVM", "a JVM"),
    (c"ruby_run_node", "Ruby"),
    (c"_emalloc", "PHP"),
];

/// The name in the note that Go's linker leaves.
const GO_NOTE: &[u8] = b"Go\0\0";

/// Reports on stderr which memory of this program will not be shared, if it has one of these runtimes.
pub fn warn() {
    if let Some(runtime) = found().filter(|_| !has_parent_warned()) {
        eprintln!(
            "mayfly-merge: MAYFLY_MERGE_AUTO: {runtime} maps its heap by itself, so that heap is not shared; memory that \
             the program allocates with malloc is"
        );
    }
}

/// Whether the parent runs the same program with this library: then it has written the line.
fn has_parent_warned() -> bool {
    let parent = Path::new("/proc").join(parent_id().to_string());
    let program_of = |process: &Path| fs::read_link(process.join("exe")).ok();
    program_of(&parent).is_some_and(|program| program_of(Path::new("/proc/self")) == Some(program))
        && fs::read_to_string(parent.join("maps")).is_ok_and(|maps| maps.contains("/libmayfly_merge_auto.so"))
}

fn found() -> Option<&'static str> {
    let exported = BY_SYMBOL.iter().find(|(symbol, _)| {
        // SAFETY: a C string; the address is not used.
        !unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) }.is_null()
    });
    exported.map(|(_, runtime)| *runtime).or_else(|| is_of_go().then_some("Go's runtime"))
}

fn is_of_go() -> bool {
    extern "C" fn look(about: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: the loader's description of a loaded program, and the caller's flag. The program's notes
        // are in memory, and are only read.
        unsafe {
            let headers = slice::from_raw_parts((*about).dlpi_phdr, (*about).dlpi_phnum.into());
            for note in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
                let start = (*about).dlpi_addr.wrapping_add(note.p_vaddr) as *const u8;
                *found.cast::<bool>() |= has_go_note(slice::from_raw_parts(start, note.p_memsz as usize));
            }
        }
        1 // the first is the program itself: stop here
    }
    let mut found = false;
    // SAFETY: `look` has the type of a callback, and takes the flag.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// Whether one of these notes is Go's: length of the name, length of the contents, kind, name.
fn has_go_note(mut notes: &[u8]) -> bool {
    let word = |at: usize, notes: &[u8]| {
        let bytes = notes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes) as usize)
    };
    while let (Some(name), Some(rest)) = (word(0, notes), word(4, notes)) {
        if notes.get(12..12 + name) == Some(GO_NOTE) {
            return true;
        }
        let next = 12 + name.next_multiple_of(4) + rest.next_multiple_of(4);
        let Some(left) = notes.get(next..) else { break };
        notes = left;
    }
    false
}
