//! glibc's own heap, where a program may have objects: of a library that found the C library's malloc by its
//! handle (`dlsym`). The program frees them like any others, so the heap recognises them and hands them back.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::system::raw::syscall;
use crate::units::geometry::PAGE_BYTES;

/// An object lies behind the size of its chunk, whose lowest bits are flags, and that behind the size of the
/// chunk before.
const HEADER_BYTES: usize = 16;
const PREVIOUS_IN_USE: usize = 1;
const IS_MAPPED: usize = 2;
const OF_OTHER_ARENA: usize = 4;
const FLAGS: usize = PREVIOUS_IN_USE | IS_MAPPED | OF_OTHER_ARENA;
const LEAST_CHUNK_BYTES: usize = 32;
/// The heaps of all arenas but the first begin at multiples of this, with their arena's address. The first
/// heap of an arena also has the arena, right behind that.
const ARENA_BYTES: usize = 64 << 20;
const MOST_BEFORE_ARENA: usize = 128;

/// The end of the process' data when the library started: glibc's first arena lies behind it.
static FIRST_ARENA: AtomicUsize = AtomicUsize::new(0);

/// Notes where glibc's first arena will be; when the library starts.
pub fn start() {
    FIRST_ARENA.store(data_end(), Relaxed);
}

/// The end of the process' data segment.
fn data_end() -> usize {
    // SAFETY: 0 changes nothing.
    unsafe { syscall!(SYS_brk, 0usize) }.unsigned_abs()
}

/// Frees an object of glibc's heap; `false` if it is none.
#[cold]
pub fn free(address: usize) -> bool {
    if usable_size(address).is_none() {
        return false;
    }
    // SAFETY: the name ends in NUL.
    let function = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__libc_free".as_ptr()) };
    if !function.is_null() {
        // SAFETY: glibc's function of this type, and an object that looks like its own, which it checks.
        unsafe {
            core::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void)>(function)(address as *mut c_void)
        };
    }
    !function.is_null()
}

/// The bytes that an object of glibc's heap may use; `None` if there seems to be none at `address`.
#[cold]
pub fn usable_size(address: usize) -> Option<usize> {
    let chunk = address.checked_sub(HEADER_BYTES).filter(|chunk| chunk.is_multiple_of(HEADER_BYTES))?;
    let (before, word) = (read(chunk)?, read(chunk + 8)?);
    let bytes = word & !FLAGS;
    let end = chunk.checked_add(bytes)?;
    if bytes < LEAST_CHUNK_BYTES || !bytes.is_multiple_of(HEADER_BYTES) {
        return None;
    }
    if word & IS_MAPPED != 0 {
        let fits = before < chunk
            && (chunk - before).is_multiple_of(PAGE_BYTES)
            && end.is_multiple_of(PAGE_BYTES)
            && word & FLAGS == IS_MAPPED;
        return fits.then_some(bytes - HEADER_BYTES);
    }
    let lies_there = if word & OF_OTHER_ARENA != 0 {
        let heap = chunk & !(ARENA_BYTES - 1);
        let (arena, used) = (read(heap)?, read(heap + 16)?);
        let offset = arena & (ARENA_BYTES - 1);
        (HEADER_BYTES..MOST_BEFORE_ARENA).contains(&offset) && read(arena).is_some() && end <= heap + used
    } else {
        let first = FIRST_ARENA.load(Relaxed);
        first != 0 && first <= chunk && end <= data_end()
    };
    // Its user may write over the next chunk's first word, too.
    lies_there.then_some(bytes - HEADER_BYTES / 2)
}

/// The word at an address, if it can be read.
fn read(address: usize) -> Option<usize> {
    // The kernel reads the new mask before it looks at what to do with it, and refuses that.
    const NOTHING_TO_DO: i32 = -1;
    // SAFETY: changes nothing.
    let result = unsafe { syscall!(SYS_rt_sigprocmask, NOTHING_TO_DO, address, 0usize, 8usize) };
    let can = result == -isize::try_from(libc::EINVAL).ok()?;
    // SAFETY: the kernel has just read there.
    can.then(|| unsafe { (address as *const usize).read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_mapped_words_alone() {
        let word = 0x1234_5678usize;
        assert_eq!(read((&raw const word).addr()), Some(word));
        assert_eq!(read(8), None);
        assert_eq!(read(0x7fff_ffff_f000_0000), None);
    }

    #[test]
    fn knows_its_own_objects() {
        start(); // this program's heap may lie before: only mapped objects are certain
        // SAFETY: an object of the C library, freed by it.
        unsafe {
            let object = libc::malloc(1 << 20);
            let bytes = usable_size(object as usize).expect("an object of the C library");
            assert!(bytes >= 1 << 20);
            assert_eq!(usable_size(object as usize + 64), None);
            assert!(free(object as usize));
        }
        let on_stack = [0usize; 8];
        assert_eq!(usable_size((&raw const on_stack).addr() + 16), None);
    }
}
