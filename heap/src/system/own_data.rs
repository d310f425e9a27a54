//! The library's own zeroed variables: several MiB of tables, of which a program touches little. The heap
//! asks for small pages there. Where huge pages are the system's default (`always`), the first touch of a
//! table would take 2 MiB.

use crate::system::os;
use crate::units::geometry::{HUGE_PAGE_BYTES, PAGE_BYTES};

const PT_LOAD: u32 = 1;
const PF_W: u32 = 2;

/// Asks for small pages for the zeroed variables; before any of them is written.
///
/// The fast path may have read some before, and the kernel may have mapped its huge page of zeros there,
/// which it would replace by a huge page at the first write. A mapping that ends within a huge page makes the
/// kernel map small ones there. So each call ends behind the first small page of a huge one.
pub fn use_small_pages() {
    let Some((mut from, end)) = zeroed() else { return };
    for huge in (from.next_multiple_of(HUGE_PAGE_BYTES)..end).step_by(HUGE_PAGE_BYTES) {
        let beyond = huge + PAGE_BYTES;
        if beyond < end {
            os::advise_small(from, beyond - from);
            from = beyond;
        }
    }
    os::advise_small(from, end - from);
}

/// The pages of zeroed variables: those that a writable segment has beyond its part of the file.
fn zeroed() -> Option<(usize, usize)> {
    let image = image();
    // SAFETY: the linker places the file's headers there, and they are mapped with its first segment.
    unsafe {
        let word = |at: usize| (at as *const u64).read_unaligned() as usize;
        let half = |at: usize| (at as *const u16).read_unaligned() as usize;
        let flag = |at: usize| (at as *const u32).read_unaligned();
        let (headers, size, count) = (image + word(image + 32), half(image + 54), half(image + 56));
        let mut segments = (0..count).map(|i| headers + i * size).filter(|&at| flag(at) == PT_LOAD);
        let first = segments.clone().next()?;
        let bias = image.wrapping_sub(word(first + 16));
        segments.find_map(|at| {
            let start = bias.wrapping_add(word(at + 16));
            let from = (start + word(at + 32)).next_multiple_of(PAGE_BYTES);
            let end = (start + word(at + 40)).next_multiple_of(PAGE_BYTES);
            (flag(at + 4) & PF_W != 0 && from < end).then_some((from, end))
        })
    }
}

/// Where the file that this code lies in is mapped.
fn image() -> usize {
    let image: usize;
    // SAFETY: computes an address. The symbol is the linker's, and hidden: no other file's can replace it.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            ".hidden __ehdr_start",
            "lea {0}, [rip + __ehdr_start]",
            out(reg) image,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            ".hidden __ehdr_start",
            "adrp {0}, __ehdr_start",
            "add {0}, {0}, :lo12:__ehdr_start",
            out(reg) image,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    static VARIABLE: [core::sync::atomic::AtomicU64; 4096] =
        [const { core::sync::atomic::AtomicU64::new(0) }; 4096];

    #[test]
    fn finds_zeroed_variables() {
        let (from, end) = zeroed().expect("this program has some");
        let at = (&raw const VARIABLE).addr();
        assert!(
            from <= at + PAGE_BYTES && at + size_of_val(&VARIABLE) <= end,
            "{at:#x} in {from:#x}-{end:#x}"
        );
    }
}
