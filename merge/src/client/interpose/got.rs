//! GOT entries: every object calls functions of other objects through its own. This module patches them so
//! that calls of madvise, mremap and realloc reach this library. A patch is one store of a word, so threads
//! call either the old function or the new one.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Result;
use rustix::mm::{MprotectFlags, mprotect};

use crate::base::page::PAGE_BYTES;

/// A function's name and the address of its replacement.
pub type Replacement<'a> = (&'a CStr, usize);

/// Kinds of relocations that fill a GOT entry.
#[cfg(target_arch = "x86_64")]
mod kind {
    pub const JUMP_SLOT: u32 = 7;
    pub const GLOBAL_DATA: u32 = 6;
    pub const ABSOLUTE: u32 = 1;
}
#[cfg(target_arch = "aarch64")]
mod kind {
    pub const JUMP_SLOT: u32 = 1026;
    pub const GLOBAL_DATA: u32 = 1025;
    pub const ABSOLUTE: u32 = 257;
}

// Tags of the dynamic section.
const STRINGS: i64 = 5;
const SYMBOLS: i64 = 6;
const RELOCATIONS: i64 = 7;
const RELOCATIONS_BYTES: i64 = 8;
const RELATIVE_COUNT: i64 = 0x6fff_fff9;
const JUMPS: i64 = 23;
const JUMPS_BYTES: i64 = 2;
/// The section of symbols that an object only refers to.
const UNDEFINED: u16 = 0;

#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

struct Walk<'a> {
    replacements: &'a [Replacement<'a>],
    last: &'a mut LastWalk,
    is_first: bool,
    is_same: bool,
    result: Result<()>,
}

/// Counts of objects loaded and unloaded at the last walk, and the entries it found.
struct LastWalk {
    added: u64,
    removed: u64,
    entries: Vec<GotEntry>,
}

static LAST_WALK: Mutex<LastWalk> = Mutex::new(LastWalk { added: 0, removed: 0, entries: Vec::new() });

/// A GOT entry, and the function that belongs there.
#[derive(Clone, Copy)]
struct GotEntry {
    at: usize,
    replacement: usize,
    is_guarded: bool,
}

/// Patches the entries of these functions in every loaded object. Quick if no object has been loaded since
/// the last time.
///
/// # Errors
/// The system's error where an entry cannot be written.
pub fn patch(replacements: &[Replacement<'_>]) -> Result<()> {
    let mut last = LAST_WALK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut walk = Walk { replacements, last: &mut last, is_first: true, is_same: false, result: Ok(()) };
    // SAFETY: the loader calls `visit` with its description of each object, and `walk` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut walk).cast()) };
    if walk.result.is_err() {
        walk.last.added = 0;
    }
    walk.result
}

unsafe extern "C" fn visit(about: *mut libc::dl_phdr_info, _size: usize, walk: *mut c_void) -> c_int {
    // SAFETY: as `patch` passes them; the loader's list does not change during the walk.
    let (about, walk) = unsafe { (&*about, &mut *walk.cast::<Walk<'_>>()) };
    if walk.is_first {
        walk.is_first = false;
        walk.is_same = (walk.last.added, walk.last.removed) == (about.dlpi_adds, about.dlpi_subs);
        (walk.last.added, walk.last.removed) = (about.dlpi_adds, about.dlpi_subs);
        if walk.is_same {
            // The loader fills an entry late, at the first call, and may have been about to do so during the
            // last walk.
            // SAFETY: entries of objects that are still loaded.
            walk.result = walk.last.entries.iter().try_for_each(|entry| unsafe { entry.patch() });
            return 1;
        }
        walk.last.entries.clear();
    }
    // SAFETY: a loaded object's.
    let result = unsafe { patch_object(about, walk.replacements, &mut walk.last.entries) };
    walk.result = walk.result.and(result);
    0
}

/// # Safety
/// `about` is the loader's description of an object that stays loaded.
unsafe fn patch_object(
    about: &libc::dl_phdr_info,
    replacements: &[Replacement<'_>],
    found: &mut Vec<GotEntry>,
) -> Result<()> {
    let mut result = Ok(());
    let patch = |name: &CStr, _: &Symbol, at: usize, is_guarded: bool| {
        if let Some(&(_, replacement)) = replacements.iter().find(|(wanted, _)| *wanted == name) {
            let entry = GotEntry { at, replacement, is_guarded };
            // SAFETY: an entry of this object for the function of that name.
            result = result.and(unsafe { entry.patch() });
            found.push(entry);
        }
    };
    // SAFETY: as the function's.
    unsafe { each_entry(about, patch) };
    result
}

/// The program's own PLT entry for a function that a library defines. A program without PIE has one for each
/// function whose address it takes, and that address is then the function's everywhere.
pub fn plt_entry_of_program(name: &CStr) -> Option<usize> {
    struct Search<'a>(&'a CStr, Option<usize>);
    extern "C" fn look(about: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
        // SAFETY: the loader's description of an object, and the caller's search.
        unsafe {
            let (about, search) = (&*about, &mut *search.cast::<Search<'_>>());
            each_entry(about, |name, symbol, _, _| {
                if name == search.0 && symbol.section == UNDEFINED && symbol.value != 0 {
                    search.1 = Some(about.dlpi_addr as usize + symbol.value as usize);
                }
            });
        }
        1 // the first is the program itself: stop here
    }
    let mut search = Search(name, None);
    // SAFETY: `look` has the type of a callback, and takes the search.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.1
}

/// Visits the GOT entries of an object: the function's name and symbol, the entry's address, and whether the
/// loader has made it read-only.
///
/// # Safety
/// `about` is the loader's description of an object that stays loaded.
unsafe fn each_entry(about: &libc::dl_phdr_info, mut act: impl FnMut(&CStr, &Symbol, usize, bool)) {
    let base = about.dlpi_addr as usize;
    // SAFETY: the object's own tables, located by its headers.
    unsafe {
        let headers = std::slice::from_raw_parts(about.dlpi_phdr, about.dlpi_phnum as usize);
        let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else {
            return;
        };
        let is_mapped = |address: usize| {
            headers.iter().any(|h| {
                let start = base + h.p_vaddr as usize;
                h.p_type == libc::PT_LOAD && (start..start + h.p_memsz as usize).contains(&address)
            })
        };
        let read_only = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO).map(|header| {
            let start = base + header.p_vaddr as usize;
            start / PAGE_BYTES * PAGE_BYTES..(start + header.p_memsz as usize) / PAGE_BYTES * PAGE_BYTES
        });
        let value = |wanted: i64| {
            let mut entry = (base + dynamic.p_vaddr as usize) as *const [i64; 2];
            loop {
                match *entry {
                    [0, _] => return None,
                    [tag, value] if tag == wanted => return Some(value as usize),
                    _ => entry = entry.add(1),
                }
            }
        };
        // The loader has relocated them to addresses, except in the kernel's own object.
        let address = |tag| value(tag).filter(|&at| is_mapped(at));
        let (Some(strings), Some(symbols)) = (address(STRINGS), address(SYMBOLS)) else { return };
        for (table, bytes, skipped) in [
            (address(JUMPS), value(JUMPS_BYTES), 0),
            (address(RELOCATIONS), value(RELOCATIONS_BYTES), value(RELATIVE_COUNT).unwrap_or(0)),
        ] {
            let (Some(table), Some(bytes)) = (table, bytes) else { continue };
            let all = std::slice::from_raw_parts(table as *const Relocation, bytes / size_of::<Relocation>());
            for relocation in all.get(skipped..).unwrap_or_default() {
                let (kind, symbol) = (relocation.info as u32, (relocation.info >> 32) as usize);
                if !matches!(kind, kind::JUMP_SLOT | kind::GLOBAL_DATA | kind::ABSOLUTE)
                    || relocation.addend != 0 && kind == kind::ABSOLUTE
                {
                    continue;
                }
                let symbol = &*(symbols as *const Symbol).add(symbol);
                let name = CStr::from_ptr((strings + symbol.name as usize) as *const _);
                let entry = base + relocation.offset as usize;
                act(name, symbol, entry, read_only.as_ref().is_some_and(|range| range.contains(&entry)));
            }
        }
    }
}

impl GotEntry {
    /// # Safety
    /// It is the entry of a loaded object, for a function of `replacement`'s type.
    unsafe fn patch(&self) -> Result<()> {
        let page = (self.at / PAGE_BYTES * PAGE_BYTES) as *mut c_void;
        // SAFETY: one aligned word that other threads only read; the page gets its protection back.
        unsafe {
            let word = &*(self.at as *const AtomicUsize);
            if word.load(Ordering::Relaxed) == self.replacement {
                return Ok(());
            }
            if self.is_guarded {
                mprotect(page, PAGE_BYTES, MprotectFlags::READ | MprotectFlags::WRITE)?;
            }
            word.store(self.replacement, Ordering::Release);
            if self.is_guarded { mprotect(page, PAGE_BYTES, MprotectFlags::READ) } else { Ok(()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn replacement() {}

    #[test]
    fn patches_an_entry_again_that_the_loader_fills_late() {
        // A function that this test program has an entry for, and that nothing calls.
        let name = c"getloadavg";
        std::hint::black_box(libc::getloadavg as *const ());
        let replacements = [(name, replacement as *const () as usize)];
        patch(&replacements).unwrap();
        let entries = LAST_WALK.lock().unwrap().entries.clone();
        assert!(!entries.is_empty());
        // SAFETY: an aligned word of this program's own table, which stays mapped; it is written atomically.
        let word = |entry: &GotEntry| unsafe { &*(entry.at as *const AtomicUsize) };
        for entry in &entries {
            assert_eq!(word(entry).load(Ordering::Relaxed), entry.replacement);
            // SAFETY: an entry of this program; nothing calls the function.
            unsafe { GotEntry { replacement: 1, ..*entry }.patch().unwrap() };
        }
        patch(&replacements).unwrap();
        assert!(entries.iter().all(|entry| word(entry).load(Ordering::Relaxed) == entry.replacement));
    }
}
