//! Reading clocks through the kernel's shared object (vDSO), without a system call and without the C library,
//! whose `clock_gettime` another preloaded library may interpose.

use core::ffi::CStr;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Release},
};

use crate::system::raw::syscall;

#[cfg(target_arch = "x86_64")]
const NAME: &CStr = c"__vdso_clock_gettime";
#[cfg(target_arch = "aarch64")]
const NAME: &CStr = c"__kernel_clock_gettime";

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> i32;

/// The function's address; 0: not looked up, 1: there is none.
static FUNCTION: AtomicUsize = AtomicUsize::new(0);
const ABSENT: usize = 1;

/// Nanoseconds on a clock, which exists.
pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let function = match FUNCTION.load(Acquire) {
        0 => look_up(),
        found => found,
    };
    // SAFETY: the address is that of a function of this type; `time` is valid.
    let read = function != ABSENT
        && unsafe { core::mem::transmute::<usize, ClockGettime>(function)(clock, &raw mut time) } == 0;
    if !read {
        // SAFETY: `time` is valid.
        unsafe { syscall!(SYS_clock_gettime, clock, &raw mut time) };
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cold]
fn look_up() -> usize {
    // SAFETY: always allowed. The kernel maps a whole ELF file there, and no valid program unmaps it.
    let found = unsafe {
        match libc::getauxval(libc::AT_SYSINFO_EHDR) as usize {
            0 => None,
            image => find(image),
        }
    };
    let function = found.unwrap_or(ABSENT);
    FUNCTION.store(function, Release);
    function
}

/// The part of an ELF symbol table's entry that is used here.
#[repr(C)]
struct Symbol {
    name: u32,
    kind: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// What the dynamic section says.
#[derive(Default)]
struct Tables {
    symbols: usize,
    strings: usize,
    hash: usize,
    gnu_hash: usize,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// Finds the function in the ELF file at `image`.
///
/// # Safety
/// A valid ELF file with its segments is mapped there.
unsafe fn find(image: usize) -> Option<usize> {
    // SAFETY: all offsets are those of the file's own headers.
    unsafe {
        let word = |at: usize| (at as *const u64).read_unaligned();
        let half = |at: usize| (at as *const u16).read_unaligned();
        let headers = image + word(image + 32) as usize;
        let (size, count) = (half(image + 54) as usize, half(image + 56) as usize);
        let segment = |kind: u32| {
            (0..count).map(|i| headers + i * size).find(|&at| (at as *const u32).read_unaligned() == kind)
        };
        let load = segment(PT_LOAD)?;
        let bias = (image as u64 + word(load + 8)).wrapping_sub(word(load + 16)) as usize;
        let mut at = bias.wrapping_add(word(segment(PT_DYNAMIC)? + 16) as usize);
        let mut tables = Tables::default();
        while word(at) != 0 {
            let target = bias.wrapping_add(word(at + 8) as usize);
            match word(at) {
                DT_HASH => tables.hash = target,
                DT_STRTAB => tables.strings = target,
                DT_SYMTAB => tables.symbols = target,
                DT_GNU_HASH => tables.gnu_hash = target,
                _ => {}
            }
            at += 16;
        }
        let symbols = core::slice::from_raw_parts(tables.symbols as *const Symbol, tables.count()?);
        let is_it = |symbol: &&Symbol| {
            symbol.section != 0
                && CStr::from_ptr((tables.strings + symbol.name as usize) as *const core::ffi::c_char) == NAME
        };
        Some(bias.wrapping_add(symbols.iter().find(is_it)?.value as usize))
    }
}

impl Tables {
    /// How many symbols there are, by either hash table.
    ///
    /// # Safety
    /// The addresses are those of the tables.
    unsafe fn count(&self) -> Option<usize> {
        if self.symbols == 0 || self.strings == 0 {
            return None;
        }
        // SAFETY: the tables have the layout of ELF's.
        unsafe {
            let half = |at: usize| (at as *const u32).read_unaligned() as usize;
            if self.hash != 0 {
                return Some(half(self.hash + 4));
            }
            if self.gnu_hash == 0 {
                return None;
            }
            let (buckets, first, blooms) =
                (half(self.gnu_hash), half(self.gnu_hash + 4), half(self.gnu_hash + 8));
            let of_buckets = self.gnu_hash + 16 + 8 * blooms;
            let chains = of_buckets + 4 * buckets;
            let mut last = (0..buckets).map(|i| half(of_buckets + 4 * i)).max().filter(|&i| i >= first)?;
            while half(chains + 4 * (last - first)) & 1 == 0 {
                last += 1;
            }
            Some(last + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_c_library() {
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_MONOTONIC_COARSE, libc::CLOCK_REALTIME] {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let before = clock_ns(clock);
            // SAFETY: `time` is valid.
            unsafe { libc::clock_gettime(clock, &raw mut time) };
            let theirs = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
            assert!(before <= theirs && theirs <= clock_ns(clock), "clock {clock}");
        }
    }

    #[test]
    fn finds_the_function_by_either_hash_table() {
        // SAFETY: always allowed; the kernel's own file.
        unsafe {
            let image = libc::getauxval(libc::AT_SYSINFO_EHDR) as usize;
            if image != 0 {
                assert!(find(image).is_some());
            }
        }
    }
}
