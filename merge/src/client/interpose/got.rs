//! The loader's slots: through them every object reaches functions of other objects. A slot is filled by one store of a word,
//! so threads call either the old function or the new one.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Result;
use rustix::mm::{MprotectFlags, mprotect};

use crate::base::page::PAGE_BYTES;

/// What a function's name becomes.
pub type Stand<'a> = (&'a CStr, usize);

/// Kinds of relocations that fill a slot.
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
    stands: &'a [Stand<'a>],
    seen: &'a mut Seen,
    is_first: bool,
    is_same: bool,
    result: Result<()>,
}

/// Objects loaded and unloaded when the slots were last filled, and the slots.
struct Seen {
    added: u64,
    removed: u64,
    slots: Vec<Slot>,
}

static SEEN: Mutex<Seen> = Mutex::new(Seen { added: 0, removed: 0, slots: Vec::new() });

/// Where an object looks up a function, and what is to be there.
#[derive(Clone, Copy)]
struct Slot {
    at: usize,
    stand: usize,
    is_guarded: bool,
}

/// Fills the slots of these functions in every loaded object. Quick if no object has come since the last time.
///
/// # Errors
/// What the system says where a slot cannot be written.
pub fn fill(stands: &[Stand<'_>]) -> Result<()> {
    let mut seen = SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut walk = Walk { stands, seen: &mut seen, is_first: true, is_same: false, result: Ok(()) };
    // SAFETY: `visit` is called with what the loader knows of each object, and `walk` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut walk).cast()) };
    if walk.result.is_err() {
        walk.seen.added = 0;
    }
    walk.result
}

unsafe extern "C" fn visit(about: *mut libc::dl_phdr_info, _size: usize, walk: *mut c_void) -> c_int {
    // SAFETY: as `fill` passes them; the loader keeps its list as it is meanwhile.
    let (about, walk) = unsafe { (&*about, &mut *walk.cast::<Walk<'_>>()) };
    if walk.is_first {
        walk.is_first = false;
        walk.is_same = (walk.seen.added, walk.seen.removed) == (about.dlpi_adds, about.dlpi_subs);
        (walk.seen.added, walk.seen.removed) = (about.dlpi_adds, about.dlpi_subs);
        if walk.is_same {
            // The loader fills a slot late, at the first call, and may have been in the midst of it.
            // SAFETY: slots of objects that are loaded still.
            walk.result = walk.seen.slots.iter().try_for_each(|slot| unsafe { slot.fill() });
            return 1;
        }
        walk.seen.slots.clear();
    }
    // SAFETY: a loaded object's.
    let result = unsafe { fill_object(about, walk.stands, &mut walk.seen.slots) };
    walk.result = walk.result.and(result);
    0
}

/// # Safety
/// `about` is what the loader says of an object that stays loaded.
unsafe fn fill_object(about: &libc::dl_phdr_info, stands: &[Stand<'_>], found: &mut Vec<Slot>) -> Result<()> {
    let base = about.dlpi_addr as usize;
    // SAFETY: the object's own tables, as its headers say where they are.
    unsafe {
        let headers = std::slice::from_raw_parts(about.dlpi_phdr, about.dlpi_phnum as usize);
        let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else {
            return Ok(());
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
        // The loader has made addresses of them, except in the kernel's own object.
        let address = |tag| value(tag).filter(|&at| is_mapped(at));
        let (Some(strings), Some(symbols)) = (address(STRINGS), address(SYMBOLS)) else { return Ok(()) };
        let mut result = Ok(());
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
                if let Some((_, stand)) = stands.iter().find(|(wanted, _)| *wanted == name) {
                    let slot = base + relocation.offset as usize;
                    let is_guarded = read_only.as_ref().is_some_and(|range| range.contains(&slot));
                    let slot = Slot { at: slot, stand: *stand, is_guarded };
                    result = result.and(slot.fill());
                    found.push(slot);
                }
            }
        }
        result
    }
}

impl Slot {
    /// # Safety
    /// It is the slot of an object that is loaded, for a function of the type that `stand` has.
    unsafe fn fill(&self) -> Result<()> {
        let page = (self.at / PAGE_BYTES * PAGE_BYTES) as *mut c_void;
        // SAFETY: one aligned word that others only read; the page gets its protection back.
        unsafe {
            let word = &*(self.at as *const AtomicUsize);
            if word.load(Ordering::Relaxed) == self.stand {
                return Ok(());
            }
            if self.is_guarded {
                mprotect(page, PAGE_BYTES, MprotectFlags::READ | MprotectFlags::WRITE)?;
            }
            word.store(self.stand, Ordering::Release);
            if self.is_guarded { mprotect(page, PAGE_BYTES, MprotectFlags::READ) } else { Ok(()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn stand() {}

    #[test]
    fn a_slot_that_the_loader_fills_late_is_filled_again() {
        // A function that this test's program has a slot for, and that nothing calls.
        let name = c"getloadavg";
        std::hint::black_box(libc::getloadavg as *const ());
        let stands = [(name, stand as *const () as usize)];
        fill(&stands).unwrap();
        let slots = SEEN.lock().unwrap().slots.clone();
        assert!(!slots.is_empty());
        let word = |slot: &Slot| unsafe { &*(slot.at as *const AtomicUsize) };
        for slot in &slots {
            assert_eq!(word(slot).load(Ordering::Relaxed), slot.stand);
            // SAFETY: a slot of this program; whatever is there, nothing calls it.
            unsafe { Slot { stand: 1, ..*slot }.fill().unwrap() };
        }
        fill(&stands).unwrap();
        assert!(slots.iter().all(|slot| word(slot).load(Ordering::Relaxed) == slot.stand));
    }
}
